"""Edits of a model whose last layer has no weight decay, and more weights than the labels determine."""

from __future__ import annotations

import pytest
import torch
from edited_cases import DECAY, Naive, edited_by_hand, edits, small
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from jurygcn import Jury, LeaveOut
from jurygcn.edits.base import base_of
from jurygcn.edits.edit import edit_of
from jurygcn.edits.steps import Objectives
from jurygcn.errors import JuryWarning
from jurygcn.models import train


class Wide(nn.Module):
    """Two layers, of which the last has 16 hidden units for each of 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = SAGEConv(4, 16), SAGEConv(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(torch.nn.functional.elu(self.first(x, edge_index)), edge_index)


@pytest.fixture(scope="module")
def jury() -> Jury:
    data, nodes = small()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Wide().double()
    train(model, data, nodes, epochs=60, weight_decay=DECAY, seed=0)
    decay = {name: DECAY if name.startswith("first") else 0.0 for name, _ in model.named_parameters()}
    leave_out = LeaveOut(decay="stated", dropout_masks=0)
    return Jury(model, data, nodes, weight_decay=decay, leave_out=leave_out)


@pytest.mark.parametrize("kind", ["remove_edges", "add_edges"])
def test_the_step_stays_where_labels_determine_the_parameters(jury: Jury, kind: str) -> None:
    """The Newton step in the directions that the old curvature has, by dense matrices."""
    edit = next(e for e in edits(jury.data).values() if set(e) == {kind})
    data, nodes = edited_by_hand(jury.data, jury.train_nodes, edit)
    count, model = len(jury.train_nodes), jury.engine.model
    old = Naive(model, jury.data, jury.train_nodes.tolist(), loss="cross_entropy", count=count)
    new = Naive(model, data, nodes, loss="cross_entropy", count=count)
    theta = old.theta
    undecayed = torch.diag((jury.engine.decay == 0).double()) * DECAY  # Naive puts the decay on all parameters
    before, after = (one.gauss_newton(theta) - undecayed for one in (old, new))
    change = new.gradient(theta) - old.gradient(theta)
    values, vectors = torch.linalg.eigh(before)
    basis = vectors[:, values > 1e-10 * values[-1]]
    assert basis.shape[1] < len(theta), "some directions are determined by no label"
    wanted = -basis @ torch.linalg.solve(basis.T @ after @ basis, basis.T @ change)

    with pytest.warns(JuryWarning, match="no label determined before"):
        found = Objectives(base_of(jury), [edit_of(jury.engine, **edit)]).solve(-change[:, None], tolerance=1e-12)[:, 0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-8)


def test_what_drives_a_prediction_is_found_all_the_same(jury: Jury) -> None:
    with pytest.warns(JuryWarning):
        table = jury.influence_on(1, of="edges")
    assert len(table)
    assert table.notna().all().all()
