"""Compare methods on the same splits of a graph: error detection, calibration, label sets, unseen classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import learning
from jurygcn.baselines.cfgnn import CFGNN
from jurygcn.baselines.classifier import softmax_scores
from jurygcn.checks import MOST_REPEATS, check_count
from jurygcn.choices import COMPARED_ALPHA, COMPARED_SPLITS, USUALLY_COMPARED
from jurygcn.conformal.intervals import check_alpha
from jurygcn.data import paper_split
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import (
    accuracy,
    aurc,
    brier,
    ece,
    error_aupr,
    error_auroc,
    nll,
)
from jurygcn.experiments.cells import Cell, Cells, Row
from jurygcn.experiments.rival_sets import about_sets, conformal_sets, corrected_sets
from jurygcn.experiments.trials import Trial, classes_to_leave_out
from jurygcn.io.fingerprints import fingerprint
from jurygcn.jury import Jury
from jurygcn.verdict import RANKINGS, Verdict

JURY, GCN, CONFORMAL, CORRECTED = "jury", "gcn", "split conformal", "cf-gnn"
SOFTMAX = ("max_probability", "entropy")
SAME = "the same GCN"
# The jury needs a model at its optimum, so without dropout; other methods use the same model where they can.
PLAIN = learning.GCNClassifier(dropout=0.0)
LABELS = 60


@dataclass(frozen=True)
class Contestant:
    """A method of the comparison."""

    make: Callable[[str | None], learning.Method]
    model: str  # the model whose errors its scores detect
    extra: str = ""  # labels that it uses in addition to the common ones


CONTESTANTS: dict[str, Contestant] = {
    "mc-dropout": Contestant(lambda _: learning.MCDropout(), "its own: GCN with dropout"),
    "ensemble": Contestant(lambda _: learning.DeepEnsemble(network=PLAIN), "its own: 10 GCNs"),
    "temperature": Contestant(lambda _: learning.TemperatureScaling(network=PLAIN), SAME, "validation"),
    "energy": Contestant(lambda _: learning.Energy(network=PLAIN), SAME),
    "laplace": Contestant(lambda _: learning.Laplace(network=PLAIN), "its own: GCN, last layer drawn"),
    "gpn": Contestant(learning.GPNClassifier.preset, "its own: GPN", "validation"),
    "sgnn": Contestant(lambda _: learning.SGNNClassifier(), "its own: S-GNN"),
}
METHODS = (JURY, CONFORMAL, CORRECTED, *CONTESTANTS)
MODELS = {JURY: SAME, GCN: SAME, **{name: contestant.model for name, contestant in CONTESTANTS.items()}}


@dataclass(frozen=True)
class Setting:
    """The common settings of all methods: the graph, the number of labels, the level of the label sets."""

    data: Data
    labels: int
    alpha: float
    preset: str | None = None

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the graph."""
        data = self.data
        return fingerprint(data.x, data.edge_index, data.get("edge_weight"), data.y)

    def measure(self, method: str, seed: int, left_out: bool) -> Row:
        """One method on one split; with ``left_out``, how well it detects classes that were left out of training."""
        trial = Trial.left_out(self.data, self.labels, seed) if left_out else Trial.of(self.data, self.labels, seed)
        if method == CONFORMAL:
            return {"sets": conformal_sets(trial, self.alpha, seed, PLAIN)}
        if method == CORRECTED:
            return {"sets": corrected_sets(trial, self.alpha, seed, PLAIN, CFGNN.preset(self.preset))}
        sets, calibrated = None, None
        if method == JURY:
            verdict = judged(trial, seed)
            probabilities, sets = verdict.outputs, verdict.label_sets(self.alpha)
            calibrated = None if verdict.advice is None else verdict.calibrated
            scores = {name: verdict.uncertainty(name) for name in RANKINGS} | softmax_scores(verdict.outputs)
        else:
            fitted = (
                CONTESTANTS[method]
                .make(self.preset)
                .fit(trial.data, trial.labels, val_nodes=trial.split.val, seed=seed)
            )
            probabilities = fitted.predict_proba(trial.split.test)
            scores = {kind: fitted.uncertainty(kind, nodes=trial.split.test) for kind in fitted.uncertainties}
        if left_out:
            return {"strange": {kind: error_auroc(score, trial.strange) for kind, score in scores.items()}}
        truth = trial.truth
        wrong = probabilities.argmax(dim=1) != truth
        metrics = {"auroc": error_auroc, "aupr": error_aupr, "aurc": aurc}
        return {
            "scores": {kind: {key: m(score, wrong) for key, m in metrics.items()} for kind, score in scores.items()},
            "probabilities": about_probabilities(probabilities, truth),
            **({} if calibrated is None else {"calibrated": about_probabilities(calibrated, truth)}),
            **({} if sets is None else {"sets": {method: about_sets(sets, trial)}}),
        }

    def stamp(self, cell: Cell) -> str:
        """Everything that determines the cell's numbers."""
        method = cell["method"]
        settings: Any = CONTESTANTS[method].make(self.preset) if method in CONTESTANTS else PLAIN
        settings = (PLAIN, CFGNN.preset(self.preset)) if method == CORRECTED else settings
        version = {JURY: 5, CONFORMAL: 3, "energy": 3}.get(method, 1)  # increased by hand when more is measured
        level = self.alpha if method in (JURY, CONFORMAL, CORRECTED) else ""
        return f"{version} {self.labels} {level} {settings!r} {self.fingerprint}"


def judged(trial: Trial, seed: int) -> Verdict:
    """The jury's verdict on the test nodes, of a GCN trained on the labels."""
    model, _ = PLAIN.train(trial.data, trial.labels, seed=seed)
    jury = Jury(model, trial.data, trial.labels, weight_decay=PLAIN.weight_decay).fit()
    return jury.verdict(trial.split.test)


def about_probabilities(probabilities: Tensor, truth: Tensor) -> Row:
    """Accuracy, ECE, NLL and Brier score."""
    measures = {"ece": ece, "nll": nll, "brier": brier}
    return {
        "accuracy": accuracy(probabilities.argmax(dim=1), truth),
        **{key: measure(probabilities, truth) for key, measure in measures.items()},
    }


# --- the whole comparison -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of a comparison: means and standard deviations over splits.

    Attributes:
        scores: per method and score, how well it detects the wrong predictions of ``model``: AUROC, AUPR (high is good)
            and AURC (low is good).
        probabilities: per method accuracy, ECE, NLL and Brier score; the jury's are its calibrated ones.
        sets: per method coverage, mean size, share and accuracy of sets with one label.
        strange: per method and score the AUROC of detecting nodes of classes left out of training.
        settings: labels, splits, alpha and the classes left out.
        rows: the measurements on each split.
    """

    scores: pd.DataFrame
    probabilities: pd.DataFrame
    sets: pd.DataFrame
    strange: pd.DataFrame
    settings: dict[str, Any]
    rows: list[Row] = field(repr=False)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables that have rows: errors, probabilities, sets, strange."""
        everything = {"errors": self.scores, "probabilities": self.probabilities, "sets": self.sets}
        return {name: frame for name, frame in (everything | {"strange": self.strange}).items() if len(frame)}


def evaluate(
    data: Data,
    *,
    labels: int | None = None,
    splits: int = COMPARED_SPLITS,
    alpha: float = COMPARED_ALPHA,
    methods: Sequence[str] = USUALLY_COMPARED,
    left_out: bool = True,
    preset: str | None = None,
    keep: str | Path | None = None,
    finished: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Compare the jury with other methods on the same random splits of a labelled graph.

    Each score is measured on the errors of its own method's model. The jury, max-probability, entropy, temperature
    scaling and energy share one GCN; MC dropout, the ensemble, Laplace, GPN and S-GNN have their own models, with other
    errors. Split conformal uses half of the labels for calibration, CF-GNN a quarter for its second network and a
    quarter for calibration.

    Args:
        data: a graph with classes, as ``load_dataset`` returns it.
        labels: the number of labels of each method; 60, or the whole pool if smaller.
        splits: the number of random splits.
        alpha: the share of label sets that may miss the true label.
        methods: names from ``METHODS``; by default all but "cf-gnn", which takes several times as long as the others.
        left_out: also measure how well scores detect nodes of classes left out of training.
        preset: the methods' settings for one graph, "cora", "citeseer" or "pubmed"; None for their default settings.
        keep: a folder for evaluation.jsonl; after an interruption the same call continues from it.
        finished: measure nothing; summarise the splits on which all methods are measured.
        progress: show a bar on stderr.
    """
    check_alpha(alpha, below=1.0)
    if data.y.is_floating_point() or int(data.num_classes) < 2:
        raise DataError("expected a graph with at least two classes, got none or regression targets; give labels")
    strange = [name for name in methods if name not in METHODS]
    if strange or not methods:
        raise SettingError(f"expected methods of {', '.join(METHODS)}, got {strange or 'none'}; choose some of these")
    check_count(splits, "splits", most=MOST_REPEATS)
    if labels is not None:
        check_count(labels, "labels", least=2)
    pool = len(paper_split(data, seed=0).pool)
    setting = Setting(data, min(LABELS, pool) if labels is None else labels, alpha, learning.check_preset(preset))
    Trial.of(data, setting.labels, 0)  # raises an error for too many labels before anything is trained
    gone = classes_to_leave_out(data) if left_out else 0
    wanted: list[Cell] = [
        {"method": name, "seed": seed, "left_out": outside}
        for outside in ((False, True) if gone else (False,))
        for seed in range(splits)
        for name in methods
        if not (outside and name in (CONFORMAL, CORRECTED))
    ]
    with TemporaryDirectory() as nowhere:
        kept = Cells("evaluation", setting.stamp, folder=Path(nowhere if keep is None else keep))
        kept.measure([] if finished else wanted, setting.measure, what="Comparing", show=progress)
        rows = of_whole_splits(kept.rows(wanted), wanted)
    settings = {"labels": setting.labels, "splits": splits, "alpha": alpha, "classes_left_out": gone}
    return summarise(rows, settings)


def of_whole_splits(rows: list[Row], wanted: list[Cell]) -> list[Row]:
    """The rows of the splits on which all methods are measured."""

    def split_of(row: Row) -> tuple[int, bool]:
        return row["seed"], row["left_out"]

    there, needed = Counter(map(split_of, rows)), Counter(map(split_of, wanted))
    return [row for row in rows if there[split_of(row)] == needed[split_of(row)]]


def summarise(rows: list[Row], settings: dict[str, Any]) -> Evaluation:
    """Means and standard deviations over splits."""
    scores = [
        {"method": owner(row["method"], kind), "score": kind, **values}
        for row in rows
        for kind, values in row.get("scores", {}).items()
        if is_own(row["method"], kind)
    ]
    strange = [
        {"method": owner(row["method"], kind), "score": kind, "auroc": value}
        for row in rows
        for kind, value in row.get("strange", {}).items()
        if is_own(row["method"], kind)
    ]
    overall = [
        {"method": owner(row["method"], "entropy"), **row["probabilities"]}
        for row in rows
        if "probabilities" in row and row["method"] != "energy"
    ]
    overall += [{"method": row["method"], **row["calibrated"]} for row in rows if "calibrated" in row]
    sets = [{"method": kind, **values} for row in rows for kind, values in row.get("sets", {}).items()]
    return Evaluation(
        means(scores, ["method", "score"]),
        means(overall, ["method"]),
        means(sets, ["method"]),
        means(strange, ["method", "score"]),
        settings,
        rows,
    )


def owner(method: str, kind: str) -> str:
    """The method that a score belongs to; softmax scores belong to the GCN, not to the jury."""
    return GCN if method == JURY and kind in SOFTMAX else method


def is_own(method: str, kind: str) -> bool:
    """Whether to show the score for the method; softmax scores of the energy method would repeat the GCN's."""
    return method != "energy" or kind not in SOFTMAX


def means(rows: list[Row], keys: list[str]) -> pd.DataFrame:
    """A row per method (and score): the mean of every number, and its standard deviation as NAME_sd."""
    if not rows:
        return pd.DataFrame(columns=keys)
    frame = pd.DataFrame(rows)
    numbers = [column for column in frame if column not in keys]
    grouped = frame.astype(dict.fromkeys(numbers, float)).groupby(keys, sort=False)[numbers]
    found = grouped.mean().join(grouped.std(ddof=0).add_suffix("_sd"))
    found = found[[column for number in numbers for column in (number, f"{number}_sd")]].reset_index()
    found.insert(len(keys), "splits", grouped.size().to_numpy())
    if "score" in keys:
        found.insert(len(keys), "model", found["method"].map(MODELS))
    return found
