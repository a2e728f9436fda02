"""Graph attention network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn.inits import glorot

from jurygcn.checks import MOST_HIDDEN, check_count, check_dropout
from jurygcn.graph.propagation import Propagation, is_everything, reached_rows
from jurygcn.graph.sparse import SparseMatrix
from jurygcn.models.dropout_field import DroppingFeatures, drop


@dataclass(frozen=True)
class Messages:
    """The edges of one layer, as positions among senders and receivers; ``itself`` is each receiver's sender position.

    Shapes: sender, receiver (E,); itself (receivers,).
    """

    sender: Tensor
    receiver: Tensor
    itself: Tensor

    @staticmethod
    def between(rows: sp.csr_matrix, itself: np.ndarray[Any, Any]) -> Messages:
        """The messages of a matrix with one row per receiver and one column per sender. It includes self-loops."""
        receiver = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        parts = (rows.indices.astype(np.int64), receiver.astype(np.int64), itself.astype(np.int64))
        return Messages(*(torch.from_numpy(part) for part in parts))

    def weights(self, sent: Tensor, received: Tensor) -> Tensor:
        r"""The weight of each message, :math:`softmax(LeakyReLU(sent + received))` over the messages of a receiver.

        Shapes: sent, received (senders, heads) -> (E, heads).
        """
        score = functional.leaky_relu(sent[self.sender] + received[self.itself][self.receiver], 0.2)
        index, empty = self.receiver[:, None].expand_as(score), score.new_zeros(len(self.itself), score.shape[1])
        largest = torch.full_like(empty, -torch.inf).scatter_reduce(0, index, score.detach(), "amax")
        weight = (score - largest[self.receiver]).exp()
        return weight / empty.index_add(0, self.receiver, weight)[self.receiver]


class Attention(nn.Module):
    r"""One layer of attention with several heads.

    .. math::
        h_u = W x_u, \quad
        a_{vu} = softmax_u(LeakyReLU(s^T h_u + t^T h_v)), \quad z_v = \sum_{u \in N(v) \cup v} a_{vu} h_u + b

    In training, dropout acts on the input, on the attention and on the projected features that are summed.

    Shapes: projected (senders, heads * width) -> (receivers, heads * width), or (receivers, width) of averaged heads.
    """

    def __init__(self, in_channels: int, width: int, heads: int, *, dropout: float, average: bool = False) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(in_channels, heads * width))
        self.sending = nn.Parameter(torch.empty(heads, width))
        self.receiving = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.empty(width if average else heads * width))
        self.heads, self.width, self.dropout, self.average = heads, width, dropout, average
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights (Glorot uniform) and set the bias to zero."""
        for weight in (self.W, self.sending, self.receiving):
            glorot(weight)
        nn.init.zeros_(self.bias)

    def forward(self, projected: Tensor, messages: Messages) -> Tensor:
        """The attention-weighted sum of messages at every receiver, plus the bias."""
        rate = self.dropout if self.training else 0.0
        h = projected.view(-1, self.heads, self.width)
        receiver, count = messages.receiver, len(messages.itself)
        attention = drop(messages.weights((h * self.sending).sum(dim=-1), (h * self.receiving).sum(dim=-1)), rate)
        h = drop(h, rate)
        weighted = attention.unsqueeze(-1) * h[messages.sender]
        out = weighted.new_zeros(count, self.heads, self.width).index_add(0, receiver, weighted)
        return (out.mean(dim=1) if self.average else out.flatten(1)) + self.bias


class GAT(nn.Module):
    """Two attention layers with an ELU between them. The output is logits.

    By default the first layer concatenates eight heads of eight units, and the second has one head. The second layer
    averages its heads if it has several.

    Shapes: x (N, F), edge_index (2, E) -> logits (N, C).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        hidden: int = 8,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
    ) -> None:
        super().__init__()
        check_count(hidden, "hidden", most=MOST_HIDDEN)
        check_dropout(dropout)
        self.first = Attention(in_channels, hidden, heads, dropout=dropout)
        self.second = Attention(hidden * heads, out_channels, out_heads, dropout=dropout, average=True)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        nodes = torch.arange(x.shape[0], device=x.device)
        sender, receiver = edge_index[:, edge_index[0] != edge_index[1]]
        messages = Messages(torch.cat([sender, nodes]), torch.cat([receiver, nodes]), nodes)
        projected = (drop(x, self.dropout) if self.training else x) @ self.first.W
        return self._logits(projected, messages, messages)

    def _logits(self, projected: Tensor, first: Messages, second: Messages) -> Tensor:
        hidden = functional.elu(self.first(projected, first))
        hidden = drop(hidden, self.dropout) if self.training else hidden
        out: Tensor = self.second(hidden @ self.second.W, second)
        return out

    def outputs_at(self, data: Data, nodes: Tensor) -> Callable[[], Tensor]:
        """A function that returns logits of ``nodes`` with the current weights and mode.

        It computes only their receptive field.
        """
        graph = Propagation.of(data)
        everything = is_everything(nodes, int(data.num_nodes))
        levels, layers = [nodes.cpu().numpy()], []
        for _ in range(2):
            rows, below = reached_rows(graph.adjacency, levels[-1], everything=everything)
            layers.append(Messages.between(rows, np.searchsorted(below, levels[-1])))
            levels.append(below)
        features = data.x.detach().cpu().numpy() if graph.features is None else graph.features
        features = features if everything else features[levels[-1]]
        place: dict[str, Any] = {"dtype": self.first.W.dtype, "device": self.first.W.device}
        dropping = DroppingFeatures(features, **place)
        whole = SparseMatrix(features, **place) if sp.issparse(features) else torch.from_numpy(features).to(**place)
        second, first = layers

        def logits() -> Tensor:
            W = self.first.W
            projected = dropping.product(W, self.dropout) if self.training else whole @ W
            return self._logits(projected, first, second)

        return logits
