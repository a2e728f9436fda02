"""Shared fixtures."""

from __future__ import annotations

import os

# The suite runs small problems; two threads per process keep timings steady on small machines.
os.environ.setdefault("OMP_NUM_THREADS", "2")
