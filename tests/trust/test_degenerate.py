"""Graphs and labels at the edge of what makes sense: the right answer, or one clear sentence; never NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from slow_jury import WELL_CONDITIONED, SlowJury
from torch_geometric.data import Data
from trials import Trial, is_one_sentence, trials

from jurygcn import GCN, Jury, Verdict
from jurygcn.errors import JuryError, JuryWarning
from jurygcn.linalg import CG
from jurygcn.settings import LeaveOut, Run, Votes

NUMBERS = ("outputs", "lower", "upper", "loo_errors", "loo_variance", "label_flips", "neighbour_doubt")
QUICK, MANY = 150, 3000
FAILED = DirectoryBasedExampleDatabase(".hypothesis/failed")  # a draw that failed is tried first the next time


def relaxed(examples: int) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=checks)


def judged(trial: Trial) -> tuple[Jury, Verdict] | JuryError:
    """The jury and its verdict, or the refusal."""
    t = trial
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JuryWarning)  # an iterative solver may say that it stopped early
            jury = Jury(
                t.model,
                t.data,
                t.train_nodes,
                weight_decay=t.weight_decay,
                leave_out=LeaveOut(t.leave_out, solver=t.solver, decay="stated"),
            ).fit()
            return jury, jury.verdict(
                alpha=t.alpha, exact_ranks=t.exact, nonconformity=t.score, diffusion=t.diffusion, advice=None
            )
    except JuryError as refusal:
        return refusal


def check_trial(trial: Trial) -> str:
    """Compare one verdict with plain loops; says how far the comparison could go."""
    found = judged(trial)
    if isinstance(found, JuryError):
        assert is_one_sentence(found), found
        # with weight decay only numbers out of all range are refused
        assert trial.weight_decay < 1e-3 or trial.values == "large" or trial.scale > 1 or trial.solver == "cg", trial
        return "refused"
    jury, verdict = found
    for name in NUMBERS:
        assert not torch.isnan(getattr(verdict, name).double()).any(), name
    slow = SlowJury(trial.model, trial.data, trial.train_nodes, trial.weight_decay, trial.leave_out)
    if slow.condition > WELL_CONDITIONED:
        return "ill-conditioned"
    # softmax carries an error of the logits on, and that is relative to their size; iterations end at a residual, which
    # leaves an error of as much times the condition number
    digits = CG.tolerance * slow.condition if trial.solver == "cg" else 1e-12
    tolerance = max(1e-6, digits * slow.largest_logit) if trial.double else max(1e-3, 2e-6 * slow.largest_logit)
    if tolerance > 0.05:
        return "huge"
    same(jury, verdict, slow, trial, tolerance)
    return "right"


def same(jury: Jury, verdict: Verdict, slow: SlowJury, trial: Trial, tolerance: float) -> None:
    N = trial.nodes
    np.testing.assert_allclose(jury.leave_one_out_predictions().numpy(), slow.votes, atol=tolerance)
    np.testing.assert_allclose(verdict.outputs.numpy(), slow.outputs, atol=tolerance)
    np.testing.assert_allclose(verdict.loo_errors.numpy(), slow.errors(), atol=2 * tolerance)
    assert verdict.num_jurors.tolist() == [len(slow.speakers(u)) for u in range(N)]
    bounds = np.array([slow.interval(u, trial.alpha, exact=trial.exact) for u in range(N)])
    np.testing.assert_allclose(np.stack([verdict.lower, verdict.upper], axis=1), bounds, atol=4 * tolerance)
    np.testing.assert_allclose(verdict.loo_variance, [slow.variance(u) for u in range(N)], atol=20 * tolerance)
    if trial.diffusion == "auto":
        assert slow.log_score(verdict.diffusion) >= max(map(slow.log_score, (0, 1, 2))) - _log_slack(slow, tolerance)
    else:
        assert verdict.diffusion == trial.diffusion
    counts = verdict.label_counts.numpy()
    assert (slow.counts(verdict.diffusion, trial.score, slack=-tolerance) <= counts).all()
    assert (counts <= slow.counts(verdict.diffusion, trial.score, slack=tolerance)).all()
    n_prime = verdict.num_jurors.numpy()[:, None]
    np.testing.assert_allclose(verdict.p_values, (1 + counts) / (n_prime + 1))
    for alpha in (0.1, 0.3, 0.75):
        inside = n_prime - counts < (1 - alpha) * (n_prime + 1) - 1e-9
        np.testing.assert_array_equal(verdict.label_sets(alpha).numpy(), inside)
    assert verdict.to_frame().notna().all().all()


def _log_slack(slow: SlowJury, tolerance: float) -> float:
    """How far a mean of logs may be off when probabilities are off by the tolerance."""
    own = [slow.votes[i, u, slow.labels[i]] for i, u in enumerate(slow.train_nodes)]
    return 2 * math.log1p(tolerance / max(min(own), 1e-12))


seen: dict[str, int] = {}


# leverages within 10^-6 of 1, where an explicit inverse has too few digits
NEARLY_ONE = Trial(
    nodes=6, features=30, classes=3, edges="none", values="normal", labels="all", labelled=4, layers=1, scale=1.0,
    trained=False, double=True, weight_decay=1e-6, leave_out="newton", solver="direct", alpha=0.1, exact=False,
    score="lac", diffusion="auto", seed=0,
)  # fmt: skip


@relaxed(QUICK)
@given(trials())
@example(NEARLY_ONE)
@example(replace(NEARLY_ONE, features=3, classes=8, labelled=2, solver="cg"))
def test_the_verdict_is_right_or_refused(trial: Trial):
    outcome = check_trial(trial)
    seen[outcome] = seen.get(outcome, 0) + 1


def test_most_trials_could_be_compared():
    """The test above would be empty if nearly everything were refused."""
    if sum(seen.values()) < QUICK:  # this test alone, or on another worker
        pytest.skip("counts what the test before has done")
    assert seen["right"] > 0.6 * sum(seen.values())
    assert seen["refused"] > 0


@pytest.mark.slow
@settings(relaxed(MANY), derandomize=False, database=FAILED, print_blob=True)
@given(trials())
def test_thousands_of_verdicts_are_right_or_refused(trial: Trial):
    check_trial(trial)


# --- nodes that look alike -------------------------------------------------------------------------------------


def twins(N: int, dtype: torch.dtype) -> Data:
    """A random graph and, beside it, a copy with its nodes in another order: node order[u] + N looks like node u."""
    g = torch.Generator().manual_seed(3)
    upper = (torch.rand(N, N, generator=g) < 0.6).triu(1)
    edges = (upper | upper.T).nonzero()
    order = torch.randperm(N, generator=g)
    x = torch.randn(N, 5, generator=g, dtype=torch.float64)
    copied = torch.empty_like(x)
    copied[order] = x
    both = torch.cat([edges, order[edges] + N]).T.contiguous()
    y = torch.randint(0, 3, (2 * N,), generator=g)
    data = Data(x=torch.cat([x, copied]).to(dtype), edge_index=both, y=y, num_nodes=2 * N, num_classes=3)
    data.twin = order + N
    return data


@pytest.mark.parametrize("score", ["lac", "aps"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_nodes_that_look_alike_tie(dtype: torch.dtype, score: str):
    """Sums in another order must not make the twin of a juror's own node stranger than that node."""
    N, nodes = 40, list(range(30))
    data = twins(N, dtype)
    torch.manual_seed(0)
    model = GCN(5, 8, 3).to(dtype)
    verdict = (
        Jury(model, data, nodes, weight_decay=0.01, leave_out=LeaveOut(decay="stated"))
        .fit()
        .verdict(nonconformity=score, diffusion=0, advice=None)
    )
    slow = SlowJury(model, data, nodes, 0.01, "newton")
    expected = slow.counts(0, score, slack=1e-9 if dtype == torch.float64 else 2e-6)
    twin = data.twin[nodes]
    np.testing.assert_array_equal(
        verdict.label_counts[twin, data.y[nodes]], expected[twin.numpy(), data.y[nodes].numpy()]
    )


# --- what cannot be judged --------------------------------------------------------------------------------------

nan, inf = math.nan, math.inf
labels = [0, 1, 2, 0, 1, 2]
rows = torch.arange(18.0).reshape(6, 3) / 10

DATA = {
    "y": [
        *(None, [0, 1, 2, 0, 1, 2], ["a", "b", "c", "a", "b", "c"], torch.tensor([0, 1]), torch.tensor(0)),
        *(torch.tensor(labels).double(), torch.rand(6), torch.full((6,), nan), torch.eye(3)[labels].long()),
        *(torch.tensor([-1, 1, 2, 0, 1, 2]), torch.tensor([-7, 1, 2, 0, 1, 2]), torch.tensor([0, 1, 5, 0, 1, 2])),
    ],
    "x": [
        *(None, rows.numpy(), rows[0], rows[:4], rows.to_sparse(), rows + 0j, rows[:, :2], torch.empty(6, 0)),
        *(rows / 0 - rows / 0, rows.log(), torch.full((6, 3), nan)),
    ],
    "edge_index": [
        *(None, [[0], [1]], torch.tensor([[0], [6]]), torch.tensor([[-1], [0]]), torch.tensor([[0.0], [1.0]])),
        *(torch.tensor([[0, 1], [1, 2], [2, 3]]), torch.tensor([0, 1]), torch.tensor([[True], [False]])),
    ],
    "edge_weight": [
        *(torch.tensor([nan] * 4), torch.tensor([-1.0] * 4), torch.tensor([inf] * 4), torch.ones(3)),
        *(torch.ones(4, 1), [1.0] * 4),
    ],
    "num_classes": ["three", 2.5, -1, 1, 2, 4],
}

JURY = {
    "train_nodes": [
        *([0, 0], [0, 6], [-1], [], [0.5], ["a"], None, [[0, 1]], 5, "01", [None], {0, 1}, [10**30]),
        *(torch.tensor([True, False]), torch.zeros(6, dtype=torch.bool), torch.tensor(3)),
    ],
    "weight_decay": [-1, nan, inf, "much", True, {"weights.0": -1.0}, {"weights.9": 0.1}],
    "leave_out": ["best", None, 3, LeaveOut, Votes(), LeaveOut(max_jurors=99)],
    "votes": ["best", None, 3, Votes, Run()],
    "run": ["best", 0, 1.5, True, Run, LeaveOut()],
    "loss": ["best", None, "mse"],
    "model": [None, "gcn", GCN, GCN(2, 4, 3), GCN(3, 4, 2), torch.nn.Linear(3, 3), torch.nn.Identity()],
    "data": [None, "cora", Data(), {}],
    "forward": [3, lambda m, d: None, lambda m, d: d.x, lambda m, d: m(d.x, d.edge_index)[:2], lambda m, d: 1 / 0],
}

# Settings that an object refuses when it is made.
PARTS = {
    LeaveOut: {
        "how": ["best", None, 3],
        "curvature": ["best", None, "hessian", "printed"],
        "solver": ["best", None, 3],
        "damping": [-1, nan, inf, "much", None],
        "max_jurors": [0, -1, 1.5, "all"],
    },
    Votes: {"how": ["best", None, 3], "rank": [0, -1, 1.5, "full"]},
    Run: {"parallel": ["best", 0, 1.5], "memory": ["lots", "0B", None], "progress": [1, "yes", None]},
}

VERDICT = {
    "alpha": [0, 1, -0.1, nan, inf, "small", None, 0.5, True],
    "nodes": [[], [6], [-1], [0, 0], [0.5], ["a"], 3],
    "interval": ["best", None],
    "nonconformity": ["best", None],
    "diffusion": [-1, 1.5, True, None, "best"],
}


def small() -> Data:
    edge_index = torch.tensor([[0, 1, 3, 4], [1, 0, 4, 3]])
    return Data(x=rows, edge_index=edge_index, y=torch.tensor(labels), num_classes=3)


def cases(table: dict[str, list]) -> list:
    return [
        pytest.param(name, value, id=f"{name}-{i}") for name, given in table.items() for i, value in enumerate(given)
    ]


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(JuryError) as refusal:
        call()
    assert is_one_sentence(refusal.value), refusal.value
    return str(refusal.value)


@pytest.mark.parametrize(("name", "value"), cases(DATA))
def test_graphs_that_are_refused(name: str, value: object):
    data = small()
    data[name] = value
    refusal_of(lambda: Jury(GCN(3, 4, 3), data, [0, 1, 2]).fit().verdict(advice=None))


@pytest.mark.parametrize(("name", "value"), cases(JURY))
def test_juries_that_are_refused(name: str, value: object):
    given = {"model": GCN(3, 4, 3), "data": small(), "train_nodes": [0, 1, 2], name: value}
    words = refusal_of(lambda: Jury(**given).fit().verdict(advice=None))
    if isinstance(value, int | float) and name not in ("train_nodes", "forward"):
        assert repr(value) in words


@pytest.mark.parametrize("part", PARTS)
def test_parts_that_are_refused(part: type):
    for name, values in PARTS[part].items():
        for value in values:
            words = refusal_of(lambda: part(**{name: value}))  # noqa: B023
            if isinstance(value, int | float):
                assert repr(value) in words


@pytest.mark.parametrize(("name", "value"), cases(VERDICT))
def test_questions_that_are_refused(name: str, value: object):
    jury = Jury(GCN(3, 4, 3), small(), [0, 1, 2]).fit()
    refusal_of(lambda: jury.verdict(**{name: value}, advice=None))


@pytest.mark.parametrize("alpha", [0, 1, -0.1, nan, inf, "small", None, True])
def test_set_levels_that_are_refused(alpha: object):
    verdict = Jury(GCN(3, 4, 3), small(), [0, 1, 2]).fit().verdict(advice=None)
    assert "alpha" in refusal_of(lambda: verdict.label_sets(alpha))
    assert "alpha" in refusal_of(lambda: verdict.to_frame(alpha))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: setattr(d, "x", (10 * rows).long()),
        lambda d: setattr(d, "x", rows > 0.5),
        lambda d: setattr(d, "x", rows.half()),
        lambda d: setattr(d, "x", rows.bfloat16()),
        lambda d: setattr(d, "edge_index", d.edge_index.int()),
        lambda d: setattr(d, "y", d.y.int()),
        lambda d: setattr(d, "y", d.y[:, None]),
        lambda d: setattr(d, "edge_weight", torch.zeros(4)),
    ],
)
def test_unusual_types_are_understood(change: Callable[[Data], None]):
    """Numbers in another type mean the same: compared with the usual type holding the same numbers."""
    data, usual = small(), small()
    change(data)
    usual.x = data.x.float()
    torch.manual_seed(0)
    model = GCN(3, 4, 3)
    given, expected = (Jury(model, d, [0, 1, 2, 3]).fit().verdict(diffusion=0, advice=None) for d in (data, usual))
    if "edge_weight" not in data:
        assert torch.equal(given.p_values, expected.p_values)
    assert torch.isfinite(given.lower).all()
