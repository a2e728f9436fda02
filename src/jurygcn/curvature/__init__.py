"""Curvature operators of the training objective."""

from jurygcn.curvature.effective_decay import DECAYS, effective_decay
from jurygcn.curvature.factor import GGNFactor
from jurygcn.curvature.operators import GGN, Curvature, Hessian, Printed, curvature_of

__all__ = [
    "DECAYS",
    "GGN",
    "Curvature",
    "GGNFactor",
    "Hessian",
    "Printed",
    "curvature_of",
    "effective_decay",
]
