"""The cache folder: npz files without pickles, written atomically by one process at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from torch_geometric.data import Data

from jurygcn.data.npz import read_npz, write_npz
from jurygcn.data.places import ENVIRONMENT, Sizes
from jurygcn.data.validate import clean, sizes
from jurygcn.errors import DataError, DataNotice

LOCK_SECONDS = 900.0  # how long to wait for another process, which may be downloading


def read_cached(path: Path, expected: Sizes | None = None) -> Data | None:
    """The graph in a cache file; None if there is no file, or (with a notice) if it is damaged."""
    if not path.is_file():
        return None
    try:
        data = clean(read_npz(path), quiet=True)
        if expected is not None and sizes(data) != expected:
            raise DataError(f"expected sizes {tuple(expected)}, got {tuple(sizes(data))}")
    except DataError as error:
        warnings.warn(f"{path} is damaged and will be rebuilt ({error})", DataNotice, stacklevel=3)
        return None
    return data


def store(path: Path, data: Data) -> None:
    """Write a clean graph to the cache; if the folder cannot be written, issue a notice."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, data)
    except OSError as error:
        _announce_unwritable(path.parent, error)


@contextmanager
def exclusive(folder: Path, purpose: str) -> Iterator[None]:
    """Hold the folder's lock for this purpose; other processes wait."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(folder / f".{purpose}.lock"))
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        raise DataError(
            f"expected another process to release the lock on {folder} within {LOCK_SECONDS:.0f} s, got no release; "
            f"end that process, or choose another folder with {ENVIRONMENT}"
        ) from None
    except OSError as error:
        _announce_unwritable(folder, error)
        yield
        return
    try:
        yield
    finally:
        lock.release()


def _announce_unwritable(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"nothing is cached, because {folder} cannot be written ({error}); choose a folder with {ENVIRONMENT}",
        DataNotice,
        stacklevel=4,
    )
