"""The content of a report as plain values; saved as JSON, rendered as HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jurygcn.errors import DataError
from jurygcn.io.files import read_json, write_text
from jurygcn.io.fingerprints import sealed, unsealed
from jurygcn.report.page import render
from jurygcn.report.validation import check_content

FORMAT = 4
FILE = "report.json"
SECTIONS = {
    "title",
    "caution",
    "headline",
    "left_out",
    "columns",
    "rows",
    "charts",
    "checkup",
    "edges",
    "training",
    "details",
    "notes",
}


@dataclass(frozen=True, eq=False)
class Report:
    """The content of the page. `report_on` computes it; reading and writing compute nothing.

    Attributes:
        content: headline numbers, a row per node, data of the charts, neighbours, influential labels, diagnostics.
    """

    content: Mapping[str, Any]

    def __repr__(self) -> str:
        rows, columns = len(self.content["rows"]["node"]), len(self.content["columns"])
        return f"Report({self.content['title']!r}: {rows:,} nodes, {columns} columns; write it with report.write(path))"

    def to_html(self) -> str:
        """The page as one HTML file that works offline."""
        return render(self.content)

    def write(self, path: str | Path) -> Path:
        """Write the page."""
        path = Path(path)
        write_text(path, self.to_html())
        return path

    def to_json(self) -> str:
        """The content as JSON, for `load`."""
        document = sealed({"format": FORMAT, **self.content})
        return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"

    def save(self, folder: str | Path) -> Path:
        """Save the content as report.json in a folder."""
        path = Path(folder) / FILE
        write_text(path, self.to_json())
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Load a saved report from its folder or its report.json."""
        path = Path(folder)
        path = path / FILE if path.is_dir() else path
        try:
            content = unsealed(read_json(path))
            if content.pop("format") != FORMAT or not content.keys() >= SECTIONS:
                raise ValueError("another format")
            check_content(content)
        except OSError as error:
            raise DataError(
                f"expected a {FILE} at {folder}, got {error.strerror}; write one with jurygcn quantify --out"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DataError(
                f"expected a {FILE} that jurygcn wrote, got other content ({error}); write it again"
            ) from error
        return cls(content)


def rounded(value: Any, digits: int = 4) -> Any:
    """The value with floats rounded to ``digits`` significant digits, and None for NaN and infinity."""
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value
