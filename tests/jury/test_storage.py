"""A saved jury is read back for what it was made from, and for nothing else; altered numbers are refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from cases import Case
from jurygcn import GCN, Jury
from jurygcn.errors import DataError, JuryError, SettingError
from jurygcn.io.archives import read_sealed, write_sealed
from jurygcn.jury_storage import FILE
from jurygcn.settings import LeaveOut, Run, Votes


class Own(nn.Module):
    """A model of the caller's, with a buffer and a setting that is no parameter."""

    def __init__(self, slope: float = 0.2, convolution: type = GCNConv) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = convolution(4, 6), nn.BatchNorm1d(6), convolution(6, 3)
        self.slope = slope

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_weight: torch.Tensor | None = None):
        hidden = self.norm(self.first(x, edge_index, edge_weight))
        return self.last(nn.functional.leaky_relu(hidden, self.slope), edge_index, edge_weight)


def scene() -> tuple[Own, Data, torch.Tensor]:
    data = Case("two_block", 2, "cross_entropy").data()
    data.edge_weight = torch.rand(data.num_edges, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Own().double().eval(), data, torch.arange(0, 10, 2)


SETTINGS: dict[str, Any] = {"weight_decay": 0.05}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, data, nodes = scene()
    return Jury(model, data, nodes, **SETTINGS).fit().save(tmp_path / "jury")


def changed(values: torch.Tensor, index: tuple[int, ...], by: float) -> torch.Tensor:
    other = values.clone()
    other[index] += by
    return other


def other_class(data: Data) -> torch.Tensor:
    return data.y.index_fill(0, torch.tensor([2]), (int(data.y[2]) + 1) % 3)


GRAPHS: dict[str, tuple[Callable[[Data], dict[str, torch.Tensor]], str]] = {
    "features": (lambda d: {"x": changed(d.x, (3, 1), 1e-9)}, "features"),
    "features of other nodes": (lambda d: {"x": d.x.flip(0)}, "features"),
    "an edge less": (lambda d: {"edge_index": d.edge_index[:, 1:], "edge_weight": d.edge_weight[1:]}, "edges"),
    "another edge": (lambda d: {"edge_index": changed(d.edge_index, (1, 0), 1)}, "edges"),
    "weights": (lambda d: {"edge_weight": changed(d.edge_weight, (0,), 0.5)}, "edge weights"),
    "no weights": (lambda d: {"edge_weight": None}, "edge weights"),
    "a label": (lambda d: {"y": other_class(d)}, "labels"),
    "a larger graph": (lambda d: {"x": torch.cat([d.x, d.x]), "y": d.y.repeat(2)}, "features"),
    "a smaller graph": (lambda d: {"x": d.x[:6], "y": d.y[:6], "edge_index": d.edge_index % 6}, "features|edges"),
}


def test_the_same_again(saved: Path):
    model, data, nodes = scene()
    reference = Jury(model, data, nodes, **SETTINGS).fit().verdict()
    data.y[1] = (data.y[1] + 1) % 3  # a label that was not trained on decides nothing
    again = Jury.load(
        saved, model, data, leave_out=LeaveOut(solver="direct"), run=Run(memory="1B", progress=False), chosen="actively"
    )
    assert torch.equal(again.verdict().p_values, reference.p_values)
    assert [path.name for path in saved.iterdir()] == [FILE]


@pytest.mark.parametrize("case", GRAPHS)
def test_another_graph_is_refused(saved: Path, case: str):
    model, data, _ = scene()
    change, word = GRAPHS[case]
    for name, value in change(data).items():
        data[name] = value
    data.num_nodes = len(data.x)
    with pytest.raises(DataError, match=f"other .*({word})"):
        Jury.load(saved, model, data)


def test_another_model_is_refused(saved: Path):
    _, data, _ = scene()
    trained, buffers, frozen = (scene()[0] for _ in range(3))
    trained.last.bias.data[0] += 1e-9
    buffers.norm.running_mean += 1e-9
    frozen.first.bias.requires_grad_(False)
    other_kind = Own(convolution=GATConv).double().eval()
    for model, word in (
        (trained, "model parameters"),
        (buffers, "model parameters"),
        (frozen, "model parameters"),
        (other_kind, "model"),
        (Own(slope=0.9).double().eval(), "model outputs"),
    ):
        with pytest.raises(DataError, match=f"other.* {word}"):
            Jury.load(saved, model, data)


def test_a_graph_attribute_that_a_forward_function_may_use(tmp_path: Path):
    model, data, nodes = scene()
    data.shift = torch.zeros(1, dtype=torch.float64)

    def forward(model: nn.Module, data: Data) -> torch.Tensor:
        return model(data.x + data.shift, data.edge_index)

    folder = Jury(model, data, nodes, forward=forward, **SETTINGS).fit().save(tmp_path / "jury")
    assert Jury.load(folder, model, data, forward=forward).fitted
    with pytest.raises(DataError, match="forward"):
        Jury.load(folder, model, data)
    data.shift = torch.ones(1, dtype=torch.float64)
    with pytest.raises(DataError, match=r"other .*shift"):
        Jury.load(folder, model, data, forward=forward)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"weight_decay": 0.06}, "weight_decay"),
        ({"leave_out": "influence"}, "leave_out"),
        ({"leave_out": "printed"}, "leave_out"),
        ({"leave_out": LeaveOut("influence", curvature="hessian")}, "leave_out"),
        ({"leave_out": LeaveOut(damping=0.1)}, "damping"),
        ({"leave_out": LeaveOut(max_jurors=3)}, "max_jurors"),
        ({"votes": "linearized"}, "votes"),
        ({"votes": Votes(rank=5)}, "rank"),
    ],
)
def test_other_settings_are_refused(saved: Path, other: dict[str, Any], named: str):
    """The jurors on disk were found with the settings on disk."""
    model, data, _ = scene()
    with pytest.raises(SettingError, match=rf"another {named} .*fit"):
        Jury.load(saved, model, data, **other)


# --- altered files --------------------------------------------------------------------------------------------


def linearized(tmp_path: Path) -> tuple[Path, GCN, Data]:
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    jury = Jury(engine.model, engine.data, engine.train_nodes, weight_decay=0.05, votes=Votes("linearized", rank=2))
    return jury.fit().save(tmp_path / "linearized"), engine.model, engine.data


def rewrite(folder: Path, alter: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Forge the jury: change it, and seal it again as if nothing had happened."""
    about, arrays = read_sealed(folder / FILE)
    alter(about, arrays)
    write_sealed(folder / FILE, about, arrays)


def put(array: np.ndarray, value: Any) -> np.ndarray:
    array = array.copy()
    array.reshape(-1)[0] = value
    return array


ARRAYS: dict[str, Callable[[dict[str, Any]], object]] = {
    "steps NaN": lambda a: a.update(steps=put(a["steps"], np.nan)),
    "steps infinite": lambda a: a.update(steps=put(a["steps"], np.inf)),
    "steps of fewer jurors": lambda a: a.update(steps=a["steps"][:-1]),
    "steps of more jurors": lambda a: a.update(steps=a["steps"].repeat(2, axis=0)),
    "steps of another model": lambda a: a.update(steps=a["steps"][:, :-1]),
    "steps without jurors": lambda a: a.update(steps=a["steps"][0]),
    "whole numbers": lambda a: a.update(steps=a["steps"].astype(int)),
    "texts": lambda a: a.update(steps=a["steps"].astype("U")),
    "complex": lambda a: a.update(steps=a["steps"].astype(complex)),
    "leverage above one": lambda a: a.update(leverage=put(a["leverage"], 1.5)),
    "leverage below zero": lambda a: a.update(leverage=put(a["leverage"], -0.5)),
    "leverage NaN": lambda a: a.update(leverage=put(a["leverage"], np.nan)),
    "leverage of others": lambda a: a.update(leverage=a["leverage"][1:]),
    "no leverage": lambda a: a.pop("leverage"),
    "no steps": lambda a: a.pop("steps"),
    "no nodes": lambda a: a.pop("train_nodes"),
    "nodes beyond the graph": lambda a: a.update(train_nodes=put(a["train_nodes"], 10**15)),
    "other nodes": lambda a: a.update(train_nodes=a["train_nodes"] + 1),
    "a node twice": lambda a: a.update(train_nodes=put(a["train_nodes"], a["train_nodes"][1])),
    "nodes in fractions": lambda a: a.update(train_nodes=a["train_nodes"] + 0.5),
    "nodes as a mask": lambda a: a.update(train_nodes=np.ones(12, dtype=bool)),
    "more arrays": lambda a: a.update(extra=np.ones(3)),
    "other outputs": lambda a: a.update(outputs=a["outputs"] + 1),
    "fewer outputs": lambda a: a.update(outputs=a["outputs"][1:]),
}

COMPRESSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "directions NaN": lambda a: a.update(directions=put(a["directions"], np.nan)),
    "directions of another model": lambda a: a.update(directions=a["directions"][:, 1:]),
    "another number of directions": lambda a: a.update(directions=a["directions"][1:]),
    "coefficients of fewer jurors": lambda a: a.update(coefficients=a["coefficients"][1:]),
    "coefficients infinite": lambda a: a.update(coefficients=put(a["coefficients"], -np.inf)),
    "outputs of fewer classes": lambda a: a.update(own_outputs=a["own_outputs"][:, 1:]),
    "no own outputs": lambda a: a.pop("own_outputs"),
}

DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda d: d.update(format=3),
    "a negative residual": lambda d: d["solve"].update(residual=-1.0),
    "no residual": lambda d: d["solve"].pop("residual"),
    "a residual in words": lambda d: d["solve"].update(residual="small"),
    "a fraction of iterations": lambda d: d["solve"].update(iterations=1.5),
    "another kind of juror": lambda d: d["solve"].update(leave_out="influence"),
    "a reason that is none": lambda d: d["solve"].update(reason=7),
    "more about the solve": lambda d: d["solve"].update(steps=[1]),
    "another loss": lambda d: d["settings"].update(loss=["mse"]),
    "no loss": lambda d: d["settings"].pop("loss"),
    "damping in words": lambda d: d["settings"].update(damping="0"),
    "negative damping": lambda d: d["settings"].update(damping=-1),
    "another weight decay": lambda d: d["settings"].update(weight_decay=0.5),
    "a list of decays": lambda d: d["settings"].update(weight_decay=[0.5]),
    "decays of nobody": lambda d: d["settings"].update(weight_decay={"nobody": 0.5}),
    "fewer jurors": lambda d: d["settings"].update(max_jurors=2),
    "jurors in words": lambda d: d["settings"].update(jurors="5"),
    "another mode": lambda d: d["settings"].update(votes="linearized"),
    "printed": lambda d: d["settings"].update(leave_out="printed"),
    "memory": lambda d: d["settings"].update(memory=5),
    "settings that are none": lambda d: d.update(settings=[]),
    "no origin": lambda d: d.pop("origin"),
    "an origin that is none": lambda d: d.update(origin=3),
    "another origin": lambda d: d["origin"].update(features="0" * 32),
    "less of an origin": lambda d: d["origin"].pop("labels"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_altered_arrays_are_refused(saved: Path, case: str):
    model, data, _ = scene()
    rewrite(saved, lambda _, arrays: ARRAYS[case](arrays))
    with pytest.raises(DataError) as caught:
        Jury.load(saved, model, data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", COMPRESSED)
def test_altered_arrays_of_linearised_juries_are_refused(tmp_path: Path, case: str):
    folder, model, data = linearized(tmp_path)
    assert Jury.load(folder, model, data).fitted
    rewrite(folder, lambda _, arrays: COMPRESSED[case](arrays))
    with pytest.raises(DataError, match="jury"):
        Jury.load(folder, model, data)


def test_an_impossible_share_is_refused(tmp_path: Path):
    folder, model, data = linearized(tmp_path)
    rewrite(folder, lambda about, _: about["solve"].update(discarded=1.5))
    with pytest.raises(DataError, match="discarded"):
        Jury.load(folder, model, data)


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_altered_descriptions_are_refused(saved: Path, case: str):
    model, data, _ = scene()
    rewrite(saved, lambda about, _: DESCRIPTIONS[case](about))
    with pytest.raises(JuryError) as caught:
        Jury.load(saved, model, data)
    assert "\n" not in str(caught.value)


def test_numbers_that_were_changed_without_the_digest_are_refused(saved: Path):
    """Each number is possible, so only the digest tells."""
    model, data, _ = scene()
    about, arrays = read_sealed(saved / FILE)
    write_sealed(saved / FILE, about, arrays)
    digest = json.loads(str(np.load(saved / FILE)["about"]))
    for change in ({"steps": arrays["steps"] * 1.01}, {"leverage": arrays["leverage"] * 0.5}):
        np.savez(saved / FILE, about=np.array(json.dumps(digest)), **{**arrays, **change})
        with pytest.raises(DataError, match=r"altered or damaged.*jury\.save"):
            Jury.load(saved, model, data)
    quiet = copy.deepcopy(digest)
    quiet["settings"]["chosen"] = "actively"
    np.savez(saved / FILE, about=np.array(json.dumps(quiet)), **arrays)
    with pytest.raises(DataError, match="altered or damaged"):
        Jury.load(saved, model, data)


# --- labels that were drawn at random -----------------------------------------------------------------------


def test_a_jury_of_drawn_labels_is_read_back_with_its_claim(tmp_path: Path):
    model, data, nodes = scene()
    drawn = nodes[1:4]
    jury = Jury(model, data, nodes, chosen="actively", drawn=drawn, **SETTINGS).fit()
    again = Jury.load(jury.save(tmp_path / "jury"), model, data)
    assert again.drawn
    assert torch.equal(again.positions, jury.positions)
    mine, theirs = jury.verdict(), again.verdict()
    assert torch.equal(mine.p_values, theirs.p_values)
    assert mine.claim(0.3) == theirs.claim(0.3)
    assert "3 labels that were drawn" in theirs.claim(0.3).words
    assert Jury.load(tmp_path / "jury", model, data, drawn=drawn).drawn
    for other in (None, nodes[:3]):
        with pytest.raises(SettingError, match=r"other drawn nodes: leave drawn out|another max_jurors"):
            Jury.load(tmp_path / "jury", model, data, drawn=other)


def test_a_jury_of_all_labels_does_not_become_one_of_drawn_labels(saved: Path):
    model, data, nodes = scene()
    with pytest.raises(SettingError, match="other drawn nodes"):
        Jury.load(saved, model, data, drawn=nodes)


@pytest.mark.parametrize("drawn", [np.array([1]), np.array([2.0]), np.array([10**9])])
def test_drawn_nodes_that_cannot_be_are_refused(tmp_path: Path, drawn: np.ndarray):
    model, data, nodes = scene()
    folder = Jury(model, data, nodes, chosen="actively", drawn=nodes[1:2], **SETTINGS).fit().save(tmp_path / "jury")
    about, arrays = read_sealed(folder / FILE)
    write_sealed(folder / FILE, about, {**arrays, "drawn": drawn})
    with pytest.raises(DataError, match="not a complete saved jury"):
        Jury.load(folder, model, data)
