"""One thread per process: the problems are small, and threads that wait for each other make them slow."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

torch.set_num_threads(1)

# How many cases of each test there are, also of those that are not run this time; see test_reliability.py.
CASES = pytest.StashKey[Counter[str]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash.setdefault(CASES, Counter())[item.nodeid.partition("[")[0]] += 1
