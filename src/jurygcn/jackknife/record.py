"""Counts on disk: what an interrupted hearing goes on from.

One file per hearing holds the counts of the first jurors, however many there are by then. Its name is a checksum of
everything that decides the counts, so another model, graph or question never meets it. Arrays and JSON in an npz file,
replaced in one piece; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from jurygcn.archives import Arrays, read_arrays
from jurygcn.errors import JuryWarning
from jurygcn.files import replacing

if TYPE_CHECKING:
    from jurygcn.jackknife.hearing import Hearing, Tally

FORMAT = 1
# Writing takes at most this share of the time: counts of large graphs are large, and are then not kept every time.
SHARE = 0.1


class Record:
    """The counts of one hearing in a folder."""

    def __init__(self, folder: Path, hearing: Hearing) -> None:
        self.hearing, self.fingerprint = hearing, fingerprint(hearing.evidence())
        self.path = folder / f"{self.fingerprint}.npz"
        self._next_write, self._writable = 0.0, True

    def read(self) -> Tally | None:
        """The counts kept so far; None if there are none that can be used."""
        try:
            arrays = read_arrays(self.path)
            about = json.loads(str(arrays.pop("about")))
            if (about["format"], about["fingerprint"]) != (FORMAT, self.fingerprint):
                return None
            tally = unpack(arrays, self.hearing)
            return tally if tally.jurors == about["jurors"] else None
        except Exception:  # whatever is wrong with the file, the remedy is to count again
            return None

    def write(self, tally: Tally) -> None:
        """Keep these counts in place of earlier ones; the last ones always, others if that does not take long."""
        complete = tally.jurors == self.hearing.num_jurors
        started = time.monotonic()
        if not self._writable or (started < self._next_write and not complete):
            return
        about = json.dumps({"format": FORMAT, "fingerprint": self.fingerprint, "jurors": tally.jurors})
        try:
            with replacing(self.path) as temporary, temporary.open("wb") as stream:
                np.savez(stream, about=np.array(about), **pack(tally))  # type: ignore[arg-type]
        except OSError as error:
            warnings.warn(
                f"The counts cannot be kept in {self.path.parent} ({error.strerror or error}): an interrupted run will "
                "start anew.",
                JuryWarning,
                stacklevel=2,
            )
            self._writable = False
            return
        now = time.monotonic()
        self._next_write = now + (now - started) * (1 / SHARE - 1)


def fingerprint(evidence: dict[str, Any]) -> str:
    """A checksum of named tensors and settings."""
    digest = hashlib.sha256(version("jurygcn").encode())
    for name, value in evidence.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            array = value.detach().cpu().contiguous()
            digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.hexdigest()[:32]


def pack(tally: Tally) -> Arrays:
    """The counts as named arrays."""
    tensors = {"errors": torch.cat(tally.bounds.errors)}
    for name, tail in (("low", tally.bounds.low), ("high", tally.bounds.high)):
        if tail.smallest is not None:
            tensors[name] = tail.smallest
    tensors |= {name: getattr(tally.spread, name) for name in ("total", "square", "flips")}
    for k, counts in tally.labels.items():
        assert counts.counts is not None
        tensors |= {f"counts_{k}": counts.counts, f"log_scores_{k}": torch.cat(counts.log_scores)}
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def unpack(arrays: Arrays, hearing: Hearing) -> Tally:
    """Counts from named arrays."""
    tally = hearing.new_tally()
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    tally.bounds.errors.append(tensors.pop("errors"))
    for name, tail in (("low", tally.bounds.low), ("high", tally.bounds.high)):
        tail.smallest = tensors.pop(name, None)
    for name in ("total", "square", "flips"):
        getattr(tally.spread, name).copy_(tensors.pop(name))
    for k, counts in tally.labels.items():
        counts.counts = tensors.pop(f"counts_{k}")
        counts.log_scores.append(tensors.pop(f"log_scores_{k}"))
    return tally
