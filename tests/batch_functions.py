"""What test_parallel.py sends to workers. It imports nothing large, because every new worker imports it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from jurygcn.models import GCN

CALLS: list[int] = []  # in a worker


def process_of(batch: int) -> int:
    return os.getpid()


def fail(batch: int) -> int:
    raise FileNotFoundError(f"batch {batch} is wrong")


@dataclass(frozen=True)
class Noted:
    """A recipe that notes in a file who followed it."""

    notes: Path

    def __call__(self) -> Callable[[int], int]:
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return abs


@dataclass(frozen=True)
class Fatal:
    """A forward pass whose third call in a worker kills it; only the first worker dies."""

    marker: Path
    home: int

    def __call__(self, model: GCN, data: Data) -> Tensor:
        if os.getpid() != self.home:
            CALLS.append(0)
            if len(CALLS) > 2 and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return model(data.x, data.edge_index)


@dataclass(frozen=True)
class Deadly:
    """A function whose batch 3 is deadly anywhere but at home."""

    home: int

    def __call__(self, batch: int) -> int:
        if os.getpid() != self.home and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


@dataclass(frozen=True)
class KillScheduler:
    """A batch that kills the scheduler and goes on."""

    pid: int

    def __call__(self, batch: int) -> int:
        if batch == 2:
            os.kill(self.pid, signal.SIGKILL)
        time.sleep(0.1)
        return batch
