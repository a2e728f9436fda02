"""Label sets of the jury's rivals, each with the same labels: split conformal prediction, NAPS and CF-GNN."""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn import learning
from jurygcn.baselines.cfgnn import CFGNN, LEAST
from jurygcn.baselines.classifier import logits_of
from jurygcn.baselines.naps import naps_sets
from jurygcn.evaluation import mean_set_size, set_coverage, singleton_accuracy, split_conformal
from jurygcn.evaluation.conformal import SCORES, tuned_diffusion
from jurygcn.evaluation.graph_scores import similar_nodes
from jurygcn.experiments.cells import Row
from jurygcn.experiments.trials import Trial
from jurygcn.graph.propagation import Propagation, graph_cache


def halved(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random half of the labels to train on, and the other half, in random order."""
    shuffled = labels[torch.randperm(len(labels), generator=generator)]  # the labels are sorted
    return shuffled[: len(labels) // 2], shuffled[len(labels) // 2 :]


def conformal_sets(trial: Trial, alpha: float, seed: int, network: learning.GCNClassifier) -> Row:
    """Split conformal with the same number of labels: a random half to train on, the other half to calibrate on."""
    generator = torch.Generator().manual_seed(seed)
    train_on, calibration = halved(trial.labels, generator)
    model, _ = network.train(trial.data, train_on, seed=seed)
    pi = torch.softmax(logits_of(model, trial.data), dim=1)
    test, y, cache = trial.split.test, trial.data.y, graph_cache(trial.data).whole
    if "similar nodes" not in cache:  # they depend on the features alone
        cache["similar nodes"] = similar_nodes(trial.data.x)
    similar = cache["similar nodes"]
    given = {"alpha": alpha, "edge_index": trial.data.edge_index, "generator": generator}
    found = {
        f"split conformal, {score.upper()}": about_sets(
            split_conformal(pi, y, calibration, score=score, similar=similar, **given)[test], trial
        )
        for score in SCORES
    }
    tuning, rest = calibration.chunk(2)  # the labels that tune DAPS are among the given ones
    if len(rest):
        tuned = tuned_diffusion(pi, y, tuning, rest, **given)
        found["split conformal, DAPS tuned"] = about_sets(tuned[test], trial)
    found["split conformal, NAPS"] = about_sets(naps_sets(pi, y, calibration, **given)[test], trial)
    return found


def corrected_sets(trial: Trial, alpha: float, seed: int, network: learning.GCNClassifier, correction: CFGNN) -> Row:
    """CF-GNN with the same labels: half train the model, a quarter the correction, a quarter calibrates.

    Its authors choose the epoch with validation labels. Here the labels of the correction choose it; the rows with
    validation labels have those in addition. There are no rows if there are too few labels.
    """
    train_on, held = halved(trial.labels, torch.Generator().manual_seed(seed))
    tuning, calibration = held.chunk(2) if len(held) >= 2 * LEAST else (held[:0], held)
    if len(tuning) < LEAST:
        return {}
    model, _ = network.train(trial.data, train_on, seed=seed)
    pi, y = torch.softmax(logits_of(model, trial.data), dim=1), trial.data.y
    found = correction.correct(
        pi,
        y,
        Propagation.of(trial.data).adjacency,
        train=train_on,
        tuning=tuning,
        choosing=[tuning, trial.split.val],
        alpha=alpha,
        seed=seed,
    )
    rows = {}
    for corrected, words in zip(found, ("", ", with validation labels")):
        for score, generator in (("aps", None), ("raps", torch.Generator().manual_seed(seed))):  # as the authors draw
            sets = split_conformal(corrected, y, calibration, alpha=alpha, score=score, generator=generator)
            rows[f"CF-GNN, {score.upper()}{words}"] = about_sets(sets[trial.split.test], trial)
    return rows


def about_sets(sets: Tensor, trial: Trial) -> Row:
    """Coverage, mean size, and the share and accuracy of one-label sets (None if there are none)."""
    single = singleton_accuracy(sets, trial.truth)
    return {
        "coverage": set_coverage(sets, trial.truth),
        "size": mean_set_size(sets),
        "singletons": float((sets.sum(dim=1) == 1).double().mean()),
        "singleton_accuracy": None if single != single else single,
    }
