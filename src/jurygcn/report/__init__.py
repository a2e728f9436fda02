"""One self-contained HTML page of a verdict. `report_on` computes its content; writing recomputes nothing.

`report_on` is imported at first use, so that `jurygcn report` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jurygcn.report.document import Report

if TYPE_CHECKING:
    from jurygcn.report.content import report_on

__all__ = ["Report", "report_on"]


def __getattr__(name: str) -> Any:
    """The function `report_on`."""
    if name != "report_on":
        raise AttributeError(f"module 'jurygcn.report' has no attribute {name!r}")
    from jurygcn.report.content import report_on

    return report_on
