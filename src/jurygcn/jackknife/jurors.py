r"""Leave-one-out parameters: the only place where the sign and the 1/n live.

Leaving out node i's loss (Eq. 3 with :math:`\epsilon = -1/n`) moves the minimiser by

.. math:: \delta_i = \theta_{-i} - \theta \approx +\tfrac1n H_\bullet^{-1} g_i, \qquad g_i = J_i^T L_i w_i

``influence`` uses the whole curvature H (the paper); ``newton`` the curvature without node i, which by the
push-through identity only rescales the whitened residual:

.. math::
    (H - U_i^T U_i)^{-1} g_i = H^{-1} J_i^T L_i (I - M_{ii})^{-1} w_i, \qquad M_{ii} = U_i H^{-1} U_i^T
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from jurygcn.curvature import GGN, Curvature
from jurygcn.derivatives import ClosedForm, autodiff
from jurygcn.errors import JuryWarning, SettingError
from jurygcn.linalg import PreparedDual, Solution, choose
from jurygcn.linalg.direct import PreparedDirect
from jurygcn.linalg.solution import Prepared, Solver
from jurygcn.objective import Objective

LEAVE_OUT = ("newton", "influence", "retrain")

# U_i H^-1 U_i^T is solved for this many columns at a time where it has no closed form.
COLUMNS = 512


@dataclass(frozen=True, eq=False)
class Jurors:
    """The leave-one-out models, as steps away from the trained parameters.

    Shapes: steps (n, P) theta_{-i} - theta; leverage (n,) largest eigenvalue of M_ii, or None.
    """

    steps: Tensor
    leave_out: str
    solver: str
    reason: str
    residual: float
    iterations: int
    leverage: Tensor | None = None


class LeaveOneOut:
    """Solves for the jurors of one objective; factorises the curvature once."""

    def __init__(self, objective: Objective, operator: Curvature, solver: str | Solver) -> None:
        self.objective, self.operator = objective, operator
        self.choice = choose(solver, operator)
        self.prepared: Prepared = self.choice.prepare(operator)

    def influences(self) -> Solution:
        r"""Influences :math:`I(i) = H^{-1} g_i` of all training nodes, value (P, n).

        Deviates from the paper: H is the second derivative of the mean loss, not 1/n of it (erratum E3).

        Implements: Eq. (5).
        """
        return self._solve(self._whitened(), dtype=self.operator.dtype)

    def influence_jurors(self, *, as_printed: bool = False) -> Jurors:
        r""":math:`\theta_{-i} = \theta + \frac1n H^{-1} g_i`.

        ``as_printed`` takes Eqs. (4)-(5) literally: no minus in the influence, so :math:`\epsilon = -1/n` moves
        towards fitting node i (erratum E1), and H is divided by n a second time (erratum E3), which cancels
        the 1/n of epsilon.

        Implements: Eq. (3), Eq. (4) with errata E1 and E3.
        """
        scale = -1.0 if as_printed else 1.0 / self.objective.num_train
        solution = self._solve(self._whitened(), dtype=self.objective.source_dtype)
        return self._jurors("influence", scale, solution)

    def newton_jurors(self) -> Jurors:
        """Jurors whose curvature has lost node i too: one Newton step of the leave-one-out problem."""
        if not isinstance(self.operator, GGN):
            raise SettingError(
                f"leave_out='newton' needs curvature='ggn', got {self.operator.name!r}: "
                "choose curvature='ggn' or leave_out='influence'."
            )
        retention = self._retention()  # I - M_ii
        corrected = torch.linalg.solve(retention, self._whitened().unsqueeze(-1)).squeeze(-1)
        solution = self._solve(corrected, dtype=self.objective.source_dtype)
        leverage = 1.0 - torch.linalg.eigvalsh(retention)[:, 0]
        return self._jurors("newton", 1.0 / self.objective.num_train, solution, leverage)

    def _solve(self, whitened: Tensor, *, dtype: torch.dtype) -> Solution:
        r""":math:`H^{-1} J_i^T L_i w_i` for every training node, (n, K) -> value (P, n) in ``dtype``."""
        if isinstance(self.prepared, PreparedDual):
            return self._dual_solve(whitened, dtype=dtype)
        if isinstance(self.operator, GGN):
            cotangents = (self.operator.factor.root @ whitened.unsqueeze(-1)).squeeze(-1)
            gradients = self.operator.factor.jacobian.pull_each(cotangents)
        elif self.objective.gcn is not None:
            gradients = ClosedForm(self.objective).node_gradients()
        else:
            gradients = autodiff.node_gradients(self.objective, self.objective.theta)
        return self.prepared.solve(gradients.T.contiguous())

    def _dual_solve(self, whitened: Tensor, *, dtype: torch.dtype) -> Solution:
        r""":math:`H^{-1} J_i^T L_i w_i` for all i without leaving the dual space until the end.

        With :math:`J_i^T L_i = \sqrt n\, U_i^T` and Woodbury,
        :math:`H^{-1} U_i^T = \Lambda^{-1} U^T (I + K)^{-1}_{:,i}`.

        Shapes: (n, K) -> value (P, n).
        """
        assert isinstance(self.prepared, PreparedDual)
        n, K = whitened.shape
        inverse = self._capacitance_inverse
        columns = torch.bmm(inverse.view(n * K, n, K).transpose(0, 1), whitened.unsqueeze(-1)).squeeze(-1).T  # (nK, n)
        wanted = torch.zeros(n, K, n, dtype=whitened.dtype, device=whitened.device)
        wanted.diagonal(dim1=0, dim2=2).copy_(whitened.T)
        L = self.prepared.cholesky
        defect = L @ (L.T @ columns) - wanted.view(n * K, n)
        residual = float((defect.norm(dim=0) / whitened.norm(dim=1).clamp_min(torch.finfo(L.dtype).tiny)).max())
        factor = self.operator.factor.cast(dtype)  # type: ignore[union-attr]
        value = factor.transpose_matmul((n**0.5 * columns).to(dtype))
        value *= self.prepared.inverse_diagonal[:, None].to(dtype)
        return Solution(value, residual, 1, "dual", residual < self.choice.solver.tolerance)  # type: ignore[attr-defined]

    def _jurors(self, how: str, scale: float, solution: Solution, leverage: Tensor | None = None) -> Jurors:
        if not solution.converged:
            warnings.warn(
                f"{solution.solver} stopped at a relative residual of {solution.residual:.1e}: the jurors are only "
                "that accurate; give it more iterations or choose solver='auto'.",
                JuryWarning,
                stacklevel=4,
            )
        return Jurors(
            steps=scale * solution.value.T,
            leave_out=how,
            solver=solution.solver,
            reason=self.choice.reason,
            residual=solution.residual,
            iterations=solution.iterations,
            leverage=leverage,
        )

    @cached_property
    def _capacitance_inverse(self) -> Tensor:
        """(I + K)^-1, (nK, nK)."""
        assert isinstance(self.prepared, PreparedDual)
        return self.prepared.capacitance_inverse()

    def _whitened(self) -> Tensor:
        """The whitened residuals w_i of the training nodes, (n, K)."""
        return self.objective.loss.whitened(self.objective.train_outputs, self.objective.targets)

    def _retention(self) -> Tensor:
        r""":math:`I - M_{ii}` for every training node, (n, K, K)."""
        assert isinstance(self.operator, GGN)
        n, _, C = self.operator.factor.root.shape
        if isinstance(self.prepared, PreparedDual):
            return self._capacitance_inverse.view(n, C, n, C).diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
        factor = self.operator.factor
        if isinstance(self.prepared, PreparedDirect):
            inverse = self.prepared.inverse(torch.eye(self.operator.size, dtype=self.operator.dtype))
            root = factor.scaled_root
            leverage = root.transpose(1, 2) @ factor.jacobian.quadratic(inverse) @ root
            return torch.eye(C, dtype=root.dtype, device=root.device) - leverage
        eye = torch.eye(n * C, dtype=self.operator.dtype, device=self.operator.device)
        blocks = []
        step = max(1, COLUMNS // C) * C
        for start in range(0, n * C, step):
            columns = eye[:, start : start + step]
            rows = self.prepared.solve(factor.transpose_matmul(columns)).value  # H^-1 U_i^T
            M = factor.matmul(rows)[start : start + step]
            nodes = M.shape[0] // C
            blocks.append(M.view(nodes, C, nodes, C).diagonal(dim1=0, dim2=2).permute(2, 0, 1))
        return torch.eye(C, dtype=eye.dtype, device=eye.device) - torch.cat(blocks)
