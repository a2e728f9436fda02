"""Full conformal prediction against dense matrices, against refitting and against retraining."""

from __future__ import annotations

import pytest
import torch
from full_cases import (
    ASKED,
    CLASSES,
    NODES,
    dense_jacobian,
    full_rows,
    graph,
    jury_of,
    models,
    refit,
    softmax_curvature,
)
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from hetero_models import PAPERS, logits, made
from jurygcn import GCN, Jury, train
from jurygcn.conformal.changes import Changes, learn
from jurygcn.derivatives import gcn_grams
from jurygcn.errors import SettingError
from jurygcn.graph.propagation import graph_cache
from jurygcn.graph.similarity import Similarities
from jurygcn.leave_one_out.added import AddedLabels, log_average_slopes
from jurygcn.leave_one_out.added_panel import AddedToPanel
from jurygcn.leave_one_out.panel import RIDGES, Panel
from jurygcn.linalg import multiply_small, solve_small
from jurygcn.settings import LeaveOut, Run


@pytest.mark.parametrize("name", list(models()))
def test_kernels_by_dense_matrices(name: str):
    """K_uu, the kernel without i, and what a residual at u changes at i, from dense inverses."""
    data = graph()
    jury = jury_of(name, data)
    n, J, Ju = len(NODES), dense_jacobian(jury, NODES), dense_jacobian(jury, ASKED)
    z = jury.engine.train_outputs
    pieces = J.mT @ softmax_curvature(z) @ J / n
    H = torch.diag(jury.curvature.diagonal) + pieces.sum(dim=0)
    added = AddedLabels(jury.factorised)
    ((_, found),) = added.at(ASKED, memory=1e9)
    inverse = torch.linalg.pinv(H, rtol=1e-11, hermitian=True)
    torch.testing.assert_close(found.own, Ju @ inverse @ Ju.mT / n, atol=1e-9, rtol=1e-8)
    for i in (0, 7, n - 1):
        without = torch.linalg.pinv(H - pieces[i], rtol=1e-11, hermitian=True)
        cross = found.cross[i]
        torch.testing.assert_close(found.own + cross @ cross.mT, Ju @ without @ Ju.mT / n, atol=1e-9, rtol=1e-8)
        moved = -J[i] @ without @ Ju.mT / n
        centred = moved - moved.mean(dim=1, keepdim=True)  # a common shift of all logits changes nothing
        reading = found.reading[:, i]
        torch.testing.assert_close(reading - reading.mean(dim=1, keepdim=True), centred, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("hidden", [2, 30], ids=["more neighbours than units", "fewer"])
@pytest.mark.parametrize("share", [0.1, 1.0], ids=["sparse features", "dense"])
@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_own_kernels_by_dense_rows(
    hidden: int, share: float, uniform: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
):
    """J_u diag(d) J_u^T of all nodes, also where sparse features are not made dense as a whole."""
    monkeypatch.setattr(gcn_grams, "TEMPORARY_NUMBERS", 100)
    monkeypatch.setattr(gcn_grams, "KEPT_NUMBERS", 10_000 if kept else 0)
    data, generator = graph(), torch.Generator().manual_seed(0)
    data.x = torch.where(torch.rand(90, 40, generator=generator) < share, 1.0, 0.0).double()
    jury = Jury(GCN(40, hidden, CLASSES).double(), data, NODES, weight_decay=1e-2)
    scale = torch.rand(jury.engine.num_parameters, generator=generator, dtype=torch.float64)
    if uniform:
        scale = torch.cat([scale[:hidden].repeat(40), scale[40 * hidden :]])
    J = dense_jacobian(jury, torch.arange(90))
    for _ in range(2):  # the second time from what is kept
        torch.testing.assert_close(jury.engine.own_grams(torch.arange(90), scale), (J * scale) @ J.mT)
    there = "neighbours" in [key[0] for key in graph_cache(data).whole]
    assert there == (kept and uniform)


@pytest.mark.parametrize("steps", [1, 2])
def test_kernels_of_averaged_votes(steps: int):
    data = graph()
    jury = jury_of("gcn", data)
    slopes = log_average_slopes(jury.engine, NODES, steps)
    theta, closed = jury.engine.theta.clone(), torch.eye(90, dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    mean = torch.linalg.matrix_power(closed / closed.sum(dim=1, keepdim=True), steps)

    def logs(at: Tensor) -> Tensor:
        return (mean[NODES] @ jury.engine.outputs(at).softmax(dim=1)).log()

    direction = torch.randn(len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = (logs(theta + 1e-6 * direction) - logs(theta - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close(slopes @ direction, expected, atol=1e-6, rtol=1e-6)
    added = AddedLabels(jury.factorised, diffusion=steps)
    ((_, found),) = added.at(ASKED, memory=1e9)
    J, Ju, n = dense_jacobian(jury, NODES), dense_jacobian(jury, ASKED), len(NODES)
    pieces = J.mT @ softmax_curvature(jury.engine.train_outputs) @ J / n
    H = torch.diag(jury.curvature.diagonal) + pieces.sum(dim=0)
    for i in (0, 11):
        expected = -slopes[i] @ torch.linalg.inv(H - pieces[i]) @ Ju.mT / n
        torch.testing.assert_close(found.reading[:, i], expected, atol=1e-9, rtol=1e-8)


def test_learned_residuals_solve_the_proximal_problem():
    generator = torch.Generator().manual_seed(0)
    z = 5 * torch.randn(20, 4, generator=generator, dtype=torch.float64)
    half = torch.randn(20, 4, 4, generator=generator, dtype=torch.float64)
    for scale in (1e-3, 1.0, 300.0):
        kernel = scale * half @ half.mT
        learned = learn(z, kernel)
        p = (z.unsqueeze(1) - (kernel.unsqueeze(1) @ learned.residuals.unsqueeze(3)).squeeze(3)).softmax(dim=2)
        torch.testing.assert_close(learned.residuals, p - torch.eye(4), atol=1e-7, rtol=1e-6)
        S = torch.diag_embed(p) - p.unsqueeze(3) * p.unsqueeze(2)
        expected = torch.linalg.solve(torch.eye(4) + S @ kernel.unsqueeze(1), S)
        torch.testing.assert_close(learned.stiffness, expected, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("steps", [0, 1])
def test_changes_by_dense_matrices(steps: int):
    """The joint Newton step around the learned label, and what the first order is off by."""
    data = graph()
    jury = jury_of("gcn", data)
    added = AddedLabels(jury.factorised, diffusion=steps)
    ((_, kernels),) = added.at(ASKED, memory=1e9)
    learned, targets, n = learn(kernels.outputs, kernels.own), jury.engine.targets, len(NODES)
    changes = Changes(kernels, torch.arange(len(ASKED)), learned, added.jumps, targets)
    first, bound = changes.first_order(), changes.bound()
    for u in (0, 3):
        z, K = kernels.outputs[u], kernels.own[u]
        for y in range(CLASSES):
            q = learned.residuals[u, y]
            fitted = z - K @ q
            S = torch.diag(fitted.softmax(dim=0)) - torch.outer(fitted.softmax(dim=0), fitted.softmax(dim=0))
            for i in (0, 7, n - 1):
                A = kernels.cross[i, u]
                # the residual a of u is that of its quadratic loss at the logits z + A j - (K + A A^T) a
                left = torch.eye(CLASSES, dtype=z.dtype) + S @ (K + A @ A.T)
                a = torch.linalg.solve(left, q + S @ (z + A @ added.jumps[i] - fitted))
                moved = kernels.reading[u, i] @ a
                expected = moved - moved[targets[i]]
                found = changes.exact(torch.tensor([u]), torch.tensor([y]), torch.tensor([i]))[:, 0]
                torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-7)
                assert float((first[u, y, :, i] - expected).abs().max()) <= float(bound[u, y, i])


def test_small_systems():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 3, 5, generator=generator, dtype=torch.float64)
    right = torch.randn(40, 3, 2, generator=generator, dtype=torch.float64)
    last = [part.permute(1, 2, 0) for part in (rows, rows.mT, right)]
    system = multiply_small(last[0], last[1])
    torch.testing.assert_close(system.permute(2, 0, 1), rows @ rows.mT)
    expected = torch.linalg.solve(rows @ rows.mT, right)
    torch.testing.assert_close(solve_small(system.clone(), last[2].clone()).permute(2, 0, 1), expected)


# --- the panel, by new fits ---------------------------------------------------------------------------


def test_lengths_of_rows():
    data = graph()
    similarities = Similarities.of(data)
    for view, rows in zip(similarities.views, full_rows(data)):
        torch.testing.assert_close(similarities.squared_lengths(view), rows[:, :-1].square().sum(dim=1))


def test_panel_by_new_fits():
    """Every regression without label i and with the label of u, at i: exact."""
    data = graph()
    targets = functional.one_hot(data.y[NODES], CLASSES).double()
    panel = Panel(data, NODES, targets)
    everything = full_rows(data)
    positions, ridges = torch.arange(len(NODES)), len(panel.members) // len(everything)
    for k, member in enumerate(panel.members):
        rows = everything[k // ridges]
        added = AddedToPanel(panel, [member], torch.ones(1, len(NODES)), positions, ASKED)
        fixed, gain = added.at(torch.arange(len(ASKED)))
        for place, u in enumerate(ASKED.tolist()):
            for i in (0, 5, 19):
                kept = [j for j in range(len(NODES)) if j != i]
                label = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
                weights = refit(rows[[*NODES[kept].tolist(), u]], torch.cat([targets[kept], label[None]]), member.ridge)
                expected = rows[NODES[i]] @ weights
                torch.testing.assert_close(fixed[place, i] + gain[place, i] * label, expected, atol=2e-6, rtol=1e-6)


def panel_scores(data: Data, u: int, y: int, ridges: list[float], views: list[Tensor]) -> tuple[Tensor, float]:
    """LAC scores of the labels and of (u, y) in their bag, each by regressions on the other members."""
    bag = [*NODES.tolist(), u]
    labels = torch.cat([data.y[NODES], torch.tensor([y])])
    targets = functional.one_hot(labels, CLASSES).double() - 1 / CLASSES
    total = torch.zeros(len(bag), CLASSES, dtype=torch.float64)
    for rows in views:
        for ridge in ridges:
            for k in range(len(bag)):
                others = [j for j in range(len(bag)) if j != k]
                total[k] += rows[bag[k]] @ refit(rows[[bag[j] for j in others]], targets[others], ridge)
    pooled = torch.softmax(5.0 * total / (len(views) * len(ridges)), dim=1)
    scores = 1 - pooled.gather(1, labels[:, None]).squeeze(1)
    return scores[:-1], float(scores[-1])


def test_panel_alone_is_full_conformal_prediction():
    """The p-values of the panel alone are those of full conformal prediction with every member refitted."""
    data = graph()
    jury = jury_of("gcn", data)
    verdict = jury.verdict(ASKED, advice="panel", full=True)
    views = full_rows(data)
    for place, u in enumerate(ASKED.tolist()):
        for y in range(CLASSES):
            others, mine = panel_scores(data, u, y, list(RIDGES), views)
            p = (1 + int((others >= mine - 1e-7).sum())) / (len(NODES) + 1)
            assert float(verdict.full_p_values[place, y]) == pytest.approx(p, abs=1e-9)
    assert verdict.claim(0.1, method="full").kind == "promise"
    assert verdict.claim(0.1, method="full").coverage == pytest.approx(0.9)
    assert verdict.claim(0.1).coverage == pytest.approx(0.8)


# --- the model, by retraining -------------------------------------------------------------------------


def settled(model: GCN, data: Data, nodes: Tensor, labels: Tensor, count: int, decay: float, loss: str) -> Tensor:
    """Parameters at the minimum of the bag's objective, from the model's; (P,)."""
    theta = torch.cat([p.detach().flatten() for p in model.parameters()]).clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS(
        [theta], lr=1.0, max_iter=150, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )
    sizes = [p.shape for p in model.parameters()]

    def outputs() -> Tensor:
        W1, W2 = (part.view(size) for part, size in zip(theta.split([s.numel() for s in sizes]), sizes))
        return torch.func.functional_call(model, {"weights.0": W1, "weights.1": W2}, (data.x, data.edge_index))

    def objective() -> Tensor:
        optimizer.zero_grad()
        z = outputs()[nodes]
        losses = (
            functional.cross_entropy(z, labels, reduction="sum")
            if loss == "cross_entropy"
            else (z.squeeze(1) - labels).square().sum()
        )
        value = losses / count + 0.5 * decay * theta.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    return outputs().detach()


def converged(data: Data, decay: float, *, activation: str, outputs: int, loss: str) -> GCN:
    model = GCN(8, 4, outputs, activation=activation).double()
    train(model, data, NODES, epochs=100, weight_decay=decay, loss=loss)
    labels = data.y[NODES] if loss == "cross_entropy" else data.y[NODES].double()
    theta = torch.cat([p.detach().flatten() for p in model.parameters()]).clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([theta], max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
    sizes = [p.shape for p in model.parameters()]

    def objective() -> Tensor:
        optimizer.zero_grad()
        parts = [part.view(size) for part, size in zip(theta.split([s.numel() for s in sizes]), sizes)]
        z = torch.func.functional_call(
            model, {f"weights.{k}": W for k, W in enumerate(parts)}, (data.x, data.edge_index)
        )[NODES]
        losses = (
            functional.cross_entropy(z, labels) if loss == "cross_entropy" else (z.squeeze(1) - labels).square().mean()
        )
        value = losses + 0.5 * decay * theta.square().sum()
        value.backward()
        return value

    optimizer.step(objective)
    with torch.no_grad():
        for p, part in zip(model.parameters(), theta.split([s.numel() for s in sizes])):
            p.copy_(part.view(p.shape))
    return model


def test_model_by_retraining():
    """Counts of the estimated bags are close to those of bags that are retrained to convergence."""
    data, decay = graph(), 2e-2
    model = converged(data, decay, activation="relu", outputs=CLASSES, loss="cross_entropy")
    jury = Jury(model, data, NODES, weight_decay=decay).fit()
    asked = torch.tensor([1, 40])
    found = jury.verdict(asked, advice=None, diffusion=0, full=True).tally("full").counts
    n, off, plus = len(NODES), [], []
    votes = jury.verdict(asked, advice=None, diffusion=0).tally().counts
    mine = model(data.x, data.edge_index).softmax(dim=1)
    for place, u in enumerate(asked.tolist()):
        for y in range(CLASSES):
            at_least = 0
            for i in range(n):
                kept = [j for j in range(n) if j != i]
                bag = torch.cat([NODES[kept], torch.tensor([u])])
                labels = torch.cat([data.y[NODES[kept]], torch.tensor([y])])
                z = settled(model, data, bag, labels, n, decay, "cross_entropy")
                at_least += int(z[NODES[i]].softmax(dim=0)[data.y[NODES[i]]] <= mine[u, y])
            off.append(abs(int(found[place, y]) - at_least))
            plus.append(abs(int(votes[place, y]) - at_least))
    assert sum(off) <= 0.05 * n * len(off), off  # p-values are off by 0.05 at most on average
    assert sum(off) <= sum(plus)  # and closer than those of the jackknife+


# --- sets of any jury ---------------------------------------------------------------------------------


def test_labelled_nodes_have_jackknife_plus_counts():
    data = graph()
    jury = jury_of("gcn", data)
    verdict = jury.verdict(full=True, advice=None)
    assert torch.equal(verdict.tally("full").counts[NODES], verdict.tally("jackknife+").counts[NODES])


def test_memory_and_batches_do_not_change_counts():
    data = graph()
    jury = jury_of("gcn", data)
    whole = jury.verdict(full=True).tally("full").counts
    small = Jury(
        jury.engine.model, data, NODES, weight_decay=1e-2, leave_out=jury.leave_out, run=Run(memory="4MB")
    ).fit()
    assert torch.equal(small.verdict(full=True).tally("full").counts, whole)


def test_smoothed_p_values():
    data = graph()
    verdict = jury_of("gcn", data).verdict(full=True)
    tally = verdict.tally("full")
    smoothed, again = tally.p_values(smoothed=3), tally.p_values(smoothed=3)
    assert torch.equal(smoothed, again)
    assert bool((smoothed <= tally.p_values()).all())
    assert bool((smoothed > tally.p_values() - (2 + tally.ties) / (1 + tally.voters)).all())
    with pytest.raises(SettingError, match="expected method='full'"):
        verdict.tally().p_values(smoothed=0)


def test_what_is_refused():
    data = graph()
    jury = jury_of("gcn", data)
    verdict = jury.verdict()
    with pytest.raises(SettingError, match="full=True"):
        verdict.label_sets(0.1, method="full")
    with pytest.raises(SettingError, match="expected method"):
        verdict.label_sets(0.1, method="split")
    with pytest.raises(SettingError, match="expected a regression"):
        jury.verdict(interval="full")
    influence = Jury(jury.engine.model, data, NODES, weight_decay=1e-2, leave_out="influence").fit()
    with pytest.raises(SettingError, match="expected newton jurors"):
        influence.verdict(full=True)
    assert influence.verdict(full=True, advice="panel").claim(0.1, method="full").kind == "promise"


@pytest.mark.parametrize("kind", ["to_hetero sage", "hgt"])
def test_heterogeneous_graphs(kind: str):
    """K_uu of one node type by plain backward passes and a dense inverse."""
    model, data = made(kind)
    train_nodes, asked = torch.arange(0, PAPERS, 2), torch.tensor([1, 5])
    jury = Jury(
        model, data, train_nodes, node_type="paper", weight_decay=0.03, leave_out=LeaveOut(decay="stated")
    ).fit()
    parameters = list(model.parameters())

    def rows(nodes: Tensor) -> Tensor:
        with torch.enable_grad():
            z = logits(model, data)[nodes]
            found = [
                torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True) for entry in z.flatten()
            ]
        filled = [[torch.zeros_like(p) if g is None else g for g, p in zip(entry, parameters)] for entry in found]
        return torch.stack([torch.cat([g.flatten() for g in entry]) for entry in filled]).view(*z.shape, -1)

    J, Ju, z = rows(train_nodes), rows(asked), logits(model, data)[train_nodes].detach()
    n = len(train_nodes)
    H = torch.diag(jury.curvature.diagonal) + (J.mT @ softmax_curvature(z) @ J / n).sum(dim=0)
    ((_, found),) = AddedLabels(jury.factorised).at(asked, memory=1e9)
    torch.testing.assert_close(found.own, Ju @ torch.linalg.inv(H) @ Ju.mT / n, atol=1e-8, rtol=1e-7)
    assert int(jury.verdict(full=True).tally("full").counts.max()) <= n


@pytest.mark.parametrize("name", ["biases", "sage"])
def test_any_model_has_full_sets(name: str):
    """Verdicts of models with automatic derivatives, with and without averages over neighbourhoods."""
    jury = jury_of(name, graph())
    for settings in ({"advice": None, "diffusion": 0}, {"advice": None, "diffusion": 1}, {}):
        verdict = jury.verdict(full=True, **settings)
        p, others = verdict.full_p_values, ~torch.isin(torch.arange(90), NODES)
        assert float((p - verdict.p_values)[others].abs().mean()) < 0.1
