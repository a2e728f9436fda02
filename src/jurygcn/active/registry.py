"""The table of strategies: name, function, and the reason for its choices."""

from __future__ import annotations

from dataclasses import dataclass

from jurygcn.active import age, clusters, simple
from jurygcn.active.design import Design
from jurygcn.active.diffusal import diffusal
from jurygcn.active.esp import esp
from jurygcn.active.gain import Gain
from jurygcn.active.grain import grain_ball, grain_nn
from jurygcn.active.graphpart import graphpart, graphpart_far
from jurygcn.active.lscale import lscale
from jurygcn.active.rim import Rim
from jurygcn.active.scene import Strategy
from jurygcn.active.sopt import sopt
from jurygcn.errors import SettingError


@dataclass(frozen=True)
class Entry:
    """A strategy, and the reason that a labeller reads for a chosen node; ``{score}`` stands for the node's score."""

    choose: Strategy
    reason: str


STRATEGIES: dict[str, Entry] = {
    "jury-design": Entry(Design(), "its label would remove {score:.1%} of the graph's uncertainty"),
    "jury-gain": Entry(Gain(), "its label is expected to make {score:.1f} more predictions right"),
    "jury": Entry(simple.jury, "its jackknife interval is wide: {score:.3f} (the paper's uncertainty)"),
    "jury-printed": Entry(
        simple.jury_printed, "its jackknife interval is wide: {score:.3f}, by the formulas as printed"
    ),
    "jury-ambiguity": Entry(
        simple.jury_ambiguity, "the jury finds two labels almost equally plausible (ambiguity {score:.2f})"
    ),
    "age": Entry(age.age, "uncertain, typical and central at once"),
    "anrmab": Entry(age.anrmab, "drawn by a bandit over uncertainty, density and centrality"),
    "coreset": Entry(clusters.coreset, "nearest to the centre of a cluster of hidden representations"),
    "coreset-greedy": Entry(clusters.coreset_greedy, "farthest from everything labelled, in the hidden representation"),
    "centrality": Entry(simple.centrality, "many shortest paths lead through it"),
    "degree": Entry(simple.degree, "it has {score:.0f} neighbours"),
    "random": Entry(simple.random, "drawn at random"),
    "sopt": Entry(sopt, "its label reduces the uncertainty of the other nodes most, under a Gaussian field"),
    "entropy": Entry(simple.entropy, "the model's prediction is spread over the classes (entropy {score:.2f})"),
    "margin": Entry(simple.margin, "the model's two best classes are close"),
    "density": Entry(clusters.density, "its prediction is typical of a cluster of predictions"),
    "pagerank": Entry(simple.pagerank, "random walks visit it often"),
    "featprop": Entry(clusters.featprop, "it represents a cluster of propagated features without a label"),
    "grain-nn": Entry(grain_nn, "it influences many nodes, far from those already chosen"),
    "grain-ball": Entry(grain_ball, "it influences many nodes whose surroundings no chosen node reaches"),
    "diffusal": Entry(diffusal, "uncertain, central under diffusion, and from a cluster with few labels"),
    "graphpart": Entry(graphpart, "it represents a cluster without a label in its part of the graph"),
    "graphpart-far": Entry(
        graphpart_far, "it represents a cluster without a label in its part of the graph, far from other parts' labels"
    ),
    "lscale": Entry(lscale, "it represents a cluster of {score:.0f} nodes in a learned space"),
    "rim": Entry(Rim(), "its label reliably influences {score:.0f} nodes that no label reaches yet"),
    "esp": Entry(esp, "its label is expected to make the other predictions surest"),
    "badge": Entry(clusters.badge, "its label would change the model much, and differently from the others'"),
}


def find_strategy(strategy: str | Strategy) -> tuple[str, Strategy]:
    """The name and the function of a strategy, from either of them."""
    if callable(strategy):
        return str(getattr(strategy, "__name__", repr(strategy))), strategy
    if strategy not in STRATEGIES:
        raise SettingError(f"expected a strategy of {', '.join(STRATEGIES)}, got {strategy!r}; choose one")
    return strategy, STRATEGIES[strategy].choose
