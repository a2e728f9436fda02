r"""CF-GNN: a second network on the graph corrects a model's probabilities, so that label sets become smaller.

Huang, Jin, Candès and Leskovec, "Uncertainty quantification over graph with conformalized graph neural networks". The
network takes the probabilities of all nodes and returns new logits. Its loss is the cross-entropy at the labels that
trained the model and, after 1,000 of 5,000 epochs, the weighted size of soft label sets:

.. math:: \frac{w}{|T|} \sum_{u \in T} \mathrm{relu}\Bigl(\sum_y \sigma\bigl((p_{uy} - q) / \tau\bigr) - t\Bigr)

Half of the tuning labels gives the threshold q, the other half is T. The epoch with the smallest APS sets is kept.

Differences from the released code: thresholds have their exact ranks (the code's quantiles can be one rank higher), and
with fewer labels than the level needs the last rank stands in while the network is trained (the code stops with an
error there); the model that is corrected is in eval mode (the code leaves its dropout on) and is the one that was
measured (the code corrects the last epoch's). Correcting networks other than GCN and GAT are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn.inits import glorot

from jurygcn.baselines.classifier import check_preset
from jurygcn.baselines.gat import Messages
from jurygcn.conformal.intervals import exact_rank
from jurygcn.conformal.scores import aps_scores, with_ties
from jurygcn.errors import SettingError
from jurygcn.graph.propagation import is_everything, reached_rows
from jurygcn.graph.sparse import SparseMatrix
from jurygcn.models.dropout_field import drop
from jurygcn.models.training import descend

SHUFFLES = 100  # divisions of the nodes that choose the epoch
LEAST = 2  # tuning labels: one for the threshold, one for the size


class Layer(nn.Module):
    """A layer of a GCN or of a GAT with one head: weighted sums over closed neighbourhoods, projected, plus a bias.

    The sums are of inputs or of projections, whichever are narrower. Where both have the same width they are of inputs,
    because there are fewer receivers than senders to project. Shapes: (senders, a) -> (receivers, b).
    """

    def __init__(self, in_channels: int, width: int, *, attention: bool) -> None:
        super().__init__()
        self.W, self.bias = nn.Parameter(torch.empty(in_channels, width)), nn.Parameter(torch.empty(width))
        self.ends = nn.Parameter(torch.empty(width, 2)) if attention else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights (Glorot uniform) and set the bias to zero."""
        glorot(self.W)
        nn.init.zeros_(self.bias)
        if self.ends is not None:
            for end in self.ends.T.unsqueeze(1).unbind():
                glorot(end)

    def forward(self, x: Tensor, hop: Messages | SparseMatrix) -> Tensor:
        """The layer's outputs."""
        weight: Tensor | None = None
        if isinstance(hop, Messages):
            assert self.ends is not None
            sent, received = (x @ (self.W @ self.ends)).split(1, dim=1)
            weight = hop.weights(sent, received)
        if self.W.shape[0] <= self.W.shape[1]:
            return weighted_sums(x, hop, weight) @ self.W + self.bias
        return weighted_sums(x @ self.W, hop, weight) + self.bias


def weighted_sums(values: Tensor, hop: Messages | SparseMatrix, weight: Tensor | None) -> Tensor:
    """Sums over the messages to each receiver, (senders, w) -> (receivers, w)."""
    if isinstance(hop, SparseMatrix):
        return hop @ values
    assert weight is not None
    return values.new_zeros(len(hop.itself), values.shape[1]).index_add(0, hop.receiver, weight * values[hop.sender])


class Correction(nn.Module):
    """The network that corrects: GCN or GAT layers with dropout before and ReLU between them."""

    def __init__(self, classes: int, *, hidden: int, layers: int, attention: bool, dropout: float) -> None:
        super().__init__()
        widths = [classes, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(Layer(a, b, attention=attention) for a, b in pairwise(widths))
        self.attention, self.dropout = attention, dropout

    def outputs_at(self, probabilities: Tensor, adjacency: sp.csr_matrix, nodes: Tensor) -> Callable[[], Tensor]:
        """A function that returns the new logits of ``nodes``; it computes only their receptive field."""
        level, everything = nodes.numpy(), is_everything(nodes, len(probabilities))
        hops: list[Messages | SparseMatrix] = []
        for _ in self.layers:
            rows, below = reached_rows(adjacency, level, everything=everything)
            if self.attention:
                hops.insert(0, Messages.between(rows, np.searchsorted(below, level)))
            else:
                hops.insert(0, SparseMatrix(rows, dtype=probabilities.dtype, device=probabilities.device))
            level = below
        inputs = probabilities[torch.from_numpy(level)]

        def logits() -> Tensor:
            h = inputs
            for position, (layer, hop) in enumerate(zip(self.layers, hops)):
                h = torch.relu(h) if position else h
                h = layer(drop(h, self.dropout) if self.training else h, hop)
            return h

        return logits


@dataclass(frozen=True)
class CFGNN:
    """The settings of the correction; the defaults are those of the released code for graphs without own settings."""

    attention: bool = False
    layers: int = 1
    hidden: int = 64
    lr: float = 1e-3
    softness: float = 0.1
    target: float = 0.0
    size_weight: float = 1.0
    dropout: float = 0.5
    weight_decay: float = 5e-4
    epochs: int = 5000
    first: int = 1000  # epochs without the size of the sets

    @classmethod
    def preset(cls, name: str | None) -> CFGNN:
        """What the authors found best for a GCN on Cora_ML ("cora"), CiteSeer and PubMed."""
        return {
            "cora": cls(True, 2, 64, lr=1e-4, softness=1.0, target=1.0, size_weight=0.1),
            "citeseer": cls(False, 3, 256, lr=1e-3, softness=1e-3, target=0.0, size_weight=1.0),
            "pubmed": cls(True, 3, 128, lr=0.1, softness=1e-3, target=1.0, size_weight=1e-3),
        }.get(check_preset(name) or "", cls())

    def correct(
        self,
        probabilities: Tensor,
        truth: Tensor,
        adjacency: sp.csr_matrix,
        *,
        train: Tensor,
        tuning: Tensor,
        choosing: Sequence[Tensor],
        alpha: float,
        seed: int = 0,
    ) -> list[Tensor]:
        """Corrected probabilities of all nodes, one matrix for each set of nodes in ``choosing``.

        The labels of ``train`` and ``tuning`` train the network, those of a set in ``choosing`` choose its epoch. Other
        labels are not read.

        Shapes: probabilities (N, C), truth (N,), adjacency Â (N, N), train (n,), tuning (t,) -> (N, C) each.
        """
        if len(tuning) < LEAST:
            raise SettingError(f"expected at least {LEAST} tuning labels, got {len(tuning)}; set more labels aside")
        model = Correction(
            probabilities.shape[1],
            hidden=self.hidden,
            layers=self.layers,
            attention=self.attention,
            dropout=self.dropout,
        ).to(probabilities.dtype)
        learned = model.outputs_at(probabilities, adjacency, torch.cat([train, tuning]))
        watched = [model.outputs_at(probabilities, adjacency, nodes) for nodes in choosing]
        halved = [halves(len(nodes), seed=seed) for nodes in choosing]
        middle = len(train) + len(tuning) // 2
        smallest = [torch.inf] * len(choosing)
        best: list[dict[str, Tensor]] = [{}] * len(choosing)

        def objective(epoch: int) -> Tensor:
            z = learned()
            loss = functional.cross_entropy(z[: len(train)], truth[train])
            if epoch <= self.first:
                return loss
            p = torch.softmax(z, dim=1)
            own = p[middle:].gather(1, truth[tuning[len(tuning) // 2 :], None]).squeeze(1)
            return loss + self.size_weight * self.soft_size(p[len(train) : middle], own, alpha=alpha)

        def choose(_: int) -> None:
            model.eval()
            with torch.no_grad():
                for k, outputs in enumerate(watched):
                    size = mean_size(torch.softmax(outputs(), dim=1), truth[choosing[k]], halved[k], alpha=alpha)
                    if size < smallest[k]:
                        smallest[k] = size
                        best[k] = {name: value.detach().clone() for name, value in model.state_dict().items()}

        descend(
            model,
            objective,
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            seed=seed,
            after_epoch=choose,
        )
        everywhere = model.outputs_at(probabilities, adjacency, torch.arange(len(probabilities)))
        found = []
        for state in best:
            model.load_state_dict(state)
            with torch.no_grad():
                found.append(torch.softmax(everywhere(), dim=1))
        return found

    def soft_size(self, probabilities: Tensor, own: Tensor, *, alpha: float) -> Tensor:
        """The mean size above the target of soft LAC sets, whose threshold comes from labels with probability ``own``.

        Shapes: probabilities (t, C), own (m,) -> ().
        """
        bound = own.sort().values[max(exact_rank(alpha, len(own)), 1) - 1]
        sizes = torch.sigmoid((probabilities - bound) / self.softness).sum(dim=1)
        return torch.relu(sizes - self.target).mean()


def halves(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Random divisions of ``count`` positions in two, (SHUFFLES, count // 2) and the rest."""
    draws = torch.rand(SHUFFLES, count, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    return draws[:, : count // 2], draws[:, count // 2 :]


def mean_size(probabilities: Tensor, truth: Tensor, halved: tuple[Tensor, Tensor], *, alpha: float) -> float:
    """The mean size of APS sets of one half, calibrated on the other, over all divisions.

    With too few labels for the level, the largest score is the threshold. Shapes: probabilities (m, C), truth (m,).
    """
    scores = aps_scores(probabilities)
    calibration, rest = halved
    count = calibration.shape[1]
    rank = min(count + 1 - exact_rank(alpha, count), count)
    given = scores.gather(1, truth[:, None]).squeeze(1)[calibration]
    bounds = with_ties(given.kthvalue(rank, dim=1).values, "aps")
    return float((scores[rest] <= bounds[:, None, None]).sum()) / rest.numel()
