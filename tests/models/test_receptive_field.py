"""What is remembered of a graph, and for how long."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from cases import graph
from jurygcn.graph.propagation import Propagation
from jurygcn.models import GCN
from jurygcn.models.receptive_field import ReceptiveField


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_nothing_is_remembered_of_a_graph_that_is_gone():
    """Not even until the garbage collector comes: it does not know how large a graph is."""
    data = graph("two_block")
    field = weakref.ref(ReceptiveField.of(GCN(data.num_features, 4, 3), data, torch.arange(data.num_nodes)))
    propagation = weakref.ref(Propagation.of(data))
    assert field() is not None
    assert propagation() is not None
    del data
    assert field() is None
    assert propagation() is None


def test_a_graph_is_propagated_anew_when_it_changes():
    data = graph("two_block")
    everyone, model = torch.arange(data.num_nodes), GCN(data.num_features, 4, 3)
    first, field = Propagation.of(data), ReceptiveField.of(model, data, everyone)
    assert Propagation.of(data) is first
    assert ReceptiveField.of(model, data, everyone) is field
    data.x = 2 * data.x
    assert Propagation.of(data) is not first
    assert ReceptiveField.of(model, data, everyone) is not field
