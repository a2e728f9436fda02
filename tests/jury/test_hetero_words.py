"""A jury of one node type of a HeteroData: what verdicts, reports and health say in words."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero_models import CLASSES, PAPERS, judged, logits, made
from jurygcn import Jury, Retraining
from jurygcn.errors import SettingError
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.report import Report, report_on


def test_without_relations_among_papers():
    model, data = made("hgt", cites=False)
    jury = judged(model, data, retraining=Retraining(epochs=5, processes=1))
    verdict, sentence = jury.verdict(), "No relation joins paper nodes with each other"
    assert verdict.diffusion == 0
    assert sentence in verdict.claim(0.2).words
    assert "number of averages was chosen" not in verdict.claim(0.2).words
    health = jury.health()
    assert any(sentence in remark for remark in health.remarks)
    assert not any(sentence in advice for advice in health.advice)
    assert "neighbour_doubt" not in verdict.to_frame()
    with pytest.raises(SettingError, match=f"expected diffusion=0 or 'auto', got 2. {sentence}"):
        jury.verdict(diffusion=2)
    with pytest.raises(SettingError, match="use ambiguity"):
        verdict.ranking("neighbour_doubt")
    retrained = Jury(model, data, torch.arange(12), weight_decay=0.03, leave_out="retrain", retraining=jury.retraining)
    claim = retrained.fit().verdict(advice=None).claim(0.1)
    assert claim.kind == "promise"
    assert claim.words.endswith("so votes are not averaged over neighbours.")


def test_with_relations_among_papers():
    model, data = made("hgt")
    jury = judged(model, data)
    verdict = jury.verdict(diffusion=1)
    assert verdict.advice is not None
    assert "stacked jury" in verdict.advice.words
    assert jury.health().remarks == ()
    assert "No relation" not in verdict.claim(0.2).words
    assert "14 paper nodes" in repr(jury)


@pytest.mark.parametrize("cites", [True, False])
def test_the_report_is_about_the_papers(cites: bool, tmp_path: Path):
    model, data = made("hgt", cites=cites)
    data["paper"].node_names = [f"title {i}" for i in range(PAPERS)]
    jury = judged(model, data)
    report = report_on(jury, jury.verdict(), health=jury.health())
    page = Report.load(report.save(tmp_path / "report.json")).content
    assert page == report.content
    assert page["title"] == "Verdict on paper nodes"
    assert len(page["rows"]["node"]) == PAPERS
    assert set(page["rows"]["name"]) == set(data["paper"].node_names)
    assert any("those of type paper" in note for note in page["notes"])
    assert ("doubt" in page["rows"]) == cites
    assert ("doubt" in {column["key"] for column in page["columns"]}) == cites
    assert any("No relation joins" in said for part in page["checkup"] for said in part["said"]) != cites
    assert (len(page["edges"]["pairs"]) > 0) == cites
    degree = np.zeros(PAPERS, dtype=int)
    links = {("author", "writes", "paper"): 1, ("venue", "shows", "paper"): 1}  # each pair once, not both directions
    for relation, end in links.items():
        np.add.at(degree, data[relation].edge_index[end].numpy(), 1)
    if cites:
        pairs = {tuple(sorted(pair)) for pair in data["paper", "cites", "paper"].edge_index.T.tolist()}
        np.add.at(degree, np.array(sorted(pairs)).reshape(-1), 1)
    assert dict(zip(page["rows"]["node"], page["rows"]["degree"])) == dict(enumerate(degree.tolist()))


def test_labels_on_papers_with_other_degrees():
    """Degrees count the edges of all relations."""
    model, data = made("hgt", cites=False)
    writes = ("author", "writes", "paper")
    generator = torch.Generator().manual_seed(0)
    data["paper"].x = torch.rand(400, 5, generator=generator, dtype=torch.float64)
    data["paper"].y = torch.randint(0, CLASSES, (400,), generator=generator)
    much = torch.stack([torch.arange(900) % 9, torch.arange(900) % 40])
    data[writes].edge_index = torch.cat([torch.stack([torch.arange(400) % 9, torch.arange(400)]), much], dim=1)
    of_many = Jury(model, data, torch.arange(40), node_type="paper", weight_decay=0.03)
    at_random = Jury(model, data, torch.randperm(400, generator=generator)[:40], node_type="paper", weight_decay=0.03)
    assert any("other degrees" in words for words in of_many.label_origin[1])
    assert at_random.label_origin[1] == ()


@pytest.mark.parametrize(("kind", "hops"), [("to_hetero sage", 2), ("hgt", 1), ("hetero_conv", 2), ("rgcn", 2)])
def test_kinds_of_uncertainty_follow_all_relations(kind: str, hops: int):
    """Prop. 1, by walks along the edges of all relations, one hop per layer."""
    model, data = made(kind)
    assert num_hops(model) == hops
    few = torch.tensor([0, 5, 10])
    verdict = Jury(model, data, few, node_type="paper", weight_decay=0.03).fit().verdict()
    reached = {("paper", int(node)): {int(node)} for node in few}
    for _ in range(hops):
        grown = {key: set(value) for key, value in reached.items()}
        for (source, _, target), edge_index in data.edge_index_dict.items():
            for a, b in edge_index.T.tolist():
                grown.setdefault((target, b), set()).update(reached.get((source, a), set()))
        reached = grown
    near = [bool(reached.get(("paper", u), set()) - {u}) for u in range(PAPERS)]
    assert verdict.kinds == ["epistemic" if other else "aleatoric+epistemic" for other in near]
    assert len(set(near)) == 2, "the case must have both kinds"


def test_regression():
    model, data = made("hetero_conv")
    data["paper"].y = torch.randn(PAPERS, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jury = judged(model, data, loss="mse")
    verdict = jury.verdict(alpha=0.2)
    torch.testing.assert_close(verdict.outputs, logits(model, data).detach())
    for k, u in ((0, 3), (4, 9)):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for p, step in zip(moved.parameters(), jury.jurors.steps[k].split([p.numel() for p in moved.parameters()])):
                p += step.view_as(p)
            vote = jury.leave_one_out_predictions([u])[k, 0]
            torch.testing.assert_close(vote, logits(moved, data)[u])
