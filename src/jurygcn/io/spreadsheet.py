"""CSV files: rows read with care, and text cells that no spreadsheet takes for formulas, read back as they were.

A cell of text that begins like a formula gets an apostrophe in front; so does one that begins with apostrophes and then
like a formula, which makes the rule reversible. Numbers are written as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jurygcn.errors import DataError, excerpt
from jurygcn.io.files import LARGEST_TEXT, open_text

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


def read_rows(path: Path, *, largest: int | None = LARGEST_TEXT) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the rows of a CSV file that are not empty; a file that is no CSV is a DataError."""
    try:
        with open_text(path, largest=largest) as file:
            rows = csv.reader(file, strict=True)  # otherwise a quotation mark without its twin swallows rows
            for row in rows:
                if row:
                    yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"{path.name}: expected a CSV table, got {error}; save it anew") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: expected CSV text in UTF-8, got other bytes; save it as CSV in UTF-8") from error


def check_header(header: Sequence[str], file: str) -> list[str]:
    """The names of the columns, if each has one of its own."""
    names = [cell.strip() for cell in header]
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    if repeated or "" in names:
        got = f"{excerpt(repeated)} more than once" if repeated else "a column without name"
        raise DataError(f"{file}: expected one name per column, got {got}; rename it")
    return names
