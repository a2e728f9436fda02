"""One thread per process: the problems are small, and threads that wait for each other make them slow."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
