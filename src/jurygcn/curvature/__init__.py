"""Curvature operators of the training objective."""

from jurygcn.curvature.operators import CURVATURES, GGN, Curvature, GGNFactor, Hessian, Printed, curvature_of

__all__ = ["CURVATURES", "GGN", "Curvature", "GGNFactor", "Hessian", "Printed", "curvature_of"]
