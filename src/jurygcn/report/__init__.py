"""One self-contained HTML page from a verdict; gathered once, then written without computing anything again."""

from jurygcn.report.content import report_on
from jurygcn.report.document import Report

__all__ = ["Report", "report_on"]
