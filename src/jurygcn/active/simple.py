"""Strategies that rank nodes by one number: a centrality, or the uncertainty of the model or the jury."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jurygcn.active.scene import Choice, Scene
from jurygcn.linalg.two_block import TwoBlock
from jurygcn.settings import LeaveOut


def random(scene: Scene) -> Choice:
    """Candidates drawn uniformly at random."""
    return scene.top(np.zeros(int(scene.data.num_nodes)))


def degree(scene: Scene) -> Choice:
    """Most neighbours. Ties are in random order."""
    return scene.top(scene.statistics.degree)


def pagerank(scene: Scene) -> Choice:
    """Largest PageRank."""
    return scene.top(scene.statistics.pagerank)


def centrality(scene: Scene) -> Choice:
    """Largest betweenness."""
    return scene.top(scene.statistics.betweenness)


def entropy(scene: Scene) -> Choice:
    """Largest entropy of the model's prediction."""
    return scene.top(scene.entropy)


def margin(scene: Scene) -> Choice:
    """Smallest gap between the model's two largest probabilities. The score is one minus the gap."""
    ordered = np.sort(scene.probabilities, axis=1)
    return scene.top(1.0 - (ordered[:, -1] - ordered[:, -2]))


def jury(scene: Scene) -> Choice:
    """Widest jackknife interval: the paper's acquisition function, with its influence jurors and the errata corrected.

    Implements: Application 1.
    """
    return widest(scene)


def jury_printed(scene: Scene) -> Choice:
    """Widest jackknife interval by the formulas as printed (errata E1 to E3).

    Implements: Application 1.
    """
    return widest(scene, how="printed")


def jury_ambiguity(scene: Scene) -> Choice:
    """Largest ambiguity: the gap between the two largest p-values is smallest."""
    return scene.top(scene.verdict.ambiguity.cpu().numpy())


def widest(scene: Scene, *, alpha: float = 0.025, how: str = "influence") -> Choice:
    """Widest interval at level ``alpha`` of jurors that are found by influence, or by the printed formulas."""
    leave_out = LeaveOut(how)
    if leave_out.printed and scene.model is not None and len(scene.model.weights) == 2:
        solver: Any = TwoBlock(last=scene.model.weights[1].numel())  # it solves and can do nothing else
        leave_out = replace(leave_out, solver=solver)
    # the paper does not average votes over neighbourhoods, and the width does not depend on it
    verdict = scene.jury(leave_out=leave_out).verdict(alpha=alpha, diffusion=0, advice=None)
    return scene.top(verdict.width.cpu().numpy())
