"""Render the page from a template, a style sheet, scripts and the content."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

SCRIPTS = ("elements.js", "table.js", "charts.js", "neighbourhood.js", "left_out.js", "page.js")


def render(content: Mapping[str, Any]) -> str:
    """The page as HTML. User text appears escaped in the title, and in the data, which scripts show only as text.

    The page's content security policy allows only this script and no requests.
    """
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(str(content["title"])),
        "script-hash": f"sha256-{digest}",
        "style": _asset("page.css"),
        "data": as_script_data(content),
        "script": script,
    }
    pieces = _asset("page.html").split("%%")  # text, name, text, name, ..., text; inserted parts are not split again
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def as_script_data(content: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: it cannot end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (files("jurygcn.report") / name).read_text(encoding="utf-8")
