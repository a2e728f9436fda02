"""Algorithm 2 end to end: against the naive reference, and the properties it must have."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from cases import CASES, GRAPHS, Case, graph
from jurygcn.conformal.scores import aps_scores
from jurygcn.errors import DataError, ModelError, SettingError
from jurygcn.jury import Jury
from jurygcn.models import GCN, train
from jurygcn.settings import LeaveOut, Run

EXACT = {"rtol": 1e-9, "atol": 1e-11}


def jury_of(case: Case, **settings) -> Jury:
    engine = case.engine(weight_decay=0.05, trained=True)
    settings = {"weight_decay": 0.05, "loss": case.loss, **settings}
    return Jury(engine.model, engine.data, engine.train_nodes, **settings).fit()


def naive_votes(jury: Jury) -> np.ndarray:
    """Every juror's predictions by putting its parameters into a fresh model, (n, N, C)."""
    votes = []
    for step in jury.jurors.steps:
        logits = jury.engine.outputs(jury.engine.theta + step)
        votes.append(jury.engine.loss.predict(logits).numpy())
    return np.stack(votes)


def naive_smoothing(votes: np.ndarray, data: Data, k: int) -> np.ndarray:
    N = int(data.num_nodes)
    M = np.eye(N)
    for a, b in data.edge_index.T.tolist():
        M[b, a] = 1.0
    M /= M.sum(axis=1, keepdims=True)
    for _ in range(k):
        votes = np.einsum("uv,ivc->iuc", M, votes)
    return votes


def naive_counts(votes: np.ndarray, jury: Jury, score) -> np.ndarray:
    """#{i != u: s_{-i}(i, y_i) >= s_{-i}(u, y)} by three loops."""
    _, N, C = votes.shape
    s = np.stack([score(v) for v in votes])
    counts = np.zeros((N, C), dtype=int)
    for u in range(N):
        for y in range(C):
            for i, node in enumerate(jury.train_nodes.tolist()):
                own = s[i, node, int(jury.engine.targets[i])]
                counts[u, y] += node != u and own >= s[i, u, y] - 1e-12
    return counts


def naive_aps(p: np.ndarray) -> np.ndarray:
    return np.array([[row[row >= row[c] - 1e-12].sum() for c in range(len(row))] for row in p])


@pytest.mark.parametrize("case", [c for c in CASES if c.loss == "cross_entropy"], ids=str)
@pytest.mark.parametrize("leave_out", ["influence", "newton"])
def test_verdict_is_algorithm_2_by_hand(case: Case, leave_out: str):
    jury = jury_of(case, leave_out=leave_out)
    votes, train_nodes = naive_votes(jury), jury.train_nodes.tolist()
    verdict = jury.verdict(alpha=0.2, diffusion=0, advice=None)
    np.testing.assert_allclose(jury.leave_one_out_predictions().numpy(), votes, rtol=1e-9)
    one_hot = np.eye(3)[jury.engine.targets]
    err = [np.linalg.norm(one_hot[i] - votes[i, node]) for i, node in enumerate(train_nodes)]  # Eq. (6)
    np.testing.assert_allclose(verdict.loo_errors, err, rtol=1e-9)
    for u in range(int(jury.data.num_nodes)):
        others = [i for i, node in enumerate(train_nodes) if node != u]  # erratum E4
        norms = [np.linalg.norm(votes[i, u]) for i in others]
        lower = np.quantile([s - err[i] for s, i in zip(norms, others)], 0.2)  # Eq. (7)
        upper = np.quantile([s + err[i] for s, i in zip(norms, others)], 0.8)
        assert verdict.lower[u].item() == pytest.approx(lower, rel=1e-9)
        assert verdict.upper[u].item() == pytest.approx(upper, rel=1e-9)
        assert verdict.width[u].item() == pytest.approx(upper - lower, rel=1e-9)  # Eq. (8)
        assert verdict.num_jurors[u] == len(others)
        centre = votes[others, u].mean(axis=0)
        spread = ((votes[others, u] - centre) ** 2).sum() * (len(others) - 1) / len(others)
        assert verdict.loo_variance[u].item() == pytest.approx(spread, rel=1e-6, abs=1e-12)
        share = naive_smoothing(verdict.outputs.numpy()[None], jury.data, 2)[0, u, int(verdict.predicted_class[u])]
        assert verdict.neighbour_doubt[u].item() == pytest.approx(1 - share, rel=1e-9)
        theirs = votes[others, u]  # another class strictly ahead of the model's; a tie changes no label
        ahead = theirs.max(axis=1) - theirs[:, int(verdict.predicted_class[u])]
        if not ((ahead > 0) & (ahead < 1e-9)).any():  # rounding decides no test
            assert verdict.label_flips[u].item() == pytest.approx(np.mean(ahead > 0), abs=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("diffusion", [0, 1, 2])
@pytest.mark.parametrize("score", ["lac", "aps"])
def test_p_values_and_sets_by_hand(name: str, diffusion: int, score: str):
    jury = jury_of(Case(name, 2, "cross_entropy"))
    verdict = jury.verdict(diffusion=diffusion, nonconformity=score, advice=None)
    votes = naive_smoothing(naive_votes(jury), jury.data, diffusion)
    counts = naive_counts(votes, jury, naive_aps if score == "aps" else lambda p: 1 - p)
    n_prime = verdict.num_jurors.numpy()[:, None]
    np.testing.assert_allclose(verdict.p_values, (1 + counts) / (n_prime + 1))
    for alpha in (0.1, 0.2, 0.34, 0.5):
        inside = (n_prime - counts) < (1 - alpha) * (n_prime + 1) - 1e-12  # strictly fewer stranger jurors
        np.testing.assert_array_equal(verdict.label_sets(alpha).numpy(), inside)
        np.testing.assert_array_equal(verdict.set_size(alpha).numpy(), inside.sum(axis=1))
    p = np.sort(verdict.p_values.numpy(), axis=1)
    np.testing.assert_allclose(verdict.credibility, p[:, -1])
    np.testing.assert_allclose(verdict.confidence, 1 - p[:, -2])
    np.testing.assert_allclose(verdict.ambiguity, 1 - (p[:, -1] - p[:, -2]))


def test_auto_diffusion_takes_the_best_log_score():
    jury = jury_of(Case("two_block", 2, "cross_entropy"))
    scores = {}
    for k in (0, 1, 2):
        votes = naive_smoothing(naive_votes(jury), jury.data, k)
        own = [votes[i, u, int(jury.engine.targets[i])] for i, u in enumerate(jury.train_nodes.tolist())]
        scores[k] = np.mean(np.log(own))
    best = max(scores, key=scores.get)
    auto = jury.verdict(advice=None)
    assert auto.diffusion == best
    np.testing.assert_array_equal(auto.p_values, jury.verdict(diffusion=best, advice=None).p_values)
    np.testing.assert_array_equal(
        auto.width, jury.verdict(diffusion=0, advice=None).width
    )  # the paper's width is not smoothed


@pytest.mark.parametrize("method", ["jackknife+", "jackknife", "minmax"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_intervals_by_hand(method: str, outputs: int):
    data = graph("two_block", classes=outputs, regression=True)
    data.y = data.y[:, 0] if outputs == 1 else data.y
    model = GCN(4, 3, outputs).double()
    nodes = torch.arange(0, 10)
    train(model, data, nodes, loss="mse", weight_decay=0.05)
    jury = Jury(model, data, nodes, loss="mse", weight_decay=0.05).fit()
    verdict = jury.verdict(alpha=0.2, interval=method, advice=None)
    named = [name for name in verdict.to_frame() if name.startswith("predicted_value")]
    assert named == (["predicted_value"] if outputs == 1 else [f"predicted_value_{c}" for c in range(outputs)])
    votes, y = naive_votes(jury), data.y.reshape(12, -1).numpy()
    lower, upper = verdict.lower.reshape(12, -1), verdict.upper.reshape(12, -1)
    full = jury.engine.outputs(jury.engine.theta).numpy()
    for u in range(12):
        others = [i for i in range(10) if i != u]
        n = len(others)
        k_low, k_high = math.floor(0.2 * (n + 1)), math.ceil(0.8 * (n + 1))
        for c in range(outputs):
            R = np.array([abs(y[i, c] - votes[i, i, c]) for i in others])
            f = votes[others, u, c]
            half = np.sort(R)[k_high - 1]
            expected = {
                "jackknife+": (np.sort(f - R)[k_low - 1], np.sort(f + R)[k_high - 1]),
                "jackknife": (full[u, c] - half, full[u, c] + half),
                "minmax": (f.min() - half, f.max() + half),
            }[method]
            assert (lower[u, c].item(), upper[u, c].item()) == pytest.approx(expected, rel=1e-9)


def test_asking_few_nodes_says_the_same():
    jury = jury_of(Case("two_block", 3, "cross_entropy"))
    everyone, few = jury.verdict(advice=None), jury.verdict([7, 2, 11], advice=None)
    assert few.nodes.tolist() == [7, 2, 11]
    for name in ("lower", "upper", "p_values", "loo_variance", "label_flips", "outputs"):
        torch.testing.assert_close(getattr(few, name), getattr(everyone, name)[[7, 2, 11]], **EXACT)


@pytest.mark.parametrize("memory", ["1B", "3KB", "1GB"])
def test_batch_size_changes_nothing(memory: str):
    case = Case("two_block", 2, "cross_entropy")
    reference, batched = jury_of(case).verdict(advice=None), jury_of(case, run=Run(memory=memory)).verdict(advice=None)
    for name in ("lower", "upper", "p_values", "loo_variance", "label_flips"):
        torch.testing.assert_close(getattr(batched, name), getattr(reference, name), **EXACT)


def test_same_seed_same_bits():
    first, second = (jury_of(Case("two_block", 2, "cross_entropy")).verdict(advice=None) for _ in range(2))
    for name in ("lower", "upper", "p_values", "loo_variance"):
        assert torch.equal(getattr(first, name), getattr(second, name))


@given(st.permutations(range(12)), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_relabelling_nodes_permutes_the_verdict(order: list[int], layers: int):
    """Renaming the nodes renames the verdict and changes nothing else."""
    case = Case("two_block", layers, "cross_entropy")
    engine = case.engine(weight_decay=0.05)
    new_name = torch.empty(12, dtype=torch.long)
    new_name[torch.tensor(order)] = torch.arange(12)  # node order[k] becomes k
    data = engine.data
    renamed = Data(x=data.x[order], edge_index=new_name[data.edge_index], y=data.y[order], num_nodes=12)
    before = Jury(engine.model, data, engine.train_nodes, weight_decay=0.05).fit().verdict(advice=None)
    after = Jury(engine.model, renamed, new_name[engine.train_nodes], weight_decay=0.05).fit().verdict(advice=None)
    for name in ("lower", "upper", "p_values", "loo_variance", "label_flips"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name)[order], rtol=1e-7, atol=1e-9)
    assert after.kinds == [before.kinds[u] for u in order]


def test_proposition_1():
    """Two layers, training nodes 0 and 3 on a path of six: within two hops of another one, epistemic only."""
    data = graph("path")
    model = GCN(4, 3, 3).double()
    kinds = Jury(model, data, [0, 3]).fit().verdict(advice=None).kinds
    # node 0 is three hops from 3, and node 3 from 0: outside each other's reach; all others are near one
    both = [u for u, kind in enumerate(kinds) if kind == "aleatoric+epistemic"]
    assert both == [0, 3]
    assert Jury(model, data, [0, 2]).fit().verdict(advice=None).kinds[0] == "epistemic"
    lonely = Jury(model, graph("isolated"), [0, 4]).fit().verdict(advice=None).kinds
    assert [u for u, kind in enumerate(lonely) if kind == "aleatoric+epistemic"] == [0, 3, 4, 6]


def test_as_printed_reproduces_the_printed_formulas():
    """Errata E1-E3: theta - n/n (Theorem 1 + weight decay)^-1 g."""
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    jury = Jury(engine.model, engine.data, engine.train_nodes, weight_decay=0.05, leave_out="printed").fit()
    printed = jury.curvature.to_dense()

    form = engine.theorem_1()
    torch.testing.assert_close(printed, form.flat_hessian() + 0.05 * torch.eye(len(printed), dtype=printed.dtype))
    expected = -torch.linalg.solve(printed, form.node_gradients().T).T
    torch.testing.assert_close(jury.jurors.steps, expected, rtol=1e-6, atol=1e-9)


def test_save_and_load(tmp_path):
    jury = jury_of(Case("two_block", 2, "cross_entropy"))
    path = jury.save(tmp_path / "jury")
    back = Jury.load(path, jury.engine.model, jury.data)
    assert torch.equal(back.verdict(advice=None).p_values, jury.verdict(advice=None).p_values)
    assert torch.equal(back.jurors.steps, jury.jurors.steps)
    other = GCN(4, 3, 3).double()
    with pytest.raises(DataError, match="other model"):
        Jury.load(path, other, jury.data)
    (path / "jury.npz").write_bytes(b"half a file")
    with pytest.raises(DataError, match="not a complete saved jury"):
        Jury.load(path, jury.engine.model, jury.data)


def test_frame_and_ranking():
    verdict = jury_of(Case("two_block", 2, "cross_entropy")).verdict(advice=None)
    frame = verdict.to_frame()
    assert list(frame["node"]) == list(range(12))
    assert {"lower", "upper", "width", "label_set", "set_size", "ambiguity", "kinds"} <= set(frame.columns)
    ranked = verdict.ranking()  # all nodes are asked in order, so a node is its own position
    assert sorted(ranked.tolist()) == list(range(12))
    assert torch.equal(verdict.ambiguity[ranked], verdict.ambiguity.sort(descending=True).values)
    by_width = verdict.ranking(by="width")
    assert torch.equal(verdict.width[by_width], verdict.width.sort(descending=True).values)
    least_credible = verdict.ranking(by="credibility")
    assert verdict.credibility[least_credible[0]] == verdict.credibility.min()
    with pytest.raises(SettingError, match="ambiguity"):
        verdict.ranking(by="magic")


def test_aps_scores_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.2, 0.4]])
    torch.testing.assert_close(1 + aps_scores(p[:, :, None])[:, :, 0], torch.tensor([[0.5, 0.8, 1.0], [0.8, 1.0, 0.8]]))


class Noisy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return torch.nn.functional.dropout(self.lin(x), 0.5)  # training=True by default: always on


class Detached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)

    def forward(self, x, edge_index):
        return self.lin(x).detach()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Noisy(), "two forward passes"),
        (Detached(), "that depend on the model's parameters"),
        (torch.nn.Module(), "expected trainable parameters, got none"),
        (GCN(4, 3, 2), r"output per class \(3\)"),
        (GCN(5, 3, 3), "5 features"),
    ],
)
def test_models_that_are_refused(model, words: str):
    with pytest.raises(ModelError, match=words):
        Jury(model, graph("path"), [0, 1, 2])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"leave_out": "magic"}, "leave_out"),
        ({"leave_out": LeaveOut(max_jurors=4)}, "max_jurors"),
        ({"leave_out": "retrain", "votes": "linearized"}, "votes='exact'"),
        ({"loss": "magic"}, "loss"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"weight_decay": {"nothing": 1.0}}, "nothing"),
    ],
)
def test_settings_that_are_refused(settings: dict, words: str):
    with pytest.raises(SettingError, match=words):
        Jury(GCN(4, 3, 3), graph("path"), [0, 1, 2], **settings).fit().verdict(advice=None)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([0, 99], "between 0 and 5"),
        ([-1], "between"),
        ([0, 0], "expected each node once"),
        ([], "expected at least one node"),
        ([0.5], "indices"),
    ],
)
def test_nodes_that_are_refused(nodes: list, words: str):
    with pytest.raises(DataError, match=words):
        Jury(GCN(4, 3, 3), graph("path"), nodes)


def test_unfitted_jury():
    with pytest.raises(SettingError, match="fit"):
        Jury(GCN(4, 3, 3), graph("path"), [0, 1, 2]).verdict(advice=None)
