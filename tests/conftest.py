"""One thread per process: the problems are small, and threads that wait for each other make them slow."""

from __future__ import annotations

import os
from pathlib import Path

# Read when OpenMP and NumPy's BLAS are loaded, and by processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)

# Whole juries against plain loops and dense matrices. What they run in the library is run by the tests of its parts as
# well, and noting every line would take as long again, so coverage is measured without them.
NOT_TRACED = Path(__file__).parent / "trust"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if NOT_TRACED in item.path.parents:
            item.add_marker(pytest.mark.no_cover)
