"""Put a page together from a template, style sheets, scripts and data, in one file that fetches no other."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SHARED = "jurygcn.web"


@dataclass(frozen=True)
class Page:
    """A page, and the hashes with which a content security policy allows its own script and style only."""

    text: str
    script_hash: str
    style_hash: str


def render(
    package: str, template: str, *, styles: Sequence[str], scripts: Sequence[str], title: str, content: Any
) -> Page:
    """The page from the files of ``package``; a name that starts with "web/" is a shared file.

    User text appears escaped in the title, and in the data, which scripts show only as text.
    """
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(package, name) for name in scripts) + "})();\n"
    style = "\n" + "".join(_asset(package, name) for name in styles)
    parts = {
        "title": html.escape(title),
        "script-hash": _hash(script),
        "style": style,
        "data": as_script_data(content),
        "script": script,
    }
    pieces = _asset(package, template).split("%%")  # text, name, ..., text; inserted parts are not split again
    text = "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))
    return Page(text, parts["script-hash"], _hash(style))


def as_script_data(content: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: it cannot end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(package: str, name: str) -> str:
    home, file = (SHARED, name[4:]) if name.startswith("web/") else (package, name)
    return (files(home) / file).read_text(encoding="utf-8")
