r"""NAPS: label sets of a node, calibrated on the labels near it.

Clarkson, "Distribution free prediction sets for node classification". The scores are those of APS. The threshold of
node u is the smallest q with

.. math:: \sum_{i : s_i \le q} w_{ui} \ge (1 - \alpha) \Bigl(1 + \sum_i w_{ui}\Bigr)

over the calibration nodes i within two hops; the 1 is the weight of u itself, whose score counts as infinite. Nodes
with too few labels near them have no such q, and their sets have all labels.

The released code calibrates on the labels of all other test nodes, leaves nodes with fewer than 50 of them out of the
results, and finds q by bisection. Here only the labels of the calibration nodes are read, every node has a set, and q
is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.conformal.intervals import check_alpha
from jurygcn.conformal.scores import aps_scores, with_ties
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.reach import reached_by

ROUNDING = 1e-12  # of sums of weights


def naps_sets(
    probabilities: Tensor,
    truth: Tensor,
    calibration: Tensor,
    edge_index: Tensor,
    *,
    alpha: float = 0.1,
    second_hop: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Label sets of all nodes. With a ``generator``, the random part of each node's scores is drawn once.

    Shapes: probabilities (N, C), truth (N,), calibration (m,), edge_index (2, E) in both directions -> (N, C) bool.
    """
    check_alpha(alpha, below=1.0)
    if len(calibration) == 0:
        raise DataError("expected at least one calibration node, got none; set some labels aside")
    draws = None
    if generator is not None:
        draws = torch.rand(len(probabilities), generator=generator, dtype=probabilities.dtype)
    scores = aps_scores(probabilities, draws)
    given, order = scores[calibration, truth[calibration]].sort()
    weights = nearby_weights(edge_index, calibration[order], num_nodes=len(scores), second_hop=second_hop)
    needed = (1 - alpha) * (1 + weights.sum(dim=1, keepdim=True)) * (1 - ROUNDING)
    place = (weights.cumsum(dim=1) < needed).sum(dim=1)
    thresholds = torch.cat([given, given.new_tensor([torch.inf])])[place]
    return scores <= with_ties(thresholds, "aps")[:, None]


def nearby_weights(edge_index: Tensor, calibration: Tensor, *, num_nodes: int, second_hop: float = 1.0) -> Tensor:
    """The weight of every calibration node at every node: 1 at its neighbours, ``second_hop`` two hops away, else 0.

    The authors have 1 for the second hop, or 1/2 where weights decay (their two kinds of decay agree up to there).

    Shapes: calibration (m,) -> (N, m), float64.
    """
    if not 0.0 <= second_hop <= 1.0:
        raise SettingError(f"expected second_hop between 0 and 1, got {second_hop}; change it")
    graph = Data(edge_index=edge_index, num_nodes=num_nodes)
    sources = list(calibration[:, None].unbind())
    weights = torch.zeros(num_nodes, len(sources), dtype=torch.float64)
    for hops, weight in ((2, second_hop), (1, 1.0), (0, 0.0)):  # what fewer hops reach is nearer
        for column, reached in enumerate(reached_by(graph, sources, hops)):
            weights[reached, column] = weight
    return weights
