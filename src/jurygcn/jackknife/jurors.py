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

from jurygcn.checks import all_finite
from jurygcn.curvature import GGN, Curvature
from jurygcn.derivatives import ClosedForm, autodiff
from jurygcn.errors import JuryWarning, SettingError, SolverError
from jurygcn.linalg import PreparedDual, Solution, choose, dominant_subspace
from jurygcn.linalg.direct import PreparedDirect
from jurygcn.linalg.solution import Prepared, Solver
from jurygcn.losses import FLOOR
from jurygcn.objective import Objective

LEAVE_OUT = ("newton", "influence", "retrain")
MODES = ("auto", "exact", "linearized")

# U_i H^-1 U_i^T is solved for this many columns at a time where it has no closed form.
COLUMNS = 512

# Where I - M_ii is a difference (not so in the dual space), an eigenvalue below this is rounding error.
ROUNDING = 1e-8

# Below this, what an explicit inverse leaves of I - M_ii has lost too many digits.
CANCELLING = 1e-3

# A juror's step may be this inexact, relative to its length, before it is computed in float64.
INEXACT = 1e-4


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

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.steps)


@dataclass(frozen=True, eq=False)
class CompressedJurors:
    r"""Many jurors as combinations of a few common directions, :math:`\delta_i \approx V c_i`.

    The directions are orthonormal in the curvature H, so what is lost is measured by how much it would change
    predictions. A juror's prediction at its own node comes from the whole :math:`\delta_i`, to first order.

    Shapes: directions (k, P), coefficients (n, k), own_outputs (n, C) the logits of juror i at its own node.

    Attributes:
        discarded: the share of :math:`\sum_i \delta_i^T H \delta_i` that the directions do not hold.
    """

    directions: Tensor
    coefficients: Tensor
    own_outputs: Tensor
    discarded: float
    leave_out: str
    solver: str
    reason: str
    residual: float
    iterations: int
    leverage: Tensor

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.coefficients)

    @property
    def steps(self) -> Tensor:
        """The compressed steps themselves, (n, P)."""
        return self.coefficients @ self.directions


class LeaveOneOut:
    """Solves for the jurors of one objective; factorises the curvature once.

    ``seats`` names the training nodes (positions) that get a juror; all of them by default.
    """

    def __init__(
        self, objective: Objective, operator: Curvature, solver: str | Solver, seats: Tensor | None = None
    ) -> None:
        self.objective, self.operator = objective, operator
        self.seats = torch.arange(objective.num_train) if seats is None else seats
        self._check_impossible_labels()
        self.choice = choose(solver, operator)
        self.prepared: Prepared = self.choice.prepare(operator)

    def _check_impossible_labels(self) -> None:
        """Refuse what only the floor under the probabilities would bound: no curvature, and no weight decay either."""
        objective = self.objective
        if objective.loss.name != "cross_entropy" or bool((self.operator.diagonal > 0).all()):
            return
        given = objective.loss.predict(objective.train_outputs).gather(1, objective.targets[:, None]).squeeze(1)
        if bool((given < FLOOR**2).any()):
            node = int(objective.train_nodes[int(given.argmin())])
            raise SolverError(
                f"The model gives the label of node {node} probability 0, and "
                "there is no weight decay to bound its juror: pass the weight decay it was trained with, or damping."
            )

    def influences(self) -> Solution:
        r"""Influences :math:`I(i) = H^{-1} g_i` of all training nodes, value (P, n).

        Deviates from the paper: H is the second derivative of the mean loss, not 1/n of it (erratum E3).

        Implements: Eq. (5).
        """
        everyone = torch.arange(self.objective.num_train)
        return self._solve(self._whitened(), everyone, dtype=self.operator.dtype)

    def influence_jurors(self, *, as_printed: bool = False) -> Jurors:
        r""":math:`\theta_{-i} = \theta + \frac1n H^{-1} g_i`.

        ``as_printed`` takes Eqs. (4)-(5) literally: no minus in the influence, so :math:`\epsilon = -1/n` moves
        towards fitting node i (erratum E1), and H is divided by n a second time (erratum E3), which cancels
        the 1/n of epsilon.

        Implements: Eq. (3), Eq. (4) with errata E1 and E3.
        """
        scale = -1.0 if as_printed else 1.0 / self.objective.num_train
        solution = self._solve(self._whitened(), self.seats, dtype=self.objective.source_dtype)
        return self._jurors("influence", scale, solution)

    def newton_jurors(self) -> Jurors:
        """Jurors whose curvature has lost node i too: one Newton step of the leave-one-out problem."""
        retention, least = self._retention()  # I - M_ii
        solution = self._solve(self._downdated(retention, least), self.seats, dtype=self.objective.source_dtype)
        return self._jurors("newton", 1.0 / self.objective.num_train, solution, 1.0 - least[self.seats])

    def compressed_jurors(self, how: str, *, rank: int) -> CompressedJurors:
        r"""Newton or influence jurors in the ``rank`` directions that hold most of them.

        No :math:`\delta_i` is formed: :math:`H \delta_i = \frac1n J_i^T L_i \tilde w_i` is known, and so are, from
        M_ii alone, :math:`L_i^T J_i \delta_i = M_{ii} \tilde w_i` and
        :math:`\delta_i^T H \delta_i = \frac1n \tilde w_i^T M_{ii} \tilde w_i`.
        """
        n, loss, z = self.objective.num_train, self.objective.loss, self.objective.train_outputs
        retention, least = self._retention()
        w = self._downdated(retention, least) if how == "newton" else self._whitened()
        Mw = w - (retention @ w.unsqueeze(-1)).squeeze(-1)
        factor = self._ggn.factor.cast(self.objective.source_dtype)
        cotangents = (self._ggn.factor.root @ w.unsqueeze(-1)).squeeze(-1).to(self.objective.source_dtype)
        gradients = factor.jacobian.pull_each(cotangents)[self.seats] / n
        residuals: list[float] = []

        def solve(block: Tensor) -> Tensor:
            solution = self.prepared.solve(block.to(self.operator.dtype))
            residuals.append(solution.residual)
            return solution.value

        directions, coefficients = dominant_subspace(gradients, solve, rank=rank)
        energy = float((w * Mw)[self.seats].sum()) / n
        held = float(coefficients.double().square().sum())
        return CompressedJurors(
            directions=directions.T.contiguous(),
            coefficients=coefficients,
            own_outputs=(z + loss.change(z, Mw))[self.seats],
            discarded=max(0.0, 1.0 - held / energy) if energy > 0 else 0.0,
            leave_out=how,
            solver=self.choice.name,
            reason=self.choice.reason,
            residual=max(residuals),
            iterations=len(residuals),
            leverage=1.0 - least[self.seats],
        )

    @property
    def _ggn(self) -> GGN:
        """The operator, if leverages can be had from it."""
        if not isinstance(self.operator, GGN):
            raise SettingError(
                f"leave_out='newton' and mode='linearized' need curvature='ggn', got {self.operator.name!r}: "
                "choose curvature='ggn', or leave_out='influence' with mode='exact'."
            )
        return self.operator

    def _solve(self, whitened: Tensor, seats: Tensor, *, dtype: torch.dtype) -> Solution:
        r""":math:`H^{-1} J_i^T L_i w_i` for some training nodes, (n, K) -> value (P, seats) in ``dtype``."""
        if isinstance(self.prepared, PreparedDual):
            return self._dual_solve(whitened, seats, dtype=dtype)
        if isinstance(self.operator, GGN):
            cotangents = (self.operator.factor.root @ whitened.unsqueeze(-1)).squeeze(-1)
            gradients = self.operator.factor.jacobian.pull_each(cotangents)
        elif self.objective.gcn is not None:
            gradients = ClosedForm(self.objective).node_gradients()
        else:
            gradients = autodiff.node_gradients(self.objective, self.objective.theta)
        return self.prepared.solve(gradients[seats].T.contiguous())

    def _dual_solve(self, whitened: Tensor, seats: Tensor, *, dtype: torch.dtype) -> Solution:
        r""":math:`H^{-1} J_i^T L_i w_i` for all seats i without leaving the dual space until the end.

        With :math:`J_i^T L_i = \sqrt n\, U_i^T` and Woodbury,
        :math:`H^{-1} U_i^T = \Lambda^{-1} U^T (I + K)^{-1}_{:,i}`.

        Shapes: (n, K) -> value (P, seats).
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
        columns = columns if len(seats) == n else columns[:, seats]
        value = self._leave_dual(n**0.5 * columns, dtype)
        return Solution(value, residual, 1, "dual", residual < self.choice.solver.tolerance)  # type: ignore[attr-defined]

    def _leave_dual(self, columns: Tensor, dtype: torch.dtype) -> Tensor:
        r""":math:`\Lambda^{-1} U^T c` for each column c, in ``dtype`` where that is exact enough, else in float64.

        Where labels say almost the same, large entries of c cancel in :math:`U^T c`: its length,
        :math:`c^T K c` in the norm of :math:`\Lambda^{-1}`, is then small beside :math:`|c|^2 \, \mathrm{tr} K`.

        Shapes: (nK, s) -> (P, s).
        """
        assert isinstance(self.prepared, PreparedDual)
        factor, L = self.operator.factor, self.prepared.cholesky  # type: ignore[union-attr]
        weights = self.prepared.inverse_diagonal[:, None]
        value: Tensor = factor.cast(dtype).transpose_matmul(columns.to(dtype)) * weights.to(dtype)
        if dtype != columns.dtype:
            lengths = columns.square().sum(dim=0)
            kept = ((L.T @ columns).square().sum(dim=0) - lengths).clamp_min(0.0)
            trace = L.square().sum() - len(L)
            error = torch.finfo(dtype).eps ** 2 * lengths * trace
            inexact = (error > INEXACT**2 * kept).nonzero().squeeze(1)
            if len(inexact):
                value[:, inexact] = (factor.transpose_matmul(columns[:, inexact]) * weights).to(dtype)
        return value

    def _jurors(self, how: str, scale: float, solution: Solution, leverage: Tensor | None = None) -> Jurors:
        if not solution.converged:
            warnings.warn(
                f"{solution.solver} stopped at a relative residual of {solution.residual:.1e}: the jurors are only "
                "that accurate; give it more iterations or choose solver='auto'.",
                JuryWarning,
                stacklevel=4,
            )
        steps = scale * solution.value.T
        if not all_finite(steps):
            raise SolverError(
                f"The jurors' steps are beyond the range of {steps.dtype}: pass the weight decay the model was trained "
                "with, add damping, or quantify the model in float64 (model.double())."
            )
        return Jurors(
            steps=steps,
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

    def _downdated(self, retention: Tensor, least: Tensor) -> Tensor:
        r"""Whitened residuals as the curvature without node i wants them, :math:`(I - M_{ii})^{-1} w_i`, (n, K)."""
        if not float(least.min()) > (0.0 if isinstance(self.prepared, PreparedDual) else ROUNDING):
            node = int(self.objective.train_nodes[int(least.argmin())])
            raise SolverError(
                f"Without the label of node {node} nothing determines the model in some direction (leverage 1): pass "
                "the weight decay it was trained with, add damping, or use leave_out='influence'."
            )
        downdated: Tensor = torch.linalg.solve(retention, self._whitened().unsqueeze(-1)).squeeze(-1)
        return downdated

    def _retention(self) -> tuple[Tensor, Tensor]:
        r""":math:`I - M_{ii}` for every training node, (n, K, K), and its smallest eigenvalue, (n,)."""
        factor = self._ggn.factor
        n, _, C = factor.root.shape
        if isinstance(self.prepared, PreparedDual):
            inverse = self._capacitance_inverse.view(n, C, n, C)
            retention = inverse.diagonal(dim1=0, dim2=2).permute(2, 0, 1).contiguous()
            return retention, torch.linalg.eigvalsh(retention)[:, 0]
        if isinstance(self.prepared, PreparedDirect):
            root = factor.scaled_root
            leverage = root.transpose(1, 2) @ factor.jacobian.quadratic(self.prepared.factors.inverse()) @ root
            retention = torch.eye(C, dtype=root.dtype, device=root.device) - leverage
            least = torch.linalg.eigvalsh(retention)[:, 0]
            if float(least.min()) > CANCELLING:
                return retention, least
        retention = self._solved_retention()
        return retention, torch.linalg.eigvalsh(retention)[:, 0]

    def _solved_retention(self) -> Tensor:
        """The same by solves, which are refined and so more exact than a product with an inverse, (n, K, K)."""
        factor = self._ggn.factor
        n, _, C = factor.root.shape
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
