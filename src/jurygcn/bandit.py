"""Bandits whose arms are the nodes of a graph. Each play of an arm earns a reward, and a policy chooses the next arm.

The paper mentions this application and does not implement it. ``ucb-j`` fits a GCN to the rewards observed so far and
plays the arms with the highest upper ends of jackknife+ intervals. ``epsilon-greedy``, ``linucb`` and ``random`` are
baselines. The policy chooses the arms, so they are not a random sample, and the intervals have no coverage guarantee.
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
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.choices import Recipe
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.features import leading_directions
from jurygcn.graph.propagation import Propagation
from jurygcn.jury import Jury
from jurygcn.models import GCN, fit_gcn
from jurygcn.models.training import outputs_at

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Play:
    """Settings of a bandit and its policies.

    Attributes:
        plays: number of plays in total.
        batch: arms chosen at a time. The model is fitted again before each choice.
        noise: standard deviation of the noise that is added to an arm's mean reward.
        alpha: level of the jackknife+ interval. Its upper end is finite once 1/alpha - 1 different arms were played.
            Before that, arms are drawn at random.
        epsilon: probability of a random arm in epsilon-greedy.
        optimism: factor of the standard deviation in LinUCB.
        dimensions: number of features in LinUCB.
        hidden, epochs, lr, weight_decay: of the GCN.
    """

    plays: int = 200
    batch: int = 5
    noise: float = 0.1
    alpha: float = 0.05
    epsilon: float = 0.1
    optimism: float = 0.3
    dimensions: int = 32
    hidden: int = Recipe.hidden
    epochs: int = Recipe.epochs
    lr: float = 0.05
    weight_decay: float = Recipe.weight_decay

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
            raise SettingError(
                f"expected noise and optimism of at least 0, got {self.noise} and {self.optimism}; raise them"
            )


@dataclass(frozen=True, eq=False)
class Game:
    """The arms that were played, their rewards and the regret.

    The regret of a play is the best arm's mean reward minus that of the arm played. ``regret`` holds cumulative sums.

    Shapes: arms (T,), rewards (T,) as observed, regret (T,).
    """

    policy: str
    arms: NDArray[np.int64] = field(repr=False)
    rewards: Array = field(repr=False)
    regret: Array = field(repr=False)
    simple_regret: float  # regret of the arm with the highest observed mean reward


class State:
    """The input of a policy: the graph, the arms played and their observed rewards, without the true means."""

    def __init__(self, data: Data, play: Play, seed: int) -> None:
        self.data, self.play, self.seed = data, play, seed
        self.generator = np.random.default_rng([seed, 0])
        self.sums, self.counts = (np.zeros(int(data.num_nodes)) for _ in range(2))

    def record(self, arms: NDArray[np.int64], rewards: Array) -> None:
        """Store the rewards of these arms."""
        np.add.at(self.sums, arms, rewards)
        np.add.at(self.counts, arms, 1)

    @property
    def played(self) -> NDArray[np.int64]:
        """The different arms played so far, sorted."""
        return np.flatnonzero(self.counts)

    @property
    def mean_rewards(self) -> Array:
        """The mean observed reward of each arm in ``played``."""
        means: Array = self.sums[self.played] / self.counts[self.played]
        return means

    def draw(self, count: int) -> NDArray[np.int64]:
        """Different arms, drawn at random."""
        return self.generator.choice(len(self.counts), size=count, replace=False)

    def top_arms(self, index: Array) -> NDArray[np.int64]:
        """The batch of arms with the largest index. Ties are in random order."""
        shuffled = self.generator.permutation(len(index))
        return shuffled[np.argsort(-index[shuffled], kind="stable")[: self.play.batch]]

    # --- the GNN ------------------------------------------------------------------------------------------

    def fit(self) -> tuple[GCN, Data, Tensor]:
        """A GCN fitted to the observed mean rewards, the graph that holds these as targets, and the arms played.

        The targets are scaled to mean 0 and standard deviation 1.
        """
        played, means = torch.from_numpy(self.played), torch.from_numpy(self.mean_rewards)
        graph = copy.copy(self.data)
        graph.y = torch.zeros(len(self.counts), 1)
        graph.y[played, 0] = ((means - means.mean()) / means.std().clamp_min(1e-6)).float()
        p = self.play
        recipe = Recipe(p.hidden, p.epochs, p.lr, p.weight_decay, dropout=0.0)
        model, _ = fit_gcn(graph, played, recipe, seed=self.seed, outputs=1, loss="mse")
        return model, graph, played

    # --- propagated features -----------------------------------------------------------------------------

    @cached_property
    def features(self) -> Array:
        r"""Rows of :math:`\hat A^2 X` projected on the leading singular vectors and scaled to length 1."""
        twice = Propagation.of(self.data).propagated(2).astype(np.float64)
        rows: Array = np.asarray(twice @ leading_directions(twice, self.play.dimensions))
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.maximum(lengths, 1e-12)
        return rows


def ucb_jackknife(state: State) -> NDArray[np.int64]:
    """The arms with the highest upper end of their jackknife+ interval.

    An arm played k times has a second bound: its own mean plus 1 / sqrt(k) standard deviations of the rewards. The
    smaller bound counts. So the policy does not play a poor arm again and again.
    """
    if len(state.played) < math.ceil(1 / state.play.alpha) - 1:
        return state.draw(state.play.batch)
    model, graph, played = state.fit()
    jury = Jury(model, graph, played, loss="mse", weight_decay=state.play.weight_decay, chosen="actively").fit()
    upper = jury.verdict(alpha=state.play.alpha, exact_ranks=True, advice=None).upper.reshape(-1).double().numpy()
    own_bound = graph.y[played, 0].double().numpy() + state.counts[state.played] ** -0.5
    upper[state.played] = np.minimum(upper[state.played], own_bound)
    return state.top_arms(upper)


def epsilon_greedy(state: State) -> NDArray[np.int64]:
    """The arms with the highest predicted rewards, each replaced by a random arm with probability epsilon.

    The GCN predicts the reward of an arm that was not played. An arm that was played has its observed mean.
    """
    if len(state.played) < 2:
        return state.draw(state.play.batch)
    model, graph, played = state.fit()
    with torch.no_grad():
        predicted = outputs_at(model, graph, torch.arange(len(state.counts)))().reshape(-1)
    predicted[played] = graph.y[played, 0]
    arms = state.top_arms(predicted.double().numpy())
    explore = state.generator.random(len(arms)) < state.play.epsilon
    arms[explore] = state.draw(int(explore.sum()))
    return arms


def linucb(state: State) -> NDArray[np.int64]:
    r"""Ridge regression on propagated features: :math:`\theta^T\phi + a\sqrt{\phi^T A^{-1} \phi}`."""
    phi = state.features
    if len(state.played) < 2:
        return state.draw(state.play.batch)
    rows, weights = phi[state.played], state.counts[state.played]
    mean_reward = float((state.sums.sum()) / state.counts.sum())
    inverse = np.linalg.inv(np.eye(phi.shape[1]) + (rows * weights[:, None]).T @ rows)
    theta = inverse @ (rows * weights[:, None]).T @ (state.mean_rewards - mean_reward)
    bonus = np.sqrt(np.einsum("vd,de,ve->v", phi, inverse, phi))
    return state.top_arms(phi @ theta + state.play.optimism * bonus)


def at_random(state: State) -> NDArray[np.int64]:
    """Arms drawn at random."""
    return state.draw(state.play.batch)


POLICIES: dict[str, Callable[[State], NDArray[np.int64]]] = {
    "ucb-j": ucb_jackknife,
    "epsilon-greedy": epsilon_greedy,
    "linucb": linucb,
    "random": at_random,
}


@plain_torch()
def play_bandit(data: Data, means: Tensor, *, policy: str = "ucb-j", play: Play | None = None, seed: int = 0) -> Game:
    """Play a bandit whose arm v earns ``means[v]`` plus normal noise.

    The noise depends only on ``seed``, and so do arms drawn before any reward is used. So policies with the same seed
    can be compared fairly.

    Shapes: means (N,).
    """
    if policy not in POLICIES:
        raise SettingError(f"expected policy to be one of {', '.join(POLICIES)}, got {policy!r}; choose one")
    truth = np.asarray(means, dtype=np.float64)
    if truth.shape != (int(data.num_nodes),) or not np.isfinite(truth).all():
        raise DataError(f"expected one finite mean reward per node ({data.num_nodes}), got {truth.shape}; correct them")
    play = play or Play()
    if play.batch > len(truth):
        raise SettingError(f"expected a batch of at most {len(truth)} arms, got {play.batch}; lower it")
    state = State(data, play, seed)
    noise = np.random.default_rng([seed, 1]).normal(scale=play.noise, size=play.plays)
    arms = np.zeros(0, dtype=np.int64)
    while len(arms) < play.plays:
        chosen = POLICIES[policy](state)[: play.plays - len(arms)]
        state.record(chosen, truth[chosen] + noise[len(arms) : len(arms) + len(chosen)])
        arms = np.concatenate([arms, chosen])
    missed = truth.max() - truth[arms]
    best = state.played[int(np.argmax(state.mean_rewards))]
    return Game(policy, arms, truth[arms] + noise, np.cumsum(missed), float(truth.max() - truth[best]))
