"""AGE and ANRMAB: combinations of entropy, density and PageRank, by a schedule (AGE) and by a bandit (ANRMAB)."""

from __future__ import annotations

from typing import Any

import numpy as np

from jurygcn.active.clusters import centre_distances
from jurygcn.active.graph_statistics import Array
from jurygcn.active.scene import Choice, Scene
from jurygcn.errors import DataError

# base f of AGE's schedule, as its authors set it; the weight of centrality falls faster for a smaller base
AGE_BASE = {"citeseer": 0.9}
AGE_OTHER_BASE = 0.995
EXPERTS = 3  # of ANRMAB: entropy, PageRank and density
DELTA = 0.1  # confidence parameter of Exp4.P


def age(scene: Scene) -> Choice:
    r"""Weighted sum of the percentiles of entropy, density and PageRank. Each step draws new weights.

    .. math:: \gamma_t \sim \mathrm{Beta}(1,\, 1.005 - f^t), \quad
        \tfrac{1 - \gamma_t}2 P_{\mathrm{ent}} + \tfrac{1 - \gamma_t}2 P_{\mathrm{den}} + \gamma_t P_{\mathrm{cen}}

    t is the number of nodes queried so far. f is 0.9 on Citeseer and 0.995 elsewhere.
    """
    base = AGE_BASE.get(str(getattr(scene.data, "catalog_name", "")), AGE_OTHER_BASE)
    gamma = scene.generator.beta(1.0, 1.005 - base**scene.queried)
    entropy, nearness = percentile(scene.entropy), percentile(-centre_distances(scene))
    return scene.top((1 - gamma) / 2 * (entropy + nearness) + gamma * percentile(scene.statistics.pagerank))


def percentile(values: Array) -> Array:
    """The share of all nodes with a strictly smaller value.

    Shapes: (N,) -> (N,).
    """
    return np.searchsorted(np.sort(values), values, side="left") / len(values)


def anrmab(scene: Scene) -> Choice:
    r"""Exp4.P over entropy, PageRank and density. The reward is the importance-weighted accuracy on queried nodes.

    .. math:: q_k = s_k / \textstyle\sum_U s_k, \quad p_k = (1 - K p_{\min}) w_k / \sum_j w_j + p_{\min}, \quad
        \phi = \sum_k p_k q_k

    Here :math:`p_{\min} = \sqrt{\ln K / (K T)}`, T is the number of nodes queried in the whole run, and K = 3. The
    batch is drawn from :math:`\phi` without replacement. Each drawn node then updates the weights
    (``updated_weights``).
    """
    memory = scene.memory
    check_memory(memory, len(scene.data.x))
    total = max(scene.total, scene.batch)
    floor = min(np.sqrt(np.log(EXPERTS) / (EXPERTS * total)), 1.0 / EXPERTS)
    weights = updated_weights(scene, total, floor) if memory.get("last") else np.ones(EXPERTS)
    advice = np.stack([scene.entropy, scene.statistics.pagerank, 1.0 / (1.0 + centre_distances(scene))])[:, scene.pool]
    advice = advice / advice.sum(axis=1, keepdims=True)  # (K, m)
    shares = (1 - EXPERTS * floor) * weights / weights.sum() + floor
    chance = shares @ advice
    # a draw without replacement needs at least a batch of nodes with positive probability
    chance = np.maximum(chance, np.finfo(float).tiny)
    chance = chance / chance.sum()
    picked = scene.generator.choice(len(chance), scene.batch, replace=False, p=chance)
    memory["weights"] = weights.tolist()
    memory["shares"] = shares.tolist()
    memory["last"] = [[float(q) for q in advice[:, i]] for i in picked]
    drawn = {str(int(scene.pool[i])): float(chance[i]) for i in picked}
    memory["drawn"] = {**memory.get("drawn", {}), **drawn}
    memory["pool"] = memory.get("pool", len(scene.pool))
    return scene.choice(scene.pool[picked], chance[picked])


def check_memory(memory: dict[str, Any], num_nodes: int) -> None:
    """Raise DataError for a memory that this strategy cannot have written, for example from an altered file."""
    if not memory:
        return
    try:
        weights, shares, last = (np.array(memory[name], dtype=float) for name in ("weights", "shares", "last"))
        drawn = {int(node): float(chance) for node, chance in memory["drawn"].items()}
        shapes = (weights.shape, shares.shape, last.shape[1:]) == ((EXPERTS,),) * 3 and last.ndim == 2
        fine = shapes and 0 < len(last) <= len(drawn) == len(memory["drawn"])
        fine = fine and all(0 <= node < num_nodes for node in drawn) and memory["pool"] in range(1, num_nodes + 1)
        positive = np.concatenate([weights, shares, list(drawn.values())])
        fine = fine and bool(np.isfinite(positive).all() and (positive > 0).all() and ((last >= 0) & (last <= 1)).all())
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        fine = False
    if not fine or memory.keys() != {"weights", "shares", "last", "drawn", "pool"}:
        raise DataError(
            "expected the memory of anrmab in the history, got other values; start a new run with another file"
        )


def updated_weights(scene: Scene, total: int, floor: float) -> Array:
    r"""The experts' weights after the last batch. The reward uses the model that was trained on it.

    .. math:: r = \frac1{T N} \sum_\tau \frac{1[f(v_\tau) = y_\tau]}{\phi_\tau(v_\tau)}, \quad
        w_k \leftarrow w_k \exp\Bigl\{\frac{p_{\min}}2 \sum_t
        \Bigl[\frac{r\,q_k(v_t)}{\phi(v_t)} + \frac1{p_k} \sqrt{\frac{\ln(K/\delta)}{K T}}\Bigr]\Bigr\}

    :math:`\tau` runs over all nodes queried so far, and t over the last batch.

    Shapes: returns (K,).
    """
    memory, y = scene.memory, scene.data.y
    predicted = scene.probabilities.argmax(axis=1)
    drawn = {int(node): chance for node, chance in memory["drawn"].items()}
    correct = [(predicted[node] == int(y[node])) / chance for node, chance in drawn.items()]
    reward = sum(correct) / (total * memory["pool"])
    weights, shares = np.array(memory["weights"]), np.array(memory["shares"])
    advice = np.array(memory["last"])  # (b, K)
    chances = np.array(list(memory["drawn"].values())[-len(advice) :])
    gain = reward * (advice / chances[:, None]) + np.sqrt(np.log(EXPERTS / DELTA) / (EXPERTS * total)) / shares
    weights = weights * np.exp(floor / 2 * gain.sum(axis=0))
    return np.asarray(weights / weights.sum() * EXPERTS)  # the scale has no effect; this one prevents overflow
