"""What a new user runs into first: other forms of edges and labels, probabilities, closures in single precision."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric import transforms
from torch_geometric.nn import GCNConv

from jurygcn import Jury, load_dataset, train
from jurygcn.conformal.claims import origin_of_labels
from jurygcn.data import per_class_labels, synthetic
from jurygcn.engine import engine_of
from jurygcn.engine.acceptance import are_probabilities
from jurygcn.errors import DataError, ModelError

DATA = synthetic(num_nodes=60, num_edges=240, num_features=6, num_classes=3, seed=0)
NODES = torch.arange(0, 60, 4)


class Net(nn.Module):
    """PyG's two layers, cached or not, with any function of the logits at the end."""

    def __init__(self, *, cached: bool = False, last=lambda z: z) -> None:
        super().__init__()
        self.first, self.second, self.last = GCNConv(6, 4, cached=cached), GCNConv(4, 3, cached=cached), last

    def forward(self, x, edge_index):
        return self.last(self.second(torch.tanh(self.first(x, edge_index)), edge_index))


def fitted(**how) -> Net:
    torch.manual_seed(0)
    model = Net()
    train(model, DATA, NODES, epochs=60, weight_decay=5e-3)
    other = Net(**how)
    other.load_state_dict(model.state_dict())
    return other.eval()


def test_cached_convolutions_judge_as_others_do():
    plain, cached = fitted(), fitted(cached=True)
    with torch.no_grad():
        cached(DATA.x, DATA.edge_index)  # the cache is filled, in single precision
    wanted = Jury(plain, DATA, NODES, weight_decay=5e-3).fit().verdict()
    found = Jury(cached, DATA, NODES, weight_decay=5e-3).fit().verdict()
    torch.testing.assert_close(found.p_values, wanted.p_values)


def sparse_only() -> object:
    return transforms.ToSparseTensor(layout=torch.sparse_csr, remove_edge_index=True)(copy.copy(DATA))


def test_a_sparse_adjacency_is_sent_to_what_converts_it():
    graph = sparse_only()
    with pytest.raises(DataError, match=r"got a sparse adjacency; jurygcn\.load_dataset\(graph\) makes one"):
        Jury(fitted(), graph, NODES)
    edges = copy.copy(DATA)
    edges.edge_index = graph.adj_t
    with pytest.raises(DataError, match="got a sparse adjacency"):
        Jury(fitted(), edges, NODES)
    for given in (graph, edges):
        read = load_dataset(given, normalize_features=False)
        assert torch.equal(read.edge_index, load_dataset(DATA, normalize_features=False).edge_index)
        assert "adj_t" not in read
        assert "edge_weight" not in read
        Jury(fitted(), read, NODES, weight_decay=5e-3).fit()


def test_the_weights_of_a_sparse_adjacency_are_kept():
    graph = copy.copy(DATA)
    graph.edge_weight = torch.arange(DATA.num_edges).float() + 1
    both = transforms.ToSparseTensor(attr="edge_weight", layout=torch.sparse_csr)(copy.copy(graph))
    with pytest.warns(match="differed between copies"):
        read = load_dataset(both)
    with pytest.warns(match="differed between copies"):
        wanted = load_dataset(graph)
    torch.testing.assert_close(read.edge_weight, wanted.edge_weight)


def test_a_sparse_adjacency_inside_forward():
    graph = copy.copy(DATA)
    graph.adj_t = sparse_only().adj_t
    model = fitted()
    wanted = Jury(model, DATA, NODES, weight_decay=5e-3).fit().verdict()
    found = Jury(model, graph, NODES, weight_decay=5e-3, forward=lambda m, d: m(d.x, d.adj_t)).fit().verdict()
    torch.testing.assert_close(found.p_values, wanted.p_values)


def test_closures_in_single_precision_are_refused_in_our_words():
    x, edge_index = DATA.x, DATA.edge_index
    with pytest.raises(ModelError, match=r"to run in float64, .* none in float32; take tensors from the data"):
        Jury(fitted(), DATA, NODES, forward=lambda m, d: m(x, edge_index))
    Jury(fitted(), DATA, NODES, forward=lambda m, d: m(x.to(d.x.dtype), edge_index))
    with pytest.raises(ModelError, match=r"got ValueError: broken; pass a model"):
        Jury(fitted(), DATA, NODES, forward=broken)


def broken(model, data):
    raise ValueError("broken")


def test_probabilities_are_refused_and_log_probabilities_are_not():
    with pytest.raises(ModelError, match=r"expected logits, got probabilities: every row .* sums to 1"):
        Jury(fitted(last=lambda z: z.softmax(dim=1)), DATA, NODES)
    wanted = Jury(fitted(), DATA, NODES, weight_decay=5e-3).fit().verdict()
    logs = Jury(fitted(last=lambda z: z.log_softmax(dim=1)), DATA, NODES, weight_decay=5e-3).fit().verdict()
    torch.testing.assert_close(logs.p_values, wanted.p_values)
    # the remedy that the sentence names
    probabilities = fitted(last=lambda z: z.softmax(dim=1))
    advised = Jury(
        probabilities, DATA, NODES, weight_decay=5e-3, forward=lambda model, data: model(data.x, data.edge_index).log()
    )
    torch.testing.assert_close(advised.fit().verdict().p_values, wanted.p_values)


def test_what_looks_like_probabilities():
    rows = torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    assert are_probabilities(rows)
    assert not are_probabilities(rows.log())
    assert not are_probabilities(rows + 0.1)
    assert not are_probabilities(torch.tensor([[1.5, -0.5], [0.5, 0.5]]))
    assert not are_probabilities(torch.full((3, 2), 0.5))  # an untrained model, not a softmax
    assert not are_probabilities(torch.ones(3, 1))


def test_class_names_as_labels_lead_to_what_numbers_them():
    named = copy.copy(DATA)
    named.y = [f"class {int(label)}" for label in DATA.y]
    with pytest.raises(DataError, match=r"got texts; jurygcn\.load_dataset\(graph\) numbers them"):
        Jury(fitted(), named, NODES)
    read = load_dataset(named)
    assert read.class_names == ["class 0", "class 1", "class 2"]
    assert torch.equal(read.y, DATA.y)


@pytest.mark.parametrize("dtype", [torch.long, torch.float32])
def test_several_labels_per_node_are_not_sent_to_mse(dtype):
    one_hot, several = copy.copy(DATA), copy.copy(DATA)
    one_hot.y = functional.one_hot(DATA.y, 3).to(dtype)
    several.y = one_hot.y.clone()
    several.y[0] = 1
    several.y[4] = 1
    with pytest.raises(DataError, match=r"give y\.argmax\(dim=1\)$"):
        Jury(fitted(), one_hot, NODES)
    with pytest.raises(DataError, match=r"several labels per node are not supported: use one jury per label"):
        Jury(fitted(), several, NODES)


def test_a_train_mask_is_used():
    masked = copy.copy(DATA)
    masked.train_mask = torch.zeros(60, dtype=torch.bool)
    masked.train_mask[NODES] = True
    assert torch.equal(Jury(fitted(), masked).train_nodes, NODES)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("homophily", [0.2, 0.8])
def test_the_same_number_from_each_class_means_the_same_on_every_graph(seed, homophily):
    graph = synthetic(num_nodes=600, num_edges=2400, num_features=6, num_classes=3, homophily=homophily, seed=seed)
    nodes = per_class_labels(graph, torch.arange(600), 20, seed=seed)
    over, against, notes = origin_of_labels(engine_of(fitted(), graph, nodes), "random")
    assert (over, against) == ("classes", ())
    assert "Every class has exactly 20 labels" in notes[0]
