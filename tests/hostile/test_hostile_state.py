"""Hostile checkpoints, JSON files and saved juries: refused in a sentence, nothing run or allocated."""

from __future__ import annotations

import json
import pickle
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from attacks import Runs, flipped, lying_npy, sentence, write_npz

from cases import Case
from jurygcn import GCN, Jury
from jurygcn.active import History
from jurygcn.active.tasks import read_answers
from jurygcn.cli.checkpoint import load_gcn
from jurygcn.cli.nodes import read_nodes
from jurygcn.data import load_dataset
from jurygcn.errors import DataError, ModelError
from jurygcn.io import archives
from jurygcn.io.fingerprints import sealed
from jurygcn.report import Report

# --- checkpoints ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def karate():
    return load_dataset("karate")


def test_a_checkpoint_that_is_not_weights_only(tmp_path, karate):
    canary, path = tmp_path / "canary", tmp_path / "m.pt"
    for legacy in (True, False):
        for state in (Runs(canary), {"weights.0": Runs(canary)}, GCN(34, 4, 4), {"weights.0": torch.ones, "f": eval}):
            torch.save(state, path, _use_new_zipfile_serialization=not legacy)
            with pytest.raises(ModelError, match="none of it was run"):
                load_gcn(path, karate)
    path.write_bytes(pickle.dumps(Runs(canary)))
    with pytest.raises(ModelError, match="none of it was run"):
        load_gcn(path, karate)
    assert not canary.exists()


def test_a_checkpoint_with_more_numbers_than_bytes(tmp_path, karate, modest):
    one = torch.ones(1)
    state = {"weights.0": one.expand(34, 10**12), "weights.1": one.expand(10**12, 4)}
    torch.save(state, tmp_path / "m.pt")
    assert (tmp_path / "m.pt").stat().st_size < 5000
    with pytest.raises(ModelError, match="a matrix of numbers per layer"):
        load_gcn(tmp_path / "m.pt", karate)
    torch.save({"weights.0": torch.ones(34, 4).to_sparse()}, tmp_path / "m.pt")
    with pytest.raises(ModelError):
        load_gcn(tmp_path / "m.pt", karate)


def test_a_checkpoint_that_is_a_bomb(tmp_path, karate, monkeypatch):
    torch.save(GCN(34, 50_000, 4).state_dict(), tmp_path / "whole.pt")
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as whole,
        zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for info in whole.infolist():
            bomb.writestr(info.filename, bytes(info.file_size) if "/data/" in info.filename else whole.read(info))
    assert (tmp_path / "m.pt").stat().st_size < 20_000
    monkeypatch.setattr(archives, "room", lambda: 1 << 20)
    with pytest.raises(DataError, match=r"the content of m\.pt to fit into"):
        load_gcn(tmp_path / "m.pt", karate)


def test_damaged_checkpoints_are_models_or_sentences(tmp_path, karate):
    torch.save(GCN(34, 4, 4).state_dict(), tmp_path / "m.pt")
    whole = (tmp_path / "m.pt").read_bytes()
    for content in flipped(whole, 300):
        (tmp_path / "m.pt").write_bytes(content)
        sentence(load_gcn, tmp_path / "m.pt", karate)


def test_a_weight_that_was_changed_is_found(tmp_path, karate):
    """torch does not compare the checksums that it writes."""
    model = GCN(34, 4, 4)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    whole = (tmp_path / "m.pt").read_bytes()
    at = whole.index(model.weights[0].detach().numpy().tobytes())
    (tmp_path / "m.pt").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(DataError, match=r"m\.pt as it was written, got another checksum"):
        load_gcn(tmp_path / "m.pt", karate)


# --- JSON -----------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], object]] = {
    "history": History.load,
    "report": Report.load,
    "nodes": lambda path: read_nodes(path, load_dataset("karate")),
    "answers": lambda path: read_answers(path, load_dataset("karate")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"format": 1, "train_nodes": [1e999]}',
        '{"train_nodes": [' + "9" * 5000 + "]}",
        '{"train_nodes": [' + "9" * 30 + "]}",
        '[{"node": ' + "9" * 30 + ', "label": "1"}]',
        '[{"node": "' + "9" * 5000 + '", "label": "1"}]',
        '{"format": NaN, "train_nodes": [NaN]}',
        "\ud800".encode("utf-8", "surrogatepass"),
        "null",
    ],
)
def test_json_that_is_hostile(tmp_path, reader, text):
    path = tmp_path / "file.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value)


def altered(step: dict, **change: object) -> dict:
    return {**step, **change}


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": [0, 10**15], "answers": [0, 0]},
        {"nodes": [0, 0], "answers": [0, 0]},
        {"nodes": [-1], "answers": [0]},
        {"nodes": ["0"], "answers": [0]},
        {"nodes": [0], "answers": [9]},
        {"nodes": [0], "answers": []},
        {"nodes": [True], "answers": [1]},
    ],
)
def test_an_altered_history_is_refused(tmp_path, karate, change):
    from jurygcn import active

    settings = {"initial": 4, "budget": 8, "step": 2, "recipe": active.Recipe(epochs=3)}
    path = tmp_path / "history.json"
    active.run(karate, "random", **settings, resume=path)
    document = json.loads(path.read_text())
    del document["digest"]
    document["steps"], document["stopped"] = [altered(document["steps"][0], **change)], ""
    path.write_text(json.dumps(sealed(document)))
    with pytest.raises(DataError, match=r"history\.json"):
        active.run(karate, "random", **settings, resume=path)


# --- saved juries ---------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    jury = Jury(engine.model, engine.data, engine.train_nodes, weight_decay=0.05).fit()
    jury.save(tmp_path / "jury")
    return tmp_path / "jury", engine


def test_a_saved_jury_connects_to_nobody(saved):
    """A setting that would let a folder choose the cluster this process talks to: Dask's protocol runs pickles."""
    folder, engine = saved
    about, arrays = archives.read_sealed(folder / "jury.npz")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        about["settings"]["parallel"] = f"dask://127.0.0.1:{server.getsockname()[1]}"
        archives.write_sealed(folder / "jury.npz", about, arrays)
        with pytest.raises(DataError, match="not a complete saved jury"):
            Jury.load(folder, engine.model, engine.data)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", '{"settings": [], "solve": {}}', '{"settings": {}}'])
def test_a_saved_jury_that_is_none(saved, text):
    folder, engine = saved
    write_npz(folder / "jury.npz", about=np.array(text), steps=np.ones((5, 3)), train_nodes=np.arange(3))
    with pytest.raises(DataError, match="not a complete saved jury"):
        Jury.load(folder, engine.model, engine.data)


def test_a_folder_without_a_saved_jury(saved, tmp_path):
    _, engine = saved
    with pytest.raises(DataError, match=r"got no jury.npz there; check the path"):
        Jury.load(tmp_path / "nothing", engine.model, engine.data)


def test_a_saved_jury_with_absurd_arrays(saved, modest):
    folder, engine = saved
    write_npz(
        folder / "jury.npz", about=np.array("{}"), steps=lying_npy((10**15,), "<f8", b""), train_nodes=np.arange(3)
    )
    with pytest.raises(DataError, match="not a complete saved jury"):
        Jury.load(folder, engine.model, engine.data)
