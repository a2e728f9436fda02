"""First and second derivatives: closed forms of the paper, and automatic differentiation for any GNN."""

from jurygcn.derivatives.closed_form import ClosedForm
from jurygcn.derivatives.gcn_grams import own_grams
from jurygcn.derivatives.gcn_jacobian import RowSpaceJacobian, TwoLayerJacobian, closed_form_jacobian
from jurygcn.derivatives.jacobian import DenseJacobian, Jacobian

__all__ = [
    "ClosedForm",
    "DenseJacobian",
    "Jacobian",
    "RowSpaceJacobian",
    "TwoLayerJacobian",
    "closed_form_jacobian",
    "own_grams",
]
