"""Bandits on graphs: the rules of the game, each policy's index against naive sums, and regret."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from cases import graph, two_block, undirected
from jurygcn import Jury
from jurygcn.bandit import POLICIES, Play, State, epsilon_greedy, linucb, play_bandit, ucb_jackknife
from jurygcn.errors import DataError, SettingError

QUICK = Play(plays=30, batch=5, epochs=60, hidden=4, dimensions=4, alpha=0.2)


def blocks(size: int = 60) -> tuple[Data, torch.Tensor]:
    """Two blocks that features and edges tell apart; one pays more."""
    generator = torch.Generator().manual_seed(0)
    side = torch.arange(size) % 2
    x = torch.nn.functional.one_hot(side, 4).float() + 0.3 * torch.rand(size, 4, generator=generator)
    data = Data(x=x, edge_index=undirected(two_block(size, generator)), y=side, num_nodes=size)
    return data, 0.2 + 0.6 * side.double()


@pytest.mark.parametrize("policy", POLICIES)
def test_regret_is_the_sum_of_what_was_missed(policy: str):
    data, means = blocks()
    game = play_bandit(data, means, policy=policy, play=QUICK, seed=3)
    assert len(game.arms) == 30
    missed = [0.8 - float(means[arm]) for arm in game.arms]
    np.testing.assert_allclose(game.regret, np.cumsum(missed), atol=1e-12)
    assert game.simple_regret >= 0
    again = play_bandit(data, means, policy=policy, play=QUICK, seed=3)
    assert np.array_equal(game.arms, again.arms)
    other = play_bandit(data, means, policy=policy, play=QUICK, seed=4)
    assert not np.array_equal(game.arms, other.arms)


def test_noise_is_the_same_for_all_policies():
    data, means = blocks()
    games = [play_bandit(data, means, policy=policy, play=QUICK, seed=1) for policy in ("linucb", "random")]
    noises = [game.rewards - means.numpy()[game.arms] for game in games]
    np.testing.assert_allclose(noises[0], noises[1], atol=1e-12)


def test_learning_policies_beat_chance():
    data, means = blocks()
    total = {
        p: sum(play_bandit(data, means, policy=p, play=QUICK, seed=s).regret[-1] for s in range(3)) for p in POLICIES
    }
    assert max(total[policy] for policy in POLICIES if policy != "random") < 0.8 * total["random"]


def state_after(play: Play, arms: list[int], rewards: list[float]) -> State:
    data, _ = blocks()
    state = State(data, play, seed=0)
    state.record(np.array(arms), np.array(rewards))
    return state


def test_ucb_plays_the_highest_upper_ends():
    arms = list(range(12))
    state = state_after(QUICK, [*arms, 1, 1, 1], [0.2 + 0.6 * (a % 2) + 0.01 * a for a in arms] + [0.81] * 3)
    model, data, nodes = state.fit()
    jury = Jury(model, data, nodes, loss="mse", weight_decay=QUICK.weight_decay).fit()
    upper = jury.verdict(alpha=QUICK.alpha, exact_ranks=True, advice=None).upper.tolist()
    for arm in arms:  # what was played is bounded by its own mean as well
        upper[arm] = min(upper[arm], float(data.y[arm, 0]) + (0.5 if arm == 1 else 1.0))
    chosen = ucb_jackknife(state)
    assert sorted(upper[arm] for arm in chosen) == pytest.approx(sorted(upper)[-5:])


def test_too_few_arms_are_explored_at_random():
    few = state_after(QUICK, [1, 2, 3], [1.0, 0.0, 0.5])
    assert len(few.played) < 1 / QUICK.alpha - 1
    expected = state_after(QUICK, [1, 2, 3], [1.0, 0.0, 0.5]).draw(5)
    assert np.array_equal(ucb_jackknife(few), expected)


def test_epsilon_one_is_random_and_zero_takes_the_best_mean():
    arms = list(range(8))
    rewards = [0.1 * a for a in arms]
    rewards[3] = 9.0
    greedy = epsilon_greedy(state_after(dataclasses.replace(QUICK, epsilon=0.0), arms, rewards))
    assert 3 in greedy, "an arm that paid far more than predicted"
    blind = state_after(dataclasses.replace(QUICK, epsilon=1.0, batch=40), arms, rewards)
    assert len(set(epsilon_greedy(blind).tolist())) == 40


def test_repeated_plays_are_averaged():
    state = state_after(QUICK, [4, 4, 4, 7], [1.0, 2.0, 3.0, 5.0])
    assert state.played.tolist() == [4, 7]
    assert state.mean_rewards.tolist() == [2.0, 5.0]


def test_linucb_is_ridge_regression_with_a_bonus():
    arms, rewards = [0, 1, 1, 5, 9], [0.1, 0.9, 0.7, 0.8, 0.6]
    state = state_after(QUICK, arms, rewards)
    phi = state.features
    A, b = np.eye(phi.shape[1]), np.zeros(phi.shape[1])
    for arm, reward in zip(arms, rewards):
        A += np.outer(phi[arm], phi[arm])
        b += (reward - np.mean(rewards)) * phi[arm]
    index = [phi[v] @ np.linalg.solve(A, b) + 0.3 * np.sqrt(phi[v] @ np.linalg.solve(A, phi[v])) for v in range(60)]
    best = sorted(index)[-5:]
    assert sorted(np.array(index)[linucb(state)]) == pytest.approx(best)
    np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1.0)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"plays": 0}, "plays"), ({"alpha": 0.0}, "alpha"), ({"epsilon": 1.5}, "epsilon"), ({"noise": -1.0}, "noise")],
)
def test_wrong_settings_are_refused(settings: dict, word: str):
    with pytest.raises(SettingError, match=word):
        Play(**settings)


def test_wrong_games_are_refused():
    data = graph("path")
    with pytest.raises(SettingError, match="policy"):
        play_bandit(data, torch.zeros(6), policy="greedy")
    with pytest.raises(DataError, match="per node"):
        play_bandit(data, torch.zeros(5))
    with pytest.raises(SettingError, match="batch"):
        play_bandit(data, torch.zeros(6), play=Play(batch=7))
