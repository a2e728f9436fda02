"""Derivatives of the objective that training really minimised: in expectation over dropout."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.data import ordinary
from jurygcn.derivatives.autodiff import outputs_along
from jurygcn.derivatives.jacobian import Jacobian
from jurygcn.derivatives.lifted import LiftedJacobian, LiftedWeight, sparse_if_worth
from jurygcn.derivatives.uses import Use, Uses
from jurygcn.graph.ego import EgoGraphs, EgoRows, ego_graphs
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.graph.typed import typed_ego_graphs
from jurygcn.models.copies import in_use

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Draws of dropout that expectations are taken over, unless the caller says otherwise.
MASKS = 8

# As many where the copies of all neighbourhoods have more than MANY_ROWS rows, each of which costs time.
FEW_MASKS, MANY_ROWS = 4, 8_000

# The slopes of the lifted weights, and the features of all copies of neighbourhoods, take at most this many numbers.
# Above it one backward pass per output on the graph itself costs less.
MOST_SLOPES, MOST_FEATURES = 100_000_000, 50_000_000

# Derivatives of a heterogeneous model on copies and on the whole graph are equal up to this share of the largest.
SAME_DERIVATIVE = 1e-6

# Above this many slopes they are computed in the model's own precision, which takes half the time and memory.
MANY_SLOPES = 4_000_000

# A weight with fewer inputs than this is kept dense: lifting it saves nothing.
FEW_INPUTS = 24


@contextmanager
def training_mode(model: nn.Module, seed: int | None) -> Iterator[None]:
    """The model as it was trained, with dropout drawn from ``seed``; in eval mode for None.

    Normalisation layers keep their running statistics, so that nodes do not depend on each other through them.
    """
    if seed is None:
        yield
        return
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would also seed devices that the model is not on, and writes down the call stack for each
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        model.train()
        for module in model.modules():
            if hasattr(module, "running_mean"):
                module.eval()
        try:
            yield
        finally:
            model.eval()


@dataclass(frozen=True, eq=False)
class Expected:
    r"""Outputs and derivatives of the training nodes, in expectation over dropout.

    Training with dropout minimises the expected loss, whose curvature is :math:`\frac1n \sum_i E[J_i^T S_i J_i]`. It is
    taken as :math:`\frac1n \sum_i \bar J_i^T \bar S_i \bar J_i` with the expected Jacobian and S at the expected
    prediction, plus the rest, which comes from the variance of J, on its diagonal alone. Of the weights that see
    constants the rest is left out, because it would need all their rows for every mask. This is an approximation.

    Attributes:
        outputs: logits whose predictions are the expected ones, (n, C).
        jacobian: the expected Jacobian.
        masks: how many draws of dropout the expectations are over; 0 for a model without dropout.
        noise: the diagonal of the curvature that comes from the variance, (P,).
        why_slow: why the fast way was not taken, in words; empty if it was.
    """

    outputs: Tensor
    jacobian: Jacobian
    masks: int
    noise: Tensor
    why_slow: str = ""


class NotSeparable(Exception):
    """The fast way does not apply; the message says why.

    Attributes:
        part: a graph that determines the training nodes' outputs, and their rows in it, if one was found.
    """

    def __init__(self, why: str, part: tuple[Data, Tensor] | None = None) -> None:
        super().__init__(why)
        self.part = part


@dataclass(eq=False)
class _Sums:
    """Sums over masks, by parameter."""

    slopes: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)
    squares: dict[str, Tensor] = field(default_factory=dict)

    def add(self, kind: dict[str, Tensor], name: str, value: Tensor) -> None:
        if name in kind:
            kind[name] += value
        else:
            kind[name] = value


class EgoDerivatives:
    """Derivatives of all training nodes at once, on copies of their neighbourhoods that do not touch each other."""

    def __init__(self, engine: GenericEngine) -> None:
        self.engine = engine
        hops = num_hops(engine.model)
        widest = max((p.shape[0] for p in engine.parameters.values() if p.dim()), default=1)
        most = min(MOST_SLOPES // (widest * engine.num_outputs), MOST_FEATURES // engine.data.x.shape[1])
        if engine.forward is not None:
            raise NotSeparable("the model is called through forward=, which may look at the whole graph")
        copies = typed_ego_graphs if engine.typed else ego_graphs
        found = copies(engine._inputs, engine.train_nodes, hops, most_rows=most)
        if found is None:
            raise NotSeparable(f"the training nodes see too much of the graph ({hops} hops)")
        self.egos: EgoGraphs = found
        if not engine._suffices(found.graph, found.centres, engine.train_nodes):
            raise NotSeparable("the output at a node depends on more than its neighbourhood")
        with in_use:  # while another thread calls the model, its parameters are others
            self.parameters = {n: p for n, p in engine.model.named_parameters() if p.requires_grad}
        try:
            self._find_uses()
            if engine.typed:
                self._check_types()
        except NotSeparable as reason:
            raise NotSeparable(str(reason), (found.graph, found.centres)) from reason

    def _check_types(self) -> None:
        """Refuse rows that were taken for those of another type: they are told by their number alone.

        The Jacobian times a random direction is compared with the derivative along it on the whole graph.
        """
        engine, theta = self.engine, self.engine.theta
        along = torch.randn(1, len(theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(theta)
        graph, rows = engine._train_graph
        wanted = outputs_along(lambda t: engine.outputs(t, rows, graph), theta, along)[0]
        found = self.expected(0).jacobian.push(along.T)[:, :, 0]
        if not bool((found - wanted).abs().max() <= SAME_DERIVATIVE * wanted.abs().max()):
            raise NotSeparable("the rows of several types of nodes cannot be told apart")

    def cast(self, dtype: torch.dtype) -> EgoDerivatives:
        """The same in another precision, without checking again."""
        if dtype == self.engine.dtype:
            return self
        twin = copy.copy(self)
        twin._first = []
        twin.engine = self.engine.cast(dtype)
        twin.egos = replace(self.egos, graph=ordinary(self.egos.graph, dtype=dtype))
        with in_use:
            twin.parameters = {n: p for n, p in twin.engine.model.named_parameters() if p.requires_grad}
        twin.lifted = {
            name: replace(use, inputs=None if use.inputs is None else use.inputs.to(dtype))
            for name, use in self.lifted.items()
        }
        return twin

    def _find_uses(self, first: tuple[Tensor, Uses] | None = None) -> None:
        """Which parameters can be tracked, and which of them are lifted out; ``first`` is a run in eval mode."""
        z, uses = self._run(None) if first is None else first
        self._first = [(z, uses)]  # what `expected` asks for next, once: its graph is freed by the backward pass
        self._check_complete(z, uses)
        self.order = [use.name for use in uses.found]
        if not torch.allclose(z, self.engine.train_outputs, rtol=1e-6, atol=1e-6):
            raise NotSeparable("the model changes its inputs in place")
        often = Counter(self.order)
        everything = self._whole_uses()
        self.lifted: dict[str, Use] = {}
        self.lifted_rows: dict[str, EgoRows] = {}
        for use in uses.found:
            rows, whole = self.egos.rows_of(use.owner), everything.get(use.name)
            if not use.constant or often[use.name] > 1 or use.inputs is None or use.inputs.shape[1] < FEW_INPUTS:
                continue
            if rows is None or whole is None or whole.inputs is None or len(whole.inputs) != rows.count:
                continue
            if bool((rows.nodes < rows.count).any()):
                self.lifted[use.name], self.lifted_rows[use.name] = whole, rows

    def _check_complete(self, z: Tensor, uses: Uses) -> None:
        """Refuse a run in which a parameter acts in a way that was not noted.

        Noted uses do not lead back to the parameter itself. A use that the mode does not see (scripted code, a custom
        autograd function) does.
        """
        names = list(self.parameters)
        back = torch.autograd.grad(z.sum(), list(self.parameters.values()), retain_graph=True, allow_unused=True)
        missing = uses.others | {name for name, grad in zip(names, back, strict=True) if grad is not None}
        if missing:
            found = ", ".join(sorted(missing))
            raise NotSeparable(f"the model uses {found} in a way that cannot be told apart by node")

    def _whole_uses(self) -> dict[str, Use]:
        """The uses of parameters on the whole graph, whose constant inputs are the rows of X."""
        engine = self.engine
        with in_use, torch.enable_grad(), Uses(self.parameters) as uses:
            engine.call(engine._inputs)
        return {use.name: use for use in uses.found if use.constant and use.inputs is not None}

    def _run(self, seed: int | None) -> tuple[Tensor, Uses]:
        model, owners = self.engine.model, [rows.owner for rows in self.egos.rows]
        with in_use, torch.enable_grad(), training_mode(model, seed), Uses(self.parameters, owners) as uses:
            z = self.engine.call(self.egos.graph)[self.egos.centres]
        return z, uses

    def has_dropout(self) -> bool:
        """Whether two training passes differ; refuses a model that uses its parameters differently in training."""
        (first, uses), (second, _) = self._run(0), self._run(1)
        self._check_complete(first, uses)
        if [use.name for use in uses.found] != self.order:
            raise NotSeparable("the model uses its parameters differently in training mode")
        return not torch.equal(first, second)

    def expected(self, masks: int) -> Expected:
        """Averages over ``masks`` draws of dropout, or the derivatives in eval mode for none."""
        engine, sums = self.engine, _Sums()
        n, C = engine.num_train, engine.num_outputs
        predictions = torch.zeros(n, C, dtype=engine.dtype, device=engine.theta.device)
        seeds: list[int | None] = list(range(masks)) if masks else [None]
        for seed in seeds:
            z, uses = self._first.pop() if seed is None and self._first else self._run(seed)
            predictions += engine.loss.predict(z.detach()) / len(seeds)
            self._add(z, uses.found, sums, 1.0 / len(seeds))
        outputs = engine.loss.outputs(predictions) if masks else engine.train_outputs
        return Expected(outputs, self._jacobian(sums), masks, self._noise(sums, outputs))

    def _noise(self, sums: _Sums, outputs: Tensor) -> Tensor:
        """E[U^2] minus the squares of the expected rows, for the parameters with dense rows, (P,)."""
        root = self.engine.loss.root(outputs)
        parts = []
        for name, p in self.parameters.items():
            part = torch.zeros(p.numel(), dtype=root.dtype, device=root.device)
            if name in sums.squares:
                part = (sums.squares[name] - squared_rows(root, sums.rows[name])).clamp_min(0.0)
            parts.append(part)
        return torch.cat(parts)

    def _add(self, z: Tensor, found: list[Use], sums: _Sums, weight: float) -> None:
        """The derivatives of one pass: one backward pass for each output, through all nodes at once."""
        C = z.shape[1]
        root = self.engine.loss.root(z.detach())
        now: dict[str, Tensor] = {}
        outputs = [use.output for use in found]
        by_use: list[list[Tensor]] = [[] for _ in found]
        for c in range(C):
            grads = torch.autograd.grad(z[:, c].sum(), outputs, retain_graph=c < C - 1, allow_unused=True)
            for use, of_classes, grad in zip(found, by_use, grads, strict=True):
                slopes = (torch.zeros_like(use.output) if grad is None else weight * grad).unsqueeze(-1)
                of_classes.append(slopes if use.inputs is not None else self._dense_rows(use, slopes))
        for use, of_classes in zip(found, by_use, strict=True):
            if use.inputs is None:
                sums.add(now, use.name, torch.cat(of_classes, dim=1))
                continue
            together = torch.cat(of_classes, dim=-1)  # (R, h, C)
            of_classes.clear()
            if use.name in self.lifted:
                sums.add(sums.slopes, use.name, together)
            else:
                sums.add(now, use.name, self._dense_rows(use, together))
        for name, rows in now.items():
            sums.add(sums.rows, name, rows)
            if weight < 1.0:
                sums.add(sums.squares, name, squared_rows(root, rows) / weight)

    def _dense_rows(self, use: Use, slopes: Tensor) -> Tensor:
        """The rows of one parameter, (n, C, numel)."""
        n, C = self.engine.num_train, slopes.shape[-1]
        order = use.owner.argsort(stable=True)
        if use.inputs is None:
            flat = slopes.flatten(1)
            out = torch.zeros(n, flat.shape[1], dtype=flat.dtype, device=flat.device).index_add_(0, use.owner, flat)
            return out.view(n, -1, C).transpose(1, 2)
        counts = torch.bincount(use.owner, minlength=n)
        blocks = []
        for rows in order.split(counts.tolist()):
            slope, given = slopes[rows], use.inputs[rows]  # (r, h, C), (r, F)
            product = given.T @ slope.flatten(1)  # (F, h C)
            product = product.view(given.shape[1], -1, C)
            blocks.append((product.permute(2, 1, 0) if use.transposed else product.permute(2, 0, 1)).reshape(C, -1))
        return torch.stack(blocks)

    def _jacobian(self, sums: _Sums) -> LiftedJacobian:
        lifted, rest, others, start = [], [], [], 0
        n, C = self.engine.num_train, self.engine.num_outputs
        for name, p in self.parameters.items():
            if name in self.lifted:
                lifted.append(self._lifted_weight(start, name, sums.slopes[name]))
            else:
                rest.append(sums.rows.get(name, torch.zeros(n, C, p.numel(), dtype=p.dtype, device=p.device)))
                others.append(torch.arange(start, start + p.numel()))
            start += p.numel()
        none = self.engine.theta.new_zeros(n, C, 0)
        return LiftedJacobian(
            lifted,
            torch.cat(rest, dim=2) if rest else none,
            torch.cat(others) if others else torch.zeros(0, dtype=torch.long),
        )

    def _lifted_weight(self, start: int, name: str, slopes: Tensor) -> LiftedWeight:
        use, rows = self.lifted[name], self.lifted_rows[name]
        assert use.inputs is not None
        copied = rows.nodes < rows.count
        kept = (slopes != 0).flatten(1).any(dim=1) & copied
        if not bool(kept.any()):  # nothing depends on the weight: one row of zeros stands for all
            kept[int(copied.nonzero()[0])] = True
        counts = torch.bincount(rows.owner[kept], minlength=self.engine.num_train)
        reached, places = rows.nodes[kept].unique(return_inverse=True)
        return LiftedWeight(
            start,
            use.transposed,
            sparse_if_worth(use.inputs[reached]),
            places,
            torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            slopes[kept],
        )


def expected_derivatives(engine: GenericEngine) -> Expected:
    """Derivatives on ego graphs: in eval mode in full precision, or averages over dropout in the model's own."""
    exact = EgoDerivatives(engine)
    widest = max((p.shape[0] for p in engine.parameters.values() if p.dim()), default=1)
    many = exact.egos.size * widest * engine.num_outputs > MANY_SLOPES
    if engine.masks == 0 and not many:
        return exact.expected(0)
    exact._first.clear()  # it holds every intermediate result of a run
    drawn = exact.cast(engine.source_dtype)
    if engine.masks == 0:
        del exact  # with the features of all copies
        found = drawn.expected(0)
        return replace(
            found,
            outputs=engine.train_outputs,
            jacobian=found.jacobian.cast(engine.dtype),
            noise=found.noise.to(engine.dtype),
        )
    if not drawn.has_dropout():
        return exact.expected(0)
    masks = engine.masks or (MASKS if exact.egos.size <= MANY_ROWS else FEW_MASKS)
    found = drawn.expected(masks)
    return replace(
        found,
        outputs=found.outputs.to(engine.dtype),
        jacobian=found.jacobian.cast(engine.dtype),
        noise=found.noise.to(engine.dtype),
    )


def random_in_training(engine: GenericEngine) -> bool:
    """Whether two passes in training mode differ: the model has dropout, as a module or as a function."""

    def outputs(seed: int) -> Tensor:
        with training_mode(engine.model, seed):
            return engine.call(engine.near)

    with in_use, torch.no_grad():
        return not torch.equal(outputs(0), outputs(1))


def squared_rows(root: Tensor, rows: Tensor) -> Tensor:
    r"""The diagonal of :math:`\frac1n \sum_i J_i^T L_i L_i^T J_i`: (n, C, K) and (n, C, p) -> (p,)."""
    return torch.bmm(root.mT, rows).square().sum(dim=(0, 1)) / len(root)
