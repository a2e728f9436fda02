"""One number draws a whole case: a kind of model, a graph, odd types, a question. The jury must agree with plain loops.

To look at a case that failed: ``PYTHONPATH=src:tests:tests/trust python tests/trust/random_juries.py SEED``.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import traceback
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from dense_jury import DenseJury, gcn_logits
from model_kinds import KINDS
from slow_jury import WELL_CONDITIONED
from torch import Tensor, nn
from torch_geometric.data import Data
from trials import features_of, is_one_sentence, pairs_of

from jurygcn import GCN, Jury, Verdict
from jurygcn.errors import JuryError, JuryWarning
from jurygcn.settings import LeaveOut, Run

EDGE_TYPES = (torch.int64, torch.int64, torch.int32, torch.int16, torch.uint8)
FEATURE_TYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)
CG_TOLERANCE = 1e-6  # relative residual at which cg may stop


@dataclass(frozen=True)
class Case:
    """Everything that follows from a seed; ``parallel`` alone is set from outside."""

    seed: int
    parallel: int | None = None

    @cached_property
    def drawn(self) -> dict[str, Any]:
        r = random.Random(self.seed)
        names = list(KINDS)
        one = lambda *values: r.choice(values)  # noqa: E731
        rarely = lambda value, usual, times=0.1: value if r.random() < times else usual  # noqa: E731
        linear = rarely(True, False, 0.25)
        return {
            "kind": names[self.seed % len(names)],
            "N": one(5, 8, 12, 12, 30),
            "F": one(1, 3, 5),
            "C": one(2, 3, 3, 5, 1),
            "n": one(1, 2, 4, 6, 9),
            "edges": one("none", "path", "hub", "components", "complete", "random", "duplicates", "one_way", "random"),
            "loops": one("none", "none", "some", "all"),
            "weights": one("none", "none", "positive", "zeros", rarely("negative", "zeros", 0.3)),
            "zero_loops": rarely(True, False),
            "values": one("normal", "normal", "normal", "one_hot", "mostly_zero", "constant", rarely("zero", "normal")),
            "edge_type": one(*EDGE_TYPES),
            "feature_type": rarely(one(*FEATURE_TYPES), torch.float32, 0.5),
            "strange_layout": rarely(True, False, 0.3),
            "double": one(True, False),
            "scale": one(1.0, 1.0, 0.1, 3.0),
            "mse": rarely(True, False, 0.2),
            "target_type": one(torch.float32, torch.float64),
            "decay": one(1e-3, 1e-2, 0.1, 1.0),
            "decay_per_name": rarely(True, False, 0.3),
            "damping": rarely(0.01, 0.0),
            "leave_out": one("newton", "influence"),
            "solver": one("auto", "auto", "direct", "dual", "cg"),
            "votes": "linearized" if linear else one("auto", "exact"),
            "jurors": rarely("some", None, 0.25),
            "memory": one("1GB", "1MB", "1KB"),
            "train_as": one("list", "tensor", "mask", "int32", "array", rarely(one("repeated", "empty"), "list", 0.15)),
            "asked_as": one("all", "all", "tensor", "mask", "one", rarely(one("repeated", "empty"), "tensor", 0.15)),
            "alpha": one(0.1, 0.025, 0.3, 0.499),
            "exact": one(None, True, False),
            "interval": one("jackknife+", "jackknife+", "jackknife", "minmax"),
            "score": rarely("aps", "lac", 0.05 if linear else 0.4),
            "diffusion": rarely(one(1, 2), "auto", 0.05) if linear else one("auto", 0, 1, 2),
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return self.drawn[name]
        except KeyError:
            raise AttributeError(name) from None

    # --- graph, model, questions --------------------------------------------------------------------------

    @cached_property
    def graph(self) -> Data:
        """The graph as the caller has it, in whatever types."""
        g = torch.Generator().manual_seed(self.seed)
        N = self.N
        pairs = pairs_of(self.edges, N, g)
        if self.loops != "none":
            pairs += [(i, i) for i in range(0, N, 1 if self.loops == "all" else 3)]
        edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        x = features_of(self.values, N, self.F, g)
        x = x > 0.3 if self.feature_type == torch.bool else (2 * x).round() if self.feature_type == torch.int64 else x
        x, edge_index = x.to(self.feature_type), edge_index.to(self.edge_type)
        if self.strange_layout:
            x = torch.cat([x, x], dim=1).t().contiguous().t()[:, : self.F]
        else:
            edge_index = edge_index.contiguous()
        data = Data(x=x, edge_index=edge_index.T if self.strange_layout else edge_index.T.contiguous(), num_nodes=N)
        data.y = torch.randint(0, self.C, (N,), generator=g)
        if self.mse:
            data.y = torch.randn(N, self.C, generator=g).to(self.target_type)
        else:
            data.num_classes = self.C
        if self.weights != "none":
            weight = torch.rand(len(pairs), generator=g) + 0.1
            if self.weights == "zeros":
                weight *= torch.rand(len(pairs), generator=g) > 0.3
            if self.weights == "negative":
                weight *= -1
            loop = torch.tensor([a == b for a, b in pairs], dtype=torch.bool)
            weight[loop] = 0.0 if self.zero_loops else weight[loop].clamp_min(0.1)
            data.edge_weight = -weight.abs() if self.weights == "negative" else weight
        return data

    @property
    def nodes(self) -> list[int]:
        g = torch.Generator().manual_seed(self.seed + 1)
        return torch.randperm(self.N, generator=g)[: self.n].tolist()

    @property
    def asked(self) -> list[int]:
        g = torch.Generator().manual_seed(self.seed + 2)
        everyone = torch.randperm(self.N, generator=g).tolist()
        if self.asked_as == "all":
            return list(range(self.N))
        some = everyone[: 1 if self.asked_as == "one" else max(1, self.N // 3)]
        return sorted(some) if self.asked_as == "mask" else some

    @property
    def seated(self) -> int | None:
        return None if self.jurors is None else max(1, len(self.nodes) // 2)

    def listed(self, nodes: list[int], how: str) -> Any:
        if how == "mask":
            return torch.zeros(self.N, dtype=torch.bool).index_fill_(0, torch.tensor(nodes), value=True)
        return {
            "tensor": torch.tensor(nodes),
            "int32": torch.tensor(nodes, dtype=torch.int32),
            "array": np.array(nodes),
            "repeated": [*nodes, nodes[0]],
            "empty": [],
        }.get(how, nodes)

    def build(self, *, reference: bool = False) -> nn.Module:
        """The trained model; the reference's is a fresh one that remembers nothing."""
        kind = KINDS[self.kind]
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = kind.build(self.F, self.C)
            with torch.no_grad():
                for name, p in model.named_parameters():
                    if name != "gate":  # is where it is on purpose
                        p.add_(0.1 * torch.randn(p.shape)).mul_(self.scale if p.dim() > 1 else 1.0)
        if reference:
            for module in model.modules():
                if hasattr(module, "cached"):
                    module.cached = False
            return model.double().eval()
        if kind.cached:
            other = torch.zeros(2, 0, dtype=torch.long)
            model(torch.ones(self.N, self.F), other)
        return model.double() if self.double else model

    @cached_property
    def decays(self) -> dict[str, float]:
        names = [name for name, p in self.build().named_parameters() if p.requires_grad]
        step = 3.0 if self.decay_per_name else 0.0
        return {name: self.decay * (1.0 + step * place) for place, name in enumerate(names)}

    # --- may it be refused? ---------------------------------------------------------------------------------

    @property
    def nonsense(self) -> bool:
        """Whether there is nothing to answer."""
        linear = self.votes == "linearized" and not self.mse
        return (
            (self.weights == "negative" and bool((self.graph.edge_weight < 0).any()))
            or "repeated" in (self.train_as, self.asked_as)
            or "empty" in (self.train_as, self.asked_as)
            or (linear and (self.score == "aps" or self.diffusion in (1, 2)))
        )

    @property
    def whole_numbers(self) -> bool:
        """Whether features are whole numbers: they reach a model as they are, and it may not take them."""
        return not self.graph.x.is_floating_point()

    # --- the two juries -------------------------------------------------------------------------------------

    def judged(self) -> tuple[Jury, Verdict]:
        jury = Jury(
            self.build(),
            self.graph,
            self.listed(self.nodes, self.train_as),
            loss="mse" if self.mse else "cross_entropy",
            weight_decay=self.decays if self.decay_per_name else self.decay,
            leave_out=LeaveOut(
                self.leave_out,
                solver=self.solver,
                decay="stated",  # as the dense reference
                damping=self.damping,
                max_jurors=self.seated,
            ),
            votes=self.votes,
            run=Run(parallel=self.parallel, memory=self.memory),
            forward=KINDS[self.kind].forward,
        ).fit()
        return jury, jury.verdict(
            None if self.asked_as == "all" else self.listed(self.asked, self.asked_as),
            alpha=self.alpha,
            exact_ranks=self.exact,
            interval=self.interval,
            nonconformity=self.score,
            diffusion=self.diffusion,
            advice=None,
        )

    def reference(self, train_nodes: list[int], seats: list[int]) -> DenseJury:
        model, data = self.build(reference=True), copy.copy(self.graph)
        data.edge_index = data.edge_index.long().contiguous()
        if type(model) is GCN or not self.whole_numbers:  # other models take whole numbers as they are, or not at all
            data.x = data.x.double().contiguous()
        if data.edge_weight is not None:
            data.edge_weight = data.edge_weight.double()
        forward = KINDS[self.kind].forward
        weighted = type(model) is GCN or "edge_weight" in type(model).forward.__code__.co_varnames

        def logits() -> Tensor:
            if type(model) is GCN:
                z = gcn_logits(list(model.weights), data, model.activation)
                return z if forward is None else z / 2
            if forward is not None:
                return forward(model, data)
            return model(data.x, data.edge_index, *([data.edge_weight] if weighted else []))

        return DenseJury(
            model,
            logits,
            data,
            train_nodes,
            decay=self.decays,
            damping=self.damping,
            leave_out=self.leave_out,
            linear=self.votes == "linearized",
            seats=seats,
        )


def check(case: Case) -> str:
    """Compare one case with plain loops; says how far the comparison could go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JuryWarning)  # an iterative solver may say that it stopped early
        try:
            jury, verdict = case.judged()
        except JuryError as error:
            refusal = error
        else:
            refusal = None
    if refusal is not None:
        assert is_one_sentence(refusal), refusal
        assert case.nonsense or (case.whole_numbers and " to run, got" in str(refusal)), f"refused: {refusal}"
        return "refused"
    assert not case.nonsense, "expected a refusal"
    wanted = sorted(case.nodes) if case.train_as == "mask" else case.nodes
    assert jury.train_nodes.tolist() == wanted
    seats = jury.positions.tolist()
    assert len(set(seats)) == len(seats) == (len(wanted) if case.seated is None else case.seated)
    slow = case.reference(wanted, seats)
    if slow.condition > WELL_CONDITIONED:
        return "ill-conditioned"
    digits = CG_TOLERANCE * slow.condition if case.solver == "cg" else 1e-12
    size = max(1.0, slow.largest_logit)
    tolerance = max(1e-6, digits * size, 0.0 if case.double else max(1e-3, 2e-6 * size))
    if tolerance > 0.05:
        return "huge"
    if case.mse:
        tolerance *= size
    compare(verdict, slow, case, tolerance)
    return "right"


def compare(verdict: Verdict, slow: DenseJury, case: Case, tolerance: float) -> None:
    asked = case.asked
    close = lambda ours, theirs, times: np.testing.assert_allclose(  # noqa: E731
        np.asarray(ours, dtype=float), theirs, atol=times * tolerance, rtol=1e-5
    )
    assert verdict.nodes.tolist() == asked
    close(verdict.outputs, slow.outputs[asked], 1)
    assert verdict.num_jurors.tolist() == [len(slow.speakers(u)) for u in asked]
    close(verdict.loo_errors.reshape(len(slow.steps), -1), slow.errors(), 2)
    exact = case.mse if case.exact is None else case.exact
    ends = np.array([slow.interval(u, case.interval, case.alpha, exact=exact) for u in asked])
    close(torch.stack([verdict.lower, verdict.upper], dim=1).reshape(ends.shape), ends, 4)
    largest = 1.0 + float(np.abs(slow.votes).max())
    close(verdict.loo_variance, [slow.variance(u) for u in asked], 20 * largest)
    if case.mse:
        return
    flips = (verdict.label_flips * verdict.num_jurors.clamp_min(1)).round().int().tolist()
    top = np.sort(slow.outputs, axis=1)
    for u, found in zip(asked, flips):
        if case.C == 1 or top[u, -1] - top[u, -2] > 2 * tolerance:  # otherwise the label itself is a matter of digits
            assert slow.flips(u, slack=-4 * tolerance) <= found <= slow.flips(u, slack=4 * tolerance)
            doubt = 1.0 - slow.neighbour_share()[u, slow.outputs[u].argmax()]
            close(verdict.neighbour_doubt[asked.index(u)], doubt, 4)
    if case.votes == "linearized":
        assert verdict.diffusion == 0
    elif case.diffusion == "auto":
        least = max(min(slow.own[k, y] for k, y in enumerate(slow.targets)), 1e-12)
        slack = 2 * math.log1p(tolerance / least)
        assert slow.log_score(verdict.diffusion) >= max(map(slow.log_score, (0, 1, 2))) - slack
    else:
        assert verdict.diffusion == case.diffusion
    counts = verdict.label_counts.numpy()
    assert (slow.counts(verdict.diffusion, case.score, slack=-tolerance)[asked] <= counts).all()
    assert (counts <= slow.counts(verdict.diffusion, case.score, slack=tolerance)[asked]).all()
    n_prime = verdict.num_jurors.numpy()[:, None]
    np.testing.assert_allclose(verdict.p_values, (1 + counts) / (n_prime + 1))
    for alpha in (0.1, 0.3, 0.75):
        inside = n_prime - counts < (1 - alpha) * (n_prime + 1) - 1e-9
        np.testing.assert_array_equal(verdict.label_sets(alpha).numpy(), inside)


def outcome(case: Case) -> tuple[str, str]:
    """What came of a case, and if it failed, one line with which to see it again."""
    try:
        return check(case), ""
    except Exception as error:
        kind = "wrong" if isinstance(error, AssertionError) else "raw"
        words = " ".join(str(error).split())[:160]
        again = f"PYTHONPATH=src:tests:tests/trust python tests/trust/random_juries.py {case.seed}"
        return kind, f"{again}  # {case.kind}: {type(error).__name__}: {words}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in map(int, sys.argv[1:]):
        print(seed, Case(seed).drawn)
        try:
            print(check(Case(seed)))
        except Exception:
            traceback.print_exc()
