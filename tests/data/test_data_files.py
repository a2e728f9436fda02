"""The user's own files and objects: npz, csv folders, NetworkX, SciPy."""

from __future__ import annotations

import pickle
import warnings

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse
from torch_geometric.data import Data

from jurygcn.data import as_data, load_dataset
from jurygcn.data.npz import write_npz
from jurygcn.errors import DataError, DataNotice

EDGES = np.array([[0, 1, 1, 2], [1, 0, 2, 1]], dtype=np.int32)
X = np.array([[1, 3], [0, 0], [2, 2]], dtype=np.float32)


def save(folder, **arrays):
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def csr_parts():
    rows = sparse.csr_matrix(X)
    return {
        "x_data": rows.data,
        "x_indices": rows.indices,
        "x_indptr": rows.indptr,
        "x_shape": np.array([3, 2]),
    }


@pytest.mark.parametrize("features", [{"x": X}, {"x": X.astype(np.uint8)}, {"x": X.astype(">f8")}, csr_parts()])
def test_npz(tmp_path, features):
    path = save(tmp_path, edge_index=EDGES, y=np.array([0, 1, -1]), train_idx=np.array([1]), **features)
    data = load_dataset(path)
    assert data.x.tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]
    assert load_dataset(str(path), normalize_features=False).x.tolist() == X.tolist()
    assert data.edge_index.tolist() == EDGES.tolist()
    assert data.edge_index.dtype == torch.int64
    assert (data.y.tolist(), data.num_classes, data.name) == ([0, 1, -1], 2, "mine")
    assert data.train_mask.tolist() == [False, True, False]


def test_npz_with_many_splits_and_targets(tmp_path):
    masks = np.array([[1, 0, 0], [0, 1, 0]], dtype=bool)
    path = save(tmp_path, edge_index=EDGES, x=X, y=np.array([0.5, -0.25, 3]), train_masks=masks)
    data = load_dataset(path)
    assert data.train_mask.tolist() == masks.T.tolist()
    assert data.y.dtype == torch.float32
    assert data.num_classes == 0


def test_npz_round_trip(tmp_path):
    with pytest.warns(DataNotice):
        data = as_data(sparse.csr_matrix(np.array([[0, 2.0, 0], [0, 0, 3.0], [0, 0, 0]])), x=np.eye(3), y=[0, 1, -1])
    data.test_mask = torch.tensor([[True, False], [False, True], [False, False]])
    data.node_names, data.class_names = ["a", "é", "c"], ["no", "yes"]
    write_npz(tmp_path / "again.npz", data)
    again = load_dataset(tmp_path / "again.npz")
    for key in ("x", "y", "edge_index", "edge_weight", "test_mask"):
        assert again[key].equal(data[key]), key
    assert (again.node_names, again.class_names) == (data.node_names, data.class_names)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X}, "arrays edge_index and x, got .*'x'.*; add edge_index"),
        ({"edge_index": EDGES}, "add x"),
        ({"edge_index": EDGES, "x": X, "y": np.array(["a", "b", "c"])}, "integer labels, got dtype <U1"),
        ({"edge_index": EDGES, "x": np.array([["1"], ["2"], ["3"]])}, "numbers in x"),
        ({"edge_index": EDGES + 5, "x": X}, r"node ids 0\.\.2"),
        ({"edge_index": EDGES, "x": X, "train_idx": np.array([9])}, r"train_idx to hold node ids 0\.\.2"),
        ({"edge_index": EDGES, **csr_parts(), "x_indptr": np.array([0, 9, 9, 9])}, "form a CSR matrix"),
        ({"edge_index": EDGES, **csr_parts(), "x_shape": np.array([3, 1])}, "form a CSR matrix"),
        ({"edge_index": EDGES, "x": np.full((3, 1), np.nan)}, "finite features"),
    ],
)
def test_bad_npz(tmp_path, arrays, sentence):
    with pytest.raises(DataError, match=sentence):
        load_dataset(save(tmp_path, **arrays))


class _Marks:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_npz_never_unpickles(tmp_path):
    hostile = np.array([_Marks(tmp_path / "marker")], dtype=object)
    path = save(tmp_path, edge_index=EDGES, x=X, y=hostile)
    with pytest.raises(DataError, match="no pickles"):
        load_dataset(path)
    plain = tmp_path / "plain.npz"
    plain.write_bytes(pickle.dumps(_Marks(tmp_path / "marker")))
    with pytest.raises(DataError, match="no pickles"):
        load_dataset(plain)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04half", b"text"])
def test_npz_that_is_none(tmp_path, content):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(DataError, match="expected an npz archive"):
        load_dataset(tmp_path / "bad.npz")


def folder(tmp_path, nodes, edges="source,target\n0,1\n1,0\n1,2\n2,1\n"):
    (tmp_path / "nodes.csv").write_text(nodes, encoding="utf-8")
    (tmp_path / "edges.csv").write_text(edges, encoding="utf-8")
    return tmp_path


def test_csv_with_names(tmp_path):
    nodes = "\ufeffid,age,label, income\nann,1,yes,3\nbob,0,,0\n cy ,2,NA,2\n"
    edges = "source,target,weight\nann,bob,0.5\nbob,cy,2\n"
    with pytest.warns(DataNotice, match="2 edge.*reverse"):
        data = load_dataset(folder(tmp_path, nodes, edges))
    assert data.x.tolist() == [[0.25, 0.75], [0, 0], [0.5, 0.5]]
    assert data.y.tolist() == [1, -1, 0]
    assert data.class_names == ["NA", "yes"]
    assert data.node_names == ["ann", "bob", "cy"]
    assert data.feature_names == ["age", "income"]
    assert data.edge_index.tolist() == EDGES.tolist()
    assert data.edge_weight.tolist() == [0.5, 0.5, 2, 2]
    assert data.name == tmp_path.name


def test_csv_without_ids(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset(folder(tmp_path, "a,b,label\n1,-3,1\n0,0,0.0\n2,2,\n"), normalize_features=True)
    assert data.x.tolist() == [[1, -3], [0, 0], [2, 2]]
    assert data.y.tolist() == [1, 0, -1]
    assert "class_names" not in data


def test_csv_with_targets_and_none(tmp_path):
    data = load_dataset(folder(tmp_path, "a,target\n1,1\n2,\n3,2\n"))
    assert data.y.dtype == torch.float32
    assert data.y[[0, 2]].tolist() == [1, 2]
    assert data.y[1].isnan()
    assert data.num_classes == 0
    assert load_dataset(folder(tmp_path, "a\n1\n2\n3\n")).y.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("nodes", "edges", "sentence"),
    [
        ("a,b\n1,2\n3\n4,5\n", None, r"nodes\.csv, line 3: expected 2 cells .* got 1"),
        ("a,b\n1,2\n3,4,5\n4,5\n", None, r"nodes\.csv, line 3: expected 2 cells .* got 3"),
        ("a\n1\n2\n3\n", "source,target\n0,1\n1\n", r"edges\.csv, line 3: expected 2 cells"),
        ("a\n1\n2\n3\n", "from,to\n0,1\n", r"columns 'source' and 'target', got \['from', 'to'\]"),
        ("id,label\n1,2\n", None, "expected feature columns"),
        ("a\n1\nnan\n3\n", None, r"line 3, column 'a': expected a finite number, got 'nan'"),
        ("a\n1\ninf\n3\n", None, r"line 3, column 'a': expected a finite number, got 'inf'"),
        ("a,b\n1,1\n1,\n3,1\n", None, r"line 3, column 'b': expected a finite number, got an empty cell"),
        ("a\n1\nred\n3\n", None, r"line 3, column 'a': expected a finite number, got 'red'"),
        ("a\n1\n2\n", None, r"edges\.csv, line 4, column 'target': expected a node id 0\.\.1, got '2'"),
        ("id,a\nx,1\ny,2\nz,3\n", "source,target\nx,w\n", r"an id of nodes\.csv, got 'w'"),
        ("id,a\nx,1\nx,2\n", "source,target\nx,x\n", "each id once, got 'x'"),
        ("a,label\n1,0\n2,1.5\n3,1\n", None, "integer labels, got 1.5; .*'target'"),
        ("a,label\n1,0\n2,cat\n3,1\n", None, "integer labels, got 'cat' among numbers"),
        ("a,label\n1,0\n2,nan\n3,1\n", None, "integer labels, got nan"),
        ("a,label,target\n1,0,1\n", None, "one of 'label' and 'target', got both"),
        ("a,a\n1,2\n2,2\n3,3\n", None, r"one name per column, got \['a'\]"),
        ("a,\n1,2\n2,2\n3,3\n", None, "a column without name"),
        ("", None, "with a header"),
        ("a\n", None, "at least one node"),
        ("a\n1\n2\n3\n", "source,target,weight\n0,1,x\n", "column 'weight': expected a finite number"),
    ],
)
def test_bad_csv(tmp_path, nodes, edges, sentence):
    place = folder(tmp_path, nodes, *([] if edges is None else [edges]))
    with pytest.raises(DataError, match=sentence) as caught:
        load_dataset(place)
    assert "\n" not in str(caught.value)


def test_all_missing_cells_are_reported_in_one_run(tmp_path):
    place = folder(tmp_path, "a,b,c\n1,,x\n,n/a,x\n3,,y\n")
    with pytest.raises(DataError) as caught:
        load_dataset(place)
    assert str(caught.value) == (
        "nodes.csv, line 2, column 'b': expected a finite number, got an empty cell "
        "(4 such cells by column: a: 1, b: 3); fill them, or drop the rows or columns"
    )


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("a,Label\n-1,x\n2,y\n3,x\n", "no column 'label', so column 'Label' is a feature"),
        ("a,lable\n-1,x\n2,y\n3,x\n", "no column 'label', so column 'lable' is a feature"),
        ("a,Targets\n-1,2\n2,1\n3,2\n", "no column 'target', so column 'Targets' is a feature"),
        ("a,b,year\n-1,1,1950\n1,-1,2000\n0,1,1990\n", "column 'year' reaches 2000, half of all columns at most 1"),
        ("a,b\n1,3\n1,1\n0,1\n", "each row was scaled to sum 1"),
    ],
)
def test_what_may_be_a_mistake_is_said(tmp_path, nodes, words):
    with pytest.warns(DataNotice, match=words):
        load_dataset(folder(tmp_path, nodes, "source,target\n0,1\n"))


@pytest.mark.parametrize("nodes", ["a,b\n-1,30\n2,-1\n0,2\n", "a,words,b\n0,1,0\n1,0,0\n0,0,1\n"])
def test_usual_features_need_no_note(tmp_path, nodes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_dataset(folder(tmp_path, nodes, "source,target\n0,1\n1,0\n"))


@pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs")])
def test_another_separator_is_named(tmp_path, separator, word):
    place = folder(tmp_path, "a,b\n1,2\n3,4\n5,6\n".replace(",", separator))
    with pytest.raises(DataError, match=f"expected cells separated by commas, got {word}"):
        load_dataset(place)


def test_scaled_features_of_a_graph_in_memory():
    graph = Data(x=torch.tensor([[1.0, 3.0], [2.0, 2.0]]), edge_index=torch.tensor([[0, 1], [1, 0]]))
    with pytest.warns(DataNotice, match="each row was scaled"):
        assert load_dataset(graph).x.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert torch.equal(load_dataset(graph, normalize_features=False).x, graph.x)


def test_a_column_of_text_becomes_features(tmp_path):
    """One column per text, in the order of the alphabet; a missing cell has none of them."""
    place = folder(tmp_path, "a,place,b\n1,south,4\n2,,5\n3,north,6\n")
    with pytest.warns(DataNotice, match="column 'place' holds text: its 2 different texts became features"):
        data = load_dataset(place, normalize_features=False)
    assert data.feature_names == ["a", "place=north", "place=south", "b"]
    assert data.x.tolist() == [[1, 0, 1, 4], [2, 0, 0, 5], [3, 1, 0, 6]]


def test_a_column_of_many_texts_is_left_out(tmp_path):
    rows = "".join(f"{row},street {row}\n" for row in range(30))
    with pytest.warns(DataNotice, match="column 'address' holds 30 different texts, too many for features"):
        data = load_dataset(folder(tmp_path, f"a,address\n{rows}"), normalize_features=False)
    assert data.feature_names == ["a"]
    assert data.x[:, 0].tolist() == list(range(30))
    with pytest.warns(DataNotice), pytest.raises(DataError, match="expected feature columns"):
        load_dataset(folder(tmp_path, "address\n" + "".join(f"street {row}\n" for row in range(30))))


def test_folder_without_the_tables(tmp_path):
    (tmp_path / "nodes.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"got no edges\.csv"):
        load_dataset(tmp_path)


def test_bytes_that_are_not_text(tmp_path):
    place = folder(tmp_path, "a\n1\n2\n3\n")
    (place / "nodes.csv").write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(DataError, match="UTF-8"):
        load_dataset(place)


def people() -> nx.Graph:
    graph = nx.Graph()
    for name, features, label in (("ann", [1, 0], "yes"), ("bob", [0, 1], None), ("cy", [1, 1], "no")):
        graph.add_node(name, x=features, label=label)
    graph.add_edge("ann", "bob", weight=2.0)
    graph.add_edge("bob", "cy", weight=3.0)
    return graph


def test_networkx():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset(people(), normalize_features=False)
    assert data.x.tolist() == [[1, 0], [0, 1], [1, 1]]
    assert data.y.tolist() == [1, -1, 0]
    assert data.class_names == ["no", "yes"]
    assert data.node_names == ["ann", "bob", "cy"]
    assert data.edge_index.tolist() == EDGES.tolist()
    assert data.edge_weight.tolist() == [2, 2, 3, 3]


def test_networkx_given_features_and_other_kinds():
    path = nx.path_graph(3)
    data = as_data(path, x=np.eye(3), y=np.array([1, 0, 1], dtype=np.uint8))
    assert data.edge_index.tolist() == EDGES.tolist()
    assert "node_names" not in data
    assert data.y.tolist() == [1, 0, 1]
    with pytest.warns(DataNotice, match="reverse"):
        assert as_data(nx.path_graph(3, nx.DiGraph), x=np.eye(3)).edge_index.tolist() == EDGES.tolist()
    path.add_edge(1, 1)
    with pytest.warns(DataNotice, match="1 self-loop"):
        as_data(path, x=np.eye(3))
    with pytest.warns(DataNotice, match="2 duplicate"):
        as_data(nx.MultiGraph([(0, 1), (0, 1), (1, 2)]), x=np.eye(3))


def test_scipy():
    adjacency = sparse.csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
    data = as_data(adjacency, x=sparse.eye(3), y=[0, 1, 1], name="mine")
    assert data.edge_index.tolist() == EDGES.tolist()
    assert "edge_weight" not in data
    assert (data.num_classes, data.name) == (2, "mine")


@pytest.mark.parametrize(
    ("graph", "options", "sentence"),
    [
        (nx.path_graph(3), {}, "node features `x`, got none"),
        (sparse.eye(3), {}, "node features `x`, got none"),
        (sparse.eye(3, 4), {"x": np.eye(3)}, r"square adjacency matrix, got shape \(3, 4\)"),
        (sparse.eye(3), {"x": np.eye(4)}, "each of 3 nodes, got 4 rows"),
        (nx.path_graph(3), {"x": np.eye(2)}, "each of 3 nodes, got 2 rows"),
        (nx.path_graph(2), {"x": [[1.0], [1.0, 2.0]]}, "features `x` as an array of numbers"),
        (nx.path_graph(2), {"x": np.eye(2), "y": ["a", "b"]}, "integer labels `y` as an array of numbers"),
        (np.eye(3), {"x": np.eye(3)}, "a SciPy sparse matrix, got ndarray"),
        (None, {}, "got NoneType"),
    ],
)
def test_bad_objects(graph, options, sentence):
    with pytest.raises(DataError, match=sentence):
        as_data(graph, **options)


def test_networkx_with_features_on_some_nodes():
    graph = people()
    graph.add_node("dot")
    with pytest.raises(DataError, match="attribute 'x' on every node, got 1 nodes without"):
        as_data(graph)
