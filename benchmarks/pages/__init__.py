"""How results become tables and a picture. `number_tables.py` is the script."""
