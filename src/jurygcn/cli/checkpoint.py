"""Load a trained GCN from a state dict, without unpickling."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.errors import DataError, ModelError
from jurygcn.io.archives import check_unpacked
from jurygcn.models import GCN


def load_gcn(path: Path, data: Data) -> GCN:
    """The GCN whose state dict is in ``path``; its sizes must fit the graph."""
    matrices = _read(path)
    widths = [matrices[0].shape[0], *[W.shape[1] for W in matrices]]
    needed = (data.x.shape[1], int(data.num_classes))
    if (widths[0], widths[-1]) != needed:
        raise ModelError(
            f"expected a model from {needed[0]} features to {needed[1]} classes for {data.name}, got {path.name} from "
            f"{widths[0]} to {widths[-1]}; load the graph that it was trained on"
        )
    hidden = set(widths[1:-1])
    fits = all(before.shape[1] == after.shape[0] for before, after in pairwise(matrices))
    if not fits or len(hidden) > 1:
        raise ModelError(
            f"expected consecutive layers of one hidden width, got the shapes "
            f"{', '.join(str(tuple(W.shape)) for W in matrices)} in {path.name}; save a jurygcn.GCN"
        )
    model = GCN(widths[0], next(iter(hidden), 1), widths[-1], num_layers=len(matrices))
    model.load_state_dict({f"weights.{layer}": W for layer, W in enumerate(matrices)})
    return model.eval()


def _read(path: Path) -> list[Tensor]:
    """The weight matrices, first layer first."""
    if not path.is_file():
        raise DataError(f"expected a checkpoint at {path}, got no such file; check --model")
    remedy = "save it with torch.save(model.state_dict(), path)"
    try:
        check_unpacked(path)
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except Exception as error:  # a damaged checkpoint can raise any exception
        raise ModelError(
            f"expected a state dict of plain tensors in {path.name}, got a file that weights-only loading "
            f"rejects ({type(error).__name__}), so none of it was run; {remedy}"
        ) from error
    names = [f"weights.{layer}" for layer in range(len(state))] if isinstance(state, dict) else []
    if not names or set(state) != set(names):
        got = f"the entries {', '.join(map(str, list(state)[:4]))}" if isinstance(state, dict) else type(state).__name__
        raise ModelError(
            f"expected the state dict of a jurygcn.GCN (weights.0, weights.1, ...), got {got}; {remedy}, "
            "or quantify other models with jurygcn.Jury in Python"
        )
    matrices = [state[name] for name in names]
    if not all(isinstance(W, Tensor) and _is_matrix(W) for W in matrices):
        raise ModelError(f"expected a matrix of numbers per layer in {path.name}, got other values; {remedy}")
    return matrices


def _is_matrix(W: Tensor) -> bool:
    """Whether W is a dense matrix with all its numbers in the file; strides could repeat a few numbers."""
    plain = W.layout == torch.strided and W.device.type == "cpu" and W.is_floating_point()
    return plain and W.dim() == 2 and 0 < W.numel() * W.element_size() <= W.untyped_storage().nbytes()
