"""The report as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jurygcn import web

STYLES = ("web/base.css", "page.css")
SCRIPTS = (
    *("web/elements.js", "web/axes.js", "web/picture.js", "web/theme.js"),
    *("rows.js", "table.js", "charts.js", "neighbourhood.js", "left_out.js", "page.js"),
)


def render(content: Mapping[str, Any]) -> str:
    """The page as HTML. Its content security policy allows only its own script and no requests."""
    title = str(content["title"])
    return web.render("jurygcn.report", "page.html", styles=STYLES, scripts=SCRIPTS, title=title, content=content).text
