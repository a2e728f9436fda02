"""Solvers by name, and the rule behind "auto"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..checks import in_short
from ..errors import SettingError
from .cg import CG
from .direct import Direct
from .dual import Dual
from .minres import MINRES
from .neumann import Neumann
from .operator import LowRankOperator, Operator
from .solution import Prepared, Solver

SOLVERS: Mapping[str, type[Solver]] = MappingProxyType(
    {"direct": Direct, "dual": Dual, "cg": CG, "minres": MINRES, "neumann": Neumann}
)

MEMORY = 8e9  # bytes for matrices, unless the caller says otherwise
NEVER_REFUSED = 256e6  # bytes that are taken without asking
SKETCH = 256  # directions of the preconditioner that "auto" gives to cg


@dataclass(frozen=True)
class Choice:
    """A solver and the reason for choosing it."""

    solver: Solver
    reason: str
    bytes: float = 0.0

    @property
    def name(self) -> str:
        """The name of the solver."""
        return self.solver.name

    def prepare(self, operator: Operator) -> Prepared:
        """The solver's own `prepare`."""
        return self.solver.prepare(operator)


def choose(solver: str | Solver, operator: Operator, *, memory: float = MEMORY) -> Choice:
    """The solver of that name with its default settings, the given solver, or the best one for "auto".

    "auto" takes dual when the operator is low-rank, its diagonal is nowhere negative and somewhere positive, it has
    no more rows than parameters, and its matrices fit ``memory`` (bytes); else direct if those of direct fit; else
    preconditioned cg if the operator is known to be definite; else minres.

    Raises:
        SettingError: the name is unknown, or the matrices of the named solver need more than ``memory``.
    """
    check_solver(solver)
    if solver == "auto":
        return _automatic(operator, memory)
    made = SOLVERS[solver]() if isinstance(solver, str) else solver
    needed = matrix_bytes(made.name, operator)
    if needed > max(memory, NEVER_REFUSED):
        raise SettingError(
            f"expected solver={made.name!r} to fit in {memory / 1e9:.1f} GB, got matrices of {needed / 1e9:.1f} GB; "
            "use solver='auto' or 'cg', or allow more with Run(memory=...)"
        )
    return Choice(made, f"{made.name} was {'chosen' if isinstance(solver, str) else 'passed'}", needed)


def matrix_bytes(name: str, operator: Operator) -> float:
    """The largest total size of the dense matrices that a solver holds at a time."""
    number = float(operator.dtype.itemsize)
    if name == "direct":  # the matrix and its factor share one array, next to it the inverse
        return 2 * number * operator.size**2
    if name == "dual" and isinstance(operator, LowRankOperator):  # the Gram matrix, its factor and its inverse
        return 3 * number * operator.factor.rows**2
    return 0.0


def check_solver(solver: str | Solver) -> None:
    """Raise SettingError unless it is the name of a solver or a solver."""
    known = solver in ("auto", *SOLVERS) if isinstance(solver, str) else hasattr(solver, "prepare")
    if not known:
        raise SettingError(
            f"expected solver to be one of {', '.join(['auto', *SOLVERS])}, got {in_short(solver)}; choose one, or "
            "pass a solver object"
        )


def _automatic(operator: Operator, memory: float) -> Choice:
    size, memory = operator.size, max(memory, NEVER_REFUSED)
    dual, direct = matrix_bytes("dual", operator), matrix_bytes("direct", operator)
    if isinstance(operator, LowRankOperator) and bool((operator.diagonal >= 0).all() & (operator.diagonal > 0).any()):
        rows = operator.factor.rows
        if rows <= size and dual <= memory:
            return Choice(Dual(), f"auto picked dual: {rows:,} rows against {size:,} parameters", dual)
    if direct <= memory:
        return Choice(Direct(), f"auto picked direct: {size:,} parameters fit a dense factorisation", direct)
    why = (
        f"the dense factorisation of {size:,} parameters needs {direct / 1e9:.1f} GB, more than "
        f"{memory / 1e9:.1f} GB, and the operator is"
    )
    if operator.definite:
        return Choice(CG(sketch=SKETCH), f"auto picked cg: {why} positive definite")
    return Choice(MINRES(), f"auto picked minres: {why} not known to be positive definite")
