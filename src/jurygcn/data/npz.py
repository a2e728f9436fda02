"""Read and write graphs as npz files without pickles.

Arrays: `edge_index` (2, E) integers; `x` (N, F), or its CSR parts `x_data`, `x_indices`, `x_indptr`,
`x_shape`; optional `y` (N,), `edge_weight` (E,), `num_classes`, `class_names`, `node_names`, and a split as
`train_mask`/`val_mask`/`test_mask` (N,), `train_masks`/... (splits, N), or `train_idx`/... (node numbers).
Other arrays are ignored. Files that we write have a `digest` of these arrays; a `digest` in a file is checked.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch_geometric.data import Data

from jurygcn.data.validate import MASKS
from jurygcn.errors import DataError, excerpt, listing
from jurygcn.io.archives import Arrays, array_names, check_room, read_arrays
from jurygcn.io.files import replacing
from jurygcn.io.fingerprints import SEAL, fingerprint

_CSR = ("x_data", "x_indices", "x_indptr", "x_shape")
_NAMES, _LISTS = ("class_names", "node_names"), ("_mask", "_masks", "_idx")
_KNOWN = {"edge_index", "x", *_CSR, "y", "edge_weight", "num_classes", *_NAMES}
_KNOWN |= {mask.removesuffix("_mask") + ending for mask in MASKS for ending in _LISTS}
MOST_CLASSES = 1_000_000  # more is taken for a damaged file
_SPARSE_BELOW = 0.25  # below this share of non-zeros the CSR parts are smaller than the dense matrix


def read_npz(path: Path) -> Data:
    """Read a graph from an npz file; the caller passes the result to `clean`."""
    arrays = read_arrays(path, {*_KNOWN, SEAL})
    if SEAL in arrays and str(arrays.pop(SEAL)) != fingerprint(arrays):
        raise DataError(
            f"{path.name}: expected arrays that match its `{SEAL}`, got others, so the file was altered or damaged; "
            f"write it again, or write it without `{SEAL}`"
        )
    missing = [key for key in ("edge_index",) if key not in arrays]
    if "x" not in arrays and not all(key in arrays for key in _CSR):
        missing.append("x (or " + ", ".join(_CSR) + ")")
    if missing:
        raise DataError(
            f"{path.name}: expected the arrays edge_index and x, got {excerpt(array_names(path))}; "
            f"add {' and '.join(missing)}"
        )
    x = _tensor(path, arrays, "x") if "x" in arrays else torch.from_numpy(_dense(path, arrays))
    data = Data(x=x, edge_index=_tensor(path, arrays, "edge_index"), name=path.stem)
    for key in ("y", "edge_weight"):
        if key in arrays:
            data[key] = _tensor(path, arrays, key)
    if "num_classes" in arrays:
        data.num_classes = _count(path, arrays["num_classes"])
    for key in _NAMES:
        if key in arrays:
            data[key] = _names(path, key, arrays[key])
    for mask in MASKS:
        found = _mask(path, arrays, mask.removesuffix("_mask"), x.shape[0] if x.dim() else 0)
        if found is not None:
            data[mask] = torch.from_numpy(found)
    return data


def _count(path: Path, number: NDArray[Any]) -> int:
    count = number.item() if number.size == 1 and number.dtype.kind in "iu" else number.tolist()
    if not isinstance(count, int) or not 0 <= count <= MOST_CLASSES:
        raise DataError(
            f"{path.name}: expected num_classes to be one number from 0 to {MOST_CLASSES:,}, got {excerpt(count)}; "
            "correct it or leave it out"
        )
    return count


def _names(path: Path, key: str, names: NDArray[Any]) -> list[str]:
    try:
        if names.ndim != 1 or names.dtype.kind not in "USiu":
            raise TypeError(f"{names.dtype} of shape {names.shape}")
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]
    except (TypeError, ValueError, SystemError) as error:  # invalid code points or bytes
        raise DataError(
            f"{path.name}: expected {key} as a list of texts, got other values ({listing([error])}); write it again"
        ) from error


def write_npz(path: Path, data: Data) -> None:
    """Write a clean graph to an npz file, atomically."""
    arrays: Arrays = {"num_classes": np.array(data.num_classes)}
    arrays["edge_index"] = data.edge_index.numpy().astype(np.int32 if data.num_nodes < 2**31 else np.int64)
    arrays["y"] = data.y.numpy()
    x = data.x.numpy()
    if np.count_nonzero(x) < _SPARSE_BELOW * x.size:
        rows = sparse.csr_matrix(x)
        arrays.update(x_data=rows.data, x_indices=rows.indices, x_indptr=rows.indptr)
        arrays["x_shape"] = np.array(x.shape, dtype=np.int64)
    else:
        arrays["x"] = x
    if "edge_weight" in data:
        arrays["edge_weight"] = data.edge_weight.numpy()
    for mask in MASKS:
        if mask in data:
            many = data[mask].dim() == 2
            arrays[mask + "s" if many else mask] = data[mask].numpy().T if many else data[mask].numpy()
    for key in _NAMES:
        if key in data:
            arrays[key] = np.array(data[key], dtype=np.str_)
    arrays[SEAL] = np.array(fingerprint(arrays))
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _tensor(path: Path, arrays: Arrays, key: str) -> torch.Tensor:
    array = arrays[key]
    if array.dtype.kind not in "biuf":
        what = "integer labels" if key == "y" else f"numbers in {key}"
        raise DataError(f"{path.name}: expected {what}, got dtype {array.dtype}; convert the array to numbers")
    if array.dtype.kind == "u" and array.size and int(array.max()) > torch.iinfo(torch.int64).max:
        raise DataError(f"{path.name}: expected numbers below 2^63 in {key}, got {int(array.max())}; convert the array")
    if array.dtype.kind == "u" or array.dtype.byteorder == ">":  # torch supports neither
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(array))


def _dense(path: Path, arrays: Arrays) -> NDArray[np.float32]:
    values, indices, indptr, given = (arrays[key] for key in _CSR)
    try:
        shape = tuple(int(n) for n in given)
        rows = sparse.csr_matrix((values, indices, indptr), shape=shape)
        rows.check_format(full_check=True)
        check_room(4 * math.prod(shape), f"the features of {path.name} (x_shape {shape})")
        dense: NDArray[np.float32] = rows.toarray().astype(np.float32, copy=False)
    except DataError:
        raise
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise DataError(
            f"{path.name}: expected x_data/x_indices/x_indptr/x_shape to form a CSR matrix, got parts "
            f"that do not ({error}); write them from one scipy csr_matrix"
        ) from error
    return dense


def _mask(path: Path, arrays: Arrays, part: str, num_nodes: int) -> NDArray[np.bool_] | None:
    if f"{part}_mask" in arrays:
        return arrays[f"{part}_mask"].astype(bool)
    if f"{part}_masks" in arrays:
        return np.ascontiguousarray(np.atleast_2d(arrays[f"{part}_masks"]).astype(bool).T)
    if f"{part}_idx" not in arrays:
        return None
    nodes = arrays[f"{part}_idx"]
    if nodes.dtype.kind not in "iu" or (nodes.size and (nodes.min() < 0 or nodes.max() >= num_nodes)):
        raise DataError(
            f"{path.name}: expected {part}_idx to hold node ids 0..{num_nodes - 1}, got others; number nodes from 0"
        )
    mask = np.zeros(num_nodes, dtype=bool)
    mask[nodes] = True
    return mask
