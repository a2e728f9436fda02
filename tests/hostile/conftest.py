"""What the tests of hostile files share."""

from __future__ import annotations

import tracemalloc

import pytest

MODEST = 64 << 20  # bytes; what refusing a file may take


@pytest.fixture
def modest():
    """Refusing takes no memory to speak of."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MODEST
