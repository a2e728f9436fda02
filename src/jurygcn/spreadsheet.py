"""Text cells of CSV files, written so that no spreadsheet takes them for formulas, and read back as they were.

A cell of text that begins like a formula gets an apostrophe in front; so does one that begins with apostrophes and then
like a formula, which makes the rule reversible. Numbers are written as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

# = + - @ begin formulas, also in their full-width forms; tabs and line ends are skipped by some programs before them
_FORMULA = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
_RISKY, _QUOTED = re.compile(f"'*[{_FORMULA}]"), re.compile(f"'+[{_FORMULA}]")


def quoted(cell: Any) -> Any:
    """The cell as it is written: text that could be a formula with an apostrophe in front, all else unchanged."""
    return f"'{cell}" if isinstance(cell, str) and _RISKY.match(cell) else cell


def unquoted(text: str) -> str:
    """The text that was written as this cell."""
    return text[1:] if _QUOTED.match(text) else text


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV text.

    Python's writer puts a cell into quotation marks for a carriage return only if that ends its lines too; otherwise
    the rest of the cell would begin a row of its own.
    """
    text = []
    for row in (columns, *rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow([quoted(cell) for cell in row])
        text.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(text)
