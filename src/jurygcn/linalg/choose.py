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

MAX_DUAL_ROWS = 20_000  # the k × k matrix and its factor: 6.4 GB in float64
MAX_DIRECT_SIZE = 12_000  # the P × P matrix and its factor: 2.3 GB in float64


@dataclass(frozen=True)
class Choice:
    """A solver and the reason for choosing it."""

    solver: Solver
    reason: str

    @property
    def name(self) -> str:
        """The name of the solver."""
        return self.solver.name

    def prepare(self, operator: Operator) -> Prepared:
        """The solver's own `prepare`."""
        return self.solver.prepare(operator)


def choose(solver: str | Solver, operator: Operator) -> Choice:
    """The solver of that name with its default settings, the given solver, or the best one for "auto".

    "auto" takes dual when the operator is low-rank, its diagonal is nowhere negative and somewhere positive, and it has
    no more rows than parameters; else direct if the matrix is small; else cg if the operator is known to be definite;
    else minres.

    Raises:
        SettingError: the name is unknown.
    """
    check_solver(solver)
    if not isinstance(solver, str):
        return Choice(solver, f"{solver.name} was passed")
    if solver == "auto":
        return _automatic(operator)
    return Choice(SOLVERS[solver](), f"{solver} was chosen")


def check_solver(solver: str | Solver) -> None:
    """Raise SettingError unless it is the name of a solver or a solver."""
    known = solver in ("auto", *SOLVERS) if isinstance(solver, str) else hasattr(solver, "prepare")
    if not known:
        raise SettingError(
            f"expected solver to be one of {', '.join(['auto', *SOLVERS])}, got {in_short(solver)}; choose one, or "
            "pass a solver object"
        )


def _automatic(operator: Operator) -> Choice:
    size = operator.size
    if isinstance(operator, LowRankOperator) and bool((operator.diagonal >= 0).all() & (operator.diagonal > 0).any()):
        rows = operator.factor.rows
        if rows <= min(size, MAX_DUAL_ROWS):
            return Choice(Dual(), f"auto picked dual: {rows:,} rows against {size:,} parameters")
    if size <= MAX_DIRECT_SIZE:
        return Choice(Direct(), f"auto picked direct: {size:,} parameters fit a dense factorisation")
    why = f"{size:,} parameters are too many for a dense factorisation, and the operator is"
    if operator.definite:
        return Choice(CG(), f"auto picked cg: {why} positive definite")
    return Choice(MINRES(), f"auto picked minres: {why} not known to be positive definite")
