"""A few retrained jurors correct all estimated ones: they fix the length of the steps.

Estimated jurors are one Newton step from the trained parameters. A model that stopped early, or whose batch
normalisation moves with it, goes farther or less far than that step. The direction is mostly right, so one number,
fitted to the retrained jurors' predictions at their own nodes, corrects it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.engine import Engine
from jurygcn.leave_one_out.retraining import Retraining, retrained_parameters

# Step lengths that are tried, relative to the Newton step: 1/8 to 8, with 1 among them.
LENGTHS = torch.logspace(-3, 3, 49, base=2.0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Correction:
    """The step length that a few retrained jurors ask for, and how far that helps.

    Errors are root mean squared differences to the retrained jurors' predictions for their own labels. The error after
    the correction is measured on jurors that were not used: each of the retrained ones, corrected by the others.

    Attributes:
        length: the factor that all steps are multiplied with.
        retrained: how many jurors were retrained.
        error_before, error_after: the errors without and with the correction.
    """

    length: float
    retrained: int
    error_before: float
    error_after: float

    @property
    def words(self) -> str:
        """The correction in a sentence."""
        return (
            f"{self.retrained} retrained jurors set the step length to {self.length:.2f}; on jurors that were not used "
            f"the error went from {self.error_before:.3f} to {self.error_after:.3f}."
        )


def corrected_steps(
    engine: Engine, steps: Tensor, positions: Tensor, retraining: Retraining, *, k: int, seed: int = 0
) -> tuple[Tensor, Correction]:
    """All steps times the length that ``k`` retrained jurors ask for, and the correction."""
    chosen = torch.randperm(len(positions), generator=torch.Generator().manual_seed(seed))[:k].sort().values
    own = positions[chosen]
    wanted = _own_values(engine, retrained_parameters(engine, retraining, own.tolist()), own)
    tried = torch.stack(
        [_own_values(engine, engine.theta + length * steps[chosen].double(), own) for length in LENGTHS]
    )
    errors = (tried - wanted).square().flatten(2).sum(dim=2)  # (lengths, k)
    total = errors.sum(dim=1)
    best = int(total.argmin())
    without = (total[:, None] - errors).argmin(dim=0)  # the length that the others ask for
    after = errors[without, torch.arange(len(own))].mean().sqrt()
    before = errors[int((LENGTHS - 1.0).abs().argmin())].mean().sqrt()
    length = float(LENGTHS[best])
    return length * steps, Correction(length, len(own), float(before), float(after))


def _own_values(engine: Engine, thetas: Tensor, positions: Tensor) -> Tensor:
    """Each model's prediction for its own left-out label, or its outputs for a regression, (k, 1) or (k, C)."""
    predictor = engine.predictor(engine.train_nodes[positions], engine.source_dtype)
    with torch.no_grad():
        outputs = predictor.outputs(thetas.to(engine.source_dtype)).double()  # (k, C, k)
    predictions = engine.loss.predict(outputs.diagonal(dim1=0, dim2=2).T)
    if engine.loss.name == "mse":
        return predictions
    return predictions.gather(1, engine.targets[positions][:, None])
