"""The training loop of all networks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.ambient import plain_torch
from jurygcn.checks import MOST_EPOCHS, MOST_SEED, check_count, check_rate
from jurygcn.choices import Recipe
from jurygcn.data import check_graph, check_nodes, check_targets, graph_of, ordinary
from jurygcn.data.heterogeneous import layout_of
from jurygcn.errors import ModelError, SettingError
from jurygcn.losses import loss_named
from jurygcn.models.calling import Forward, call
from jurygcn.models.copies import check_initialised
from jurygcn.models.dropout_field import DropoutField
from jurygcn.models.gcn import GCN, is_plain
from jurygcn.models.receptive_field import ReceptiveField
from jurygcn.models.weight_decay import decay_by_name
from jurygcn.progress import progress_bar


@dataclass(frozen=True)
class Training:
    """The record of a training run: losses per epoch, the epoch whose parameters were kept, seconds."""

    epochs: int
    losses: list[float] = field(repr=False)
    validation_losses: list[float] = field(repr=False)
    best_epoch: int
    seconds: float


@dataclass(frozen=True)
class Stopping:
    """When to stop, and which parameters to keep.

    ``measure()`` returns numbers to minimise; the first is the validation loss. The count of epochs without progress
    restarts when one of them reaches its lowest value so far; the parameters are kept when all of them do.
    """

    measure: Callable[[], tuple[float, ...]]
    patience: int


@plain_torch()
def train(
    model: nn.Module,
    data: Data | HeteroData,
    train_nodes: Tensor,
    *,
    epochs: int = Recipe.epochs,
    lr: float = Recipe.lr,
    weight_decay: float | Mapping[str, float] = Recipe.weight_decay,
    loss: str = "cross_entropy",
    node_weights: Tensor | None = None,
    val_nodes: Tensor | None = None,
    patience: int | None = None,
    forward: Forward | None = None,
    node_type: str | None = None,
    warm_start: bool = False,
    seed: int = 0,
    after_epoch: Callable[[int], None] | None = None,
    progress: bool = False,
) -> Training:
    r"""Fit ``model`` to the labels of ``train_nodes`` with Adam; the defaults are the paper's settings.

    Minimises :math:`\frac1n \sum_i w_i\, r(i, y_i, \Theta) + \frac\lambda2 \|\Theta\|^2` (Eq. 2 with L2),
    with weights :math:`w_i` from ``node_weights`` (n,), by default 1. The weight decay may differ by
    parameter name. The model is re-initialised from ``seed`` first, so the same call gives the same
    model; ``warm_start=True`` continues from the current parameters. With ``val_nodes`` and ``patience``
    training stops once the validation loss has not improved for that many epochs, and the best
    parameters are kept. ``forward(model, data)`` gives the logits of models that are not called as
    ``model(x, edge_index)``. In a ``HeteroData`` the nodes are those of ``node_type``, and the model is called as
    ``model(x_dict, edge_index_dict)``. ``after_epoch(epoch)`` is called after each epoch, counted from 1. The model is
    left in eval mode. Global random state is not touched.

    Implements: Eq. (2)
    """
    objective = loss_named(loss)
    data = check_graph(graph_of(data, node_type))
    train_nodes = check_nodes(train_nodes, data, what="train_nodes")
    check_initialised(model)
    if (val_nodes is None) != (patience is None):
        raise SettingError(
            "expected both val_nodes and patience for early stopping, got one of them; pass both or neither"
        )
    y = check_targets(data)
    targets = objective.targets(y[train_nodes])
    weights = torch.ones(len(train_nodes)) if node_weights is None else node_weights
    if len(weights) != len(train_nodes):
        raise SettingError(
            f"expected {len(train_nodes)} node_weights, one per training node, got {len(weights)}; match the two"
        )
    weights = weights.to(targets.device)
    outputs = outputs_at(model, data, train_nodes, forward)
    stopping = None
    if val_nodes is not None and patience is not None:
        val_nodes = check_nodes(val_nodes, data, what="val_nodes")
        checked, truth = outputs_at(model, data, val_nodes, forward), objective.targets(y[val_nodes])
        stopping = Stopping(lambda: (float(objective.node_losses(checked(), truth).mean()),), patience)
    return descend(
        model,
        lambda _: (objective.node_losses(outputs(), targets) * weights).mean(),
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        stopping=stopping,
        warm_start=warm_start,
        seed=seed,
        after_epoch=after_epoch,
        progress=progress,
    )


def new_gcn(data: Data, recipe: Recipe, *, outputs: int | None = None) -> GCN:
    """An untrained GCN of a recipe; ``outputs`` is the number of classes unless given."""
    width = int(data.num_classes) if outputs is None else outputs
    return GCN(data.x.shape[1], recipe.hidden, width, num_layers=recipe.layers, dropout=recipe.dropout)


def fit_gcn(
    data: Data,
    train_nodes: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    outputs: int | None = None,
    weight_decay: Mapping[str, float] | None = None,
    **settings: Any,
) -> tuple[GCN, Training]:
    """A new GCN trained by this recipe, and the record of its training.

    ``outputs`` is the number of classes unless given. ``weight_decay`` by parameter name replaces the recipe's. Other
    settings go to :func:`train`.
    """
    r, model = recipe, new_gcn(data, recipe, outputs=outputs)
    decay = r.weight_decay if weight_decay is None else weight_decay
    return model, train(model, data, train_nodes, epochs=r.epochs, lr=r.lr, weight_decay=decay, seed=seed, **settings)


@plain_torch()
def descend(
    model: nn.Module,
    objective: Callable[[int], Tensor],
    *,
    epochs: int,
    lr: float,
    weight_decay: float | Mapping[str, float] = 0.0,
    stopping: Stopping | None = None,
    warm_start: bool = False,
    seed: int = 0,
    after_epoch: Callable[[int], None] | None = None,
    progress: bool = False,
) -> Training:
    """Minimise ``objective(epoch)``, a differentiable function of the model, with Adam; epochs count from 1.

    All randomness, from initialisation to dropout, comes from ``seed``; global random state is not touched. The model
    is in eval mode while ``stopping`` measures and after the last epoch.
    """
    check_count(epochs, "epochs", most=MOST_EPOCHS)
    check_rate(lr)
    check_count(seed, "seed", least=0, most=MOST_SEED)
    if any(p.is_inference() for p in model.parameters()):
        raise ModelError(
            "expected trainable parameters, got a model created under torch.inference_mode; create it outside"
        )
    losses: list[float] = []
    measures: list[tuple[float, ...]] = []
    best_epoch, progress_epoch, best_state = epochs, 0, None
    lowest: tuple[float, ...] = ()
    started = time.perf_counter()
    with (
        torch.random.fork_rng(devices=_cuda_devices(model)),
        progress_bar("Training", total=epochs, unit="epochs", show=progress) as advance,
    ):
        torch.manual_seed(seed)
        if not warm_start:
            reset(model)
        optimizer = torch.optim.Adam(parameter_groups(model, weight_decay), lr=lr)
        for epoch in range(1, epochs + 1):
            model.train()
            optimizer.zero_grad()
            value = objective(epoch)
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
            advance(1)
            if after_epoch is not None:
                after_epoch(epoch)
            if stopping is None:
                continue
            model.eval()
            with torch.no_grad():
                measures.append(stopping.measure())
            as_good = [new <= old for new, old in zip(measures[-1], lowest or measures[-1])]
            lowest = tuple(map(min, measures[-1], lowest or measures[-1]))
            if all(as_good):
                best_epoch, best_state = epoch, _snapshot(model)
            if any(as_good):
                progress_epoch = epoch
            elif epoch - progress_epoch >= stopping.patience:
                break
    if best_state is not None:
        model.load_state_dict(best_state)
    model.eval()
    seconds = time.perf_counter() - started
    return Training(len(losses), losses, [m[0] for m in measures], min(best_epoch, len(losses)), seconds)


def reset(model: nn.Module) -> None:
    """Re-initialise all parameters through the modules' own ``reset_parameters``."""
    modules = [model] if hasattr(model, "reset_parameters") else list(model.modules())
    resets: list[Callable[[], None]] = [m.reset_parameters for m in modules if hasattr(m, "reset_parameters")]  # type: ignore[misc]
    if not resets:
        raise ModelError(
            "expected a reset_parameters() method on the model or its modules, got none; add one, or pass "
            "warm_start=True to train from the current parameters"
        )
    for redraw in resets:
        redraw()


def parameter_groups(model: nn.Module, weight_decay: float | Mapping[str, float]) -> list[dict[str, object]]:
    """Adam's parameter groups: trainable parameters with their weight decay."""
    decays = decay_by_name(model, weight_decay)
    named = dict(model.named_parameters())
    return [
        {"params": [named[n] for n, d in decays.items() if d == decay], "weight_decay": decay}
        for decay in dict.fromkeys(decays.values())
    ]


def outputs_at(
    model: nn.Module,
    data: Data,
    nodes: Tensor,
    forward: Forward | None = None,
) -> Callable[[], Tensor]:
    """A function that returns the logits of ``nodes`` for the model's current parameters and mode.

    A plain GCN, or a model with its own ``outputs_at(data, nodes)``, computes them on the receptive field; other models
    compute them on the whole graph.
    """
    data = ordinary(data)
    own_way = forward is None and layout_of(data) is None
    if own_way and hasattr(model, "outputs_at"):
        own: Callable[[], Tensor] = model.outputs_at(data, nodes)  # type: ignore[operator]
        return own
    if own_way and is_plain(model):
        assert isinstance(model, GCN)
        field = ReceptiveField.of(model, data, nodes)
        with_dropout = DropoutField(field, data.x, model.dropout) if model.dropout > 0 else field
        return lambda: (with_dropout if model.training else field).logits(list(model.weights))
    graph = ordinary(data, dtype=_dtype_for(model, data))
    return lambda: call(model, graph, forward)[nodes]


def _dtype_for(model: nn.Module, data: Data) -> torch.dtype:
    """The features' dtype if the model has parameters of that dtype, else the model's."""
    known = [p.dtype for p in model.parameters()]
    return data.x.dtype if data.x.dtype in known or not known else known[0]


def _snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
