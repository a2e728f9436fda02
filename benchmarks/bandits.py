"""Bandits on graphs: cumulative regret of UCB by jackknife+ against ε-greedy, LinUCB and random play.

Arms are nodes. An arm pays the share of one class in its neighbourhood (two averages over closed neighbourhoods of that
class's indicator), plus normal noise. UCB-J and ε-greedy fit the same GCN to the mean rewards seen so far; LinUCB has
the leading directions of propagated features. Settings were found with seeds of their own (from 1000 on).
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

from harness import options, save, table
from jurygcn.bandit import POLICIES, Play, play_bandit
from jurygcn.graph.propagation import Propagation
from protocol import Cells, graph

GRAPHS = {"cora": 0, "digits": 3}  # the class that pays
RUNS, QUICK_RUNS = 20, 2
PLAY = Play()
AT = (25, 50, 100, 200)  # plays at which regret is kept


def rewards(name: str) -> torch.Tensor:
    data = graph(name)
    average = Propagation.of(data).averaging
    return torch.from_numpy(average @ (average @ (data.y == GRAPHS[name]).numpy().astype(np.float64)))


def measure(dataset: str, policy: str, seed: int) -> dict[str, Any]:
    game = play_bandit(graph(dataset), rewards(dataset), policy=policy, play=PLAY, seed=seed)
    return {"regret": {str(t): float(game.regret[t - 1]) for t in AT}, "simple_regret": game.simple_regret}


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish the games that were played")
    runs = QUICK_RUNS if chosen.quick else RUNS
    names = ("digits",) if chosen.quick else tuple(GRAPHS)
    wanted = [{"dataset": d, "policy": p, "seed": s} for s in range(runs) for d in names for p in POLICIES]
    kept = Cells(f"bandits{'.quick' if chosen.quick else ''}", lambda _: repr(PLAY), fresh=chosen.quick)
    if not chosen.finished:
        kept.measure(wanted, measure)
    found, rows = kept.rows(wanted), []
    for dataset in names:
        games = {p: {g["seed"]: g for g in found if (g["dataset"], g["policy"]) == (dataset, p)} for p in POLICIES}
        last = {p: {seed: g["regret"][str(AT[-1])] for seed, g in played.items()} for p, played in games.items()}
        for policy, played in games.items():
            shared = [seed for seed in last["ucb-j"] if seed in last[policy]]
            gains = [last[policy][seed] - last["ucb-j"][seed] for seed in shared]
            rows.append(
                {
                    "dataset": dataset,
                    "policy": policy,
                    "runs": len(played),
                    **{f"regret_{t}": mean(g["regret"][str(t)] for g in played.values()) for t in AT},
                    "sd": stdev(last[policy].values()) if len(played) > 1 else 0.0,
                    "simple_regret": mean(g["simple_regret"] for g in played.values()),
                    "p_value": float(wilcoxon(gains).pvalue) if any(gains) and len(gains) > 1 else None,
                }
            )
    table(
        "Cumulative regret, mean over runs",
        ["graph, policy", *(f"after {t}" for t in AT), "sd", "simple regret", "p against ucb-j"],
        [
            [
                f"{row['dataset']}, {row['policy']}",
                *(f"{row[f'regret_{t}']:.1f}" for t in AT),
                f"{row['sd']:.1f}",
                f"{row['simple_regret']:.3f}",
                "" if row["p_value"] is None else f"{row['p_value']:.1e}",
            ]
            for row in rows
        ],
    )
    settings = {"plays": PLAY.plays, "batch": PLAY.batch, "noise": PLAY.noise, "alpha": PLAY.alpha}
    print(save("bandits", rows, quick=chosen.quick, settings=settings | {"epsilon": PLAY.epsilon}))


if __name__ == "__main__":
    main()
