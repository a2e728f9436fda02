"""Models as people train them: undecayed parameters, functional dropout, optimizers, corrections by retraining."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional
from torch_geometric.nn import GCNConv

from jurygcn import Jury, LeaveOut, Retraining
from jurygcn.data import synthetic
from jurygcn.errors import SettingError

DATA = synthetic(num_nodes=60, num_edges=240, num_features=6, num_classes=3, seed=0)
NODES = torch.arange(0, 60, 5)


class KipfGCN(nn.Module):
    """PyG's own example, with dropout as a function."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.dropout = GCNConv(6, 4), GCNConv(4, 3), dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, self.dropout, self.training)
        return self.second(torch.tanh(self.first(x, edge_index)), edge_index)


def fit(model: nn.Module, data, nodes: Tensor, weights: Tensor, epochs: int = 60) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    for layer in (model.first, model.second):
        layer.reset_parameters()
    groups = [{"params": model.first.parameters(), "weight_decay": 5e-3}, {"params": model.second.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=0.05)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        losses = functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes], reduction="none")
        (losses * weights).mean().backward()
        optimizer.step()
    model.eval()
    return optimizer


def trained(dropout: float = 0.0, dtype: torch.dtype = torch.float64):
    model = KipfGCN(dropout)
    optimizer = fit(model, DATA, NODES, torch.ones(len(NODES)))
    if dtype == torch.float64:  # the jury takes double models; their optimizer holds the same parameters
        for p in model.parameters():
            p.data = p.data.double()
    return model, optimizer


def dense_newton_steps(model: nn.Module, decay: Tensor) -> Tensor:
    """One Newton step of every leave-one-out problem, with the pseudo-inverse of the dense Gauss-Newton matrix."""
    names, shapes = zip(*[(name, p.shape) for name, p in model.named_parameters()], strict=True)
    sizes = [shape.numel() for shape in shapes]
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    x = DATA.x.double()

    def logits(flat: Tensor) -> Tensor:
        named = {n: part.view(s) for n, part, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return functional_call(model, named, (x, DATA.edge_index))[NODES]

    J, pi = jacrev(logits)(theta), torch.softmax(logits(theta), dim=1)
    S = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]
    terms = torch.einsum("icp,icd,idq->ipq", J, S, J) / len(NODES)
    residual = pi - functional.one_hot(DATA.y[NODES], 3)
    gradients = torch.einsum("icp,ic->ip", J, residual) / len(NODES)
    whole = torch.diag(decay) + terms.sum(dim=0)
    steps = [
        torch.linalg.pinv(whole - term, rtol=1e-9, hermitian=True) @ g for term, g in zip(terms, gradients, strict=True)
    ]
    return torch.stack(steps).detach()


def test_undecayed_layers_have_exact_newton_jurors():
    model, optimizer = trained()
    jury = Jury(model, DATA, NODES, weight_decay=optimizer, leave_out=LeaveOut(decay="stated")).fit()
    assert jury.jurors.solver == "dual"
    assert jury.dropout_masks == 0
    decay = jury.engine.decay
    assert {float(d) for d in decay} == {0.0, 5e-3}
    wanted = dense_newton_steps(model, decay)
    torch.testing.assert_close(jury.jurors.steps, wanted, rtol=0.0, atol=1e-7 * float(wanted.abs().max()))


def test_an_optimizer_and_a_prefix_say_the_same():
    model, optimizer = trained()
    by_optimizer = Jury(model, DATA, NODES, weight_decay=optimizer).fit().jurors.steps
    by_prefix = Jury(model, DATA, NODES, weight_decay={"first": 5e-3}).fit().jurors.steps
    torch.testing.assert_close(by_optimizer, by_prefix)


def test_no_decay_at_all_takes_the_effective_decay_and_nothing_is_claimed():
    model, _ = trained()
    jury = Jury(model, DATA, NODES, weight_decay=torch.optim.Adam(model.parameters())).fit()
    assert jury.leave_out.decay == "effective"
    claim = jury.verdict([0]).claim(0.2)
    assert claim.kind == "none"
    assert "no weight decay" in claim.words


def test_no_decay_at_all_is_remembered(tmp_path):
    model, _ = trained()
    jury = Jury(model, DATA, NODES, weight_decay=0.0).fit()
    jury.save(tmp_path / "jury")
    loaded = Jury.load(tmp_path / "jury", model, DATA)
    assert (loaded.leave_out.decay, loaded.dropout_masks) == ("effective", 0)
    assert loaded.verdict([0]).claim(0.2) == jury.verdict([0]).claim(0.2)


@pytest.mark.parametrize("decay", [{"first.lin": 5e-3, "second.lin": 5e-3}, {"first": 5e-3}])
def test_decay_on_some_parameters_takes_the_dual_solver(decay):
    """Zero on biases, or on the last layer: the fast way, in which undecayed parameters have exact jurors."""
    model, _ = trained()
    jury = Jury(model, DATA, NODES, weight_decay=decay, leave_out=LeaveOut(decay="stated")).fit()
    assert jury.jurors.solver == "dual"
    assert jury.verdict([0]).claim(0.2).kind == "target"
    assert not any("eigenvalues" in line for line in jury.health().advice)


class LiteralDropout(KipfGCN):
    """Dropout as a function, with its rate written into the forward pass."""

    def forward(self, x, edge_index):
        return super().forward(functional.dropout(x, 0.5, self.training), edge_index)


@pytest.mark.parametrize("kind", [LiteralDropout, KipfGCN])
def test_dropout_that_no_module_names_is_noticed_by_health(kind):
    model = kind().double()
    settings = LeaveOut(decay="stated", dropout_masks=0)
    off = Jury(model, DATA, NODES, weight_decay=1e-2, leave_out=settings).fit()
    found = kind is LiteralDropout
    assert off.health().random_in_training == found
    assert off.health().dropout == 0.0
    assert any("The model has dropout, which is off here" in line for line in off.health().advice) == found
    assert ("The model has dropout, which is off here" in off.verdict([0]).claim(0.2).words) == found


def test_dropout_as_a_function_is_found_and_named():
    model, optimizer = trained(0.5, torch.float32)
    stated = LeaveOut(decay="stated")
    averaged = Jury(model, DATA, NODES, weight_decay=optimizer, leave_out=stated).fit()
    assert averaged.dropout_masks == 8
    assert "8 draws of the model's dropout" in averaged.verdict([0], advice=None).claim(0.2).words
    off = LeaveOut(decay="stated", dropout_masks=0)
    in_eval_mode = Jury(model, DATA, NODES, weight_decay=optimizer, leave_out=off).fit()
    assert in_eval_mode.dropout_masks == 0
    assert not torch.allclose(in_eval_mode.jurors.steps, averaged.jurors.steps)
    assert Jury(model, DATA, NODES, weight_decay=optimizer).fit().dropout_masks == 0  # the effective decay needs none
    again = Jury(model, DATA, NODES, weight_decay=optimizer, leave_out=stated).fit()
    torch.testing.assert_close(again.jurors.steps, averaged.jurors.steps, rtol=0.0, atol=0.0)


def test_a_correction_scales_all_steps_and_says_what_it_did():
    model, optimizer = trained(dtype=torch.float32)
    recipe = Retraining(fit=fit, processes=1)
    plain = Jury(model, DATA, NODES, weight_decay=optimizer).fit()
    settings = {"weight_decay": optimizer, "retraining": recipe}
    jury = Jury(model, DATA, NODES, leave_out=LeaveOut(corrected_by=5), **settings).fit()
    assert jury.correction is not None
    torch.testing.assert_close(jury.jurors.steps, jury.correction.length * plain.jurors.steps)
    assert jury.correction.retrained == 5
    assert f"step length to {jury.correction.length:.2f}" in jury.correction.words
    assert jury.correction.error_after < 2 * jury.correction.error_before
    with pytest.raises(SettingError, match="retraining=Retraining"):
        Jury(model, DATA, NODES, leave_out=LeaveOut(corrected_by=5), weight_decay=optimizer).fit()
    with pytest.raises(SettingError, match="corrected_by"):
        LeaveOut("retrain", corrected_by=5)


def test_a_model_that_stopped_early_is_corrected_to_shorter_steps():
    """After three epochs a model has hardly moved, and neither have its retrained jurors."""
    model = KipfGCN()

    def short(model, data, nodes, weights):
        return fit(model, data, nodes, weights, epochs=3)

    optimizer = short(model, DATA, NODES, torch.ones(len(NODES)))
    jury = Jury(
        *(model, DATA, NODES),
        weight_decay=optimizer,
        retraining=Retraining(fit=short, processes=1),
        leave_out=LeaveOut(decay="stated", corrected_by=6),
    ).fit()
    assert jury.correction.length < 0.5
    assert jury.correction.error_after < jury.correction.error_before


def test_saved_and_loaded(tmp_path):
    model, optimizer = trained(0.5, torch.float32)
    jury = Jury(model, DATA, NODES, weight_decay=optimizer, leave_out=LeaveOut(dropout_masks=2)).fit()
    jury.save(tmp_path / "jury")
    loaded = Jury.load(tmp_path / "jury", model, DATA)
    assert loaded.leave_out.dropout_masks == loaded.dropout_masks == 2
    assert loaded.verdict([1], advice=None).claim(0.2).words == jury.verdict([1], advice=None).claim(0.2).words
    assert torch.equal(loaded.verdict([1, 2], advice=None).ambiguity, jury.verdict([1, 2], advice=None).ambiguity)
