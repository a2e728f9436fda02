"""How results become pages: rows, tables, findings, a picture. `number_tables.py` is the script."""
