"""Writing files so that nobody ever reads half of one, and reading JSON that may be anything."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

try:
    import fcntl
except ImportError:  # not on Windows, where what a killed process leaves behind stays there
    fcntl = None  # type: ignore[assignment]

LARGEST_TEXT = 256 << 20  # bytes; as Python's objects they take some twenty times as much
FRESH = 60.0  # seconds in which a temporary file is left alone: its writer may not have locked it yet


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes ``path``'s place only when the block succeeds.

    What writers of the same file left behind when they were killed is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    _remove_abandoned(path.parent, prefix)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=path.suffix)
    temporary = Path(name)
    try:
        _lock(handle)  # until the file is in place or this process ends, however it ends
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        _flush_to_disk(temporary)
        temporary.replace(path)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one piece."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_text(path: Path, *, encoding: str = "utf-8-sig") -> TextIO:
    """Open a file that the user named, for reading with its line ends as they are.

    A folder, a device, a pipe or a file beyond `LARGEST_TEXT` is an OSError: they could block, or never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
        raise OSError(errno.EINVAL, f"{what} instead of a file", str(path))
    if status.st_size > LARGEST_TEXT:
        size = f"{status.st_size / 2**20:,.0f} MiB, over the {LARGEST_TEXT >> 20} MiB that are read"
        raise OSError(errno.EFBIG, f"a file of {size}", str(path))
    return path.open(newline="", encoding=encoding)


def read_json(path: Path) -> Any:
    """The content of a JSON file; whatever is not JSON, or nested beyond reason, is a ValueError."""
    try:
        with open_text(path, encoding="utf-8") as file:
            return json.load(file, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("lists within lists without end") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word}, which JSON does not have")


def _lock(handle: int) -> bool:
    """Whether the open file is now this process's own."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody else's, or a file system without locks
        return False
    return True


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove temporary files whose writer is gone: nobody has them locked, and they are not fresh."""
    for left in folder.glob(f"{prefix}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime < FRESH:
                continue
            handle = os.open(left, os.O_RDWR)
            try:
                if _lock(handle):
                    left.unlink(missing_ok=True)
            finally:
                os.close(handle)


def _flush_to_disk(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
