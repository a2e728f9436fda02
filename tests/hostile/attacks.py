"""Files that lie about themselves, or want to run something, shared by the tests of hostile input."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from jurygcn.errors import JuryError

EDGES = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
GRAPH = {"edge_index": EDGES, "x": np.eye(3, dtype=np.float32), "y": np.array([0, 1, 0])}


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    npy.write_array(stream, array, allow_pickle=True)
    return stream.getvalue()


def lying_npy(shape: tuple[int, ...], descr: str, content: bytes) -> bytes:
    """An npy file whose header promises this shape."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue() + content


def write_npz(path: Path, *, compressed: bool = True, **members: np.ndarray | bytes) -> Path:
    """An npz archive of arrays and of raw members; `__` in a name stands for `/`."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members.items():
            raw = content if isinstance(content, bytes) else npy_bytes(content)
            archive.writestr(f"{name.replace('__', '/')}.npy", raw)
    return path


def flipped(content: bytes, count: int, seed: int = 0) -> list[bytes]:
    """Copies of the content, each with one to four bytes changed or its end cut off."""
    rng, copies = np.random.default_rng(seed), []
    for number in range(count):
        copy = bytearray(content)
        for place in rng.integers(0, len(copy), size=rng.integers(1, 5)):
            copy[place] = rng.integers(0, 256)
        copies.append(bytes(copy[: rng.integers(1, len(copy))] if number % 5 == 0 else copy))
    return copies


def sentence(call: Callable, *arguments, **options) -> str:
    """What the call is refused with, in one line; empty if it succeeds; any other exception is the test's failure."""
    try:
        call(*arguments, **options)
    except JuryError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
    return said
