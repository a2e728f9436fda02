"""Writing files so that nobody ever reads half of one, and reading JSON that may be anything."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from jurygcn.errors import SettingError

try:
    import fcntl
except ImportError:  # not on Windows, where what a killed process leaves behind stays there
    fcntl = None  # type: ignore[assignment]

LARGEST_TEXT = 256 << 20  # bytes; as Python's objects they take some twenty times as much
FRESH = 60.0  # seconds in which a temporary file is left alone: its writer may not have locked it yet
PATIENCE = 60.0  # seconds to wait for another process that changes the same file
_TOKEN = re.compile(r"[0-9a-f]{32}")  # with our name before it, the mark of a temporary file of ours


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes ``path``'s place only when the block succeeds.

    A symbolic link stays one: the file that it points to is replaced. A file that is there already keeps its mode and,
    where the system allows it, its owner. What writers of the same file left behind when they were killed is removed.
    """
    path = _followed(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = _regular(path)
    prefix = _prefix(path)
    _remove_abandoned(path, prefix)
    temporary = path.with_name(f"{prefix}{secrets.token_hex(16)}{_suffix(path)}")
    # the system takes the umask off a new file's mode; the umask itself cannot be read without changing it
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        _lock(handle)  # until the file is in place or this process ends, however it ends
        yield temporary
        if old is not None:
            _keep_access(temporary, old)
        os.fsync(handle)
        temporary.replace(path)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


@contextmanager
def changing(path: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Let one process at a time read ``path``, change it and write it; the others wait, or are refused in the end.

    The lock is a file beside it, which is removed at the end; one that a killed process left behind holds nobody up.
    """
    path = _followed(path)
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    lock = path.with_name(f"{_prefix(path)}lock")
    refusal = SettingError(
        f"expected to be alone in changing {path.name}, got another process at it; start again when it has ended"
    )
    if fcntl is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(str(lock), timeout=patience):
                yield
        except Timeout:
            raise refusal from None
        return
    deadline = time.monotonic() + patience
    while (handle := _taken(lock)) is None:
        if time.monotonic() >= deadline:
            raise refusal
        time.sleep(0.02)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()  # while it is locked: whoever waits for it then finds that it is gone, and makes a new one
        os.close(handle)
        with suppress(OSError):  # folders made for nothing go again, the innermost first
            for folder in made:
                folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file in one piece."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_text(
    path: Path, *, encoding: str = "utf-8-sig", errors: str = "strict", largest: int | None = LARGEST_TEXT
) -> TextIO:
    """Open a file that the user named, for reading with its line ends as they are.

    A folder, a device, a pipe or a file of more than ``largest`` bytes is an OSError: they could block, or never end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
        raise OSError(errno.EINVAL, f"{what} instead of a file", str(path))
    if largest is not None and status.st_size > largest:
        size = f"{status.st_size / 2**20:,.0f} MiB, over the {largest >> 20} MiB that are read"
        raise OSError(errno.EFBIG, f"a file of {size}", str(path))
    return path.open(newline="", encoding=encoding, errors=errors)


def read_json(path: Path) -> Any:
    """The content of a JSON file; whatever is not JSON, or nested beyond reason, is a ValueError."""
    try:
        with open_text(path, encoding="utf-8") as file:
            return json.load(file, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("lists within lists without end") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word}, which JSON does not have")


def _followed(path: Path) -> Path:
    """The file that a symbolic link leads to; any other path as it is."""
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return end


def _regular(path: Path) -> os.stat_result | None:
    """What is known of the file at ``path``; None if there is none. A device or a pipe is not to be replaced."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(kind, os.strerror(kind) if kind == errno.EISDIR else "a device or pipe, not a file", str(path))
    return found


def _prefix(path: Path) -> str:
    """How the names of our temporary files for ``path`` begin; long names are cut, for the system has a limit."""
    return f".{os.fsdecode(os.fsencode(path.name)[:150])}.jurygcn-"


def _suffix(path: Path) -> str:
    """How they end: like ``path``, for some writers choose a format by it."""
    return path.suffix if len(path.suffix) < 16 else ""


def _keep_access(temporary: Path, old: os.stat_result) -> None:
    """Give the new file the mode and owner of the old one; if the group cannot be kept, it gets no more than others."""
    mode = stat.S_IMODE(old.st_mode) & 0o777
    made = temporary.stat()
    if (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid) and hasattr(os, "chown"):
        try:
            os.chown(temporary, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.chown(temporary, -1, old.st_gid)
            except OSError:
                mode = mode & ~0o070 | (mode & 0o007) << 3
    temporary.chmod(mode)


def _taken(lock: Path) -> int | None:
    """The open lock file, if it is now this process's own; None if somebody else has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        with suppress(OSError):
            os.fchmod(handle, 0o666)  # it is empty, and another user of the same folder must be able to lock it
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), lock.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):  # somebody has it, or has just removed it
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _lock(handle: int) -> bool:
    """Whether the open file is now this process's own."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody else's, or a file system without locks
        return False
    return True


def _remove_abandoned(path: Path, prefix: str) -> None:
    """Remove our temporary files whose writer is gone: nobody has them locked, and they are not fresh."""
    for left in path.parent.iterdir():
        token = left.name.removeprefix(prefix).removesuffix(_suffix(path))
        if not left.name.startswith(prefix) or not _TOKEN.fullmatch(token):
            continue
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime < FRESH:
                continue
            handle = os.open(left, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            try:
                if _lock(handle):
                    left.unlink(missing_ok=True)
            finally:
                os.close(handle)
