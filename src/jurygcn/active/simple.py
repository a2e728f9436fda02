"""Strategies that rank nodes by one number: a centrality, or the uncertainty of the model or the jury."""

from __future__ import annotations

from typing import Any

import numpy as np

from jurygcn.active.scene import Choice, Scene
from jurygcn.linalg.two_block import TwoBlock


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
    return widest(scene, as_printed=True)


def jury_ambiguity(scene: Scene) -> Choice:
    """Largest ambiguity: the gap between the two largest p-values is smallest."""
    return scene.top(scene.verdict.ambiguity.cpu().numpy())


def widest(scene: Scene, *, alpha: float = 0.025, as_printed: bool = False) -> Choice:
    """Widest interval of influence jurors at level ``alpha``."""
    settings: dict[str, Any] = {"leave_out": "influence", "as_printed": as_printed}
    if as_printed and scene.model is not None and len(scene.model.weights) == 2:
        settings["solver"] = TwoBlock(last=scene.model.weights[1].numel())
    # the paper does not average votes over neighbourhoods, and the width does not depend on it
    verdict = scene.jury(**settings).verdict(alpha=alpha, diffusion=0)
    return scene.top(verdict.width.cpu().numpy())
