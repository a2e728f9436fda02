"""Label sets by class and by group, on graphs that grew, and after active learning with drawn labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, active, train
from jurygcn.active import Schedule
from jurygcn.active.learners import find_learner
from jurygcn.active.loop import Run
from jurygcn.conformal.tally import Tally
from jurygcn.data import Split, synthetic
from jurygcn.errors import DataError, SettingError
from jurygcn.models import Recipe
from jurygcn.settings import LeaveOut

NODES = torch.arange(0, 90, 2)


def graph(nodes: int = 150) -> Data:
    return synthetic(num_nodes=nodes, num_edges=4 * nodes, num_features=8, num_classes=3, seed=2)


def jury_of(data: Data, nodes: Tensor = NODES, **settings: object) -> Jury:
    model = GCN(8, 6, 3).to(data.x.dtype)
    train(model, data, nodes, epochs=40)
    return Jury(model, data, nodes, weight_decay=5e-4, **settings).fit()


def naive_counts(jury: Jury, same: Tensor) -> Tensor:
    """Jackknife+ counts over the jurors i with same[u, y, i], by plain loops; no averages, no advice."""
    votes = jury.leave_one_out_predictions().double()  # (n, N, C)
    labels, (n, N, C) = jury.engine.targets, votes.shape
    counts = torch.zeros(N, C, dtype=torch.long)
    for i in range(n):
        own = votes[i, jury.train_nodes[i], labels[i]]
        for u in range(N):
            if u == int(jury.train_nodes[i]):
                continue
            for y in range(C):
                counts[u, y] += int(same[u, y, i] and votes[i, u, y] >= own * (1 - 1e-14))
    return counts


def test_counts_within_classes_and_groups_by_loops():
    data = graph(60)
    data.x = data.x.double()
    nodes = torch.arange(0, 40, 2)
    groups = torch.arange(60) % 4 + 7
    jury = jury_of(data, nodes)
    verdict = jury.verdict(advice=None, diffusion=0, groups=groups)
    labels = jury.engine.targets
    of_class = (labels[None, None, :] == torch.arange(3)[None, :, None]).expand(60, 3, -1)
    of_group = (groups[:, None] == groups[nodes][None, :])[:, None, :].expand(60, 3, -1)
    for by, same in (("class", of_class), ("group", of_group)):
        tally = verdict.tally(by=by)
        assert torch.equal(tally.counts.long(), naive_counts(jury, same))
        own = nodes[None, :] == torch.arange(60)[:, None]
        voters = (same & ~own[:, None, :]).sum(dim=2)
        assert torch.equal(tally.voters.expand(60, 3), voters)
        p = (1 + tally.counts.double()) / (1 + voters)
        torch.testing.assert_close(tally.p_values(), p)
        for alpha in (0.1, 0.3):
            assert torch.equal(
                verdict.label_sets(alpha, by=by), (1 + tally.counts) > (alpha * (1 + voters) + 1e-9).floor()
            )


def test_full_counts_within_classes_add_up():
    """Classes divide the jurors of a group; with one group the counts are those of all jurors."""
    data = graph()
    verdict = jury_of(data).verdict(full=True, groups=torch.zeros(150, dtype=torch.long))
    for method in ("jackknife+", "full"):
        assert torch.equal(verdict.tally(method, "group").counts, verdict.tally(method).counts)
        assert bool((verdict.tally(method, "class").counts <= verdict.tally(method).counts).all())
        assert torch.equal(verdict.tally(method, "class").voters.sum(dim=1), verdict.num_jurors)


def test_too_few_labels_of_a_class_are_named():
    data = graph()
    few = torch.cat([NODES[data.y[NODES] != 0], NODES[data.y[NODES] == 0][:4]]).sort().values
    verdict = jury_of(data, few, chosen="random").verdict(full=True)
    asked = ~torch.isin(torch.arange(150), few)
    assert bool(verdict.too_few(0.1, by="class")[asked, 0].all())
    assert not bool(verdict.too_few(0.1, by="class")[asked, 1].any())
    for method in ("jackknife+", "full"):
        assert bool(verdict.label_sets(0.1, method=method, by="class")[asked, 0].all())
        claim = verdict.claim(0.1, method=method, by="class")
        assert "9 labels of it" in claim.words
        assert claim.over == "each class"
    assert "9 labels of it" not in verdict.claim(0.1).words


def test_verdicts_with_other_sets_by_default():
    verdict = jury_of(graph()).verdict(full=True)
    full = verdict.with_sets("full", by="class")
    assert torch.equal(full.label_sets(0.2), verdict.label_sets(0.2, method="full", by="class"))
    assert torch.equal(full.p_values, verdict.tally("full", "class").p_values())
    assert full.claim(0.2).over == "each class"
    assert full.to_frame(0.2)["set_size"].tolist() == full.set_size(0.2).tolist()
    with pytest.raises(SettingError, match=r"groups=\.\.\."):
        verdict.with_sets("full", by="group")


@pytest.mark.parametrize("groups", [[0, 1], torch.zeros(150), "ten"])
def test_wrong_groups_are_refused(groups: object):
    with pytest.raises((SettingError, ValueError, TypeError)):
        jury_of(graph()).verdict(groups=groups)


def test_ranks_of_tallies():
    tally = Tally(torch.tensor([[0, 1, 2, 9]]), torch.tensor([[9]]))
    assert tally.sets(0.1).tolist() == [[False, True, True, True]]
    assert tally.sets(0.05).all()
    assert bool(tally.too_few(0.05))
    assert not bool(tally.too_few(0.1))


# --- new nodes ----------------------------------------------------------------------------------------


def grown(data: Data, arrivals: int = 10) -> Data:
    """The graph with new nodes, each joined to two old ones."""
    N = int(data.num_nodes)
    generator = torch.Generator().manual_seed(0)
    new = torch.arange(N, N + arrivals)
    ends = torch.stack([new.repeat(2), torch.randint(N, (2 * arrivals,), generator=generator)])
    x = torch.cat([data.x, torch.randn(arrivals, data.x.shape[1], generator=generator)])
    return Data(x=x, edge_index=torch.cat([data.edge_index, ends, ends.flip(0)], dim=1))


@pytest.mark.parametrize("advice", [None, "auto", "panel"])
def test_votes_on_new_nodes(advice: str | None):
    """The jurors of the old graph vote on the new one: forward passes of every juror there."""
    data = graph()
    jury, larger = jury_of(data), grown(data)
    verdict = jury.verdict(new_data=larger, advice=advice, diffusion=0)
    assert len(verdict) == 160
    model = jury.engine.model.float()
    torch.testing.assert_close(verdict.outputs, model(larger.x, larger.edge_index).softmax(dim=1), atol=1e-5, rtol=1e-4)
    assert verdict.claim(0.1).kind == "target"
    assert "grew after training" in verdict.claim(0.1).words
    if advice is None:
        labels, n = jury.engine.targets, len(NODES)
        counts = torch.zeros(160, 3, dtype=torch.long)
        for i in range(n):
            theta = jury.engine.theta + jury.jurors.steps[i]
            parts = jury.engine.unflatten(theta.float())
            votes = torch.func.functional_call(model, parts, (larger.x, larger.edge_index)).softmax(dim=1)
            within = votes >= votes[NODES[i], labels[i]] * (1 - 1e-5)
            within[NODES[i]] = False
            counts += within
        assert int((verdict.tally().counts - counts).abs().max()) <= 1  # the last digits of float32
    some = jury.verdict([155], new_data=larger, advice=advice, diffusion=0)
    torch.testing.assert_close(some.p_values[0], verdict.p_values[155], atol=0.05, rtol=0.0)


def test_the_same_graph_gives_the_same_verdict():
    data = graph()
    jury = jury_of(data)
    same = Data(x=data.x, edge_index=data.edge_index)
    assert torch.equal(jury.verdict(new_data=same).p_values, jury.verdict().p_values)


def test_other_graphs_are_refused():
    data = graph()
    jury = jury_of(data)
    with pytest.raises(DataError, match="nodes first"):
        jury.verdict(new_data=Data(x=data.x.flip(0), edge_index=data.edge_index))
    with pytest.raises(SettingError, match="advice='panel'"):
        jury.verdict(new_data=grown(data), full=True)
    assert jury.verdict(new_data=grown(data), full=True, advice="panel").claim(0.1, method="full").kind == "target"


# --- after active learning ----------------------------------------------------------------------------


def test_explored_labels_are_hidden_from_the_strategy():
    """The strategy neither chooses drawn nodes nor sees their labels; they come last."""
    data = graph()
    seen: list[tuple[set[int], set[int]]] = []

    def spy(scene: active.Scene) -> active.Choice:
        seen.append((set(scene.candidates.tolist()), set(scene.labelled.tolist())))
        return active.Choice(scene.candidates[: scene.batch], torch.zeros(scene.batch))

    settings = {"initial": 6, "budget": 30, "step": 6, "recipe": Recipe(epochs=5), "seed": 3}
    history = active.run(data, spy, **settings, explore=0.2)
    drawn = set(history.explored.tolist())
    assert len(drawn) == 6
    assert len(history.labelled) == 30
    assert all(not drawn & candidates and not drawn & labelled for candidates, labelled in seen)
    assert set(history.steps[-1].nodes) == drawn
    again = active.run(data, spy, **settings, explore=0.2)
    assert torch.equal(again.explored, history.explored)
    assert not len(active.run(data, spy, **settings).explored)


def test_explored_nodes_are_drawn_evenly():
    """Every node of the pool is drawn equally often over seeds."""
    data = graph(40)
    split = active_split(data)
    times = torch.zeros(40)
    schedule = Schedule(3, 10, 10, explored=4)
    settings = {"initial": 3, "budget": 10, "step": 10, "recipe": Recipe(epochs=1), "explore": 0.4}
    for seed in range(60):
        run = Run(data, split, schedule, Recipe(epochs=1), seed, active.truth(data), find_learner("gcn")[1])
        times[run.explored] += 1
        if seed < 3:  # a whole run draws the same
            history = active.run(data, first_ones, **settings, seed=seed, split=split)
            assert torch.equal(history.explored.sort().values, run.explored)
    inside = times[split.pool]
    assert float(inside.sum()) == 240
    expected = 240 / len(split.pool)
    assert float((inside - expected).square().sum() / expected) < 2.0 * len(split.pool)  # chi-square, far in its tail
    assert not bool(times[split.test].any())


def active_split(data: Data) -> Split:
    order = torch.arange(int(data.num_nodes))
    return Split(order[:30], order[30:32], order[32:])


def first_ones(scene: active.Scene) -> active.Choice:
    return active.Choice(scene.candidates[: scene.batch], torch.zeros(scene.batch))


def test_claims_with_drawn_labels():
    data = graph()
    chosen = torch.arange(0, 20)
    drawn = torch.randperm(130, generator=torch.Generator().manual_seed(5))[:25] + 20
    nodes = torch.cat([chosen, drawn]).sort().values
    alone = jury_of(data, nodes, chosen="actively").verdict()
    assert alone.claim(0.1).kind == "none"
    jury = jury_of(data, nodes, chosen="actively", drawn=drawn)
    assert len(jury.positions) == 25
    verdict = jury.verdict(full=True)
    assert verdict.claim(0.1, method="full").kind == "target"
    assert "25 labels that were drawn" in verdict.claim(0.1).words
    exact = jury.verdict(full=True, advice="panel").claim(0.1, method="full")
    assert (exact.kind, exact.coverage) == ("target", pytest.approx(0.9))
    with pytest.raises(SettingError, match="training nodes"):
        jury_of(data, nodes, chosen="actively", drawn=[min(set(range(150)) - set(nodes.tolist())), 0])


@pytest.mark.parametrize("settings", [{"explore": 0.95}, {"explore": -0.1}, {"explore": 0.2, "stop": [lambda _: ""]}])
def test_wrong_shares_are_refused(settings: dict[str, object]):
    with pytest.raises(SettingError):
        active.run(graph(), first_ones, initial=6, budget=30, recipe=Recipe(epochs=1), **settings)


def test_full_with_some_jurors():
    data = graph()
    verdict = jury_of(data, leave_out=LeaveOut(max_jurors=20)).verdict(full=True)
    assert int(verdict.tally("full").voters.max()) == 20
    assert int(verdict.tally("full").counts.max()) <= 20
