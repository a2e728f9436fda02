"""Brings the docstrings into the form that the site's generator reads.

``:math:`` is shown as code, so that the site needs no script from elsewhere; an entry for several names
("lower, upper: ...") becomes one entry per name.
"""

from __future__ import annotations

import re
import textwrap

import griffe

ROLE = re.compile(r":(?:math|class|func):`([^`]*)`")
FORMULA = re.compile(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *(?=\n\1 )))*)", flags=re.MULTILINE)
SHARED_ENTRY = re.compile(r"^( {4})(\w+(?:, \w+)+):( .*(?:\n {5,}.*)*)", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites every docstring after it has been read."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Called for each object that has been loaded."""
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def readable(text: str) -> str:
    """The docstring with code for formulas and an entry for every name."""
    return SHARED_ENTRY.sub(_entries, ROLE.sub(r"`\1`", FORMULA.sub(_code, text)))


def _code(match: re.Match[str]) -> str:
    first, *rest = match[2].split("\n")
    body = "\n".join([first.strip(), textwrap.dedent("\n".join(rest))]).strip()
    return textwrap.indent(f"```latex\n{body}\n```", match[1])


def _entries(match: re.Match[str]) -> str:
    return "\n".join(f"{match[1]}{name}:{match[3]}" for name in match[2].split(", "))
