"""Edits without retraining, against retraining: edges, nodes, features; sequences; explanations.

For every edit the model is trained again on the edited graph, and the change of the validation risk is compared with
the estimate. The validation nodes' own inputs stay as they were, as Chen et al. (2023) do, so the exact direct effect
does not flatter the estimate. Rivals in the same run, implemented as their papers describe them:

- plain influence (Chen et al.): the same change of the gradient with the old curvature. Their released code removes
  one direction of an edge and keeps the l2 term in the gradient of the validation loss; this does neither.
- GIF: a Neumann series of 100 terms with scale 500 in units of the summed loss, the README's settings. The released
  code leaves weight decay out of the Hessian and counts labels of test nodes among the affected; this does neither.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP

from explaining import DECAY, explained, usual_loop
from harness import options, publish, save, table, with_published
from jurygcn import GCN, Jury, LeaveOut, load_dataset, train
from jurygcn.edits.base import Base, base_of, predictions
from jurygcn.edits.edit import Edit, edit_of
from jurygcn.edits.influences import in_batches
from jurygcn.edits.steps import Objectives
from jurygcn.experiments.cells import Cells
from jurygcn.graph.propagation import normalized_adjacency
from jurygcn.graph.reach import reached_by
from jurygcn.models.training import reset
from retraining_paths import GAT, paths

GRAPHS = ("cora", "citeseer", "pubmed")
KINDS = ("node", "edge", "features")
L2, GIF_TERMS, GIF_SCALE = 0.01, 100, 500.0
JITTER = 1e-6
EXPLAINERS = (("jury, together", "integrated gradients"), ("jury, direct",), ("GNNExplainer",), ("jury, both",))
PATHS = (
    ("GCN", "edge", "relu", 200),
    ("GCN", "edge", "linear", 200),
    ("GCN", "node", "relu", 200),
    ("GCN", "node", "linear", 200),
    ("GCN", "edge", "relu", 1000),
    ("GAT", "edge", "elu", 100),
    ("GAT", "node", "elu", 100),
)
THEIRS = {"node": (0.981, 0.968, 0.974), "edge": (0.881, 0.847, 0.942), "features": (0.978, 0.976, 0.949)}


# --- models and how they are trained -------------------------------------------------------------------------------


class SGC(nn.Module):
    """Two hops of propagation after one linear map, which is the same as before it."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.linear, self.hops = nn.Linear(features, classes, bias=False), APPNP(2, 0.0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        return self.hops(self.linear(x), edge_index)


def fit_sgc(data: Data, nodes: Tensor, n: int, jitter: float = 0.0) -> nn.Module:  # noqa: ARG001
    """The exact minimum of summed loss + l2/2 |W|^2."""
    A = normalized_adjacency(data, dtype=np.float64)
    X = (A @ (A @ data.x.double().numpy()))[nodes.numpy()]
    fitted = LogisticRegression(C=1 / L2, fit_intercept=False, tol=1e-8, max_iter=5000).fit(X, data.y[nodes].numpy())
    model = SGC(data.x.shape[1], int(data.num_classes)).double()
    model.linear.weight.data = torch.from_numpy(fitted.coef_)
    return model.eval()


def fit_network(data: Data, nodes: Tensor, n: int, jitter: float = 0.0, *, kind: str, epochs: int) -> nn.Module:
    """A network from the same seed, with 1/n of the original objective; ``jitter`` changes its initial parameters."""
    F, C = data.x.shape[1], int(data.num_classes)
    model = GCN(F, 16, C) if kind == "GCN" else GAT(F, C)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reset(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p *= 1 + jitter * torch.randn(p.shape, generator=generator).to(p)
    weights = torch.full((len(nodes),), len(nodes) / n).to(next(model.parameters()))
    train(model, data, nodes, epochs=epochs, weight_decay=DECAY, node_weights=weights, warm_start=True)
    return model


def trainer(model: str, epochs: int) -> Callable[..., nn.Module]:
    """A function of a graph, its training nodes, n and the jitter."""
    return fit_sgc if model == "SGC" else functools.partial(fit_network, kind=model, epochs=epochs)


def jury_of(model: nn.Module, name: str, data: Data, nodes: Tensor) -> Jury:
    if name == "SGC":
        data = data.clone()
        data.x = data.x.double()
        return Jury(model, data, nodes, weight_decay=L2 / len(nodes), leave_out=LeaveOut(decay="stated"))
    return Jury(model, data, nodes, weight_decay=DECAY)


# --- edits and estimates -------------------------------------------------------------------------------------------


def drawn(jury: Jury, kind: str, count: int) -> list[Edit]:
    """Edits at random among those that reach a training node."""
    data, generator = jury.data, torch.Generator().manual_seed(0)
    near = reached_by(data, [jury.train_nodes], 2)[0]
    if kind == "edge":
        inside = torch.zeros(int(data.num_nodes), dtype=torch.bool)
        inside[near] = True
        pairs = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
        pairs = pairs[:, inside[pairs].any(dim=0)]
        chosen = torch.randperm(pairs.shape[1], generator=generator)[:count]
        return [edit_of(jury.engine, remove_edges=[tuple(pairs[:, k].tolist())]) for k in chosen]
    chosen = near[torch.randperm(len(near), generator=generator)[:count]].tolist()
    if kind == "node":
        return [edit_of(jury.engine, remove_nodes=[v]) for v in chosen]
    return [edit_of(jury.engine, change_features={v: torch.zeros_like(data.x[v])}) for v in chosen]


def gif_steps(base: Base, objectives: Objectives, *, exact: bool) -> Tensor:
    """GIF's estimate: h <- v + h - H h / scale, theta + h / scale, in units of the summed loss, (b, P).

    H is the exact Hessian of a GCN, and the Gauss-Newton matrix of others; of an SGC the two are the same.
    """
    n, second = base.count, base.engine.hessian() if exact else None
    v = -n * objectives.gradient()
    h = v.clone()
    for _ in range(GIF_TERMS):
        curved = base.curvature.matmul(h)
        if second is not None:
            curved = second.product(h) + base.curvature.diagonal[:, None] * h
        h = v + h - n * curved / GIF_SCALE
    return h.T / GIF_SCALE


def estimates(base: Base, edits: list[Edit], *, exact: bool) -> dict[str, tuple[Tensor, float]]:
    """Steps by each method, (b, P), and CPU seconds per edit."""

    def newton(part: Any) -> Tensor:
        return Objectives(base, part).steps()

    def plain(part: Any) -> Tensor:
        return -base.prepared.solve(Objectives(base, part).gradient()).value.T

    def gif(part: Any) -> Tensor:
        return gif_steps(base, Objectives(base, part), exact=exact)

    methods = {"newton": newton, "plain influence": plain, "GIF": gif}
    found = {}
    for name, work in methods.items():
        work(edits[:1])  # what is computed once
        started = time.process_time()
        steps = torch.cat(in_batches(edits, work))
        found[name] = (steps.detach(), (time.process_time() - started) / len(edits))
    return found


def correlation(a: Any, b: Any) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def against_retraining(cell: dict[str, Any]) -> dict[str, Any]:
    """Changes of the validation risk and of predictions, estimated and trained again, over all edits.

    A network is trained again twice for every edit. The second time all initial parameters differ by one part in a
    million, before the edit and after it: what the two changes have in common is what training itself reproduces.
    """
    data = load_dataset(cell["graph"])
    nodes, asked = data.train_mask.nonzero()[:, 0], data.val_mask.nonzero()[:, 0]
    n, again = len(nodes), trainer(cell["model"], cell["epochs"])
    jury = jury_of(again(data, nodes, n), cell["model"], data, nodes)
    base, truth = base_of(jury), data.y[asked]
    edits = drawn(jury, cell["kind"], cell["edits"])
    found = estimates(base, edits, exact=cell["model"] == "GCN")
    engine = base.engine

    def risk(p: Tensor) -> list[float]:
        return [float(nn.functional.nll_loss(q.clamp_min(1e-300).log(), truth)) for q in p.unbind(dim=2)]

    jitters = (0.0,) if cell["model"] == "SGC" else (0.0, JITTER)
    starts = torch.stack([flat(again(data, nodes, n, jitter)) for jitter in jitters])
    before = predictions(engine, starts, asked)  # (m, C, 1 or 2)
    names = [*found, "retrained", "trained again"][: len(found) + len(jitters)]
    origin = torch.tensor([0] * len(found) + list(range(len(jitters))))
    changes, moves, seconds = [], [], 0.0
    for k, edit in enumerate(edits):
        graph, left = edit.applied(jury.data), edit.labelled(nodes)
        started = time.process_time()
        models = [again(graph, left, n, jitter) for jitter in jitters]
        seconds += (time.process_time() - started) / len(jitters)
        thetas = torch.stack([*(engine.theta + steps[k] for steps, _ in found.values()), *map(flat, models)])
        p = predictions(engine, thetas, asked)
        changes.append(np.subtract(risk(p), np.take(risk(before), origin)))
        moves.append((p - before[:, :, origin]).flatten(0, 1).numpy())
    risks = dict(zip(names, np.stack(changes, axis=1), strict=True))
    joined = dict(zip(names, np.concatenate(moves).T, strict=True))
    truth_moves = joined["retrained"]
    rows = {
        name: {
            "risk": correlation(risks[name], risks["retrained"]),
            "predictions": correlation(joined[name], truth_moves),
            "slope": float(joined[name] @ truth_moves / (truth_moves @ truth_moves)),
        }
        for name in names
        if name != "retrained"
    }
    for name, (_, cpu) in found.items():
        rows[name] |= {"milliseconds": 1e3 * cpu, "times_faster": seconds / len(edits) / cpu}
    return {"methods": rows, "retraining_seconds": seconds / len(edits), "labels": n, "gradient": base.gradient}


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).double()


# --- a hundred deletions, one after the other ----------------------------------------------------------------------


def sequence(cell: dict[str, Any]) -> dict[str, Any]:
    """Edges and nodes are deleted in turn; after the first and each tenth the model is trained again from scratch."""
    data = load_dataset(cell["graph"])
    nodes = data.train_mask.nonzero()[:, 0]
    n, again = len(nodes), trainer(cell["model"], cell["epochs"])
    jury = jury_of(again(data, nodes, n), cell["model"], data, nodes)
    generator, rows, state, cpu = torch.Generator().manual_seed(0), [], None, 0.0
    for k in range(1, cell["deletions"] + 1):
        graph = jury.data if state is None else state.data
        edges = graph.edge_index
        if k % 2:
            edit: dict[str, Any] = {
                "remove_edges": [
                    tuple(edges[:, int(torch.randint(edges.shape[1], (1,), generator=generator))].tolist())
                ]
            }
        else:
            present = edges.flatten().unique()
            edit = {"remove_nodes": [int(present[int(torch.randint(len(present), (1,), generator=generator))])]}
        started = time.process_time()
        state = jury.what_if(**edit) if state is None else state.then(**edit)
        cpu += time.process_time() - started
        if k != 1 and k % 10:
            continue
        model = again(state.data, state.train_nodes, n)
        theta = flat(model)
        there = jury.engine.elsewhere(
            state.data, state.train_nodes, jury.engine.loss.targets(state.data.y[state.train_nodes])
        )
        asked = torch.arange(int(data.num_nodes))
        best, mine, old = predictions(there, torch.stack([theta, state.theta, jury.engine.theta]), asked).unbind(dim=2)
        rows.append(
            {
                "deletions": k,
                "error": float((best - mine).abs().mean()),
                "without_step": float((best - old).abs().mean()),
                "same_class": float((best.argmax(dim=1) == mine.argmax(dim=1)).double().mean()),
                "remaining": state.health.remaining,
                "drift": state.health.drift,
                "retrain": state.health.retrain,
            }
        )
    return {"after": rows, "milliseconds": 1e3 * cpu / cell["deletions"]}


# --- time ----------------------------------------------------------------------------------------------------------


def timing(cell: dict[str, Any]) -> dict[str, Any]:
    data = load_dataset(cell["graph"])
    nodes = data.train_mask.nonzero()[:, 0]
    started = time.process_time()
    model = fit_network(data, nodes, len(nodes), kind="GCN", epochs=cell["epochs"])
    own = time.process_time() - started
    usual = usual_loop(data, nodes, cell["epochs"])
    jury = jury_of(model, "GCN", data, nodes).fit()
    base = base_of(jury)
    edits = drawn(jury, "edge", cell["edits"])
    jury.what_if([0], remove_nodes=[1])
    started = time.process_time()
    in_batches(edits, lambda part: Objectives(base, part).steps())
    step = (time.process_time() - started) / len(edits)
    started = time.process_time()
    whole = 10
    for edit in edits[:whole]:
        jury.what_if(remove_edges=[tuple(edit.ends[:, 0].tolist())])
    single = (time.process_time() - started) / whole
    started = time.process_time()
    rows = sum(len(jury.influence_on(node, of="edges")) for node in jury.train_nodes[:10].tolist())
    per_edge = (time.process_time() - started) / rows
    seconds = {"edits together": step, "what_if, all nodes": single, "influence_on, per edge": per_edge}
    return {
        "own_loop": own,
        "usual_loop": usual,
        "ways": {k: {"milliseconds": 1e3 * v, "usual": usual / v, "own": own / v} for k, v in seconds.items()},
    }


PARTS = {
    "retraining": against_retraining,
    "paths": lambda cell: paths(cell, drawn),
    "sequence": sequence,
    "time": timing,
    "explanations": explained,
}


def cells_of(*, quick: bool) -> list[dict[str, Any]]:
    """The cells in the order of their importance; a run can be interrupted and resumed."""
    few = 6 if quick else 100

    def table_of(model: str, epochs: int, graph: str, edits: int) -> list[dict[str, Any]]:
        common = {"part": "retraining", "model": model, "epochs": epochs, "graph": graph, "edits": edits}
        return [{**common, "kind": kind} for kind in KINDS]

    def sequence_of(model: str, epochs: int) -> dict[str, Any]:
        count = 12 if quick else 100
        return {"part": "sequence", "model": model, "epochs": epochs, "graph": "cora", "deletions": count}

    def times_of(graph: str) -> dict[str, Any]:
        return {"part": "time", "graph": graph, "epochs": 200, "edits": few}

    found = [*table_of("SGC", 0, "cora", few), times_of("cora"), sequence_of("GCN", 200), sequence_of("GCN", 1000)]
    if not quick:
        found += table_of("SGC", 0, "citeseer", few)
    for methods in EXPLAINERS:  # of BA-shapes all in one cell
        cell = {"part": "explanations", "graph": "cora", "nodes": 2 if quick else 30, "top": 10}
        found.append({**cell, "methods": list(methods)})
    found.append({"part": "explanations", "graph": "ba-shapes", "nodes": 2 if quick else 40, "top": 12})
    found += table_of("GCN", 200, "cora", few)
    if quick:
        return found
    found += [*table_of("SGC", 0, "pubmed", few), sequence_of("SGC", 0)]
    for model, kind, activation, epochs in PATHS:
        cell = {"part": "paths", "graph": "cora", "kind": kind, "edits": 20, "model": model, "epochs": epochs}
        found.append({**cell, "activation": activation})
    found += [*table_of("GCN", 200, "pubmed", few), *table_of("GCN", 200, "citeseer", few)]
    found += table_of("GAT", 100, "cora", 20)  # a GAT takes seconds to train
    return [*found, times_of("citeseer"), times_of("pubmed")]


def stamp_of(cell: dict[str, Any]) -> str:
    """The version of a cell's measurement."""
    if cell["part"] in ("sequence", "time", "explanations"):
        return {"time": "8", "explanations": "7"}.get(cell["part"], "6")
    if cell["part"] == "retraining":
        return {"SGC": "3", "GAT": "4"}.get(cell["model"], "6")
    return "5"


def main() -> None:
    chosen = options(__doc__, fresh="measure all cells anew", measured="write what is measured so far")
    wanted = cells_of(quick=chosen.quick)
    cells = Cells("what_if", stamp_of, fresh=chosen.fresh)
    cells = cells if chosen.fresh or chosen.quick else with_published(cells)
    if not chosen.measured:
        cells.measure(wanted, lambda **cell: PARTS[cell["part"]](cell))
    if not chosen.quick:
        publish(cells, wanted)
    rows = cells.rows(wanted)
    for cell in rows:
        row = cell
        if "methods" in row:
            keys = list(next(iter(row["methods"].values())))
            table(
                f"{cell['part']}: {cell.get('model', '')} {cell['graph']} {cell.get('kind', '')}",
                ["method", *keys],
                [[m, *("" if v.get(k) is None else f"{v[k]:.4g}" for k in keys)] for m, v in row["methods"].items()],
            )
    save("what_if", rows, quick=chosen.quick, theirs=THEIRS)


if __name__ == "__main__":
    main()
