"""Counts on disk, so that interrupted counting can continue.

One file per question holds the counts of the jurors so far. Its name is a digest of everything that determines the
counts, so other models, graphs or questions use other files. It is an npz file with arrays and JSON, without pickles,
written atomically.
"""

from __future__ import annotations

import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jurygcn.checks import all_finite
from jurygcn.conformal.counts import LOWEST
from jurygcn.errors import JuryWarning
from jurygcn.io.archives import Arrays, read_sealed, write_sealed
from jurygcn.io.fingerprints import architecture, fingerprint, state

if TYPE_CHECKING:
    from jurygcn.conformal.counts import Counts
    from jurygcn.conformal.exact import ExactCounter

FORMAT = 3
# The largest share of the time for writing; large counts are written less often.
SHARE = 0.1


class CountsFile:
    """The counts of one question in a folder."""

    def __init__(self, folder: Path, counter: ExactCounter) -> None:
        self.counter, self.fingerprint = counter, fingerprint(version("jurygcn"), decisive(counter))
        self.path = folder / f"{self.fingerprint}.npz"
        self._next_write, self._writable = 0.0, True

    def read(self) -> Counts | None:
        """The saved counts; None if there are none that can be used."""
        try:
            about, arrays = read_sealed(self.path)
            if about != self._about(int(about["jurors"])):
                return None
            return unpack(arrays, self.counter, about["jurors"])
        except Exception:  # if the file is damaged in any way, count again
            return None

    def _about(self, jurors: int) -> dict[str, int | str]:
        return {"format": FORMAT, "fingerprint": self.fingerprint, "jurors": jurors}

    def write(self, counts: Counts) -> None:
        """Save these counts, unless writing takes more than its share of the time; always save complete counts."""
        complete = counts.jurors == self.counter.asked.num_jurors
        started = time.monotonic()
        if not self._writable or (started < self._next_write and not complete):
            return
        try:
            write_sealed(self.path, self._about(counts.jurors), pack(counts))
        except OSError as error:
            warnings.warn(
                f"The counts cannot be saved in {self.path.parent} ({error.strerror or error}), so an interrupted run "
                "will start from the beginning.",
                JuryWarning,
                stacklevel=2,
            )
            self._writable = False
            return
        now = time.monotonic()
        self._next_write = now + (now - started) * (1 / SHARE - 1)


def decisive(counter: ExactCounter) -> dict[str, Any]:
    """Everything that determines the counts, by name."""
    asked = counter.asked
    engine = asked.engine
    return {
        "question": asked.question,
        "loss": engine.loss.name,
        "dtype": engine.source_dtype,
        "architecture": architecture(engine.model),
        "model": state(engine.model),
        "outputs": counter.outputs,
        "nodes": asked.nodes,
        "train_nodes": engine.train_nodes,
        "targets": engine.targets,
        "positions": asked.positions,
        "groups": asked.groups,
        "steps": counter.predictions.steps,
        "advice": None if counter.advice is None else counter.advice.decisive,
        **{f"data.{name}": value for name, value in engine.data.items() if isinstance(value, Tensor)},
    }


def pack(counts: Counts) -> Arrays:
    """The counts as named arrays."""
    tensors = {"errors": torch.cat(counts.bounds.errors)}
    for name, tail in (("low", counts.bounds.low), ("high", counts.bounds.high)):
        if tail.smallest is not None:
            tensors[name] = tail.smallest
    tensors |= {name: getattr(counts.spread, name) for name in ("total", "square", "flips")}
    for k, labels in counts.labels.items():
        assert labels.counts is not None
        tensors |= {f"counts_{k}": labels.counts, f"log_scores_{k}": torch.cat(labels.log_scores)}
        parts = {"class": labels.by_class, "group": labels.by_group}
        tensors |= {f"{name}_{k}": part for name, part in parts.items() if part is not None}
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def unpack(arrays: Arrays, counter: ExactCounter, jurors: int) -> Counts:
    """Counts from named arrays; raise ValueError if they cannot be the counts of so many jurors."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    counts = counter.empty_counts()
    check_counts(tensors, counter, counts, jurors)
    counts.bounds.errors.append(tensors["errors"])
    for name, tail in (("low", counts.bounds.low), ("high", counts.bounds.high)):
        tail.smallest = tensors.get(name)
    for name in ("total", "square", "flips"):
        getattr(counts.spread, name).copy_(tensors[name])
    for k, labels in counts.labels.items():
        labels.counts, labels.by_class = tensors[f"counts_{k}"], tensors[f"class_{k}"]
        labels.by_group = tensors.get(f"group_{k}")
        labels.log_scores.append(tensors[f"log_scores_{k}"])
    return counts


def check_counts(tensors: dict[str, Tensor], counter: ExactCounter, empty: Counts, jurors: int) -> None:
    """Raise ValueError unless the arrays have the shapes, types, ranges and sums of the first jurors' counts."""
    if not 1 <= jurors <= counter.asked.num_jurors:
        raise ValueError(f"{jurors} jurors")
    (m, C), votes = counter.outputs.shape, counter.outputs.dtype
    K = 1 if counter.asked.classify else C
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "errors": (votes, (jurors, K)),
        "total": (torch.float64, (m, C)),
        "square": (torch.float64, (m,)),
        "flips": (torch.int64, (m,)),
    }
    if empty.bounds.method != "jackknife":
        wanted |= {name: (votes, (m * K, min(jurors, empty.bounds.low.keep))) for name in ("low", "high")}
    kinds = ["counts", "class"] + ["group"] * (counter.asked.groups is not None)
    for k in empty.labels:
        wanted |= {f"{name}_{k}": (torch.int32, (m, C)) for name in kinds}
        wanted |= {f"log_scores_{k}": (votes, (jurors,))}
    if {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} != wanted:
        raise ValueError("other arrays than this question has")
    own = counter.asked.own(torch.arange(jurors))
    voters = jurors - torch.zeros(m, dtype=torch.long).index_fill_(0, own.node, 1)
    total, square = tensors["total"], tensors["square"]
    slack = 1.0 + 1e-3  # for rounding
    fine = [
        *(all_finite(tensors[name]) for name in ("errors", "total", "square")),
        *(not bool(tensors[name].isnan().any()) for name in ("low", "high") if name in tensors),
        bool((tensors["errors"] >= 0).all()),
        bool((total.square().sum(dim=1) <= slack * voters * square + 1e-12).all()),  # Cauchy-Schwarz
        _between(tensors["flips"], 0, voters),
        *(_between(tensors[f"counts_{k}"], 0, voters[:, None]) for k in empty.labels),
        *(_between(tensors[f"{name}_{k}"], 0, tensors[f"counts_{k}"]) for name in kinds for k in empty.labels),
        *(_between(tensors[f"log_scores_{k}"], slack * LOWEST, 1e-3) for k in empty.labels),
    ]
    if counter.asked.classify:  # probabilities have norms up to 1, and errors up to the square root of 2
        fine += [_between(tensors["errors"], 0, slack * 2**0.5), _between(square, 0, 2 * slack * voters)]
        tails = [tensors[name] for name in ("low", "high") if name in tensors]
        fine += [_between(tail[tail != torch.inf], -2.5, slack) for tail in tails]
    if not all(fine):
        raise ValueError("numbers outside their possible range")


def _between(values: Tensor, low: float, high: float | Tensor) -> bool:
    return bool(((values >= low) & (values <= high)).all())
