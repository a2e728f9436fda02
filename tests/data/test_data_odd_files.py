"""Files that are too long, too wide or oddly named: read in linear time, or refused in a short sentence."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from jurygcn.active.labels import read_labels, with_classes
from jurygcn.cli.nodes import read_any_nodes
from jurygcn.data import as_data, csv_folder, load_dataset
from jurygcn.errors import DataError

EDGES = np.array([[0, 1, 1, 2], [1, 0, 2, 1]], dtype=np.int32)
X = np.array([[1, 3], [0, 0], [2, 2]], dtype=np.float32)


def folder(place, nodes, edges="source,target\n0,1\n1,0\n1,2\n2,1\n"):
    (place / "nodes.csv").write_text(nodes, encoding="utf-8")
    (place / "edges.csv").write_text(edges, encoding="utf-8")
    return place


def save(place, **arrays):
    np.savez(place / "mine.npz", **arrays)
    return place / "mine.npz"


LONG = "x" * 5_000


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (f"a\n{LONG}\n", None),
        (f"{LONG}\nx\n", None),
        ("a\n1\n2\n3\n", f"source,target\n0,{LONG}\n"),
        ("a\n1\n2\n3\n", f"source,target,weight\n0,1,{LONG}\n"),
        ("a\n1\n2\n3\n", f"{LONG},target\n0,1\n"),
        (f"a,label\n1,0\n2,{LONG}\n", None),
        (f"a,label\n1,0\n2,0.{'1' * 5000}\n", None),
        (f"id,a\n{LONG},1\n{LONG},2\n", None),
        (f"a,target\n1,0\n2,{LONG}\n", None),
        (f"{LONG},{LONG}\n1,2\n", None),
        ("id,label\n1,2\n", ",".join(f"c{k}" for k in range(5_000)) + "\n"),
        (",".join(f"c{k}" for k in range(5_000)) * 2 + "\n", None),
    ],
)
def test_errors_quote_little(tmp_path, nodes, edges):
    place = folder(tmp_path, nodes, *([] if edges is None else [edges]))
    with pytest.raises(DataError) as caught:
        load_dataset(place)
    assert len(str(caught.value)) < 400


def test_a_table_of_very_many_columns(tmp_path):
    """Time grows with the number of cells, not with its square."""
    count = 150_000
    header, row = ",".join(f"c{k}" for k in range(count)), ",".join(["1"] * count)
    place = folder(tmp_path, f"{header}\n{row}\n{row}\n{row}\n")
    started = time.monotonic()
    assert load_dataset(place, normalize_features=False).x.shape == (3, count)
    assert time.monotonic() - started < 30


def test_a_table_longer_than_a_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_folder, "BLOCK", 8)
    rows = [[f"n{k}", str(k), str(10 * k), str(-k)] for k in range(1, 12)]
    text = "id,a,b,c\n" + "".join(",".join(row) + "\n" for row in rows)
    data = load_dataset(folder(tmp_path, text, "source,target\nn1,n2\nn2,n1\n"), normalize_features=False)
    assert data.x.tolist() == [[k, 10 * k, -k] for k in range(1, 12)]
    with pytest.raises(DataError, match=r"line 11, column 'b': expected a finite number, got 'bad'"):
        load_dataset(folder(tmp_path, text.replace(",100,", ",bad,")))


@pytest.mark.parametrize(
    ("nodes", "edges", "sentence"),
    [
        ("id,a\nx,1\n,2\n", "source,target\nx,\n", "line 3: expected an id, got an empty cell"),
        ("a,label\n1,0\n2,1e308\n3,1\n", None, "integer labels, got 1e308"),
        ("a,label\n1,0\n2,-1e308\n3,1\n", None, "integer labels, got -1e308"),
        ("a,target\n1,0.5\n2,1e308\n3,1\n", None, "targets up to 3e38, got 1e.308 at node 1"),
        ("a\n1\n1e308\n3\n", None, "finite features, got inf"),
        ('a\n1\n"2\n3\n', None, "expected a CSV table, got unexpected end of data"),
        ("a\n1\n2\n3\n", "source,target,source\n0,1,2\n", r"one name per column, got .'source'. more than once"),
    ],
)
def test_odd_csv(tmp_path, nodes, edges, sentence):
    place = folder(tmp_path, nodes, *([] if edges is None else [edges]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=sentence):
            load_dataset(place)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"node_names": ["a", "b"]}, "node_names, a list with one name for each of 3, got 2"),
        ({"node_names": ["a", "b", "c", "d"]}, "for each of 3, got 4"),
        ({"node_names": ["a", "b", "a"]}, "node_names that differ and are not empty, got 'a' twice"),
        ({"node_names": ["a", "", "c"]}, "got an empty one"),
        ({"node_names": [["a", "b", "c"]]}, "node_names as a list of texts"),
        ({"node_names": "abc"}, "node_names as a list of texts"),
        ({"node_names": [1.5, 2.5, 3.5]}, "node_names as a list of texts"),
        ({"node_names": [b"a", b"\xff", b"c"]}, "node_names as a list of texts"),
        ({"node_names": np.array([0x7FFFFFFF, 98, 99], np.uint32).view("<U1")}, "node_names as a list of texts"),
        ({"node_names": np.array([0xD800, 98, 99], np.uint32).view("<U1")}, "of Unicode text, got '.ud800'"),
        ({"class_names": ["a"], "num_classes": 2}, "class_names, a list with one name for each of 2, got 1"),
        ({"class_names": ["a"]}, "labels below num_classes = 1, got 1"),
        ({"class_names": ["a", "b", "c"], "num_classes": 2}, "for each of 2, got 3"),
        ({"class_names": ["a", "a"]}, "class_names that differ"),
        ({"class_names": np.array([0xDFFF, 98], np.uint32).view("<U1")}, "class_names of Unicode text"),
        ({"y": np.array([0, 1e308, 1])}, "got label 1e.308 at node 1"),
        ({"y": np.array([0.5, 1e308, 1.5]), "num_classes": 0}, "targets up to 3e38, got 1e.308 at node 1"),
        ({"x": np.array([[1], [2**63 + 1], [3]], dtype=np.uint64)}, "below 2.63 in x"),
    ],
)
def test_odd_npz(tmp_path, arrays, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        load_dataset(save(tmp_path, **{"edge_index": EDGES, "x": X, "y": np.array([0, 1, 1]), **arrays}))
    assert len(str(caught.value)) < 300


def test_names_in_other_types(tmp_path):
    given = {"node_names": np.array([30, 10, 20]), "class_names": np.array([b"no", "jä".encode(), b"yes"])}
    data = load_dataset(save(tmp_path, edge_index=EDGES, x=X, y=np.array([0, 1, 1]), **given))
    assert data.node_names == ["30", "10", "20"]
    assert (data.class_names, data.num_classes) == (["no", "jä", "yes"], 3)


def test_names_in_networkx():
    graph = nx.Graph([(1, "1"), ("1", 2)])
    with pytest.raises(DataError, match="node_names that differ and are not empty, got '1' twice"):
        as_data(graph, x=np.eye(3))
    with pytest.raises(DataError, match="node_names of Unicode text"):
        as_data(nx.Graph([("\ud800", "b"), ("b", "c")]), x=np.eye(3))


def test_a_folder_whose_name_is_no_text(tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/g\xff"))
    place.mkdir()
    assert load_dataset(folder(place, "a\n1\n2\n3\n")).name == "g?"


# --- files of labels and of nodes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"node,label\n{LONG},0\n", "line 2: expected a node number"),
        (f"node,label\n1,{LONG}\n", "line 2: expected one of the classes"),
        (f"{LONG},label\n1,0\n", "expected the columns node and label"),
        ("node,label,label\n1,0,1\n", r"one name per column, got .'label'. more than once"),
        ("node, label,label\n1,0,1\n", r"one name per column, got .'label'. more than once"),
        ("node,label\n1,0,1\n", "line 2: expected 2 cells as in the header, got 3"),
        ('node,label\n1,"0\n2,1\n', "expected a CSV table"),
    ],
)
def test_odd_files_of_labels(tmp_path, text, sentence):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=sentence) as caught:
        read_labels(path, load_dataset("karate"))
    assert len(str(caught.value)) < 300


def test_short_rows_have_no_label(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("node,reason,label\n1,x,0\n2\n\n3,y\n")
    assert read_labels(path, load_dataset("karate"))[0].tolist() == [1]


def test_odd_files_of_nodes(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text(LONG)
    with pytest.raises(DataError, match=r"line 1: .* got 'xxx.*'\.\.\. \(5,000 characters\)") as caught:
        read_any_nodes(path, load_dataset("karate"), "--candidates")
    assert len(str(caught.value)) < 300


def test_classes_that_are_no_text():
    with pytest.raises(DataError, match="expected classes of Unicode text"):
        with_classes(load_dataset("karate"), None, ["a", "b", "c", "\udcff"])
