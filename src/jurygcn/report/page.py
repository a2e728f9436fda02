"""The page itself: a template, a style sheet, scripts, and the content as data between them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

SCRIPTS = ("elements.js", "table.js", "charts.js", "neighbourhood.js", "page.js")


def render(content: Mapping[str, Any]) -> str:
    """The whole page. User text is in the title, escaped, and in the data, which scripts only ever show as text.

    The page's own policy lets exactly this script run and nothing be fetched.
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
    pieces = _asset("page.html").split("%%")  # text, name, text, name, ..., text: what is put in is never split
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def as_script_data(content: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element: no character of it can end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (files("jurygcn.report") / name).read_text(encoding="utf-8")
