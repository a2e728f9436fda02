"""The console script. It handles signals and closed streams before anything large is imported."""

from __future__ import annotations

import codecs
import os
import sys

from jurygcn.signals import listen

# ASCII forms of the other characters in our texts, for terminals and files that cannot encode them.
PLAIN = {"→": "->", "±": "+-", "…": "...", "α": "alpha", "τ": "tau"}


def main() -> None:
    """Run a command."""
    listen()
    open_streams()
    from jurygcn.cli import app

    app()


def open_streams() -> None:
    """Replace closed standard streams by the null device, and make every stream accept any character."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is this one
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    codecs.register_error("jurygcn", in_plain_characters)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="jurygcn")  # type: ignore[union-attr]
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]


def in_plain_characters(error: UnicodeError) -> tuple[str | bytes, int]:
    """Codec error handler: replace a character that the stream cannot encode by ASCII or an escape."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    plain = [PLAIN.get(c, c.encode("ascii", "backslashreplace").decode("ascii")) for c in missing]
    return "".join(plain), error.end


if __name__ == "__main__":
    main()
