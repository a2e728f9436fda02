"""A real browser for the tests of pages.

Skipped where there is no Chromium, unless JURYGCN_NEED_BROWSER is set, as CI does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NEEDED = os.environ.get("JURYGCN_NEED_BROWSER", "") not in ("", "0")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)


def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        missing = "no chromium found: install it (apt-get install chromium) to test the page in a browser"
        pytest.fail(missing) if NEEDED else pytest.skip(missing)
    return found


@contextmanager
def playing() -> Iterator[tuple[Any, str]]:
    """Playwright, and the path of Chromium."""
    path = chromium()
    if not NEEDED:
        pytest.importorskip("playwright", reason="playwright is not installed: pip install 'jurygcn[dev]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright, path
