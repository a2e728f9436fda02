"""Zip archives of plain arrays (npz): read without pickles and within size limits.

Before memory is allocated, the declared size of an array is compared with the bytes in the file and with the machine's
memory. Members are read from the archive and never unpacked to disk, so their names cannot name other files.
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

SHARE = 0.5  # of the machine's memory that the content of one file may take
UNKNOWN_MEMORY = 16 << 30  # bytes, assumed where the system does not report its memory
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the compressions that numpy and torch use


def room() -> int:
    """Bytes that the content of one file may take: a share of the machine's memory."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = UNKNOWN_MEMORY
    return int(SHARE * memory)


def check_room(count: int, what: str) -> None:
    """Raise DataError if ``count`` bytes exceed the share of the memory that one file may take."""
    if count > room():
        raise DataError(
            f"expected {what} to fit into {SHARE:.0%} of the memory ({room() / 2**30:.1f} GiB), got "
            f"{count / 2**30:.3g} GiB; use a larger machine, or download the file again if it should be small"
        )


def check_unpacked(path: Path) -> None:
    """Raise DataError if a zip archive's members do not fit into memory or fail their checksums; skip other files."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_room(sum(info.file_size for info in archive.infolist()), f"the content of {path.name}")
            damaged = archive.testzip()
        if damaged is not None:
            raise DataError(f"expected {path.name} as it was written, got another checksum of {damaged}; save it again")


def array_names(path: Path) -> list[str]:
    """The names of the arrays in an npz file."""
    with zipfile.ZipFile(path) as archive:
        return sorted(name.removesuffix(".npy") for name in archive.namelist())


def read_arrays(path: Path, wanted: Collection[str] | None = None) -> Arrays:
    """The wanted arrays (by default all) of an npz file; the file's checksums are verified."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            chosen = {name: info for name, info in found.items() if wanted is None or name in wanted}
            check_room(sum(info.file_size for info in chosen.values()), f"the arrays of {path.name}")
            return {name: _read(archive, info) for name, info in chosen.items()}
    except FileNotFoundError:
        raise DataError(f"expected a file at {path}, got nothing; check the path") from None
    except DataError:
        raise
    except Exception as error:  # damaged bytes can raise any exception in zipfile and numpy
        raise DataError(
            f"{path.name}: expected an npz archive of plain arrays (no pickles), got a file that cannot be "
            f"read ({listing([error], 200)}); write it again with numpy.savez"
        ) from error


def write_sealed(path: Path, about: Mapping[str, Any], arrays: Arrays) -> None:
    """Write arrays and plain values about them to one npz file, atomically, with a digest of everything."""
    text = json.dumps(sealed(about, arrays))
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, about=np.array(text), **arrays)  # type: ignore[arg-type]


def read_sealed(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Read the plain values and the arrays that `write_sealed` wrote; raise DataError if the file was changed."""
    arrays = read_arrays(path)
    try:
        return unsealed(json.loads(str(arrays.pop("about"))), arrays), arrays
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        words = error if isinstance(error, ValueError) else "it has no plain values about the arrays"
        raise DataError(
            f"expected {path.name} as jurygcn wrote it, got another file ({words}); write it again"
        ) from error


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array; raise ValueError if its header and the archive disagree on its length."""
    if info.compress_type not in _PACKED:
        raise ValueError(f"{info.filename} has a compression that numpy does not use")
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
            raise ValueError(f"{info.filename} declares {declared} bytes and has {there}")
    with archive.open(info) as member:
        array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
        member.read(1)  # reading to the end verifies the checksum
    return array
