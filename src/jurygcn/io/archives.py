"""Zip archives of plain arrays (npz): read without pickles, and within bounds.

What a file declares about its own size is compared with what it holds, and with the machine's memory, before memory is
asked for. Members are read where they lie and never unpacked, so their names cannot lead anywhere.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from jurygcn.errors import DataError, listing
from jurygcn.io.files import replacing
from jurygcn.io.fingerprints import sealed, unsealed

Arrays = dict[str, NDArray[Any]]

SHARE = 0.5  # of the machine's memory, for what one file holds
UNKNOWN_MEMORY = 16 << 30  # where the machine does not say how much it has
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy and torch write


def room() -> int:
    """Bytes that the content of one file may take: a share of the machine's memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = UNKNOWN_MEMORY
    return int(SHARE * memory)


def check_room(count: int, what: str) -> None:
    """Refuse what would take more than its share of the memory; ``count`` is in bytes."""
    if count > room():
        raise DataError(
            f"expected {what} to fit into {SHARE:.0%} of the memory ({room() / 2**30:.1f} GiB), got "
            f"{count / 2**30:.3g} GiB; use a larger machine, or fetch the file anew if it should be small"
        )


def check_unpacked(path: Path) -> None:
    """Refuse a zip archive whose members do not fit into memory or have other checksums; other files pass."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_room(sum(info.file_size for info in archive.infolist()), f"the content of {path.name}")
            damaged = archive.testzip()
        if damaged is not None:
            raise DataError(f"expected {path.name} as it was written, got another checksum of {damaged}; save it anew")


def array_names(path: Path) -> list[str]:
    """What the arrays of an npz file are called."""
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(".npy") for name in archive.namelist())


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> Arrays:
    """The wanted arrays (by default all) of an npz file, checked against the file's own checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {name: info for name, info in found.items() if wanted is None or name in wanted}
            check_room(sum(info.file_size for info in chosen.values()), f"the arrays of {path.name}")
            return {name: _read(archive, info) for name, info in chosen.items()}
    except FileNotFoundError:
        raise DataError(f"expected a file at {path}, got nothing there; check the path") from None
    except DataError:
        raise
    except Exception as error:  # damaged bytes fail in any way: zipfile and numpy have no exception of their own for it
        raise DataError(
            f"{path.name}: expected an npz archive of plain arrays (no pickles), got a file that cannot be "
            f"read ({listing([error], 200)}); write it again with numpy.savez"
        ) from error


def write_sealed(path: Path, about: Mapping[str, Any], arrays: Arrays) -> None:
    """Write arrays and plain values about them as one npz file, in one piece, with a digest of all of it."""
    text = json.dumps(sealed(about, arrays))
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, about=np.array(text), **arrays)  # type: ignore[arg-type]


def read_sealed(path: Path) -> tuple[dict[str, Any], Arrays]:
    """What `write_sealed` wrote: the plain values and the arrays; a ValueError if anything was changed since."""
    arrays = read_arrays(path)
    try:
        return unsealed(json.loads(str(arrays.pop("about"))), arrays), arrays
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        words = error if isinstance(error, ValueError) else "no plain values about the arrays are in it"
        raise DataError(f"expected {path.name} as jurygcn wrote it, got another file: {words}; make it anew") from error


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, if its header and the archive agree on how long it is."""
    if info.compress_type not in _PACKED:
        raise ValueError(f"{info.filename} is packed in a way that numpy does not use")
    with archive.open(info) as member:
        version = npy.read_magic(member)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"{info.filename} has a header of version {version}")
        shape, _, dtype = readers[version](member)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects")
        declared, there = math.prod(shape) * max(dtype.itemsize, 1), info.file_size - member.tell()
        if declared != there:
            raise ValueError(f"{info.filename} declares {declared} bytes of numbers and has {there}")
    with archive.open(info) as member:
        array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        member.read(1)  # the end, where the checksum is compared
    return array
