r"""Bandits whose arms are the nodes of a graph: which node to try next, when every try earns a reward.

The paper names this application and does not build it. ``ucb-j`` fits a GCN to the rewards seen so far and plays the
arms whose jackknife+ interval reaches highest; ``epsilon-greedy``, ``linucb`` and ``random`` are there to compare with.
Arms are chosen and not drawn at random, so no coverage is promised of these intervals.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.propagation import Propagation
from jurygcn.jury import Jury
from jurygcn.models import GCN, train
from jurygcn.models.training import outputs_at

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Play:
    """How a bandit is played.

    Attributes:
        plays: arms to play in all.
        batch: arms per decision; the model is fitted anew before each.
        noise: standard deviation of what is added to an arm's mean reward.
        alpha: level of the jackknife+ interval; its upper end is finite from 1/alpha - 1 different arms on, and until
            then arms are drawn at random.
        epsilon: share of random plays of epsilon-greedy.
        optimism: LinUCB's factor of the standard deviation.
        dimensions: of LinUCB's features.
        hidden, epochs, lr, weight_decay: of the GCN.
    """

    plays: int = 200
    batch: int = 5
    noise: float = 0.1
    alpha: float = 0.05
    epsilon: float = 0.1
    optimism: float = 0.3
    dimensions: int = 32
    hidden: int = 16
    epochs: int = 100
    lr: float = 0.05
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        counts = {"plays": self.plays, "batch": self.batch, "dimensions": self.dimensions, "hidden": self.hidden}
        for name, count in counts.items():
            if count < 1:
                raise SettingError(f"expected {name} of at least 1, got {count}; raise it")
        shares = {"alpha": (self.alpha, 0.5), "epsilon": (self.epsilon, 1.0)}
        for name, (value, most) in shares.items():
            if not 0 <= value <= most or (name == "alpha" and value == 0):
                raise SettingError(f"expected {name} between 0 and {most:g}, got {value}; change it")
        if not (self.noise >= 0 and self.optimism >= 0):
            raise SettingError(f"expected noise and optimism of at least 0, got {self.noise} and {self.optimism}")


@dataclass(frozen=True, eq=False)
class Game:
    """What was played and what it cost.

    Shapes: arms (T,), rewards (T,) as observed, regret (T,), the sum so far of what the best arm's mean has more.
    """

    policy: str
    arms: NDArray[np.int64] = field(repr=False)
    rewards: Array = field(repr=False)
    regret: Array = field(repr=False)
    simple_regret: float  # of the arm with the best mean reward seen


class Scene:
    """What a policy may know: the graph, the arms played and their mean rewards; never the true means."""

    def __init__(self, data: Data, play: Play, seed: int) -> None:
        self.data, self.play, self.seed = data, play, seed
        self.random = np.random.default_rng([seed, 0])
        self.sums, self.counts = (np.zeros(int(data.num_nodes)) for _ in range(2))

    def note(self, arms: NDArray[np.int64], rewards: Array) -> None:
        """Remember what these arms earned."""
        np.add.at(self.sums, arms, rewards)
        np.add.at(self.counts, arms, 1)

    @property
    def seen(self) -> NDArray[np.int64]:
        """The arms played so far, each once."""
        return np.flatnonzero(self.counts)

    @property
    def means(self) -> Array:
        """Their mean rewards."""
        means: Array = self.sums[self.seen] / self.counts[self.seen]
        return means

    def draw(self, count: int) -> NDArray[np.int64]:
        """Arms at random."""
        return self.random.choice(len(self.counts), size=count, replace=False)

    def best(self, index: Array) -> NDArray[np.int64]:
        """The arms of largest index; equal ones in random order."""
        shuffled = self.random.permutation(len(index))
        return shuffled[np.argsort(-index[shuffled], kind="stable")[: self.play.batch]]

    # --- the GNN ------------------------------------------------------------------------------------------

    def fit(self) -> tuple[GCN, Data, Tensor]:
        """A GCN fitted to the mean rewards seen, scaled to mean 0 and spread 1, and what it was fitted to."""
        seen, means = torch.from_numpy(self.seen), torch.from_numpy(self.means)
        graph = copy.copy(self.data)
        graph.y = torch.zeros(len(self.counts), 1)
        graph.y[seen, 0] = ((means - means.mean()) / means.std().clamp_min(1e-6)).float()
        model = GCN(graph.x.shape[1], self.play.hidden, 1)
        p = self.play
        train(model, graph, seen, loss="mse", epochs=p.epochs, lr=p.lr, weight_decay=p.weight_decay, seed=self.seed)
        return model, graph, seen

    # --- propagated features -----------------------------------------------------------------------------

    @cached_property
    def features(self) -> Array:
        r"""Rows of :math:`\hat A^2 X` in their leading singular directions, of length 1."""
        graph = Propagation.of(self.data)
        twice = (graph.adjacency @ graph.inputs).astype(np.float64)
        if self.play.dimensions < min(twice.shape) and abs(twice).max() > 0:
            left, sizes, _ = svds(twice, k=self.play.dimensions, random_state=0)
            rows: Array = left * sizes
        else:  # no fewer directions than there are: the rows themselves
            rows = twice.toarray() if sparse.issparse(twice) else twice.copy()
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.maximum(lengths, 1e-12)
        return rows


def ucb_jackknife(scene: Scene) -> NDArray[np.int64]:
    """The arms whose jackknife+ interval reaches highest; an arm played k times also reaches no higher than its own
    mean plus 1 / sqrt(k) of the rewards' spread, so that no arm is tried for ever.
    """
    if len(scene.seen) < math.ceil(1 / scene.play.alpha) - 1:
        return scene.draw(scene.play.batch)
    model, graph, seen = scene.fit()
    jury = Jury(model, graph, seen, loss="mse", weight_decay=scene.play.weight_decay, chosen="actively").fit()
    upper = jury.verdict(alpha=scene.play.alpha, exact_ranks=True).upper.reshape(-1).double().numpy()
    own = graph.y[seen, 0].double().numpy() + scene.counts[scene.seen] ** -0.5
    upper[scene.seen] = np.minimum(upper[scene.seen], own)
    return scene.best(upper)


def epsilon_greedy(scene: Scene) -> NDArray[np.int64]:
    """The arms that the GCN predicts to be best, each replaced by a random one with probability epsilon.

    Of an arm that was played its own mean counts.
    """
    if len(scene.seen) < 2:
        return scene.draw(scene.play.batch)
    model, graph, seen = scene.fit()
    with torch.no_grad():
        predicted = outputs_at(model, graph, torch.arange(len(scene.counts)))().reshape(-1)
    predicted[seen] = graph.y[seen, 0]
    arms = scene.best(predicted.double().numpy())
    explore = scene.random.random(len(arms)) < scene.play.epsilon
    arms[explore] = scene.draw(int(explore.sum()))
    return arms


def linucb(scene: Scene) -> NDArray[np.int64]:
    r"""Ridge regression on propagated features: :math:`\theta^T\phi + a\sqrt{\phi^T A^{-1} \phi}`."""
    phi = scene.features
    if len(scene.seen) < 2:
        return scene.draw(scene.play.batch)
    rows, weights = phi[scene.seen], scene.counts[scene.seen]
    middle = float((scene.sums.sum()) / scene.counts.sum())
    inverse = np.linalg.inv(np.eye(phi.shape[1]) + (rows * weights[:, None]).T @ rows)
    theta = inverse @ (rows * weights[:, None]).T @ (scene.means - middle)
    bonus = np.sqrt(np.einsum("vd,de,ve->v", phi, inverse, phi))
    return scene.best(phi @ theta + scene.play.optimism * bonus)


def at_random(scene: Scene) -> NDArray[np.int64]:
    """Any arms."""
    return scene.draw(scene.play.batch)


POLICIES: dict[str, Callable[[Scene], NDArray[np.int64]]] = {
    "ucb-j": ucb_jackknife,
    "epsilon-greedy": epsilon_greedy,
    "linucb": linucb,
    "random": at_random,
}


@plain_torch()
def play_bandit(data: Data, means: Tensor, *, policy: str = "ucb-j", play: Play | None = None, seed: int = 0) -> Game:
    """Play a bandit whose arm v earns ``means[v]`` plus normal noise.

    Noise and first arms come from ``seed`` alone, so policies with one seed are compared like with like.

    Shapes: means (N,).
    """
    if policy not in POLICIES:
        raise SettingError(f"expected a policy of {', '.join(POLICIES)}, got {policy!r}; choose one")
    truth = np.asarray(means, dtype=np.float64)
    if truth.shape != (int(data.num_nodes),) or not np.isfinite(truth).all():
        raise DataError(f"expected one finite mean reward per node ({data.num_nodes}), got {truth.shape}; correct them")
    play = play or Play()
    if play.batch > len(truth):
        raise SettingError(f"expected a batch of at most {len(truth)} arms, got {play.batch}; lower it")
    scene = Scene(data, play, seed)
    noise = np.random.default_rng([seed, 1]).normal(scale=play.noise, size=play.plays)
    arms = np.zeros(0, dtype=np.int64)
    while len(arms) < play.plays:
        chosen = POLICIES[policy](scene)[: play.plays - len(arms)]
        scene.note(chosen, truth[chosen] + noise[len(arms) : len(arms) + len(chosen)])
        arms = np.concatenate([arms, chosen])
    loss = truth.max() - truth[arms]
    favourite = scene.seen[int(np.argmax(scene.means))]
    return Game(policy, arms, truth[arms] + noise, np.cumsum(loss), float(truth.max() - truth[favourite]))
