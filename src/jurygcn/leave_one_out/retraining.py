"""Retrained jurors: the model is trained again without each node. This is the reference for every estimate.

Leaving a node out means Eq. (3) with eps = -1/n: its loss gets weight 0, the other n - 1 keep 1/n. With
``remove="node"`` the node is also removed from the graph during training, but not for predictions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.checks import MOST_EPOCHS, MOST_SEED, check_count, check_rate
from jurygcn.choices import Recipe
from jurygcn.data import check_nodes, ordinary
from jurygcn.data.contents import EDGE_VALUES
from jurygcn.data.heterogeneous import as_given, layout_of, without_node_of_type
from jurygcn.engine import Engine
from jurygcn.errors import ModelError, SettingError
from jurygcn.models.calling import call
from jurygcn.models.copies import independent_copy
from jurygcn.models.normalisation import take_statistics
from jurygcn.models.training import reset, train
from jurygcn.parallel import safe_path
from jurygcn.progress import progress_bar

Fit = Callable[[nn.Module, Any, Tensor, Tensor], object]

# Jurors that are trained at once; affects memory, not the result.
STACK = 64

# A retrained model and its parameters in the jury's model give the same outputs up to this, relative to the largest.
SAME = 1e-3


@dataclass(frozen=True)
class Retraining:
    """How jurors are retrained; use the settings that the model was trained with.

    Args:
        epochs, lr, seed: as in :func:`jurygcn.train`.
        start: "cold" draws the initial parameters from ``seed``; "warm" starts from the trained ones.
        remove: "loss" leaves out the node's loss (the paper); "node" also removes the node from the graph.
        fit: your own training function, called as ``fit(model, data, train_nodes, node_weights)`` on a copy of the
            model; ``data`` is a HeteroData if the jury was made from one.
        processes: number of processes for jurors that cannot be trained at once; None uses all cores.
        progress: show a bar.
    """

    epochs: int = Recipe.epochs
    lr: float = Recipe.lr
    seed: int = 0
    start: str = "cold"
    remove: str = "loss"
    fit: Fit | None = None
    processes: int | None = None
    progress: bool = False

    @property
    def symmetric(self) -> bool:
        """Whether a juror depends on the other labels only and treats them equally; ``fit`` is not checked."""
        return self.start == "cold" and self.remove == "loss"

    def __post_init__(self) -> None:
        for name, known in (("start", ("cold", "warm")), ("remove", ("loss", "node"))):
            if getattr(self, name) not in known:
                raise SettingError(
                    f"expected {name} to be one of {', '.join(known)}, got {getattr(self, name)!r}; choose one"
                )
        check_count(self.epochs, "epochs", most=MOST_EPOCHS)
        check_rate(self.lr)
        check_count(self.seed, "seed", least=0, most=MOST_SEED)


def retrained_parameters(engine: Engine, retraining: Retraining, jurors: Iterable[int] | None = None) -> Tensor:
    """Parameters of the retrained jurors (positions in ``train_nodes``; all by default), (b, P) in float64."""
    positions = torch.arange(engine.num_train) if jurors is None else torch.as_tensor(list(jurors))
    source = independent_copy(engine.model).to(engine.source_dtype)
    plain = retraining.remove == "loss" and retraining.fit is None
    stackable = plain and engine.stacked_field(source) is not None
    shown = progress_bar("Retraining jurors", total=len(positions), unit="jurors", show=retraining.progress)
    with shown as advance:
        if stackable:
            rows = []
            for batch in positions.split(STACK):
                rows.append(_train_stack(engine, source, retraining, batch))
                advance(len(batch))
            return torch.cat(rows).double()
        calls = (delayed(_train_one)(engine, source, retraining, int(i)) for i in positions)
        workers = Parallel(n_jobs=retraining.processes or -1, return_as="generator")
        thetas = []
        with safe_path():
            for theta in workers(calls):
                thetas.append(theta)
                advance(1)
        return torch.stack(thetas).double()


def _weights_without(n: int, left_out: Tensor) -> Tensor:
    """One row of node weights per juror, (b, n): 0 for the node it leaves out, 1 for the others."""
    return torch.ones(len(left_out), n).scatter_(1, left_out[:, None], 0.0)


def _train_stack(engine: Engine, source: nn.Module, settings: Retraining, batch: Tensor) -> Tensor:
    """Train several GCNs at once; Adam updates each number separately, so the jurors are independent."""
    model = independent_copy(source)
    if settings.start == "cold":
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            reset(model)
    field = engine.stacked_field(model)
    assert field is not None
    parameters = dict(model.named_parameters())
    stacks = {name: p.detach().expand(len(batch), *p.shape).clone().requires_grad_() for name, p in parameters.items()}
    decays = engine.cast(engine.source_dtype).unflatten(engine.decay)
    groups = [{"params": [stacks[name]], "weight_decay": float(decays[name].flatten()[0])} for name in stacks]
    optimizer = torch.optim.Adam(groups, lr=settings.lr)
    weights = _weights_without(engine.num_train, batch)
    b, n = weights.shape
    targets = engine.targets.repeat(b, *[1] * (engine.targets.dim() - 1))
    for _ in range(settings.epochs):
        optimizer.zero_grad()
        logits = field.stacked_logits(list(stacks.values())).permute(2, 0, 1)  # (b, n, C)
        losses = engine.loss.node_losses(logits.reshape(b * n, -1), targets).view(b, n)
        (losses * weights).mean(dim=1).sum().backward()
        optimizer.step()
    return torch.cat([stack.detach().flatten(1) for stack in stacks.values()], dim=1)


def _train_one(engine: Engine, source: nn.Module, settings: Retraining, position: int) -> Tensor:
    """Train one juror of any model."""
    data, node = engine.data, int(engine.train_nodes[position])
    if settings.remove == "node":
        data = without_node(data, node)
    weights = _weights_without(engine.num_train, torch.tensor([position]))[0]
    return trained_again(engine, source, settings, data, engine.train_nodes, weights)


def trained_again(
    engine: Engine, source: nn.Module, settings: Retraining, data: Data, nodes: Tensor, weights: Tensor
) -> Tensor:
    """The parameters of a copy of ``source``, trained on a graph, (P,)."""
    model = independent_copy(source)
    if settings.fit is not None:
        settings.fit(model, as_given(data), nodes, weights)
    else:
        train(
            model,
            data,
            nodes,
            epochs=settings.epochs,
            lr=settings.lr,
            weight_decay=engine.weight_decay,
            loss=engine.loss.name,
            node_weights=weights,
            forward=engine.forward,
            warm_start=settings.start == "warm",
            seed=settings.seed,
        )
    return _as_parameters(engine, model.eval(), source)


def _as_parameters(engine: Engine, model: nn.Module, source: nn.Module) -> Tensor:
    """The parameters with which the jury's model is the retrained one, (P,); refuses where there are none."""
    graph, twin = ordinary(engine.data, dtype=engine.source_dtype), independent_copy(source)
    with torch.no_grad():
        own = call(model, graph, engine.forward)
        take_statistics(model, source)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        twin.load_state_dict(trained, strict=False)
        found = call(twin, graph, engine.forward)
    if not bool((found - own).abs().max() <= SAME * own.abs().max()):
        raise ModelError(
            "expected retrained jurors that their trainable parameters determine, got one that gives other outputs "
            "with the same parameters; its buffers or frozen parameters changed in training, so use estimated jurors"
        )
    return torch.cat([p.detach().reshape(-1) for p in trained.values()])


def without_node(data: Data, node: int) -> Data:
    """The graph without the edges of ``node``; the node itself stays, so that all indices stay valid."""
    (node,) = check_nodes([node], data, what="node").tolist()
    if layout_of(data) is not None:
        return without_node_of_type(data, node)
    kept = (data.edge_index != node).all(dim=0)
    cut = copy.copy(data)
    cut.edge_index = data.edge_index[:, kept]
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            cut[key] = data[key][kept]
    return cut
