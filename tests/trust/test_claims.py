"""What is promised of label sets, and when nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from torch_geometric.data import Data
from typer.testing import CliRunner

from jurygcn import GCN, Jury, train
from jurygcn.active import Recipe, Scene
from jurygcn.active.loop import fit_gcn
from jurygcn.cli import app
from jurygcn.errors import SettingError
from jurygcn.jackknife.claims import balance_chance, degree_chance
from jurygcn.report import report_on


def heavy_tailed(size: int = 300, seed: int = 0, *, regression: bool = False) -> Data:
    """A graph grown by preferential attachment: few nodes with many neighbours; classes of unequal size."""
    rng = np.random.default_rng(seed)
    ends = [0, 1]
    for node in range(2, size):
        ends += [node, int(rng.choice(ends)), node, int(rng.choice(ends))]
    pairs = np.array(ends[2:]).reshape(-1, 2)
    edge_index = torch.from_numpy(np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T.copy())
    y = torch.from_numpy(rng.choice(3, size=size, p=[0.5, 0.3, 0.2]))
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed)) + y[:, None]
    target = x.sum(dim=1) if regression else y
    return Data(x=x, edge_index=edge_index, y=target, num_nodes=size, num_classes=0 if regression else 3)


def degree_of(data: Data) -> torch.Tensor:
    return torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))


def jury_on(data: Data, nodes: torch.Tensor, **settings) -> Jury:
    classify = not data.y.is_floating_point()
    model = GCN(4, 4, 3 if classify else 1)
    loss = "cross_entropy" if classify else "mse"
    train(model, data, nodes, epochs=20, loss=loss)
    return Jury(model, data, nodes, **{"weight_decay": 5e-4, "loss": loss, **settings}).fit()


def drawn(data: Data, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(seed))[:count]


def test_random_labels_keep_their_promise():
    data = heavy_tailed()
    jury = jury_on(data, drawn(data, 40))
    claim = jury.verdict().claim(0.1)
    assert claim.coverage == pytest.approx(0.8)
    assert claim.against == ()
    assert claim.words == "At least 80% hold the truth, about 90% in practice."
    assert jury.doubts == ()
    assert not any("drawn" in line for line in jury.health().advice)


def test_labels_chosen_by_degree_are_found_out():
    data = heavy_tailed()
    hubs = degree_of(data).argsort(descending=True)[:40]
    jury = jury_on(data, hubs)
    verdict = jury.verdict()
    claim = verdict.claim(0.1)
    assert claim.coverage is None
    assert "other degrees" in claim.against[0]
    assert claim.words.startswith("No coverage is promised. The labelled nodes have other degrees")
    assert claim.against[0] in jury.health().advice
    assert "promise: none." in repr(verdict)
    leaves = degree_of(data).argsort()[:40]
    assert jury_on(data, leaves).verdict().claim().coverage is None


def test_few_random_draws_are_accused():
    """The two tests of exchangeability accuse random labels as seldom as they say: here never in 400 draws."""
    data = heavy_tailed()
    degree = degree_of(data).numpy()
    chances = np.array([degree_chance(degree, drawn(data, 40, seed).numpy()) for seed in range(400)])
    assert (chances < 1e-4).sum() == 0
    assert 0.005 <= (chances < 0.05).mean() <= 0.1  # and it is a test: one in twenty is below 0.05
    balanced = [balance_chance(torch.bincount(data.y[drawn(data, 30, seed)])) for seed in range(400)]
    assert min(balanced) > 1e-4


@pytest.mark.parametrize("size", [2, 5, 20])
def test_degrees_that_say_nothing(size: int):
    regular = np.full(size, 3)
    assert degree_chance(regular, np.arange(1)) == 1.0
    assert degree_chance(np.arange(size), np.arange(size)) == 1.0  # everything is labelled


def test_degree_chance_is_the_rank_sum_test():
    random = np.random.default_rng(0)
    compared = 0
    for size in random.integers(5, 300, 60):
        degree = random.poisson(random.uniform(0.5, 8.0), size)
        nodes = random.choice(size, random.integers(1, size), replace=False)
        if degree.min() < degree.max():
            theirs = mannwhitneyu(degree[nodes], np.delete(degree, nodes), method="asymptotic").pvalue
            assert degree_chance(degree, nodes) == pytest.approx(theirs, rel=1e-9)
            compared += 1
    assert compared > 50


def test_balance_by_counting():
    """n! / (k!)^C / C^n against all ways to deal the labels."""
    ways = np.stack(np.meshgrid(*[range(3)] * 6, indexing="ij")).reshape(6, -1).T
    equal = np.mean([(np.bincount(way, minlength=3) == 2).all() for way in ways])
    assert balance_chance(torch.tensor([2, 2, 2])) == pytest.approx(equal)
    assert balance_chance(torch.tensor([2, 3, 1])) == 1.0
    assert balance_chance(torch.tensor([5])) == pytest.approx(1.0)


def test_labels_drawn_class_by_class_are_found_out():
    data = heavy_tailed()
    nodes = torch.cat([(data.y == c).nonzero()[:20, 0] for c in range(3)])
    degree = degree_of(data).numpy()
    assert balance_chance(torch.tensor([20, 20, 20])) > 1e-4  # three classes can be equal by chance
    many = Data(x=data.x, edge_index=data.edge_index, y=torch.arange(300) % 7, num_classes=7)
    nodes = torch.cat([(many.y == c).nonzero()[:: 300 // 150, 0][:20] for c in range(7)])
    assert degree_chance(degree, nodes.numpy()) >= 0  # whatever their degrees
    model = GCN(4, 4, 7)
    train(model, many, nodes, epochs=5)
    claim = Jury(model, many, nodes, weight_decay=5e-4).fit().verdict().claim()
    assert any("exactly 20 labels" in line for line in claim.against)


@pytest.mark.parametrize(("labels", "alpha", "promised"), [(8, 0.1, False), (9, 0.1, True), (19, 0.025, False)])
def test_too_few_labels_for_the_level(labels: int, alpha: float, promised: bool):
    data = heavy_tailed()
    verdict = jury_on(data, drawn(data, labels)).verdict()
    claim = verdict.claim(alpha)
    assert (claim.coverage is not None) == promised
    if not promised:
        assert f"{round(1 / alpha) - 1} labels" in claim.words
        assert verdict.label_sets(alpha).all()  # and indeed nothing is excluded


def test_claims_withheld_for_other_reasons():
    data = heavy_tailed()
    nodes = drawn(data, 40)
    active = jury_on(data, nodes, chosen="actively")
    assert active.verdict().claim().against == ("The labels were chosen actively, not drawn at random.",)
    assert "chosen actively" in " ".join(active.health().advice)
    printed = jury_on(data, nodes, as_printed=True, solver="direct")
    assert "as printed" in printed.verdict().claim().words
    assert jury_on(data, nodes).verdict().claim(0.5).coverage is None
    with pytest.raises(SettingError, match="random or actively"):
        jury_on(data, nodes, chosen="cleverly")


def test_regression_claims_are_about_its_own_level():
    data = heavy_tailed(regression=True)
    jury = jury_on(data, drawn(data, 40))
    assert jury.verdict(alpha=0.05).claim().coverage == pytest.approx(0.9)
    assert jury.verdict(alpha=0.01).claim().coverage is None
    assert "plain jackknife" in jury.verdict(alpha=0.05, interval="jackknife").claim().words
    assert jury.verdict(alpha=0.05, interval="minmax").claim().coverage == pytest.approx(0.9)


def test_active_learning_withholds_its_claims(tmp_path: Path):
    data = heavy_tailed()
    nodes = drawn(data, 40)
    model = fit_gcn(data, nodes, Recipe(epochs=5), seed=0)
    scene = Scene.of(
        data,
        nodes,
        data.y[nodes],
        candidates=torch.arange(5),
        batch=1,
        model=model,
        weight_decay=5e-4,
        generator=np.random.default_rng(0),
    )
    assert scene.verdict.claim().coverage is None
    path = scene.jury().save(tmp_path / "jury")
    assert Jury.load(path, model, scene.data).chosen == "actively"


def test_the_page_and_the_command_line_say_so(tmp_path: Path):
    data = heavy_tailed()
    claims = {}
    for name, nodes in (("random", drawn(data, 40)), ("hubs", degree_of(data).argsort(descending=True)[:40])):
        jury = jury_on(data, nodes)
        content = report_on(jury, jury.verdict()).content
        tile = next(tile for tile in content["headline"] if tile["what"] == "Sets that hold")
        claims[name] = (tile["note"], " ".join(content["notes"]))
    assert "asked for: 90 %" in claims["random"][0]
    assert "Label sets: at least 80% hold the truth" in claims["random"][1]
    assert "nothing is promised" in claims["hubs"][0]
    assert "asked for" not in claims["hubs"][0]
    assert "other degrees" in claims["hubs"][1]

    def quantify(*options: str) -> str:
        command = ["quantify", "karate", "--labels", "12", "--epochs", "5", "--hidden", "4", *options]
        result = CliRunner().invoke(app, command, terminal_width=200)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "at least 80% of label sets hold the truth" in quantify()
    assert "none. The labels were chosen actively" in " ".join(quantify("--chosen", "actively").split())
    facts = json.loads(quantify("--chosen", "actively", "--json"))["jury"]
    assert facts["promised_coverage"] is None
    assert facts["against_coverage"] == ["The labels were chosen actively, not drawn at random."]
