"""Ctrl-C and SIGTERM end the process with one word and an exit code, at any time.

This module is loaded first, so it imports nothing large.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

WORDS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}


class _State:
    """The signal that this process received, and whether it has files to remove before it ends."""

    received: int | None = None
    working = False


def listen() -> None:
    """Install the handlers; a signal that the parent process ignores (nohup, a background job) stays ignored."""
    for number in WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _receive)


def received() -> int | None:
    """The signal that was received, or None."""
    return _State.received


def handled() -> None:
    """Tell Python that the KeyboardInterrupt was handled.

    CPython remembers one that passed through ``exec`` of a string, as imports may call it, and then ends the process by
    SIGINT whatever its exit code. The next ``exec`` of a string clears that.
    """
    exec("")


@contextmanager
def working(yes: bool = True) -> Iterator[None]:
    """While the block runs, the first signal raises KeyboardInterrupt, so that unfinished files are removed.

    Within it, ``working(False)`` marks code that leaves no files, such as imports: there a signal ends the process at
    once.
    """
    before, _State.working = _State.working, yes
    try:
        yield
    finally:
        _State.working = before


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C is the way to end the block: the command then goes on after it. SIGTERM still ends the command."""
    try:
        yield
    except KeyboardInterrupt:
        if _State.received not in (None, signal.SIGINT):
            raise
    if _State.received == signal.SIGINT:  # other libraries may swallow KeyboardInterrupt
        _State.received = None
    handled()


def _receive(number: int, _: FrameType | None) -> None:
    first, _State.received = _State.received is None, number
    if _State.working and first:
        raise KeyboardInterrupt
    with suppress(OSError):
        os.write(2, f"{WORDS[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)
