r"""Curvature of the training objective as linear operators: data part + diag(weight decay + damping).

``ggn`` is the Gauss-Newton matrix (positive semi-definite, the default); ``hessian`` the exact second derivative
(indefinite for a GCN); ``printed`` is Theorem 1 as printed, which is the Hessian minus the Gauss-Newton term.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.checks import check_choice, check_real
from jurygcn.choices import CURVATURES
from jurygcn.curvature.effective_decay import effective_decay
from jurygcn.curvature.factor import GGNFactor
from jurygcn.engine import Engine, Expected
from jurygcn.linalg import WithDiagonal


class _Diagonal(WithDiagonal):
    """The common part of the operators: the diagonal, and the dense form through unit vectors."""

    streamed = False  # whether derivatives are made again for every product

    def matmul(self, block: Tensor) -> Tensor:
        """The operator times a block: (P, k) -> (P, k)."""
        return self.data_product(block) + self.diagonal[:, None] * block

    def data_product(self, block: Tensor) -> Tensor:
        """The part that comes from the node losses, without the diagonal."""
        raise NotImplementedError

    def to_dense(self) -> Tensor:
        """The matrix itself, (P, P); for small models."""
        return self.matmul(torch.eye(self.size, dtype=self.dtype, device=self.device))


class GGN(_Diagonal):
    r""":math:`\Lambda + \frac1n\sum_i J_i^T S_i J_i`: the Gauss-Newton matrix with its diagonal."""

    name = "ggn"

    def __init__(self, factor: GGNFactor, diagonal: Tensor, expected: Expected | None = None) -> None:
        self.factor = factor
        self.diagonal = diagonal
        self.expected = expected
        self.streamed = factor.jacobian.streamed

    @property
    def definite(self) -> bool | None:
        """Positive definite whenever the diagonal is positive."""
        return bool((self.diagonal > 0).all()) or None

    def data_product(self, block: Tensor) -> Tensor:
        """U^T U V."""
        return self.factor.normal(block)

    def to_dense(self) -> Tensor:
        """The matrix itself, (P, P), block by block where the Jacobian has structure."""
        matrix = self.factor.jacobian.curvature(self.factor.scaled_root)
        matrix.diagonal().add_(self.diagonal)
        return matrix

    @property
    def num_terms(self) -> int:
        """n, the number of training nodes."""
        return self.factor.jacobian.shape[0]

    def subset(self, terms: Tensor) -> GGN:
        """The mean over some training nodes only."""
        return GGN(GGNFactor(self.factor.jacobian.subset(terms), self.factor.root[terms]), self.diagonal)


class _SecondDerivative(_Diagonal):
    """The common part of the Hessian and Theorem 1's matrix, which are indefinite."""

    definite: bool | None = None
    expected: Expected | None = None

    def __init__(self, engine: Engine, diagonal: Tensor) -> None:
        self.engine, self.diagonal = engine, diagonal

    @property
    def num_terms(self) -> int:
        """n, the number of training nodes."""
        return self.engine.num_train


class Hessian(_SecondDerivative):
    """The exact Hessian."""

    name = "hessian"

    def __init__(self, engine: Engine, diagonal: Tensor) -> None:
        super().__init__(engine, diagonal)
        self.second = engine.hessian()

    def data_product(self, block: Tensor) -> Tensor:
        """Second derivative of the mean loss times a block."""
        return self.second.product(block)

    def to_dense(self) -> Tensor:
        """The matrix itself, (P, P)."""
        matrix = self.second.matrix()
        matrix.diagonal().add_(self.diagonal)
        return matrix

    def subset(self, terms: Tensor) -> Hessian:
        """The mean over some training nodes only."""
        return Hessian(self.engine.on(terms), self.diagonal)


class Printed(_SecondDerivative):
    """Theorem 1 as printed (erratum E2: the Gauss-Newton term is missing), plus the diagonal."""

    name = "printed"

    def __init__(self, engine: Engine, diagonal: Tensor) -> None:
        super().__init__(engine, diagonal)
        self.form = engine.theorem_1()

    def data_product(self, block: Tensor) -> Tensor:
        """Theorem 1 times a block. Implements: Theorem 1, Eq. (17)."""
        return self.form.hessian_product(block)

    def to_dense(self) -> Tensor:
        """The matrix itself, (P, P)."""
        return self.form.hessian_matrix() + torch.diag(self.diagonal)

    def subset(self, terms: Tensor) -> Printed:
        """The mean over some training nodes only."""
        return Printed(self.engine.on(terms), self.diagonal)


Curvature = GGN | Hessian | Printed


def curvature_of(engine: Engine, kind: str, *, damping: float = 0.0, effective: bool = False) -> Curvature:
    """The curvature operator named ``kind``, with weight decay and damping on its diagonal.

    ``effective`` takes the effective weight decay instead of the stated one; see :func:`effective_decay`.
    """
    check_choice(kind, "curvature", CURVATURES)
    diagonal = engine.decay + check_real(damping, "damping")
    if kind == "ggn":
        found = engine.expected()
        factor = GGNFactor(found.jacobian, engine.loss.root(found.outputs))
        if effective:
            decay, factor = effective_decay(engine, factor, found.outputs)
            diagonal = decay + damping
        return GGN(factor, diagonal + found.noise, found)
    return Hessian(engine, diagonal) if kind == "hessian" else Printed(engine, diagonal)
