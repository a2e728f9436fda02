"""The one gate: what is repaired with a notice, and what is refused with a sentence."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from jurygcn.data import as_data, clean, labelled, normalize_rows
from jurygcn.data.edges import make_undirected
from jurygcn.errors import DataError, DataNotice, JuryError

PATH = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def graph(**changes) -> Data:
    return Data(**({"x": torch.eye(3), "edge_index": PATH, "y": torch.tensor([0, 1, 0])} | changes))


def test_clean_graph_passes_without_notice():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = clean(graph())
    assert data.edge_index.equal(PATH)
    assert data.num_classes == 2
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64


@pytest.mark.parametrize(
    ("edges", "notice"),
    [
        ([[0, 1], [1, 2]], "2 edge.* no reverse.*undirected"),
        ([[0, 1, 1, 2, 1], [1, 0, 2, 1, 1]], "1 self-loop.* removed"),
        ([[0, 1, 1, 2, 0, 0], [1, 0, 2, 1, 1, 1]], "2 duplicate.* removed"),
    ],
)
def test_edges_are_repaired_with_a_notice(edges, notice):
    given_edges = torch.tensor(edges)
    kept = given_edges.clone()
    with pytest.warns(DataNotice, match=notice) as caught:
        data = clean(graph(edge_index=given_edges))
    assert len(caught) == 1
    assert data.edge_index.equal(PATH)
    assert given_edges.equal(kept)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x": torch.tensor([[1.0], [float("nan")], [1.0]])}, "finite features, got nan at node 1, column 0"),
        ({"x": torch.tensor([[1.0], [1.0], [float("-inf")]])}, "finite features, got -inf at node 2"),
        ({"x": torch.ones(3)}, r"shape \(nodes, features\).* got \(3,\)"),
        ({"x": torch.ones(0, 2)}, "at least"),
        ({"x": None}, r"node features `x`, got none; .*torch\.eye"),
        ({"x": torch.ones(3, 1, dtype=torch.complex64)}, "real features"),
        ({"edge_index": torch.tensor([[0, 3], [3, 0]])}, r"node ids 0\.\.2 in the edges, got 3"),
        ({"edge_index": torch.tensor([[0, -1], [-1, 0]])}, r"node ids 0\.\.2 in the edges, got -1"),
        ({"edge_index": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}, "integer node ids"),
        ({"edge_index": PATH.T}, r"shape \(2, E\), got \(4, 2\)"),
        ({"edge_index": None}, "`edge_index` as a tensor"),
        ({"edge_weight": torch.ones(3)}, r"shape \(4,\), got shape \(3,\)"),
        ({"edge_weight": torch.tensor([1.0, 1, -1, 1])}, "at least 0, got -1.0 at edge 2"),
        ({"edge_weight": torch.tensor([1.0, 1, 1, float("nan")])}, "got nan at edge 3"),
        ({"y": torch.tensor([0, 1])}, r"one label per node, shape \(3,\), got shape \(2,\)"),
        ({"y": torch.eye(3)}, "for one-hot rows"),
        ({"y": torch.tensor([0, 1, -2])}, r"labels 0\.\.C-1, or -1 for no label, got -2 at node 2"),
        ({"y": torch.tensor([0, 1, 1000])}, "got label 1000 among 3 labelled nodes"),
        ({"y": torch.tensor([0.0, 1.5, 2.0])}, "integer labels, got 1.5 at node 1"),
        ({"y": torch.tensor([0.0, float("inf"), 2.0])}, "finite labels, got inf at node 1"),
        ({"y": ["a", "b", "c"]}, "tensor of integers, got list"),
        ({"num_classes": 1}, "below num_classes = 1, got 1"),
        ({"num_classes": -1}, "num_classes as an integer"),
        ({"train_mask": torch.ones(2, dtype=torch.bool)}, r"`train_mask` of shape \(3,\), got \(2,\)"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(change, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        clean(graph(**change))
    assert isinstance(caught.value, JuryError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given_labels", "num_classes", "expected", "classes"),
    [
        (torch.tensor([0, 2, -1]), None, [0, 2, -1], 3),
        (torch.tensor([[0], [1], [1]], dtype=torch.int32), None, [0, 1, 1], 2),
        (torch.tensor([0.0, 1.0, float("nan")]), None, [0, 1, -1], 2),
        (torch.tensor([True, False, True]), None, [1, 0, 1], 2),
        (torch.tensor([0, 1, 1]), 5, [0, 1, 1], 5),
        (torch.tensor([0.5, 0.25, 2.0]), None, [0.5, 0.25, 2.0], 0),
        (torch.tensor([1.0, 2.0, 3.5]), 0, [1.0, 2.0, 3.5], 0),
        (torch.tensor([7, 900, 3]), 0, [7.0, 900.0, 3.0], 0),
    ],
)
def test_labels_classes_or_targets(given_labels, num_classes, expected, classes):
    data = clean(graph(y=given_labels, **({} if num_classes is None else {"num_classes": num_classes})))
    assert data.y.tolist() == expected
    assert data.num_classes == classes
    assert data.y.dtype == (torch.float32 if isinstance(expected[0], float) else torch.int64)
    again = clean(data)
    assert again.y.equal(data.y)
    assert again.num_classes == classes


def test_no_labels_and_regression_gaps():
    bare = clean(graph(y=None))
    assert bare.y.tolist() == [-1, -1, -1]
    assert bare.num_classes == 0
    assert not labelled(bare).any()
    gaps = clean(graph(y=torch.tensor([0.5, float("nan"), 1.5])))
    assert labelled(gaps).tolist() == [True, False, True]


def test_unlabelled_nodes_leave_the_masks():
    everywhere = torch.ones(3, 2, dtype=torch.bool)
    with pytest.warns(DataNotice, match="test_mask"):
        data = clean(graph(y=torch.tensor([0, -1, 1]), test_mask=everywhere))
    assert data.test_mask.tolist() == [[True, True], [False, False], [True, True]]


def test_edge_attributes_do_not_outlive_their_edges():
    with pytest.warns(DataNotice, match="edge_attr was dropped"):
        data = clean(graph(edge_index=PATH[:, :1], edge_attr=torch.ones(1, 2)))
    assert "edge_attr" not in data
    assert "edge_attr" in clean(graph(edge_attr=torch.ones(4, 2)))


def test_weights_follow_their_edges():
    edges = torch.tensor([[2, 0, 1, 1], [1, 1, 0, 1]])
    with pytest.warns(DataNotice) as caught:
        data = clean(graph(edge_index=edges, edge_weight=torch.tensor([5.0, 2.0, 4.0, 9.0])))
    assert data.edge_index.equal(PATH)
    assert data.edge_weight.tolist() == [3, 3, 5, 5]
    notices = " ".join(str(notice.message) for notice in caught)
    assert all(word in notices for word in ("1 edge(s) had no reverse", "1 self-loop", "their mean"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25))
def test_edges_equal_a_set_of_pairs(num_nodes, pairs):
    pairs = [(u % num_nodes, v % num_nodes) for u, v in pairs]
    result = make_undirected(np.array(pairs, dtype=np.int64).reshape(-1, 2).T, num_nodes)
    once = {(u, v) for u, v in pairs if u != v}
    both = once | {(v, u) for u, v in once}
    assert [tuple(e) for e in result.edge_index.T.tolist()] == sorted(both)
    assert result.self_loops == sum(u == v for u, v in pairs)
    assert result.duplicates == len(pairs) - result.self_loops - len(once)
    assert result.one_way == len(both) - len(once)


def test_normalize_rows():
    x = torch.tensor([[1.0, 3.0], [0.0, 0.0], [0.1, 0.1]])
    assert torch.allclose(normalize_rows(x), torch.tensor([[0.25, 0.75], [0, 0], [0.5, 0.5]]))
    signed = torch.tensor([[1.0, -1.0]])
    assert normalize_rows(signed).equal(signed)


def test_the_users_data_is_left_alone():
    mine = graph(x=torch.full((3, 2), 2.0), edge_index=PATH[:, :1], extra="kept")
    with pytest.warns(DataNotice):
        data = as_data(mine, normalize_features=True, name="mine")
    assert mine.x.eq(2).all()
    assert mine.edge_index.shape == (2, 1)
    assert "num_classes" not in mine
    assert data.x.eq(0.5).all()
    assert (data.extra, data.name) == ("kept", "mine")
