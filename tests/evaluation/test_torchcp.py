"""Scores of rival methods against TorchCP's, where it is installed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data

from jurygcn.baselines.cfgnn import Correction
from jurygcn.baselines.naps import naps_sets
from jurygcn.conformal.scores import aps_scores, lac_scores
from jurygcn.data import synthetic
from jurygcn.evaluation.conformal import conformal_threshold
from jurygcn.evaluation.graph_scores import diffuse_scores, navigated_scores, penalised_scores, similar_nodes
from jurygcn.graph.propagation import Propagation

pytest.importorskip("torchcp", reason="TorchCP is not installed", exc_type=ImportError)

from torchcp.classification.score import APS, LAC, RAPS
from torchcp.graph.predictor import NAPSPredictor, SplitPredictor
from torchcp.graph.score import DAPS, SNAPS
from torchcp.graph.trainer.model import CFGNNModel
from torchcp.graph.utils import compute_adj_knn


def joined() -> Data:
    """A graph in which every node has neighbours and features that are 0 or 1."""
    data = synthetic(num_nodes=90, num_edges=400, num_features=30, num_classes=8, seed=1)
    generator = torch.Generator().manual_seed(0)
    data.x = (torch.rand(90, 30, generator=generator) < 0.3).float()
    ring = torch.stack([torch.arange(90), (torch.arange(90) + 1) % 90])
    pairs = torch.cat([data.edge_index, ring, ring.flip(0)], dim=1).unique(dim=1)
    data.edge_index = pairs[:, pairs[0] != pairs[1]]
    return data


DATA = joined()
PI = torch.softmax(torch.randn(90, 8, generator=torch.Generator().manual_seed(1)), dim=1)
LOGITS = PI.log()
OURS = aps_scores(PI) + 1.0  # ours are minus the mass below a label, theirs one minus it


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


def test_lac_aps_and_raps():
    close(lac_scores(PI) + 1.0, LAC(score_type="softmax")(LOGITS))
    close(OURS, APS(score_type="softmax", randomized=False)(LOGITS))
    close(penalised_scores(OURS, PI), RAPS(score_type="softmax", penalty=0.01, kreg=5, randomized=False)(LOGITS))


@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_daps(mixing: float):
    theirs = DAPS(DATA, APS(score_type="softmax", randomized=False), neigh_coef=mixing)(LOGITS)
    close(diffuse_scores(OURS, DATA.edge_index, mixing=mixing), theirs)


def test_snaps():
    """With the same 20 similar nodes. Which ones they are differs where similarities tie, so theirs are ours here."""
    similar = similar_nodes(DATA.x).tocoo()
    edges = torch.stack([torch.from_numpy(part).long() for part in (similar.row, similar.col)])
    base, weights = APS(score_type="softmax", randomized=False), torch.from_numpy(similar.data).float()
    theirs = SNAPS(DATA, base, knn_edge=edges, knn_weight=weights)(LOGITS)
    close(navigated_scores(OURS, DATA.edge_index, similar.tocsr()), theirs)
    pairs, found = compute_adj_knn(DATA.x)
    least = torch.full((90,), torch.inf).scatter_reduce_(0, pairs[0], found, "amin")
    there = (DATA.x @ DATA.x.T / (DATA.x.sum(dim=1, keepdim=True) * DATA.x.sum(dim=1)).sqrt())[edges[0], edges[1]]
    assert (there >= least[edges[0]] - 1e-5).all()  # ours are as similar as their least similar one


def test_the_threshold():
    predictor = SplitPredictor(DATA, APS(score_type="softmax", randomized=False))
    calibration, labels = torch.arange(30), torch.arange(90) % 8
    predictor.calculate_threshold(LOGITS, calibration, one_hot(labels, 8).bool(), 0.1)
    ours = conformal_threshold(OURS[calibration, labels[calibration]], alpha=0.1)
    assert float(predictor.q_hat.squeeze()) == pytest.approx(float(ours), abs=1e-6)


@pytest.mark.parametrize(("scheme", "second_hop"), [("unif", 1.0), ("linear", 0.5), ("geom", 0.5)])
def test_naps(scheme: str, second_hop: float):
    """Theirs reads the labels of all other nodes; so does ours here.

    Where sums of weights equal the level, their bisection stops anywhere between two scores. At this level none does.
    The least probable label's score is 1 at every node, and rounding decides whether it is below a threshold of 1.
    """
    data = DATA.clone()
    data.y, data.test_mask = torch.arange(90) % 8, torch.ones(90).bool()
    predictor = NAPSPredictor(data, APS(score_type="softmax", randomized=False), cutoff=20, scheme=scheme)
    nodes, theirs = predictor.predict_with_logits(LOGITS, torch.arange(90), 0.2137)
    ours = naps_sets(PI, data.y, torch.arange(90), data.edge_index, alpha=0.2137, second_hop=second_hop)
    assert len(nodes) > 50
    last = OURS[nodes] > 1 - 1e-6
    assert last.sum(dim=1).eq(1).all()
    assert ours[nodes][~last].equal(theirs.bool()[~last])
    assert 0 < int(theirs.sum()) < theirs.numel()


@pytest.mark.parametrize("layers", [1, 3])
def test_the_network_of_cf_gnn(layers: int):
    theirs = CFGNNModel(Identity(), 8, hidden_channels=6, num_layers=layers).eval()
    ours = Correction(8, hidden=6, layers=layers, attention=False, dropout=0.5).eval()
    for layer, conv in zip(ours.layers, theirs.model.convs):
        layer.W.data, layer.bias.data = conv.lin.weight.detach().T.clone(), torch.randn(len(conv.bias))
        conv.bias.data = layer.bias.detach().clone()
    found = ours.outputs_at(PI, Propagation.of(DATA).adjacency, torch.arange(90))()
    close(found, theirs(LOGITS, DATA.edge_index))


class Identity(torch.nn.Module):
    """A model whose logits are its inputs."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x
