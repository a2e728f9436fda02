"""One self-contained HTML page of a verdict. `report_on` computes its content; writing recomputes nothing."""

from jurygcn.report.content import report_on
from jurygcn.report.document import Report

__all__ = ["Report", "report_on"]
