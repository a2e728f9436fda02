"""Linear algebra on torch tensors: symmetric operators and solvers of A X = B, independent of graphs and models."""

from .cg import CG
from .choose import MEMORY, NEVER_REFUSED, SOLVERS, Choice, check_solver, choose
from .direct import Direct
from .dual import Dual
from .minres import MINRES
from .neumann import Neumann
from .operator import (
    DenseFactor,
    DenseOperator,
    Factor,
    FiniteSumOperator,
    LowRank,
    LowRankOperator,
    Operator,
    WithDiagonal,
)
from .shift import shift
from .small import multiply_small, solve_small
from .solution import Prepared, Solution, Solver
from .spectrum import extreme_eigenvalues
from .subspace import dominant_subspace
from .undecayed import undetermined_directions

__all__ = [
    "CG",
    "MEMORY",
    "MINRES",
    "NEVER_REFUSED",
    "SOLVERS",
    "Choice",
    "DenseFactor",
    "DenseOperator",
    "Direct",
    "Dual",
    "Factor",
    "FiniteSumOperator",
    "LowRank",
    "LowRankOperator",
    "Neumann",
    "Operator",
    "Prepared",
    "Solution",
    "Solver",
    "WithDiagonal",
    "check_solver",
    "choose",
    "dominant_subspace",
    "extreme_eigenvalues",
    "multiply_small",
    "shift",
    "solve_small",
    "undetermined_directions",
]
