"""What fit and verdict will cost, said before the work starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.adding import KERNEL_SHARE
from jurygcn.conformal.asked import Asked
from jurygcn.conformal.predictions import MOST_VOTES
from jurygcn.conformal.rank import MOST
from jurygcn.engine.ways import DIRECTIONS, Way
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.iterated import ARRAYS
from jurygcn.linalg import NEVER_REFUSED, Choice, WithDiagonal, choose
from jurygcn.linalg.subspace import ITERATIONS, OVERSAMPLING
from jurygcn.settings import BALLOT_SHARE

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# Work that is estimated to take longer is announced, in seconds.
LONG = 5.0

# Jurors where each needs its own iterative solves.
FEW_JURORS = 500

# Products with all jurors' systems that their further Newton iterations take, with what is done beside them.
ITERATED = 150

# Iterations that cg is assumed to need, and products with the model's weights in a forward pass and its derivative.
CG_ITERATIONS, DERIVATIVE = 60, 3.0

# A derivative along one direction, in forward passes.
TANGENT = 2.0

# What full conformal sets cost in operations of a matrix product, measured: for each number of a kernel, each number of
# a pair of a label and a juror, each number of the Newton steps for an added label, and each answer of a regression.
KERNEL, PAIR, FITTING, REGRESSION = 800.0, 1100.0, 4500.0, 1400.0
REGRESSIONS, WHOLE_PANEL = 5, 20  # those with a weight, mostly, and all

# A linearised vote that takes advice costs as much as this many operations of a matrix product; measured.
ADVISED = 4000.0


@dataclass(frozen=True)
class Cost:
    """An estimate of what ``fit`` and a verdict on all nodes cost, from a timed forward pass and counts of operations.

    Attributes:
        what: the work in words.
        fit_seconds, verdict_seconds: estimated times on this machine as it is now; often off by a factor of two.
        bytes: the memory beyond the graph, the model and Python itself.
        jurors: how many there are.
        solver: the name of the solver; "none" if jurors are retrained.
        masks: the draws of dropout.
        why_slow: why derivatives are taken row by row; empty if they are not.
        full_seconds: the part of the verdict's time that full conformal sets or intervals take; 0 if not asked for. An
            upper estimate for the stacked jury before its first verdict: where the model has no weight, they take far
            less.
    """

    what: str
    fit_seconds: float
    verdict_seconds: float
    bytes: float
    jurors: int
    solver: str
    masks: int
    why_slow: str
    full_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Fit and verdict together."""
        return self.fit_seconds + self.verdict_seconds

    @property
    def words(self) -> str:
        """The estimate in a sentence or two."""
        slow = f" Derivatives go row by row, because {self.why_slow}." if self.why_slow else ""
        added = f" (at most {_duration(self.full_seconds)} of it for full conformal prediction)" * bool(
            self.full_seconds
        )
        return (
            f"{self.what}: about {_duration(self.fit_seconds)} to fit, {_duration(self.verdict_seconds)} for a verdict "
            f"on all nodes{added}, {self.bytes / 1e9:.1f} GB.{slow}"
        )


@dataclass(frozen=True, eq=False)
class PlannedFactor:
    """The number of rows of a factor that was not made."""

    rows: int


@dataclass(frozen=True, eq=False)
class PlannedOperator(WithDiagonal):
    """What the choice of a solver looks at, of a curvature that was not made."""

    diagonal: Tensor
    factor: PlannedFactor
    low_rank: bool

    @property
    def definite(self) -> bool | None:
        """Whether it is known to be positive definite."""
        return (self.low_rank and bool((self.diagonal > 0).all())) or None

    def matmul(self, block: Tensor) -> Tensor:
        """There is no matrix."""
        raise NotImplementedError

    def to_dense(self) -> Tensor:
        """There is no matrix."""
        raise NotImplementedError


def planned_choice(jury: Jury) -> Choice:
    """The solver that ``fit`` will take."""
    engine, leave_out = jury.engine, jury.leave_out
    ggn = leave_out.curvature == "ggn"
    K = engine.num_outputs - (engine.loss.name == "cross_entropy" and engine.num_outputs > 1)
    operator = PlannedOperator(engine.decay + leave_out.damping, PlannedFactor(engine.num_train * K), ggn)
    return choose(leave_out.solver, operator if ggn else _Dense(operator), memory=room_for_matrices(jury))


class _Dense:
    """A planned operator without the low-rank form."""

    def __init__(self, operator: PlannedOperator) -> None:
        self.size, self.dtype, self.device = operator.size, operator.dtype, operator.device
        self.definite: bool | None = None
        self.matmul, self.to_dense = operator.matmul, operator.to_dense


def room_for_matrices(jury: Jury) -> float:
    """The memory that is left for the solver's matrices, next to temporary arrays and jurors; in bytes."""
    held = float(jury.engine.source_dtype.itemsize * jury.engine.num_train * jury.engine.num_parameters)
    return jury.run.bytes - min(jury.engine.working_bytes() + held, jury.run.bytes / 3)


def fit_bytes(jury: Jury, choice: Choice | None) -> float:
    """The memory of ``fit`` beyond the graph, the model and Python itself."""
    engine, jurors = jury.engine, len(jury.positions)
    held = float(engine.source_dtype.itemsize * jurors * engine.num_parameters)  # the jurors' steps, or their gradients
    if choice is None:
        return 2 * held
    if jury.votes.how == "linearized":
        directions = 4 * 8.0 * min(_rank(jury) + OVERSAMPLING, jurors) * engine.num_parameters
        return choice.bytes + max(engine.working_bytes(), directions) + held
    return choice.bytes + engine.working_bytes() + 2 * held + (jury.leave_out.iterations > 1) * _iterated_bytes(jury)


def _iterated_bytes(jury: Jury) -> float:
    """The systems of jurors with several Newton iterations, a copy, and what is held for some jurors at a time."""
    size, C = float(jury.engine.num_train * jury.engine.num_outputs), jury.engine.num_outputs
    return 16.0 * size**2 + min(jury.run.bytes / BALLOT_SHARE, 8.0 * len(jury.positions) * size * (ARRAYS + C))


def verdict_bytes(jury: Jury, nodes: int) -> float:
    """The memory of a verdict on so many nodes beyond the graph, the model and Python itself."""
    engine, jurors, number = jury.engine, len(jury.positions), jury.engine.source_dtype.itemsize
    if jury.votes.how == "linearized":
        held = float(number * _rank(jury) * (engine.num_parameters + jurors))
        held += number * float(engine.tangent_numbers(nodes)) * _rank(jury)
        votes = float(jurors * nodes * engine.num_outputs)
        return held + (min(jury.run.bytes / BALLOT_SHARE, 9.0 * number * votes) if votes <= MOST_VOTES else 0.0)
    held = float(number * jurors * engine.num_parameters)
    return held + min(jury.run.bytes / BALLOT_SHARE, 9.0 * number * jurors * nodes * engine.num_outputs)


def check_fit(jury: Jury) -> None:
    """Raise SettingError if ``fit`` needs more memory than it may use."""
    choice = planned_choice(jury) if jury.leave_out.how != "retrain" else None
    needed = fit_bytes(jury, choice)
    if needed > max(jury.run.bytes, NEVER_REFUSED):
        other = "" if jury.votes.how == "linearized" else ", linearised votes (votes='linearized')"
        raise SettingError(
            f"expected fit to fit in memory={jury.run.memory!r}, got about {needed / 1e9:.1f} GB for "
            f"{len(jury.positions):,} jurors of {jury.engine.num_parameters:,} parameters; use fewer jurors "
            f"(LeaveOut(max_jurors=1000)){other}, or allow more (Run(memory=...))"
        )


def full_bytes(jury: Jury, nodes: int, *, averaged: bool = True) -> float:
    """The memory that full conformal sets of so many nodes add: directions, their products, kernels of some nodes."""
    engine, number = jury.engine, jury.engine.source_dtype.itemsize
    rows, jurors, C, P = added_rows(jury), len(jury.positions), engine.num_outputs, engine.num_parameters
    averages = averaged * jurors * C
    directions = rows + averages
    kernels = number * nodes * (5.0 * directions * C + 2 * jurors * C * C + engine.tangent_numbers(1) * DIRECTIONS)
    held = P * ((8.0 + number) * directions + 8.0 * averages) + 16.0 * rows**2
    return held + min(jury.run.bytes / KERNEL_SHARE, kernels)


def added_rows(jury: Jury) -> int:
    """The directions that jurors with an added label move along: rows of U, and parameters without weight decay."""
    engine = jury.engine
    K = engine.num_outputs - (engine.loss.name == "cross_entropy" and engine.num_outputs > 1)
    return engine.num_train * K + int((engine.decay + jury.leave_out.damping == 0).sum())


def check_verdict(jury: Jury, asked: Asked, *, full: bool) -> None:
    """Raise SettingError if a verdict, with labels added to every node if ``full``, needs too much memory."""
    nodes = len(asked.nodes)
    needed = verdict_bytes(jury, nodes)
    more = full_bytes(jury, nodes, averaged=asked.question.diffusion != 0) if full else 0.0
    if needed + more > max(jury.run.bytes, NEVER_REFUSED) >= needed:
        raise SettingError(
            f"expected full conformal prediction to fit in memory={jury.run.memory!r}, got about "
            f"{(needed + more) / 1e9:.1f} GB for {jury.engine.num_train:,} labels and "
            f"{jury.engine.num_parameters:,} parameters; use advice='panel', the jackknife+, or allow more "
            "(Run(memory=...))"
        )
    if needed > max(jury.run.bytes, NEVER_REFUSED):
        raise SettingError(
            f"expected a verdict to fit in memory={jury.run.memory!r}, got about {needed / 1e9:.1f} GB for {nodes:,} "
            "nodes; ask for some nodes at a time (jury.verdict(nodes)), use fewer directions (Votes(rank=...)), or "
            "allow more (Run(memory=...))"
        )


def cost_of(jury: Jury, *, full: bool = False, advice: str | None = "auto", diffusion: int | str = "auto") -> Cost:
    """The estimate, without doing the work; takes about as long as a few forward passes."""
    if full:
        added = _adding_seconds(jury, _adding(jury, advice, diffusion))
        plain, N = cost_of(jury), int(jury.data.num_nodes)
        needed = max(plain.bytes, verdict_bytes(jury, N) + full_bytes(jury, N))
        return replace(plain, verdict_seconds=plain.verdict_seconds + added, full_seconds=added, bytes=needed)
    engine, jurors, N = jury.engine, len(jury.positions), int(jury.data.num_nodes)
    way = engine.way()
    voting = _voting_seconds(jury, way.forward_seconds)
    if jury.leave_out.how == "retrain":
        training = DERIVATIVE * way.forward_seconds * jury.retraining.epochs * jurors
        needed = max(fit_bytes(jury, None), verdict_bytes(jury, N))
        return Cost(f"{jurors:,} jurors retrained", training, voting, needed, jurors, "none", 0, "")
    choice = planned_choice(jury)
    votes = f"{_rank(jury)} directions, first-order votes" if jury.votes.how == "linearized" else "exact votes"
    masks = f", {way.masks} draws of dropout" if way.masks else ""
    what = (
        f"{jurors:,} jurors of {engine.num_train:,} labels and {engine.num_parameters:,} parameters on {N:,} nodes, "
        f"solver {choice.name}, {votes}{masks}"
    )
    needed, seconds = max(fit_bytes(jury, choice), verdict_bytes(jury, N)), _solving_seconds(jury, choice, way)
    return Cost(what, seconds, voting, needed, jurors, choice.name, way.masks, way.why_slow)


def _solving_seconds(jury: Jury, choice: Choice, way: Way) -> float:
    """Passes for derivatives, the factorisation or iterations of the solver, and the solutions for all jurors."""
    engine, jurors = jury.engine, len(jury.positions)
    n, P, C = engine.num_train, engine.num_parameters, engine.num_outputs
    fast, exact = _operations_per_second(torch.float32), _operations_per_second(torch.float64)
    few = min(_rank(jury) + OVERSAMPLING, jurors) * (ITERATIONS + 1)
    solves = few if jury.votes.how == "linearized" else jurors
    newton = jury.leave_out.how == "newton"
    passes = 1 + newton + 1 + (way.masks > 0)
    seconds = passes * way.pass_seconds
    if choice.name == "dual":
        rows = float(n * C)
        seconds += rows**2 * P / fast + rows**3 / exact + 2 * rows * P * solves / exact
    elif choice.name == "direct":
        wide = 3.0 if way.kind != "rows" else C
        seconds += 2 * wide * P**2 * (n + newton * jurors) / fast + P**3 / exact + 4 * float(P) ** 2 * solves / exact
    else:
        columns = solves + newton * jurors * (C - 1)
        seconds += CG_ITERATIONS * columns * 2 * DERIVATIVE * way.forward_seconds
    if jury.leave_out.iterations > 1:
        seconds += (n * C) ** 2 * (P / fast + 2 * ITERATED * jurors / exact)
    return seconds


def _voting_seconds(jury: Jury, forward: float) -> float:
    """One forward pass for each juror, or one derivative and the undecided comparisons for each direction."""
    if jury.votes.how == "linearized":
        votes = len(jury.positions) * int(jury.data.num_nodes) * jury.engine.num_outputs
        if votes <= MOST_VOTES:  # all are computed, because they take advice
            return _rank(jury) * DERIVATIVE * forward + votes * ADVISED / _operations_per_second(torch.float32)
        return _rank(jury) * (DERIVATIVE * forward + 0.1 * votes / _operations_per_second(torch.float32))
    return len(jury.positions) * forward


@dataclass(frozen=True)
class _Adding:
    """Who votes on added labels: the model, averages of its votes, and so many regressions."""

    model: bool
    averaged: bool
    regressions: int


def _adding(jury: Jury, advice: str | None, diffusion: int | str) -> _Adding:
    """What these settings of a verdict mean, as far as it is known: weights are, after a first verdict."""
    if advice == "panel":
        return _Adding(model=False, averaged=False, regressions=WHOLE_PANEL)
    chosen = jury._advice.get(diffusion) if advice is not None else None
    if chosen is not None:
        return _Adding(bool((chosen.left_out[0] > 0).any()), chosen.diffusion > 0, len(chosen.advisers))
    classify = jury.engine.loss.name == "cross_entropy"
    return _Adding(model=True, averaged=classify and diffusion != 0, regressions=REGRESSIONS * (advice is not None))


def _adding_seconds(jury: Jury, adding: _Adding) -> float:
    """Forward derivatives, products with them, and small systems for every node, label and juror."""
    engine, way, rows = jury.engine, jury.engine.way(), float(added_rows(jury))
    jurors, N, C, P = len(jury.positions), int(jury.data.num_nodes), engine.num_outputs, engine.num_parameters
    fast, exact = _operations_per_second(torch.float32), _operations_per_second(torch.float64)
    seconds = adding.regressions * REGRESSION * N * jurors * C / fast
    if not adding.model:
        return seconds
    seconds += engine.kernel_passes(int(rows)) * way.forward_seconds
    seconds += N * C * (2 * rows**2 + KERNEL * rows + FITTING * (C**2 + 10)) / fast
    seconds += PAIR * N * jurors * C**2 / fast
    if adding.averaged:
        seconds += jurors * C * (TANGENT * way.forward_seconds + 6 * rows * P / exact)
    return seconds


def _rank(jury: Jury) -> int:
    rank = jury.votes.rank
    return min(MOST if isinstance(rank, str) else rank, len(jury.positions))


@cache
def _operations_per_second(dtype: torch.dtype) -> float:
    """Additions and multiplications of a matrix product, measured once: the fastest of some, because a machine that
    does other work interrupts them.
    """
    size, taken = 512, []
    block = torch.ones(size, size, dtype=dtype)
    torch.mm(block, block)
    for _ in range(8):
        started = time.perf_counter()
        torch.mm(block, block)
        taken.append(time.perf_counter() - started)
    return 2 * size**3 / max(min(taken), 1e-6)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
