"""One self-contained HTML page from a verdict; gathered once, then written without computing anything again."""

from jurygcn.report.document import Report
from jurygcn.report.gather import report_on

__all__ = ["Report", "report_on"]
