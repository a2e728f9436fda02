r"""ESP: the node whose label is expected to make the predictions of all other unlabelled nodes surest, by refitting.

.. math:: \log \sum_c p_{ic} \prod_{u \ne i} \max_y p^{+(i, c)}_{uy}

p is the probability of an SGC: logistic regressions, one class against the rest, on the rows of :math:`\hat A^2 X`.
:math:`p^{+(i, c)}` is that of the SGC refitted with the label c at node i, for every candidate and class. Sigmoids are
scaled to add to 1. As in liblinear the intercept is penalised, C = 1, and labels of the class have the weight
:math:`n / (C n_c)`, the others 1.

A refit depends on the labelled rows only through their products, so it is a Newton iteration in as many numbers as
labels; all candidates are refitted side by side. The authors choose one node at a time. Here the first of a batch comes
from all candidates, and the next ones from the best three times the batch, scored anew after each choice as if the
nodes chosen had their predicted classes. In the released code :math:`p_{ic}` enters twice, and refits learn the
predicted, not the given, classes of labelled nodes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.active.scene import Choice, Scene
from jurygcn.errors import SettingError

LIMIT = 5000  # nodes: there are as many refits a step as candidates, times classes
SHORTLIST = 3  # candidates that are scored again within a batch, as a multiple of the batch
PENALTY = 1.0  # C
ITERATIONS, TOLERANCE = 50, 1e-6
BLOCK = 32  # candidates that are refitted side by side


def esp(scene: Scene) -> Choice:
    """Greedily the highest expected log-probability; the score of a node is its rise over the labels so far."""
    if int(scene.data.num_nodes) > LIMIT:
        raise SettingError(
            f"expected at most {LIMIT:,} nodes for esp, which refits for every candidate and class, got "
            f"{int(scene.data.num_nodes):,}; choose another strategy"
        )
    if not len(scene.labelled):
        raise SettingError("expected labelled nodes for esp, got none; label some at random first")
    rows = scene.statistics.propagated_rows
    products = torch.from_numpy(rows @ rows.T + 1.0)  # the intercept is one more feature
    nodes, labels = scene.labelled.cpu(), scene.data.y[scene.labelled].cpu()
    left, chosen, scores = scene.candidates.cpu(), list[int](), list[float]()
    while len(chosen) < scene.batch:
        known = Refits(products, nodes, labels, scene.num_classes)
        rise = known.expected(left) - known.certainty()
        best = int(rise.argmax())
        chosen.append(int(left[best]))
        scores.append(float(rise[best]))
        nodes = torch.cat([nodes, left[best : best + 1]])
        labels = torch.cat([labels, known.probabilities[left[best]].argmax().reshape(1)])
        rise[best] = -torch.inf
        wanted = scene.batch - len(chosen)
        keep = min(len(left) - 1, max(wanted, SHORTLIST * scene.batch))
        left = left[rise.topk(keep).indices]
    return scene.choice(chosen, scores)


class Refits:
    """The SGC of some labels, and what it would predict with one label more.

    Shapes: products (N, N), nodes (n,), labels (n,).
    """

    def __init__(self, products: Tensor, nodes: Tensor, labels: Tensor, num_classes: int) -> None:
        self.products, self.nodes = products, nodes
        self.targets = functional.one_hot(labels, num_classes).T.double()  # (C, n)
        self.unlabelled = torch.ones(len(products), dtype=torch.bool).index_fill_(0, nodes, False)
        count, per_class = len(nodes), self.targets.sum(dim=1)
        weights = label_weights(self.targets, count, per_class, num_classes)
        self.duals = fit(products[nodes][:, nodes], self.targets, weights)
        self.probabilities = scaled((self.duals @ products[nodes]).T.sigmoid())

    def certainty(self) -> Tensor:
        """The sum of log max-probabilities over unlabelled nodes, before any new label."""
        return self.probabilities[self.unlabelled].max(dim=1).values.log().sum()

    def expected(self, candidates: Tensor) -> Tensor:
        """The expected log-probability after each candidate's label. Shapes: (m,) -> (m,)."""
        return torch.cat([self._block(block) for block in candidates.split(BLOCK)])

    def _block(self, candidates: Tensor) -> Tensor:
        C, n, m = *self.targets.shape, len(candidates)
        own = self.products[self.nodes]
        gram = self.products.new_empty(m, 1, n + 1, n + 1)
        gram[:, 0, :n, :n] = own[:, self.nodes]
        gram[:, 0, :n, n] = gram[:, 0, n, :n] = own[:, candidates].T
        gram[:, 0, n, n] = self.products.diagonal()[candidates]
        # the candidate has the class (first C problems) or another (last C problems)
        targets = torch.cat([self.targets, self.targets]).unsqueeze(0).repeat(m, 1, 1)
        new = torch.cat([torch.ones(C), torch.zeros(C)]).double().expand(m, 2 * C)
        targets = torch.cat([targets, new.unsqueeze(2)], dim=2)
        weights = label_weights(targets, n + 1, targets.sum(dim=2), C)
        start = functional.pad(torch.cat([self.duals, self.duals]).expand(m, 2 * C, n), (0, 1))
        duals = fit(gram, targets, weights, start).float()
        there = self.unlabelled
        scores = duals[..., :n] @ own[:, there].float()
        scores += duals[..., n:] * self.products[candidates][:, None, there].float()
        with_it, without = scores.sigmoid().split(C, dim=1)  # (m, C, u) each
        total = without.sum(dim=1, keepdim=True) - without + with_it
        first, second = without.topk(min(2, C), dim=1).values.split(1, dim=1)
        others = torch.where(without == first, second, first)  # the largest of the other classes
        surest = (torch.maximum(with_it, others) / total).log()
        place = torch.cumsum(there, dim=0)[candidates] - 1
        surest[torch.arange(m), :, place] = 0.0  # the candidate itself is labelled then
        return torch.logsumexp(surest.double().sum(dim=2) + self.probabilities[candidates].log(), dim=1)


def scaled(sigmoids: Tensor) -> Tensor:
    """One-against-rest probabilities that add to 1. Shapes: (N, C) -> (N, C)."""
    return sigmoids / sigmoids.sum(dim=1, keepdim=True)


def label_weights(targets: Tensor, count: int, per_class: Tensor, num_classes: int) -> Tensor:
    """Balanced weights of the labels of a class, 1 for the others. Shapes: (..., n) -> (..., n)."""
    balanced = count / (num_classes * per_class.clamp_min(1.0))
    return torch.where(targets > 0, balanced.unsqueeze(-1), torch.ones_like(targets))


def fit(gram: Tensor, targets: Tensor, weights: Tensor, start: Tensor | None = None) -> Tensor:
    r"""Dual coefficients a of the logistic regression with scores K a, by Newton's method with halved steps.

    .. math:: \min_a \tfrac12 a^\top K a + C \sum_j w_j \log(1 + \exp(-t_j (K a)_j)), \qquad t_j = \pm 1

    Shapes: gram (..., n, n), targets 0 or 1 (..., n), weights (..., n) -> (..., n).
    """
    a = torch.zeros_like(targets) if start is None else start.clone()
    w = PENALTY * weights

    def value(a: Tensor, f: Tensor) -> Tensor:
        return 0.5 * (a * f).sum(dim=-1) + (w * (functional.softplus(f) - targets * f)).sum(dim=-1)

    def outputs(a: Tensor) -> Tensor:
        return (gram @ a.unsqueeze(-1)).squeeze(-1)

    f = outputs(a)
    now = value(a, f)
    for _ in range(ITERATIONS):
        p = f.sigmoid()
        root = (w * p * (1.0 - p)).clamp_min(1e-300).sqrt()
        b = root**2 * f + w * (targets - p)
        inner = root.unsqueeze(-1) * gram * root.unsqueeze(-2)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor = torch.linalg.cholesky(inner)
        right = (root * outputs(b)).unsqueeze(-1)
        step = b - root * torch.cholesky_solve(right, factor).squeeze(-1) - a
        length = torch.ones_like(now)
        for _ in range(20):
            moved = a + length.unsqueeze(-1) * step
            f = outputs(moved)
            after = value(moved, f)
            worse = after > now + 1e-9 * now.abs()
            if not bool(worse.any()):
                break
            length = torch.where(worse, length / 2, length)
        a, gain, now = moved, now - after, after
        if bool((gain <= TOLERANCE * (1.0 + now.abs())).all()):
            break
    return a
