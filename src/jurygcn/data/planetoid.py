"""Read the Planetoid files `ind.NAME.*`: Python-2 pickles, unpickled with an allow-list.

Eight files per graph: features `x`, `tx`, `allx` and one-hot labels `y`, `ty`, `ally` of the training,
test and all-but-test nodes, the adjacency lists `graph`, and `test.index`, the node numbers of the test rows.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch_geometric.data import Data

from jurygcn.data.places import PARTS, file_name
from jurygcn.errors import DataError
from jurygcn.io.archives import check_room
from jurygcn.io.fingerprints import fingerprint

VALIDATION_NODES = 500  # the public split validates on the 500 nodes after the training nodes


class _CsrParts:
    """Replaces scipy's csr_matrix while unpickling: holds the attributes, which are checked afterwards."""


class _Array:
    """Replaces numpy's ndarray, which Planetoid files name but never call."""


def _empty_array(subtype: object, shape: object, typecode: object) -> NDArray[Any]:
    del subtype, shape, typecode  # the state that follows in the file sets shape and type
    return np.empty(0, dtype=np.int8)


def _plain_dtype(code: str, *flags: object) -> np.dtype[Any]:
    del flags
    dtype = np.dtype(code)
    if dtype.kind not in "biufS":
        raise pickle.UnpicklingError(f"an array of type {code!r}")
    return dtype


def _latin1(text: str, encoding: str) -> bytes:
    del encoding
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _plain_dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("scipy.sparse.csr", "csr_matrix"): _CsrParts,
    ("scipy.sparse._csr", "csr_matrix"): _CsrParts,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
    ("_codecs", "encode"): _latin1,
}


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}") from None


def unpickle(content: bytes, *, file: str) -> Any:
    """Read one Planetoid pickle; anything but arrays, CSR matrices and dicts of lists raises DataError."""
    try:
        _check_memo(content)
        return _AllowListUnpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{file}: expected arrays, CSR matrices and adjacency lists, got {error}; "
            "none of it was run; download the file again from a source you trust"
        ) from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{file}: expected a Planetoid pickle, got a damaged file; download it again") from error


def _check_memo(content: bytes) -> None:
    """Reject memo indices larger than the file: the unpickler would allocate every entry up to the index."""
    for code, argument, _ in pickletools.genops(content):
        if "PUT" in code.name and isinstance(argument, int) and argument > len(content):
            raise pickle.UnpicklingError(f"a memo of {argument} entries")


def read_raw_folder(name: str, folder: Path) -> dict[str, bytes]:
    """The bytes of the eight files."""
    return {part: (folder / file_name(name, part)).read_bytes() for part in PARTS}


def digest(files: Mapping[str, bytes]) -> str:
    """A short name for the content of the eight files."""
    return fingerprint([files[part] for part in PARTS])[:12]


def read_planetoid(name: str, files: Mapping[str, bytes]) -> Data:
    """Assemble the graph and its public split from the eight files.

    Citeseer's test nodes have gaps in their numbering. The 15 nodes in the gaps have no features and no label
    (they are often called isolated, though each has an edge or two). They keep zero features and label -1, and
    are in no mask.
    """
    part = {key: unpickle(files[key], file=file_name(name, key)) for key in ("y", "tx", "ty", "allx", "ally", "graph")}
    try:
        test = np.array(files["test.index"].split(), dtype=np.int64)
        known_x, test_x = _csr(part["allx"]), _csr(part["tx"])
        num_known = known_x.shape[0]
        rows = (num_known, test.size)
        if rows != (part["ally"].shape[0], part["ty"].shape[0]) or test_x.shape[0] != test.size:
            raise ValueError("features, labels and test.index differ in their numbers of rows")
        num_nodes = max(num_known, int(test.max()) + 1)
        if int(test.min()) < 0 or num_nodes > 2 * (num_known + test.size):
            raise ValueError(f"test.index names node {int(test.min() if test.min() < 0 else test.max())}")
        check_room(8 * num_nodes * known_x.shape[1], f"the features of {name}")
        x = np.zeros((num_nodes, known_x.shape[1]), dtype=np.float32)
        one_hot = np.zeros((num_nodes, part["ally"].shape[1]), dtype=np.int64)
        x[:num_known], x[test] = known_x.toarray(), test_x.toarray()
        one_hot[:num_known], one_hot[test] = part["ally"], part["ty"]
        edges = [(node, other) for node, others in part["graph"].items() for other in others]
        edge_index = np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()
        num_train = int(part["y"].shape[0])
    except DataError:
        raise
    except (AttributeError, TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise DataError(
            f"expected the eight ind.{name}.* files to fit together, got parts that do not ({error}); "
            "download all of them again from one source"
        ) from error
    y = np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edge_index), y=torch.from_numpy(y), name=name)
    data.num_classes = one_hot.shape[1]
    nodes = torch.arange(num_nodes)
    data.train_mask = nodes < num_train
    data.val_mask = (nodes >= num_train) & (nodes < min(num_train + VALIDATION_NODES, num_known))
    data.test_mask = torch.zeros(num_nodes, dtype=torch.bool)
    data.test_mask[torch.from_numpy(test)] = True
    return data


def _csr(parts: _CsrParts) -> Any:
    state = vars(parts)
    shape = tuple(int(n) for n in state["_shape"])
    matrix = sparse.csr_matrix((state["data"], state["indices"], state["indptr"]), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
