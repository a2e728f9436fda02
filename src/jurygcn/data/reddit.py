"""Reddit, from the two files that PyG's `Reddit` uses."""

from __future__ import annotations

import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch_geometric.data import Data
from torch_geometric.datasets import Reddit

from jurygcn.data.cache import exclusive
from jurygcn.data.npz import read_arrays
from jurygcn.data.validate import Sizes, clean
from jurygcn.errors import DataError

SIZES = Sizes(232_965, 57_307_946, 602, 41)
FILES = ("reddit_data.npz", "reddit_graph.npz")
_PARTS = {"train_mask": 1, "val_mask": 2, "test_mask": 3}


def find_reddit(folder: Path) -> Path | None:
    """The folder with both files, in the places where PyG leaves them under `folder`."""
    places = (folder / "Reddit" / "raw", folder / "reddit" / "raw", folder / "reddit", folder / "raw", folder)
    return next((p for p in places if all((p / file).is_file() for file in FILES)), None)


def load_reddit(folder: Path) -> Data:
    """Read Reddit from `folder`; fetch it from PyG's address if it is not there and the network allows it."""
    place = find_reddit(folder)
    if place is None:
        place = folder / "reddit"
        with exclusive(folder, "reddit"):
            if find_reddit(folder) is None:
                _download(place)
    return read_reddit(place)


def read_reddit(place: Path) -> Data:
    """Read the two files, with the public split."""
    arrays = read_arrays(place / FILES[0])
    missing = [key for key in ("feature", "label", "node_types") if key not in arrays]
    if missing:
        raise DataError(
            f"{FILES[0]}: expected the arrays feature, label and node_types, got {sorted(arrays)}; "
            "take the file from PyG's Reddit"
        )
    try:
        graph = sparse.load_npz(place / FILES[1]).tocoo()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{FILES[1]}: expected a SciPy sparse matrix, got a file that cannot be read ({error}); "
            "take the file from PyG's Reddit"
        ) from error
    kind = torch.from_numpy(arrays["node_types"])
    data = Data(
        x=torch.from_numpy(arrays.pop("feature").astype(np.float32, copy=False)),
        edge_index=torch.from_numpy(np.stack([graph.row, graph.col])),
        y=torch.from_numpy(arrays["label"].astype(np.int64)),
        name="reddit",
        **{mask: kind == number for mask, number in _PARTS.items()},
    )
    del graph
    return clean(data, quiet=True)


def _download(place: Path) -> None:
    """Fetch PyG's archive and put its two members into `place`, each of them whole or not at all."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".part-") as temporary:
            archive = Path(temporary) / "reddit.zip"
            with urllib.request.urlopen(Reddit.url, timeout=30) as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file, length=1 << 20)
            with zipfile.ZipFile(archive) as members:
                for name in FILES:
                    part = Path(temporary) / name
                    with members.open(name) as source, part.open("wb") as target:
                        shutil.copyfileobj(source, target, length=1 << 20)
                    part.replace(place / name)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"expected {FILES[0]} and {FILES[1]} in {place}, they are not there and PyG's copy could "
            f"not be fetched ({error}); put the two files there, or use 'synthetic', which needs no network"
        ) from error
