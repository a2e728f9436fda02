"""Atomic writing of files, and reading of text and JSON from untrusted files."""

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
except ImportError:  # Windows: temporary files of killed processes are not removed there
    fcntl = None  # type: ignore[assignment]

LARGEST_TEXT = 256 << 20  # bytes; the parsed Python objects take about twenty times as much memory
FRESH = 60.0  # seconds during which a temporary file is kept: its writer may not have locked it yet
PATIENCE = 60.0  # seconds to wait for another process that changes the same file
_TOKEN = re.compile(r"[0-9a-f]{32}")  # the random part of a temporary file's name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it replaces ``path`` when the block succeeds.

    A symbolic link stays a link: its target is replaced. An existing file keeps its mode and, where the system allows
    it, its owner. Temporary files of killed writers of the same file are removed.
    """
    path = _followed(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    old = _regular(path)
    prefix = _prefix(path)
    _remove_abandoned(path, prefix)
    temporary = path.with_name(f"{prefix}{secrets.token_hex(16)}{_suffix(path)}")
    # the system applies the umask to a new file's mode; Python cannot read the umask without changing it
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        _lock(handle)  # held until the file is in place or this process ends
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
    """Hold a lock while this process reads, changes and writes ``path``; others wait up to ``patience`` seconds.

    The lock is a file in the same folder, removed at the end. The lock file of a killed process does not block others.
    """
    path = _followed(path)
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    lock = path.with_name(f"{_prefix(path)}lock")
    refusal = SettingError(
        f"expected no other process to change {path.name}, got one that does; start again when it has ended"
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
            lock.unlink()  # while locked: a waiting process then sees that it is gone and creates a new one
        os.close(handle)
        with suppress(OSError):  # remove the folders created above if they are empty, innermost first
            for folder in made:
                folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_text(
    path: Path, *, encoding: str = "utf-8-sig", errors: str = "strict", largest: int | None = LARGEST_TEXT
) -> TextIO:
    """Open a file that the user named for reading, with line ends unchanged.

    A folder, a device, a pipe or a file of more than ``largest`` bytes raises OSError: reading could block or never
    end.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
        raise OSError(errno.EINVAL, f"{what} instead of a file", str(path))
    if largest is not None and status.st_size > largest:
        size = f"{status.st_size / 2**20:,.0f} MiB, over the limit of {largest >> 20} MiB"
        raise OSError(errno.EFBIG, f"a file of {size}", str(path))
    return path.open(newline="", encoding=encoding, errors=errors)


def read_json(path: Path) -> Any:
    """The content of a JSON file; raise ValueError if it is not JSON or nested too deeply."""
    try:
        with open_text(path, encoding="utf-8") as file:
            return json.load(file, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("lists nested too deeply") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word}, which is not valid JSON")


def _followed(path: Path) -> Path:
    """The target of a symbolic link; any other path unchanged."""
    if not path.is_symlink():
        return path
    end = Path(os.path.realpath(path))
    if end.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return end


def _regular(path: Path) -> os.stat_result | None:
    """The status of the file at ``path``, or None if there is none; a folder, device or pipe raises OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(kind, os.strerror(kind) if kind == errno.EISDIR else "a device or pipe, not a file", str(path))
    return found


def _prefix(path: Path) -> str:
    """The prefix of our temporary files for ``path``; cut to 150 bytes, because file names have a length limit."""
    return f".{os.fsdecode(os.fsencode(path.name)[:150])}.jurygcn-"


def _suffix(path: Path) -> str:
    """The suffix of our temporary files: that of ``path``, because some writers choose the format by it."""
    return path.suffix if len(path.suffix) < 16 else ""


def _keep_access(temporary: Path, old: os.stat_result) -> None:
    """Give the new file the old one's mode and owner; if the group cannot be set, it gets the rights of others."""
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
    """Open and lock the lock file; None if another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        with suppress(OSError):
            os.fchmod(handle, 0o666)  # other users of the folder must be able to lock it, and it is empty
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), lock.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):  # another process holds it, or has just removed it
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _lock(handle: int) -> bool:
    """Lock the open file; False if that fails."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or a file system without locks
        return False
    return True


def _remove_abandoned(path: Path, prefix: str) -> None:
    """Remove temporary files whose writer was killed: they are unlocked and older than FRESH seconds."""
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
