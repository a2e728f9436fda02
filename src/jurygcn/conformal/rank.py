"""How many directions linearised votes need: the fewest that hardly change p-values, on a sample of nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.conformal.asked import Asked, Question
from jurygcn.conformal.first_order import Block, FirstOrderCounter, count_at_least
from jurygcn.engine import Engine
from jurygcn.leave_one_out.jurors import CompressedJurors

# The directions that "auto" starts from, and the fewest that it tries.
MOST, FEWEST = 128, 2

# P-values may change by this much, at all but a share of the sampled nodes.
TOLERANCE, SHARE = 0.002, 0.01

# Sampled nodes.
NODES = 128


def smallest_rank(engine: Engine, positions: Tensor, jurors: CompressedJurors, *, seed: int = 0) -> int:
    """The smallest power of two of directions with which p-values differ by at most 0.002 from those with all of them.

    It is checked on 128 unlabelled nodes drawn at random, with all jurors: at most one of them may differ more, for any
    label.
    A regression has no p-values, so it keeps all directions.
    """
    if engine.loss.name != "cross_entropy" or jurors.rank <= FEWEST:
        return jurors.rank
    asked = Asked(engine, positions, sampled_nodes(engine, seed), Question(0.1, False, "jackknife+", "lac", 0))
    counter = FirstOrderCounter(asked, jurors)
    slopes = counter.slopes(slice(None))
    whole = _p_values(counter, slopes, jurors.rank)
    rank = FEWEST
    while rank < jurors.rank:
        change = (_p_values(counter, slopes, rank) - whole).abs().amax(dim=1)
        if float((change > TOLERANCE).double().mean()) <= SHARE:
            return rank
        rank *= 2
    return jurors.rank


def sampled_nodes(engine: Engine, seed: int = 0) -> Tensor:
    """Nodes without a label, drawn at random, sorted; any nodes if all have one."""
    N = int(engine.data.num_nodes)
    others = torch.ones(N, dtype=torch.bool).index_fill_(0, engine.train_nodes.cpu(), False).nonzero().squeeze(1)
    others = others if len(others) else torch.arange(N)
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))
    return others[order[:NODES]].sort().values


def _p_values(counter: FirstOrderCounter, slopes: Tensor, rank: int) -> Tensor:
    """P-values with the first directions alone, (m, C); a node's own juror votes too, which changes them by 1/n."""
    own = counter.own_predictions.gather(1, counter.asked.own_targets[:, None]).squeeze(1)
    blocks = [part for block in Block.alike(counter.coefficients[:, :rank], own) for part in block.cut()]
    counts = count_at_least(counter.outputs.flatten(), slopes[:, :, :rank].flatten(0, 1), blocks)
    return (counts.view(counter.outputs.shape) + 1) / (len(own) + 1)
