r"""Curvature of the training objective as linear operators: data part + diag(weight decay + damping).

``ggn`` is the Gauss-Newton matrix (positive semi-definite, the default); ``hessian`` the exact second derivative
(indefinite for a GCN); ``printed`` is Theorem 1 as printed, which is the Hessian minus the Gauss-Newton term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.checks import check_choice, check_real
from jurygcn.derivatives import Jacobian
from jurygcn.derivatives.streamed import StreamedJacobian
from jurygcn.engine import Engine, Expected

CURVATURES = ("ggn", "hessian", "printed")

# The most numbers in the product with U, before U^T is applied.
TEMPORARY_NUMBERS = 50_000_000


class _Diagonal:
    """The common part of the operators: the diagonal, and the dense form through unit vectors."""

    diagonal: Tensor
    streamed = False  # whether derivatives are made again for every product

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        return len(self.diagonal)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the operator and of its blocks."""
        return self.diagonal.dtype

    @property
    def device(self) -> torch.device:
        """The device of the operator and of its blocks."""
        return self.diagonal.device

    def matmul(self, block: Tensor) -> Tensor:
        """The operator times a block: (P, k) -> (P, k)."""
        return self.data_product(block) + self.diagonal[:, None] * block

    def data_product(self, block: Tensor) -> Tensor:
        """The part that comes from the node losses, without the diagonal."""
        raise NotImplementedError

    def to_dense(self) -> Tensor:
        """The matrix itself, (P, P); for small models."""
        return self.matmul(torch.eye(self.size, dtype=self.dtype, device=self.device))


@dataclass(frozen=True, eq=False)
class GGNFactor:
    r"""The rows U of the Gauss-Newton matrix :math:`U^T U`: :math:`U_i = n^{-1/2} L_i^T J_i`, nK rows in all."""

    jacobian: Jacobian
    root: Tensor  # (n, C, K), L_i
    count: int | None = None  # n of the mean, where these are the rows of some nodes only

    @property
    def rows(self) -> int:
        """nK."""
        return self.root.shape[0] * self.root.shape[2]

    @property
    def block(self) -> int:
        """K, the rows of one node."""
        return self.root.shape[2]

    def each(self, weights: Tensor) -> Tensor:
        """U_i^T w_i for every node, (n, K) -> (n, P)."""
        return self.jacobian.pull_each((self.scaled_root @ weights.unsqueeze(-1)).squeeze(-1))

    def congruences(self, matrix: Tensor) -> Tensor:
        """U_i A U_i^T for every node, (P, P) -> (n, K, K)."""
        return self.scaled_root.mT @ self.jacobian.quadratic(matrix) @ self.scaled_root

    @property
    def scaled_root(self) -> Tensor:
        r""":math:`n^{-1/2} L_i`, (n, C, K)."""
        return self.root / math.sqrt(self.count or len(self.root))

    def cast(self, dtype: torch.dtype) -> GGNFactor:
        """The same rows in another precision."""
        return GGNFactor(self.jacobian.cast(dtype), self.root.to(dtype), self.count)

    def subset(self, terms: Tensor) -> GGNFactor:
        """The rows of some nodes, with the n of all."""
        if len(terms) == len(self.root) and bool((terms == torch.arange(len(terms))).all()):
            return self
        return GGNFactor(self.jacobian.subset(terms), self.root[terms], self.count or len(self.root))

    def normal(self, block: Tensor) -> Tensor:
        """U^T U V: (P, k) -> (P, k), some columns at a time to bound memory."""
        if isinstance(self.jacobian, StreamedJacobian):
            return self.jacobian.normal(self.scaled_root, block)
        width = max(1, TEMPORARY_NUMBERS // self.rows)
        pieces = [self.transpose_matmul(self.matmul(part)) for part in block.split(width, dim=1)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def gram(self, inverse_diagonal: Tensor) -> Tensor:
        """U diag(w) U^T: (P,) -> (nK, nK)."""
        n, C, K = self.root.shape
        gram = self.jacobian.gram(inverse_diagonal)
        left = torch.bmm(self.scaled_root.transpose(1, 2), gram.reshape(n, C, n * C))
        both = torch.bmm(left.reshape(n * K, n, C).transpose(0, 1), self.scaled_root)
        return both.transpose(0, 1).reshape(n * K, n * K)

    def matmul(self, block: Tensor) -> Tensor:
        """U V: (P, k) -> (nK, k)."""
        return torch.bmm(self.scaled_root.transpose(1, 2), self.jacobian.push(block)).flatten(0, 1)

    def transpose_matmul(self, block: Tensor) -> Tensor:
        """U^T A: (nK, k) -> (P, k)."""
        n, _, K = self.root.shape
        return self.jacobian.pull(torch.bmm(self.scaled_root, block.view(n, K, -1)))


class GGN(_Diagonal):
    r""":math:`\Lambda + \frac1n\sum_i J_i^T S_i J_i`: the Gauss-Newton matrix with its diagonal."""

    name = "ggn"

    def __init__(self, jacobian: Jacobian, root: Tensor, diagonal: Tensor, expected: Expected | None = None) -> None:
        self.factor = GGNFactor(jacobian, root)
        self.diagonal = diagonal
        self.expected = expected
        self.streamed = isinstance(jacobian, StreamedJacobian)

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
        return GGN(self.factor.jacobian.subset(terms), self.factor.root[terms], self.diagonal)


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


def curvature_of(engine: Engine, kind: str, *, damping: float = 0.0) -> Curvature:
    """The curvature operator named ``kind``, with weight decay and damping on its diagonal."""
    check_choice(kind, "curvature", CURVATURES)
    diagonal = engine.decay + check_real(damping, "damping")
    if kind == "ggn":
        found = engine.expected()
        return GGN(found.jacobian, engine.loss.root(found.outputs), diagonal + found.noise, found)
    return Hessian(engine, diagonal) if kind == "hessian" else Printed(engine, diagonal)
