"""A small judged graph whose names are as hostile as names can be."""

from __future__ import annotations

from functools import cache

import torch
from torch_geometric.data import Data

from cases import two_block, undirected
from jurygcn import GCN, Jury, Verdict, train
from jurygcn.report import Report, report_on

SCRIPT, IMAGE = "<script>alert(1)</script>", "<img src=x onerror=alert(2)>"
CLASSES = ["</script><b>bold", "beta & co", "gamma"]
NODES = 60


def hostile_graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % 2 + (torch.arange(NODES) % 10 == 9)
    x = torch.nn.functional.one_hot(y, 3).double() + 0.8 * torch.randn(NODES, 3, generator=generator)
    names = [f"paper {node}" for node in range(NODES)]
    names[3], names[4] = SCRIPT, IMAGE
    y[5] = -1
    pairs = [(a, b) for a, b in two_block(NODES, generator) if (a + b) % 3 and NODES - 1 not in (a, b)]
    return Data(
        x=x,
        edge_index=undirected(pairs),
        y=y,
        name="<i>graph</i>",
        class_names=CLASSES,
        node_names=names,
        num_classes=3,
    )


@cache
def judged() -> tuple[Jury, Verdict]:
    data = hostile_graph()
    train_nodes = torch.arange(0, NODES, 3)
    model = GCN(3, 8, 3).double()
    train(model, data, train_nodes, epochs=200, weight_decay=5e-3)
    jury = Jury(model, data, train_nodes, weight_decay=5e-3).fit()
    return jury, jury.verdict()


@cache
def reported() -> Report:
    """What the page says of it; for tests that read it and change nothing."""
    return report_on(*judged())


@cache
def judged_regression() -> tuple[Jury, Verdict]:
    data = hostile_graph()
    data.y = data.x.sum(dim=1)
    data.y[7] = torch.nan
    train_nodes = torch.arange(0, NODES, 3)
    model = GCN(3, 8, 1).double()
    train(model, data, train_nodes, epochs=200, weight_decay=5e-3, loss="mse")
    jury = Jury(model, data, train_nodes, weight_decay=5e-3, loss="mse").fit()
    return jury, jury.verdict(alpha=0.1)
