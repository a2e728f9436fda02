"""Reddit, from the two files that PyG's `Reddit` uses."""

from __future__ import annotations

import errno
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import Reddit

from jurygcn.data.cache import exclusive
from jurygcn.data.places import REDDIT_FILES as FILES
from jurygcn.data.places import find_reddit
from jurygcn.data.validate import clean
from jurygcn.errors import DataError
from jurygcn.io.archives import array_names, read_arrays

MOST_BYTES = 8 << 30  # limit for the archive and for each of its two members, far above their real sizes
_UNFINISHED = ".jurygcn-unfinished-"  # prefix of our temporary folders
_ARRAYS = ("feature", "label", "node_types")
_PARTS = {"train_mask": 1, "val_mask": 2, "test_mask": 3}


def load_reddit(folder: Path) -> Data:
    """Read Reddit from `folder`; download it from PyG's address if it is not there."""
    place = find_reddit(folder)
    if place is None:
        place = folder / "reddit"
        with exclusive(folder, "reddit"):
            if find_reddit(folder) is None:
                _download(place)
    return read_reddit(place)


def read_reddit(place: Path) -> Data:
    """Read the two files, with the public split."""
    arrays = read_arrays(place / FILES[0], _ARRAYS)
    if len(arrays) < len(_ARRAYS):
        raise DataError(
            f"{FILES[0]}: expected the arrays feature, label and node_types, got {array_names(place / FILES[0])}; "
            "take the file from PyG's Reddit"
        )
    edge_index = _read_edges(place / FILES[1])
    kind = torch.from_numpy(arrays["node_types"])
    data = Data(
        x=torch.from_numpy(arrays.pop("feature").astype(np.float32, copy=False)),
        edge_index=edge_index,
        y=torch.from_numpy(arrays["label"].astype(np.int64)),
        name="reddit",
        **{mask: kind == number for mask, number in _PARTS.items()},
    )
    return clean(data, quiet=True)


def _read_edges(path: Path) -> Tensor:
    """The positions of the entries of a matrix that `scipy.sparse.save_npz` wrote, (2, E)."""
    parts = read_arrays(path)
    try:
        if "row" in parts:
            row, column = parts["row"], parts["col"]
        else:
            csr = (parts["data"], parts["indices"], parts["indptr"])
            matrix = sparse.csr_matrix(csr, shape=tuple(int(n) for n in parts["shape"]))
            matrix.check_format(full_check=True)
            places = matrix.tocoo()
            row, column = places.row, places.col
        return torch.from_numpy(np.stack([row, column]))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise DataError(
            f"{path.name}: expected a SciPy sparse matrix, got a file that cannot be read ({error}); "
            "take the file from PyG's Reddit"
        ) from error


def _download(place: Path) -> None:
    """Download PyG's archive and move its two members into `place`, each atomically.

    The caller holds a lock, so unfinished folders belong to processes that were killed.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        for left in place.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=_UNFINISHED) as temporary:
            archive = Path(temporary) / "reddit.zip"
            with urllib.request.urlopen(Reddit.url, timeout=30) as answer, archive.open("wb") as file:
                _copy(answer, file)
            with zipfile.ZipFile(archive) as members:
                for name in FILES:
                    part = Path(temporary) / name
                    with members.open(name) as source, part.open("wb") as target:
                        _copy(source, target)
                    part.replace(place / name)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"expected {FILES[0]} and {FILES[1]} in {place}, got neither there nor from PyG's address ({error}); "
            "put the two files there, or use 'synthetic', which needs no network"
        ) from error


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy everything; raise OSError beyond MOST_BYTES, because the size that an archive declares may be wrong."""
    left = MOST_BYTES
    while piece := source.read(1 << 20):
        left -= len(piece)
        if left < 0:
            raise OSError(errno.EFBIG, f"more than {MOST_BYTES >> 30} GiB")
        target.write(piece)
