r"""Estimated leave-one-out parameters. Only this module fixes their sign and the factor 1/n.

Leaving out node i's loss (Eq. 3 with :math:`\epsilon = -1/n`) moves the minimiser by

.. math:: \delta_i = \theta_{-i} - \theta \approx +\tfrac1n H_\bullet^{-1} g_i, \qquad g_i = J_i^T L_i w_i

``influence`` (the paper) uses the whole curvature H. ``newton`` uses the curvature without node i, which only rescales
the whitened residual, by the push-through identity:

.. math::
    (H - U_i^T U_i)^{-1} g_i = H^{-1} J_i^T L_i (I - M_{ii})^{-1} w_i, \qquad M_{ii} = U_i H^{-1} U_i^T
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from jurygcn.checks import all_finite
from jurygcn.curvature import Curvature
from jurygcn.engine import Engine
from jurygcn.errors import JuryWarning, SettingError, SolverError
from jurygcn.leave_one_out.jurors import CompressedJurors, Jurors
from jurygcn.linalg import MEMORY, Prepared, Solution, Solver, choose, dominant_subspace
from jurygcn.losses import FLOOR


class LeaveOneOut:
    """Computes the jurors of one objective; factorises the curvature once.

    ``positions`` are the training nodes with a juror, as positions in ``train_nodes``; all by default. The solver's
    matrices stay within ``memory`` (bytes).
    """

    def __init__(
        self,
        engine: Engine,
        operator: Curvature,
        solver: str | Solver,
        positions: Tensor | None = None,
        *,
        memory: float = MEMORY,
    ) -> None:
        self.engine, self.operator = engine, operator
        self.positions = torch.arange(engine.num_train) if positions is None else positions
        self._check_impossible_labels()
        self.choice = choose(solver, operator, memory=memory)
        self.prepared: Prepared = self.choice.prepare(operator)

    def _check_impossible_labels(self) -> None:
        """Raise SolverError for a label of probability 0 without weight decay: its step would be unbounded."""
        engine = self.engine
        if engine.loss.name != "cross_entropy" or bool((self.operator.diagonal > 0).all()):
            return
        given = engine.loss.predict(engine.train_outputs).gather(1, engine.targets[:, None]).squeeze(1)
        if bool((given < FLOOR**2).any()):
            node = int(engine.train_nodes[int(given.argmin())])
            raise SolverError(
                "expected a positive probability or weight decay for every label, got probability 0 and no weight "
                f"decay at node {node}; pass the weight decay the model was trained with, or damping"
            )

    def influences(self) -> Solution:
        r"""Influences :math:`I(i) = H^{-1} g_i` of all training nodes, value (P, n).

        Deviates from the paper: H is the second derivative of the mean loss, not 1/n of it (erratum E3).

        Implements: Eq. (5).
        """
        everyone = torch.arange(self.engine.num_train)
        return self._solve(self._whitened(), everyone, dtype=self.operator.dtype)

    def influence_jurors(self, *, as_printed: bool = False) -> Jurors:
        r""":math:`\theta_{-i} = \theta + \frac1n H^{-1} g_i`.

        ``as_printed`` takes Eqs. (4)-(5) literally: no minus in the influence, so :math:`\epsilon = -1/n` moves
        towards fitting node i (erratum E1), and H is divided by n a second time (erratum E3), which cancels
        the 1/n of epsilon.

        Implements: Eq. (3), Eq. (4) with errata E1 and E3.
        """
        scale = -1.0 if as_printed else 1.0 / self.engine.num_train
        solution = self._solve(self._whitened(), self.positions, dtype=self.engine.source_dtype, scale=scale)
        return self._jurors("influence", solution)

    def newton_jurors(self) -> Jurors:
        """One Newton step of the leave-one-out problem, with the curvature without node i."""
        retention, least = self.retention()  # I - M_ii
        whitened = self._whitened()
        whitened[self.positions] = self.downdated(retention, least)
        scale, dtype = 1.0 / self.engine.num_train, self.engine.source_dtype
        return self._jurors("newton", self._solve(whitened, self.positions, dtype=dtype, scale=scale), 1.0 - least)

    def compressed_jurors(self, how: str, *, rank: int) -> CompressedJurors:
        r"""Newton or influence jurors, projected on the ``rank`` directions that contain most of their steps.

        No :math:`\delta_i` is formed. The gradients :math:`H \delta_i = \frac1n J_i^T L_i \tilde w_i` are known, and
        M_ii
        gives :math:`L_i^T J_i \delta_i = M_{ii} \tilde w_i` and
        :math:`\delta_i^T H \delta_i = \frac1n \tilde w_i^T M_{ii} \tilde w_i`.
        """
        n, loss, at = self.engine.num_train, self.engine.loss, self.positions
        retention, least = self.retention()
        w = self.downdated(retention, least) if how == "newton" else self._whitened()[at]
        Mw = w - (retention @ w.unsqueeze(-1)).squeeze(-1)
        factor = self.prepared.factor.subset(at).cast(self.engine.source_dtype)
        gradients = factor.each(w.to(self.engine.source_dtype)) / n**0.5  # J_i^T L_i = sqrt(n) U_i^T
        residuals: list[float] = []

        def solve(block: Tensor) -> Tensor:
            solution = self.prepared.solve(block.to(self.operator.dtype))
            residuals.append(solution.residual)
            return solution.value

        directions, coefficients = dominant_subspace(gradients, solve, rank=rank)
        energy = float((w * Mw).sum()) / n
        held = float(coefficients.double().square().sum())
        return CompressedJurors(
            directions=directions.T.contiguous(),
            coefficients=coefficients,
            own_outputs=self.engine.train_outputs[at] + loss.change(self.outputs[at], Mw),
            discarded=max(0.0, 1.0 - held / energy) if energy > 0 else 0.0,
            leave_out=how,
            solver=self.choice.name,
            reason=self.choice.reason,
            residual=max(residuals),
            iterations=len(residuals),
            leverage=1.0 - least,
            dropout_masks=self.dropout_masks,
            why_slow=self.operator.expected.why_slow if self.operator.expected is not None else "",
        )

    def _check_ggn(self) -> None:
        """Raise SettingError unless the curvature is the GGN, which is a sum over nodes."""
        if self.operator.name != "ggn":
            raise SettingError(
                "expected curvature='ggn' for leave_out='newton' or votes='linearized', got "
                f"{self.operator.name!r}; choose 'ggn', or leave_out='influence' with votes='exact'"
            )

    def _solve(self, whitened: Tensor, positions: Tensor, *, dtype: torch.dtype, scale: float = 1.0) -> Solution:
        r""":math:`H^{-1} J_i^T L_i w_i` for some training nodes, scaled, (n, K) -> value (P, positions) in
        ``dtype``."""
        if self.operator.name == "ggn":  # J_i^T L_i = sqrt(n) U_i^T
            weights = scale * self.engine.num_train**0.5 * whitened
            return self.prepared.solve_terms(weights, positions, dtype=dtype)
        return self.prepared.solve((scale * self.engine.node_gradients()[positions]).T.contiguous())

    def _jurors(self, how: str, solution: Solution, leverage: Tensor | None = None) -> Jurors:
        if not solution.converged:
            warnings.warn(
                f"{solution.solver} stopped at a relative residual of {solution.residual:.1e}, which limits the "
                "accuracy of the jurors; raise its iterations or choose solver='auto'.",
                JuryWarning,
                stacklevel=4,
            )
        steps = solution.value.T.contiguous()  # each juror in one piece: votes then read them faster
        if not all_finite(steps):
            raise SolverError(
                f"expected the jurors' steps in the range of {steps.dtype}, got larger ones; pass the weight decay the "
                "model was trained with, add damping, or quantify the model in float64 (model.double())"
            )
        return Jurors(
            steps=steps,
            leave_out=how,
            solver=solution.solver,
            reason=self.choice.reason,
            residual=solution.residual,
            iterations=solution.iterations,
            leverage=leverage,
            dropout_masks=self.dropout_masks,
            why_slow=self.operator.expected.why_slow if self.operator.expected is not None else "",
        )

    def _whitened(self) -> Tensor:
        """The whitened residuals w_i of the training nodes, (n, K)."""
        return self.engine.loss.whitened(self.outputs, self.engine.targets)

    @property
    def dropout_masks(self) -> int:
        """The draws of dropout that derivatives are averages over."""
        return self.operator.expected.masks if self.operator.expected is not None else 0

    @property
    def outputs(self) -> Tensor:
        """The training nodes' logits that the curvature was taken at, (n, C)."""
        return self.operator.expected.outputs if self.operator.expected is not None else self.engine.train_outputs

    def downdated(self, retention: Tensor, least: Tensor) -> Tensor:
        r"""Whitened residuals for the leave-one-out curvature: :math:`(I - M_{ii})^{-1} w_i`, (jurors, K)."""
        if not float(least.min()) > self.prepared.least_retention:
            node = int(self.engine.train_nodes[self.positions[int(least.argmin())]])
            raise SolverError(
                f"expected leverages below 1, got 1 at node {node}, whose label alone determines the model in some "
                "direction; pass the weight decay it was trained with, add damping, or use leave_out='influence'"
            )
        whitened = self._whitened()[self.positions]
        downdated: Tensor = torch.linalg.solve(retention, whitened.unsqueeze(-1)).squeeze(-1)
        return downdated

    def retention(self) -> tuple[Tensor, Tensor]:
        r""":math:`I - M_{ii}` for every juror's node, (jurors, K, K), and its smallest eigenvalue, (jurors,)."""
        self._check_ggn()
        retention = self.prepared.retention(self.positions)
        return retention, torch.linalg.eigvalsh(retention)[:, 0]
