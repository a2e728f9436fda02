"""Random changes to files: to bytes, to JSON, to arrays, to tables, to members of archives."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from attacks import npy_bytes

from jurygcn.io.fingerprints import sealed

Generator = np.random.Generator
Mutator = Callable[[bytes, Generator], bytes]

STRANGE = [
    *(None, True, False, 0, -1, 1, 2, 7, 10**6, -(10**18), 10**30, 1e308, -1e-300, 0.5, math.nan, math.inf, -math.inf),
    *("", "0", "-1", "nan", "a", "\ud800", "=1+1", "x" * 300, [], [[]], {}, [0], [1, 1], {"a": 1}, [None], ["0"]),
]


# --- bytes ----------------------------------------------------------------------------------------------------


def any_bytes(content: bytes, rng: Generator) -> bytes:
    """Flip, cut, insert, repeat, swap or zero some of them."""
    copy = bytearray(content)
    start = int(rng.integers(0, max(1, len(copy))))
    stop = min(len(copy), start + int(rng.integers(1, 40)))
    kind = rng.integers(0, 6)
    if kind == 0:
        for place in rng.integers(0, len(copy), size=rng.integers(1, 5)):
            copy[place] ^= 1 << int(rng.integers(0, 8))
    elif kind == 1:
        del copy[start : stop if rng.random() < 0.5 else None]
    elif kind == 2:
        copy[start:start] = rng.bytes(int(rng.integers(1, 20)))
    elif kind == 3:
        copy[start:start] = copy[start:stop]
    elif kind == 4:
        other = int(rng.integers(0, len(copy)))
        copy[start], copy[other] = copy[other], copy[start]
    else:
        copy[start:stop] = bytes(stop - start)
    return bytes(copy)


# --- JSON -----------------------------------------------------------------------------------------------------


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, item in inside for place in places(item, (*here, key)))]


def altered_json(document: Any, rng: Generator) -> Any:
    """One entry replaced, removed, added, repeated, nested or changed by a little."""
    found = places(document)
    place = found[int(rng.integers(0, len(found)))]
    strange = STRANGE[int(rng.integers(0, len(STRANGE)))]
    if not place:
        return [document] if rng.random() < 0.5 else strange
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    key, kind = place[-1], rng.integers(0, 6)
    value = parent[key]
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[f"{key}s"] = strange
    elif kind == 1:
        parent.append(value)
    elif kind == 2:
        parent[key] = [value]
    elif kind == 3 and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = -value if rng.random() < 0.3 else value + (1 if isinstance(value, int) else 0.01)
    elif kind == 4 and isinstance(value, list) and len(value) > 1:
        value.reverse()
    else:
        parent[key] = strange
    return document


def some_json(content: bytes, rng: Generator) -> bytes:
    """One entry of a JSON document."""
    return json.dumps(altered_json(json.loads(content), rng)).encode()


def sealed_json(content: bytes, rng: Generator) -> bytes:
    """One entry, with the digest that then belongs to it."""
    document = json.loads(content)
    del document["digest"]
    document = altered_json(document, rng)
    return json.dumps(sealed(document) if isinstance(document, dict) else document).encode()


def json_line(content: bytes, rng: Generator) -> bytes:
    """One line of several JSON documents."""
    lines = content.splitlines(keepends=True)
    row = int(rng.integers(0, len(lines)))
    lines[row] = some_json(lines[row], rng) + b"\n"
    return b"".join(lines)


# --- arrays ---------------------------------------------------------------------------------------------------


def altered_array(array: np.ndarray, rng: Generator) -> np.ndarray:
    """Another type, another shape, or some other values."""
    kind = rng.integers(0, 8)
    if kind == 0:
        kinds = ["f2", "f4", "f8", ">f8", "i1", "i4", "i8", "u8", "?", "c16", "U5", "S3", "M8[s]"]
        with np.errstate(all="ignore"):
            try:
                return array.astype(kinds[int(rng.integers(0, len(kinds)))])
            except (ValueError, TypeError):
                return np.array(["text"])
    if kind == 1:
        return array.reshape(-1)[: int(rng.integers(0, array.size + 1))]
    if kind == 2:
        return array[None]
    if kind == 3:
        return array.T.copy() if array.ndim > 1 else np.concatenate([array.reshape(-1)] * 2)
    if kind == 4:
        return array.reshape(-1)[rng.permutation(array.size)].reshape(array.shape)
    if kind == 5 and array.ndim:
        return array[::-1].copy()
    copy = array.copy()
    if not copy.size or copy.dtype.kind not in "iuf":
        return np.array(7)
    values = [0, 1, -1, 7, 10**9] + ([math.nan, math.inf, -math.inf, 1e300, 0.37] if copy.dtype.kind == "f" else [])
    chosen = rng.integers(0, copy.size, size=rng.integers(1, 4))
    with np.errstate(all="ignore"):
        copy.reshape(-1)[chosen] = np.array(values[int(rng.integers(0, len(values)))]).astype(copy.dtype)
    return copy


def altered_arrays(arrays: dict[str, np.ndarray], rng: Generator) -> dict[str, np.ndarray]:
    """One array of several changed, removed, renamed, or put in place of another."""
    names = sorted(arrays)
    name, other = (names[int(rng.integers(0, len(names)))] for _ in range(2))
    kind = rng.integers(0, 8)
    if kind == 0:
        return {key: array for key, array in arrays.items() if key != name}
    if kind == 1:
        return {**arrays, f"{name}s": arrays[name]}
    if kind == 2:
        return {**arrays, name: arrays[other]}
    return {**arrays, name: altered_array(arrays[name], rng)}


def some_arrays(content: bytes, rng: Generator) -> bytes:
    """The arrays of an npz file; the archive's own checksums agree."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        arrays = {name: np.load(io.BytesIO(archive.read(name))) for name in archive.namelist()}
    return packed({name: npy_bytes(array) for name, array in altered_arrays(arrays, rng).items()})


def packed(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return stream.getvalue()


def members(content: bytes, rng: Generator) -> bytes:
    """A member of a zip archive dropped, renamed, swapped with another, or changed, with checksums that agree."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    names = list(inside)
    name, other = (names[int(rng.integers(0, len(names)))] for _ in range(2))
    kind = rng.integers(0, 4)
    if kind == 0:
        del inside[name]
    elif kind == 1:
        inside[f"{name}x"] = inside.pop(name)
    elif kind == 2:
        inside[name], inside[other] = inside[other], inside[name]
    else:
        inside[name] = any_bytes(inside[name], rng) if inside[name] else b"x"
    return packed(inside)


# --- tables ---------------------------------------------------------------------------------------------------


def table(content: bytes, rng: Generator) -> bytes:
    """A cell, row or heading of a CSV file."""
    rows = [line.split(",") for line in content.decode().splitlines()]
    row = int(rng.integers(0, len(rows)))
    column = int(rng.integers(0, len(rows[row])))
    strange = [
        "",
        "nan",
        "-1",
        "1e999",
        "9" * 5000,
        '"',
        "\x00",
        "\ufeff",
        "=1",
        "é",
        "1.5",
        " 1 ",
        "a,b",
        "id",
        "node",
    ]
    kind = rng.integers(0, 6)
    if kind == 0:
        del rows[row]
    elif kind == 1:
        rows.insert(row, list(rows[int(rng.integers(0, len(rows)))]))
    elif kind == 2:
        del rows[row][column]
    elif kind == 3:
        other = int(rng.integers(0, len(rows)))
        rows[row], rows[other] = rows[other], rows[row]
    else:
        rows[row][column] = strange[int(rng.integers(0, len(strange)))]
    return "\n".join(",".join(cells) for cells in rows).encode() + b"\n" * (rng.random() < 0.9)
