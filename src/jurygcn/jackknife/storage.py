"""A jury on disk: a folder with ``jurors.npz`` (arrays) and ``jury.json`` (settings); nothing is pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.archives import read_arrays
from jurygcn.errors import DataError
from jurygcn.files import read_json, replacing, write_text
from jurygcn.jackknife.jurors import CompressedJurors, Jurors

if TYPE_CHECKING:
    from jurygcn.jackknife.jury import Jury

FORMAT = 2
SETTINGS = {
    *("loss", "weight_decay", "curvature", "leave_out", "damping", "as_printed", "mode", "rank", "jurors", "memory"),
    "chosen",
}


def save_jury(jury: Jury, folder: Path) -> Path:
    """Write the fitted jury; the json comes last, so a folder that has one is complete."""
    jurors = jury.jurors
    arrays = {"train_nodes": jury.train_nodes.numpy()}
    arrays |= {key: value.numpy() for key, value in vars(jurors).items() if isinstance(value, Tensor)}
    with replacing(folder / "jurors.npz") as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
    decay = jury.objective.weight_decay
    settings = {
        "loss": jury.objective.loss.name,
        "weight_decay": None if jury.decay_assumed else dict(decay) if isinstance(decay, Mapping) else decay,
        "curvature": jury.curvature_kind,
        "leave_out": jury.leave_out,
        "damping": jury.damping,
        "as_printed": jury.as_printed,
        "mode": jury.mode,
        "rank": jury.rank,
        "jurors": len(jury.seats),
        "memory": jury.memory,
        "chosen": jury.chosen,
    }
    description = {
        "format": FORMAT,
        "parameters": fingerprint(jury.objective.theta),
        "settings": settings,
        "solve": {key: value for key, value in vars(jurors).items() if isinstance(value, str | int | float)},
    }
    write_text(folder / "jury.json", json.dumps(description, indent=2))
    return folder


def load_jury(cls: type[Jury], folder: Path, model: nn.Module, data: Data, **overrides: Any) -> Jury:
    """Read a jury back and check that it belongs to this model."""
    try:
        description = read_json(folder / "jury.json")
        arrays = read_arrays(folder / "jurors.npz")
        tensors: dict[str, Any] = {key: torch.from_numpy(array) for key, array in arrays.items()}
        settings, train_nodes = description["settings"], tensors.pop("train_nodes")
        strange = sorted({*settings} - SETTINGS)
        if strange:  # a folder says what the jury is, never where this process connects to or what it runs
            raise ValueError(f"the setting {strange[0]!r}")
        kind = Jurors if "steps" in tensors else CompressedJurors
        jurors = kind(**tensors, **description["solve"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder} is not a complete saved jury ({type(error).__name__}): expected jury.json and jurors.npz as "
            "written by jury.save()."
        ) from error
    jury = cls(model, data, train_nodes, **{**settings, **overrides})
    if description["parameters"] != fingerprint(jury.objective.theta):
        raise DataError(f"{folder} was saved for other model parameters: load the model it was made from.")
    jury._jurors = jurors
    return jury


def fingerprint(theta: Tensor) -> str:
    """A short name for exact parameter values."""
    return hashlib.sha256(theta.double().cpu().numpy().tobytes()).hexdigest()[:16]
