"""Leave-one-out models as steps from the trained parameters, exact or compressed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jurygcn.checks import check_count


@dataclass(frozen=True, eq=False)
class Jurors:
    """The leave-one-out models, as steps from the trained parameters.

    Shapes: steps (n, P) theta_{-i} - theta; leverage (n,) largest eigenvalue of M_ii, or None.

    Attributes:
        dropout_masks: the draws of dropout that the derivatives are averages over; 0 for eval mode.
        why_slow: why derivatives were taken row by row, in words; empty if they were not.
    """

    steps: Tensor
    leave_out: str
    solver: str
    reason: str
    residual: float
    iterations: int
    leverage: Tensor | None = None
    dropout_masks: int = 0
    why_slow: str = ""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.steps)


@dataclass(frozen=True, eq=False)
class CompressedJurors:
    r"""Many jurors as combinations of a few common directions, :math:`\delta_i \approx V c_i`.

    Steps are measured by :math:`\delta^T H \delta`: how much a step changes the predictions of the training nodes. The
    directions are orthonormal in this measure, so ``discarded`` is the share of the steps' effect that they lose. A
    juror's prediction at its own node comes from the whole :math:`\delta_i`, to first order.

    Shapes: directions (k, P), coefficients (n, k), own_outputs (n, C) the logits of juror i at its own node.

    Attributes:
        discarded: the share of :math:`\sum_i \delta_i^T H \delta_i` outside the directions.
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
    dropout_masks: int = 0
    why_slow: str = ""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.coefficients)

    @property
    def rank(self) -> int:
        """The number of directions."""
        return len(self.directions)

    def in_fewer(self, rank: int) -> CompressedJurors:
        """The same jurors in the first ``rank`` directions, which contain more of their steps than any others."""
        kept, whole = (c.double().square().sum() for c in (self.coefficients[:, :rank], self.coefficients))
        share = float(kept / whole) if float(whole) > 0 else 1.0
        return replace(
            self,
            directions=self.directions[:rank],
            coefficients=self.coefficients[:, :rank].contiguous(),
            discarded=1.0 - share * (1.0 - self.discarded),
        )

    @property
    def steps(self) -> Tensor:
        """The compressed steps themselves, (n, P)."""
        return self.coefficients @ self.directions


def draw_positions(n: int, max_jurors: int | None) -> Tensor:
    """Which training nodes get a juror: all, or some drawn at random (always the same for the same numbers)."""
    if max_jurors is None or max_jurors == n:
        return torch.arange(n)
    check_count(max_jurors, "max_jurors", most=n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:max_jurors].sort().values
