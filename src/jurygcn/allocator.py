"""A setting of the C library that a program may ask for."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# Freed memory that a process keeps, and the largest array it keeps (glibc takes no more), by their numbers in malloc.h.
KEPT, LARGEST = 256 * 2**20, 32 * 2**20
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


@cache
def keep_freed_memory() -> None:
    """Let the GNU C library keep freed arrays for this whole process, which makes verdicts on mid-sized graphs faster.

    By default it hands freed memory back to the system, and fetching it again for every array costs more than the
    arithmetic. This is a setting of the process, so a program that hosts this library decides; the command line calls
    it. A threshold set in the environment stays as it is. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, LARGEST)
