"""Read CSV files, and write text cells so that spreadsheets do not run them as formulas.

A text cell that begins like a formula, with or without apostrophes in front, gets one more apostrophe in front. This
can be undone exactly. Numbers are written unchanged.
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

# = + - @ and their full-width forms begin formulas; some programs skip tabs and line ends in front of them
_FORMULA = "=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20"
_RISKY, _QUOTED = re.compile(f"'*[{_FORMULA}]"), re.compile(f"'+[{_FORMULA}]")


def quoted(cell: Any) -> Any:
    """The cell to write: text that could be a formula gets an apostrophe in front, all else is unchanged."""
    return f"'{cell}" if isinstance(cell, str) and _RISKY.match(cell) else cell


def unquoted(text: str) -> str:
    """Undo :func:`quoted`."""
    return text[1:] if _QUOTED.match(text) else text


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV text.

    The writer ends lines with a carriage return, because only then does it quote cells that contain one.
    """
    text = []
    for row in (columns, *rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\r\n").writerow([quoted(cell) for cell in row])
        text.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(text)


def read_rows(path: Path, *, largest: int | None = LARGEST_TEXT) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of the non-empty rows of a CSV file; raise DataError if it is not CSV in UTF-8."""
    try:
        with open_text(path, largest=largest) as file:
            rows = csv.reader(file, strict=True)  # otherwise an unclosed quotation mark would swallow rows
            for row in rows:
                if row:
                    yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"{path.name}: expected a CSV table, got {error}; save it again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: expected CSV text in UTF-8, got other bytes; save it as CSV in UTF-8") from error


def check_header(header: Sequence[str], file: str) -> list[str]:
    """The names of the columns; raise DataError unless they are unique and non-empty."""
    names = [cell.strip() for cell in header]
    for separator, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and separator in names[0]:
            raise DataError(f"{file}: expected cells separated by commas, got {word}; save it as CSV with commas")
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    if repeated or "" in names:
        got = f"{excerpt(repeated)} more than once" if repeated else "a column without name"
        raise DataError(f"{file}: expected one name per column, got {got}; rename it")
    return names
