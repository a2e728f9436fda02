r"""Derivatives of the paper's GCN in closed form: Proposition 2 and Theorem 1, for any number of layers.

Everything is computed on the training nodes' receptive field (see :class:`ReceptiveField`): layer l is defined on
the node set :math:`V_l`, and :math:`\hat A` between two layers is the slice :math:`\hat A[V_l, V_{l-1}]`.
Flattening follows Eqs. (16)-(17): row-major vec of each weight matrix, layer after layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from jurygcn.graph.sparse import SparseMatrix
from jurygcn.models.receptive_field import ReceptiveField, side_by_side


class ClosedForm:
    r"""A GCN at its trained parameters, with the intermediate values that its derivatives share.

    Layers are counted from 1 as in the paper; index 0 of the lists is unused padding or E⁽⁰⁾.

    Shapes: ``AE[l]`` :math:`\hat A E^{(l-1)}` on :math:`V_l` (|V_l|, h_{l-1}); ``slope[l]`` :math:`\sigma'_l`
    (|V_l|, h_l), ones for the linear last layer; ``W[l]`` (h_{l-1}, h_l).
    """

    def __init__(self, field: ReceptiveField, weights: Sequence[Tensor], residual: Callable[[Tensor], Tensor]) -> None:
        self.field = field
        Z = self.field.pre_activations(weights)
        self.L = len(weights)
        self.W: list[Tensor] = [torch.empty(0), *weights]
        hidden = [self.field.sigma_prime(z) for z in Z[:-1]]
        self.slope: list[Tensor] = [torch.empty(0), *hidden, torch.ones_like(Z[-1])]
        propagated = [hop @ self.field.sigma(z) for hop, z in zip(self.field.hops, Z)]
        self.AE: list[Tensor | SparseMatrix] = [torch.empty(0), self.field.inputs, *propagated]
        self.logits = Z[-1]
        self.residual = residual(self.logits)  # derivative of each node's loss at its logits, (n, C)

    def hop(self, layer: int) -> SparseMatrix:
        r"""The slice of :math:`\hat A` that carries layer ``layer - 1`` to ``layer`` (2 <= layer <= L)."""
        return self.field.hops[layer - 2]

    # --- Proposition 2 ----------------------------------------------------------------------------------

    def pull_back(self, cotangents: Tensor) -> Tensor:
        r"""Derivatives with respect to all weights of s scalars whose derivatives at the logits are given.

        .. math::
            \nabla_{W^{(l)}} = (\hat A E^{(l-1)})^T (G^{(l)} \circ \sigma'_l), \qquad
            G^{(l)} = \hat A^T (G^{(l+1)} \circ \sigma'_{l+1}) (W^{(l+1)})^T

        Implements: Eq. (9), Eq. (10), Prop. 2, and the vectorisation of Eq. (16).
        Shapes: cotangents (s, n, C) -> (s, P).
        """
        G = cotangents
        gradients: list[Tensor] = []
        for layer in range(self.L, 0, -1):
            D = G * self.slope[layer]
            gradients.insert(0, _transposed_product(self.AE[layer], D).flatten(1))
            if layer > 1:
                G = _propagate(self.hop(layer).T, D @ self.W[layer].T)
        return torch.cat(gradients, dim=1)

    def node_gradients(self) -> Tensor:
        r"""Gradients :math:`\nabla_\Theta r(i, y_i, \Theta)` of all training nodes at once.

        Implements: Eq. (9), Prop. 2.
        Shapes: (n, P).
        """
        return self.pull_back(torch.diag_embed(self.residual.T).permute(1, 2, 0))

    def jacobian_rows(self) -> Tensor:
        """Derivatives of every logit of every training node: Prop. 2 with unit cotangents, (n, C, P)."""
        n, C = self.logits.shape
        seeds = torch.eye(n * C, dtype=self.logits.dtype, device=self.logits.device).view(n * C, n, C)
        return self.pull_back(seeds).view(n, C, -1)

    # --- Theorem 1 --------------------------------------------------------------------------------------

    def risk_slopes(self) -> list[Tensor]:
        r""":math:`\frac{\partial R}{\partial E^{(l)}} \circ \sigma'_l` for all layers (index 0 unused).

        Implements: Eq. (10) summed over the training nodes.
        Shapes: entry l is (|V_l|, h_l).
        """
        G = self.residual / len(self.residual)
        slopes = [G]
        for layer in range(self.L, 1, -1):
            G = self.hop(layer).T @ (slopes[0] @ self.W[layer].T)
            slopes.insert(0, G * self.slope[layer - 1])
        return [torch.empty(0), *slopes]

    def hessian_tensor(self, layer: int, other: int) -> Tensor:
        r"""Theorem 1's tensor :math:`\mathfrak H_{l,i}` as printed, for layers l and i.

        The printed formula lacks the Gauss-Newton term (erratum E2): the exact Hessian is this plus the GGN.

        Implements: Theorem 1, Eqs. (11)-(15), cases 1-5.
        Shapes: (h_{l-1}, h_l, h_{i-1}, h_i).
        """
        l, i = layer, other
        rows, columns = self.W[i].shape
        shape = (*self.W[l].shape, rows, columns)
        slopes = self.risk_slopes()
        if i == l:  # Case 1
            return torch.zeros(shape, dtype=self.logits.dtype, device=self.logits.device)
        if i < l:  # Cases 2 and 3: propagate the inner derivative forward to layer l - 1
            eye = torch.eye(columns, dtype=self.logits.dtype, device=self.logits.device)
            dE = torch.einsum("vb,vc,bd->cdvb", self.slope[i], _dense(self.AE[i]), eye).flatten(0, 1)  # Eq. (12)
            for k in range(i + 1, l):
                dE = self.slope[k] * _propagate(self.hop(k), dE @ self.W[k])  # Eq. (13)
            H = _propagate(self.hop(l), dE).transpose(1, 2) @ slopes[l]  # Eq. (11)
        else:  # Cases 4 and 5: propagate the second derivative backward to layer l
            eye = torch.eye(rows, dtype=self.logits.dtype, device=self.logits.device)
            d2 = torch.einsum("bc,vd->cdvb", eye, self.hop(i).T @ slopes[i]).flatten(0, 1)
            for k in range(i - 1, l, -1):
                d2 = _propagate(self.hop(k).T, (d2 * self.slope[k]) @ self.W[k].T)  # Eq. (15)
            H = _transposed_product(self.AE[l], d2 * self.slope[l])  # Eq. (14)
        return H.view(rows, columns, *self.W[l].shape).permute(2, 3, 0, 1)

    def flat_hessian(self) -> Tensor:
        """Theorem 1's tensors flattened to a matrix, (P, P). Implements: Eq. (17)."""
        layers = range(1, self.L + 1)
        blocks = [[self.hessian_tensor(l, i) for i in layers] for l in layers]
        return torch.cat([torch.cat([H.flatten(2).flatten(0, 1) for H in row], dim=1) for row in blocks], dim=0)

    def hessian_product(self, block: Tensor) -> Tensor:
        r"""Theorem 1's flattened Hessian times k vectors, without forming it.

        Cases 2-3 contracted with a direction are one forward sweep, cases 4-5 one backward sweep. The cost is linear
        in the size of the graph and in k.

        Implements: Theorem 1, Eqs. (11)-(15), (17).
        Shapes: (P, k) -> (P, k).
        """
        V = self._split(block)
        slopes = self.risk_slopes()
        out: list[Tensor] = [torch.zeros_like(v) for v in V]
        dE = None  # forward sweep: derivative of E^(l-1) in the direction of the weights below layer l
        for layer in range(1, self.L + 1):
            step = _batched(self.AE[layer], V[layer - 1])
            if dE is not None:
                AdE = _propagate(self.hop(layer), dE)
                out[layer - 1] += AdE.transpose(1, 2) @ slopes[layer]
                step = step + AdE @ self.W[layer]
            dE = self.slope[layer] * step
        G = None  # backward sweep: derivative of dR/dE^(l) in the direction of the weights above layer l
        for layer in range(self.L, 0, -1):
            if G is not None:
                out[layer - 1] += _transposed_product(self.AE[layer], G * self.slope[layer])
            if layer > 1:
                carried = slopes[layer] @ V[layer - 1].transpose(1, 2)
                if G is not None:
                    carried = carried + (G * self.slope[layer]) @ self.W[layer].T
                G = _propagate(self.hop(layer).T, carried)
        return torch.cat([piece.flatten(1) for piece in out], dim=1).T

    def hessian_matrix(self) -> Tensor:
        """Theorem 1's flattened Hessian, (P, P).

        It is symmetric, and zero within a layer (case 1), so the many columns of the first layer are not computed.
        """
        first, P = self.W[1].numel(), sum(W.numel() for W in self.W[1:])
        H = torch.zeros(P, P, dtype=self.logits.dtype, device=self.logits.device)
        if first < P:
            H[:, first:] = self.hessian_product(torch.eye(P, dtype=H.dtype, device=H.device)[:, first:])
            H[first:, :first] = H[:first, first:].T
        return H

    def _split(self, block: Tensor) -> list[Tensor]:
        """(P, k) -> per layer (k, h_{l-1}, h_l)."""
        sizes = [W.numel() for W in self.W[1:]]
        return [piece.T.reshape(-1, *W.shape) for piece, W in zip(block.split(sizes), self.W[1:])]


def _propagate(matrix: SparseMatrix, blocks: Tensor) -> Tensor:
    """The sparse matrix times each of s blocks: (s, rows, h) -> (s, rows', h), as one product."""
    return (matrix @ side_by_side(blocks)).view(matrix.shape[0], len(blocks), -1).transpose(0, 1)


def _transposed_product(matrix: Tensor | SparseMatrix, blocks: Tensor) -> Tensor:
    """matrix.T @ block for each of s blocks: (s, rows, h) -> (s, columns, h)."""
    out = matrix.T @ side_by_side(blocks)
    return out.view(matrix.shape[1], len(blocks), -1).transpose(0, 1)


def _batched(matrix: Tensor | SparseMatrix, blocks: Tensor) -> Tensor:
    """matrix @ block for each of s blocks: (s, columns, h) -> (s, rows, h)."""
    out = matrix @ side_by_side(blocks)
    return out.view(matrix.shape[0], len(blocks), -1).transpose(0, 1)


def _dense(matrix: Tensor | SparseMatrix) -> Tensor:
    return matrix.to_dense()
