"""Methods compared: on the same splits, with the same labels, each judged by its own errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from cli.invoke import refuses, run, run_json
from jurygcn import GCN, Jury, train
from jurygcn.baselines.cfgnn import CFGNN
from jurygcn.baselines.classifier import logits_of
from jurygcn.conformal.scores import aps_scores
from jurygcn.data import labelled, paper_split, random_labels, synthetic
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import error_auroc, mean_set_size, nll, set_coverage, split_conformal
from jurygcn.experiments import comparison
from jurygcn.experiments.comparison import CONFORMAL, CORRECTED, JURY, METHODS, evaluate
from jurygcn.experiments.trials import Trial, classes_to_leave_out
from jurygcn.graph.propagation import Propagation

CHEAP = (JURY, CONFORMAL, "temperature", "energy")


@pytest.fixture(scope="module")
def data() -> Data:
    return synthetic(num_nodes=400, num_edges=1600, num_features=12, num_classes=5, seed=1)


@pytest.fixture(scope="module")
def found(data: Data) -> comparison.Evaluation:
    return evaluate(data, labels=30, splits=2, methods=CHEAP)


def row_of(found: comparison.Evaluation, method: str, *, seed: int = 0, left_out: bool = False) -> dict:
    return next(r for r in found.rows if (r["method"], r["seed"], r["left_out"]) == (method, seed, left_out))


def test_the_jury_is_measured_as_by_hand(data: Data, found: comparison.Evaluation):
    split = paper_split(data, seed=1)
    nodes = random_labels(split.pool, 30, seed=1)
    model = GCN(12, 16, 5)
    train(model, data, nodes, weight_decay=5e-4, seed=1)
    verdict = Jury(model, data, nodes, weight_decay=5e-4).fit().verdict(split.test)
    wrong = verdict.predicted_class != data.y[split.test]
    row = row_of(found, JURY, seed=1)
    for name in ("ambiguity", "width", "credibility"):
        assert row["scores"][name]["auroc"] == pytest.approx(error_auroc(verdict.uncertainty(name), wrong))
    sets = verdict.label_sets(0.1)
    assert row["sets"][JURY]["coverage"] == set_coverage(sets, data.y[split.test])
    assert row["sets"][JURY]["size"] == mean_set_size(sets)
    assert row["probabilities"]["accuracy"] == pytest.approx(float((~wrong).double().mean()))
    assert row["calibrated"]["nll"] == pytest.approx(nll(verdict.calibrated, data.y[split.test]))
    by_method = found.probabilities.set_index("method")["nll"]
    for method, key in ((JURY, "calibrated"), ("gcn", "probabilities")):
        assert by_method[method] == pytest.approx(sum(row_of(found, JURY, seed=s)[key]["nll"] for s in (0, 1)) / 2)


def test_methods_that_can_judge_the_same_model(found: comparison.Evaluation):
    for seed in range(2):
        jury, energy, temperature = (row_of(found, name, seed=seed) for name in (JURY, "energy", "temperature"))
        assert jury["scores"]["entropy"] == pytest.approx(energy["scores"]["entropy"])
        assert jury["probabilities"]["accuracy"] == temperature["probabilities"]["accuracy"]
    methods = found.scores.groupby("method")["score"].apply(list)
    assert methods["gcn"] == ["max_probability", "entropy"], "the GCN's own doubt is not the jury's"
    assert methods["energy"] == ["energy", "gnnsafe", "gebm"], "and is not there twice"


def test_split_conformal_shares_the_labels(data: Data, found: comparison.Evaluation):
    """As many in all; its halves are drawn at random, since labels come sorted by node."""
    trial = Trial.of(data, 30, 0)
    shuffled = trial.labels[torch.randperm(30, generator=torch.Generator().manual_seed(0))]
    first, second = shuffled[:15], shuffled[15:]
    assert int(first.max()) > int(second.min()), "not the lower and the upper numbers"
    model, _ = comparison.PLAIN.train(data, first, seed=0)
    pi = torch.softmax(logits_of(model, data), dim=1)
    sets = split_conformal(pi, data.y, second, alpha=0.1)[trial.split.test]
    measured = row_of(found, CONFORMAL)["sets"]
    names = ("LAC", "APS", "RAPS", "DAPS", "SNAPS", "DAPS tuned", "NAPS")
    assert list(measured) == [f"split conformal, {score}" for score in names]
    assert measured["split conformal, LAC"]["coverage"] == set_coverage(sets, trial.truth)


def test_cf_gnn_shares_the_labels(data: Data, monkeypatch: pytest.MonkeyPatch):
    """Half train the model, a quarter the correction, a quarter calibrates; fewer than eight labels are too few."""
    quick = CFGNN(epochs=30, first=10)
    monkeypatch.setattr(comparison.CFGNN, "preset", lambda _: quick)
    measured = evaluate(data, labels=40, splits=1, methods=(CORRECTED,))
    names = [f"CF-GNN, {score}{words}" for words in ("", ", with validation labels") for score in ("APS", "RAPS")]
    assert measured.sets["method"].tolist() == names
    assert len(measured.rows) == 1, "it has no score for classes left out"
    trial = Trial.of(data, 40, 0)
    shuffled = trial.labels[torch.randperm(40, generator=torch.Generator().manual_seed(0))]
    train, tuning, calibration = shuffled[:20], shuffled[20:30], shuffled[30:]
    model, _ = comparison.PLAIN.train(data, train, seed=0)
    pi, hidden = torch.softmax(logits_of(model, data), dim=1), data.y.clone()
    hidden[calibration] = hidden[trial.split.test] = 0  # labels that the correction may not read
    A, val = Propagation.of(data).adjacency, trial.split.val
    found = quick.correct(pi, hidden, A, train=train, tuning=tuning, choosing=[tuning, val], alpha=0.1, seed=0)
    for corrected, name in zip(found, names[::2]):
        own = aps_scores(corrected)[calibration, data.y[calibration]].sort().values
        sets = aps_scores(corrected)[trial.split.test] <= own[9] + 1e-6  # rank 10 of 10
        row = measured.sets.set_index("method").loc[name]
        assert row["coverage"] == pytest.approx(set_coverage(sets, trial.truth))
        assert row["size"] == pytest.approx(mean_set_size(sets))
    assert evaluate(data, labels=6, splits=1, methods=(CORRECTED,)).sets.empty


def test_left_out_classes_are_unknown_to_the_method(data: Data):
    trial = Trial.left_out(data, 30, 0)
    assert classes_to_leave_out(data) == 2
    assert trial.data.num_classes == 3
    known = labelled(trial.data)
    assert bool(known[trial.labels].all())
    assert bool(known[trial.split.val].all())
    assert trial.strange.tolist() == (data.y[trial.split.test] >= 3).tolist()
    assert data.num_classes == 5, "the graph itself is left as it is"


@pytest.mark.parametrize(("classes", "left_out"), [(7, 3), (6, 2), (3, 1), (2, 0)])
def test_how_many_classes_are_left_out(classes: int, left_out: int):
    assert classes_to_leave_out(Data(num_classes=classes)) == left_out


def test_means_over_splits(found: comparison.Evaluation):
    values = [row_of(found, JURY, seed=seed)["scores"]["ambiguity"]["aurc"] for seed in range(2)]
    row = found.scores[(found.scores["method"] == JURY) & (found.scores["score"] == "ambiguity")].iloc[0]
    assert row["aurc"] == pytest.approx(sum(values) / 2)
    assert row["aurc_sd"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert (row["splits"], row["model"]) == (2, "the same GCN")
    assert set(found.tables) == {"errors", "probabilities", "sets", "strange"}


def test_what_is_kept_is_not_measured_again(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = evaluate(data, labels=30, splits=1, methods=(JURY,), keep=tmp_path)

    def never(*_: object, **__: object) -> None:
        pytest.fail("measured again")

    monkeypatch.setattr(comparison, "judged", never)
    again = evaluate(data, labels=30, splits=1, methods=(JURY,), keep=tmp_path)
    assert again.scores.equals(first.scores)
    assert len(evaluate(data, labels=30, splits=3, methods=(JURY,), keep=tmp_path, finished=True).rows) == 2
    both = evaluate(data, labels=30, splits=1, methods=(JURY, "energy"), keep=tmp_path, finished=True)
    assert both.rows == [], "all methods have the same splits, or none"
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        evaluate(data, labels=29, splits=1, methods=(JURY,), keep=tmp_path)
    other = data.clone()
    other.x = other.x + 1
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        evaluate(other, labels=30, splits=1, methods=(JURY,), keep=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ("jury", "oracle")}, "expected methods of jury"),
        ({"methods": ()}, "expected methods of jury"),
        ({"labels": 100_000}, "labels of the pool"),
        ({"labels": 1}, "expected labels as a whole number of at least 2, got 1"),
        ({"splits": 0}, "expected splits as a whole number between 1 and 10000, got 0"),
        ({"alpha": 1.5}, "alpha"),
    ],
)
def test_refusals(data: Data, options: dict, words: str):
    with pytest.raises(SettingError, match=words):
        evaluate(data, **options)


def test_regression_is_refused(data: Data):
    targets = data.clone()
    targets.y = data.y.float()
    with pytest.raises(DataError, match="at least two classes"):
        evaluate(targets)


def test_methods_are_those_that_are_documented():
    assert METHODS == (
        "jury",
        "split conformal",
        "cf-gnn",
        "mc-dropout",
        "ensemble",
        "temperature",
        "energy",
        "laplace",
        "gpn",
        "sgnn",
    )


def test_the_command_writes_tables_and_goes_on(tmp_path: Path):
    options = ("digits", "--labels", 40, "--splits", 1, "--methods", "jury, energy", "--no-left-out", "--out", tmp_path)
    result = run("evaluate", *options)
    assert result.exit_code == 0, result.output
    assert "Detecting wrong predictions" in result.stdout
    kept = (tmp_path / "evaluation.jsonl").read_bytes()
    found = run_json("evaluate", *options)
    assert (tmp_path / "evaluation.jsonl").read_bytes() == kept
    assert {Path(file).name for file in found["files"]} == {"errors.csv", "probabilities.csv", "sets.csv", "run.json"}
    assert found["settings"] == {"labels": 40, "splits": 1, "alpha": 0.1, "classes_left_out": 0}
    assert json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))["errors"] == found["errors"]


def test_the_command_refuses_in_a_sentence():
    assert "expected methods of" in refuses("evaluate", "digits", "--methods", "magic")
    assert "labels of the pool" in refuses("evaluate", "digits", "--labels", 5000)
