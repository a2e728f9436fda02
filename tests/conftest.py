"""One thread per process: the problems are small, and threads that wait for each other make them slow."""

from __future__ import annotations

import os

# Read when OpenMP and NumPy's BLAS are loaded, and by processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
