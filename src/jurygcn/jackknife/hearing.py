"""One hearing: the asked nodes are put before the jurors, batch after batch, and their votes are counted.

A hearing can count any stretch of jurors by itself, and counts of stretches merge; so stretches can be counted one
after the other, by several processes, or by machines, with the same result.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import ceil
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.checks import all_finite
from jurygcn.errors import ModelError
from jurygcn.fingerprints import architecture, state
from jurygcn.jackknife.ballots import Ballots, predictions_at
from jurygcn.jackknife.diffusion import Diffusion, take
from jurygcn.jackknife.intervals import check_alpha, loo_errors
from jurygcn.jackknife.record import Record
from jurygcn.jackknife.tally import Interval, LabelCounts, Own, Spread, score_named
from jurygcn.jackknife.verdict import Verdict
from jurygcn.models.copies import dress, independent_copy, undress
from jurygcn.models.neighbourhood import num_hops, other_source_within
from jurygcn.models.receptive_field import is_everything
from jurygcn.objective import Objective
from jurygcn.parallel import map_batches

# Counts travel back with every stretch, so stretches are long; but not so long that a worker waits for another, or
# that much is lost with one.
STRETCHES_PER_WORKER, LONGEST_STRETCH = 4, 64

# what the width measures where no other label is near, and where one is
KINDS = np.array(["aleatoric+epistemic", "epistemic"], dtype=object)


@dataclass(frozen=True)
class Question:
    """What is asked of the jurors: see :meth:`jurygcn.Jury.verdict` for the meaning of each field."""

    alpha: float
    exact: bool
    interval: str
    score: str
    diffusion: int | str


@dataclass(frozen=True, eq=False)
class Tally:
    """The counts of one stretch of jurors."""

    bounds: Interval
    labels: dict[int, LabelCounts]
    spread: Spread

    @property
    def jurors(self) -> int:
        """How many jurors have been counted."""
        return sum(map(len, self.bounds.errors))

    @property
    def best_diffusion(self) -> int:
        """The number of averages with which jurors foretell their own left-out labels best."""
        return max(self.labels, key=lambda k: self.labels[k].log_score)

    def merge(self, other: Tally) -> Tally:
        """These counts with those of the next stretch of jurors."""
        self.bounds.merge(other.bounds)
        self.spread.merge(other.spread)
        for k, counts in self.labels.items():
            counts.merge(other.labels[k])
        return self


class Hearing:
    """The asked nodes, what must be computed for them, and how votes on them are counted."""

    def __init__(
        self, objective: Objective, steps: Tensor, seats: Tensor, asked: Tensor, question: Question, *, memory: str
    ) -> None:
        self._open(objective, seats, asked, question, memory)
        # the nodes that are voted on, and where among them the asked ones (None: they are all) and the jurors' own are
        base, self.at_own, self.at_asked = asked, self.own_nodes, cast("Tensor | None", None)
        if not self.everyone_asked:
            base, where = torch.cat([asked, self.own_nodes]).unique(return_inverse=True)
            self.at_asked, self.at_own = where[: len(asked)], where[len(asked) :]
        self.smoothing = Diffusion(objective.data, base, question.diffusion if self.classify else 0)
        self.candidates = self.smoothing.candidates
        self.ballots = Ballots(objective, steps, self.smoothing.reach, memory=memory)
        self.model_says = self.smoothing(self.ballots.predictions(objective.theta[None]))
        self.prediction = take(self.model_says[0], self.at_asked)[:, :, 0]

    def _open(self, objective: Objective, seats: Tensor, asked: Tensor, question: Question, memory: str) -> None:
        """What is asked, and of whom: juror k left out the training node at position ``seats[k]``."""
        check_alpha(question.alpha)
        score_named(question.score)
        self.objective, self.asked, self.question, self.memory = objective, asked, question, memory
        self.seats, self.num_jurors = seats, len(seats)
        self.own_nodes, self.own_targets = objective.train_nodes[seats], objective.targets[seats]
        self.classify = objective.loss.name == "cross_entropy"
        self.everyone_asked = is_everything(asked, int(objective.data.num_nodes))
        self._sorted, self._order = (asked, asked) if self.everyone_asked else asked.sort()

    def stretches(self, workers: int = 1, *, start: int = 0) -> list[Tensor]:
        """The jurors from ``start`` on, cut for this many workers; one worker takes a batch at a time."""
        jurors, batch = torch.arange(start, self.num_jurors), self.ballots.batch_size
        share = min(LONGEST_STRETCH, ceil(len(jurors) / (STRETCHES_PER_WORKER * workers)))
        even = ceil(len(jurors) / max(1, ceil(len(jurors) / batch)))  # no small batch at the end
        size = even if workers == 1 else share if share <= batch else batch * ceil(share / batch)
        return list(jurors.split(size)) if len(jurors) else []

    def hear(
        self,
        *,
        parallel: int | str | None = None,
        resume: str | Path | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Tally:
        """Count the votes of all jurors, from where the record in the folder ``resume`` ends, if there is one.

        Args:
            parallel: where to count; see :mod:`jurygcn.parallel`.
            resume: a folder to keep the counts in, so that they need not be made again.
            advance: called with the number of jurors that have just been counted.
        """
        record = None if resume is None else Record(Path(resume), self)
        tally = None if record is None else record.read()
        heard = 0 if tally is None else tally.jurors
        advance(heard)
        left = map_batches(
            self.count, lambda workers: self.stretches(workers, start=heard), pack=self.portable, parallel=parallel
        )
        for part in left:
            advance(part.jurors)
            tally = part if tally is None else tally.merge(part)
            if record is not None and part.jurors < self.num_jurors:  # one batch leaves nothing to go on with
                record.write(tally)
        assert tally is not None
        return tally

    @torch.no_grad()
    def count(self, jurors: Tensor) -> Tally:
        """Steps 7-10 of Algorithm 2 for a stretch of jurors, in batches that fit the memory budget."""
        return reduce(Tally.merge, map(self._count_batch, jurors.split(self.ballots.batch_size)))

    def new_tally(self) -> Tally:
        """The counts before any juror has spoken."""
        ask = self.question
        bounds = Interval(ask.interval, ask.alpha, self.num_jurors, exact=ask.exact)
        labels = {k: LabelCounts(ask.score) for k in self.candidates} if self.classify else {}
        return Tally(bounds, labels, Spread(self.prediction))

    def _count_batch(self, jurors: Tensor) -> Tally:
        """Some jurors vote at once, and their votes are counted."""
        tally = self.new_tally()
        own = self.own(jurors)
        voted = self.smoothing(self.ballots.of(jurors))  # f_{-i}(u) and f_{-i}(i) for every juror i
        targets = self.own_targets[jurors]
        at_own = {k: v[self.at_own[jurors], :, torch.arange(len(jurors))] for k, v in voted.items()}
        voted = {k: take(v, self.at_asked) for k, v in voted.items()}
        tally.bounds.add(self.quantity(voted[0]), errors_of(at_own[0], targets), own)  # Eqs. (6)-(7)
        tally.spread.add(voted[0], own)
        for k, counts in tally.labels.items():
            counts.listen(at_own[k], targets)
        if len(jurors) == self.num_jurors and self.classify:  # all are here, so the choice is made before counting
            best = tally.best_diffusion
            tally = replace(tally, labels={best: tally.labels[best]})
        for k, counts in tally.labels.items():
            counts.add(voted[k], at_own[k], targets, own)
        return tally

    def portable(self) -> PortableHearing:
        """What another process needs to count as this hearing does."""
        return PortableHearing(self)

    def evidence(self) -> dict[str, Any]:
        """Everything that decides the counts, by name."""
        objective = self.objective
        return {
            "question": self.question,
            "loss": objective.loss.name,
            "dtype": objective.source_dtype,
            "architecture": architecture(objective.model),
            "model": state(objective.model),
            "prediction": self.prediction,
            "asked": self.asked,
            "train_nodes": objective.train_nodes,
            "targets": objective.targets,
            "seats": self.seats,
            "steps": self.ballots.steps,
            **{f"data.{name}": value for name, value in objective.data.items() if isinstance(value, Tensor)},
        }

    def verdict(self, tally: Tally) -> Verdict:
        """Step 11: the verdict from the counts of all jurors."""
        n, m = self.num_jurors, len(self.asked)
        self._check(tally)
        everyone = self.own(torch.arange(n))
        speakers = n - torch.zeros(m, dtype=torch.long).index_fill_(0, everyone.node, 1)
        lower, upper = tally.bounds.bounds(self.quantity(self.prediction), speakers, everyone)
        best = tally.best_diffusion if self.classify else 0
        return Verdict(
            nodes=self.asked,
            prediction=self.prediction,
            lower=lower.squeeze(1),
            upper=upper.squeeze(1),
            jurors=speakers,
            kinds=self._kinds(),
            loo_errors=torch.cat(tally.bounds.errors).squeeze(1),
            loo_variance=tally.spread.variance(speakers),
            label_flips=tally.spread.flips / speakers.clamp_min(1),
            neighbour_doubt=self._neighbour_doubt() if self.classify else torch.empty(0),
            alpha=self.question.alpha,
            diffusion=best,
            label_counts=tally.labels[best].counts if self.classify else None,
            names=getattr(self.objective.data, "class_names", None),
        )

    def _check(self, tally: Tally) -> None:
        """Refuse votes that are not numbers: sums hold a NaN if any of them is."""
        if not all(all_finite(part) for part in (tally.spread.square, *tally.bounds.errors)):
            raise ModelError(
                f"Some jurors' outputs are beyond the range of {self.objective.source_dtype}, so their votes are not "
                "numbers: pass the weight decay the model was trained with, scale the features, or use model.double()."
            )

    def quantity(self, predictions: Tensor) -> Tensor:
        """What is put in an interval: the norm of the class probabilities, or the outputs, (m, C, *) -> (m, K, *)."""
        if not self.classify:
            return predictions
        first, *others = predictions.unbind(1)
        return reduce(lambda total, p: total.addcmul_(p, p), others, first.square()).sqrt_().unsqueeze(1)

    def own(self, jurors: Tensor) -> Own:
        """Which of these jurors are among the asked nodes, and where."""
        mine = self.own_nodes[jurors]
        found = torch.searchsorted(self._sorted, mine).clamp_max(len(self.asked) - 1)
        node = self._order[found]
        hit = self.asked[node] == mine
        return Own(hit.nonzero().squeeze(1), node[hit])

    def _kinds(self) -> list[str]:
        """Which uncertainty the width measures at each node. Implements: Prop. 1 and its remark."""
        data = self.objective.data
        hops = num_hops(self.objective.model)
        near = other_source_within(data.edge_index, self.objective.train_nodes, int(data.num_nodes), hops)
        kinds: list[str] = KINDS[near[self.asked].cpu().numpy().astype(int)].tolist()
        return kinds

    def _neighbour_doubt(self) -> Tensor:
        """One minus the predicted class's share of the model's probabilities within two hops, (m,)."""
        if 2 in self.model_says:
            share = take(self.model_says[2], self.at_asked)
        else:
            around = Diffusion(self.objective.data, self.asked, 2)
            share = around(predictions_at(self.objective, around.reach))[2]
        label = self.prediction.argmax(dim=1, keepdim=True)
        return 1.0 - share[:, :, 0].gather(1, label).squeeze(1)


def errors_of(at_own: Tensor, targets: Tensor) -> Tensor:
    """Leave-one-out errors of some jurors from their predictions at their own nodes, (b, C) -> (b, K).

    Implements: Eq. (6); for regression the absolute error of each output.
    """
    if targets.is_floating_point():
        return (targets.to(at_own.dtype) - at_own).abs()
    return loo_errors(functional.one_hot(targets, at_own.shape[1]).to(at_own.dtype), at_own)[:, None]


class PortableHearing:
    """A hearing on its way to another process: only what it was made from, and that as NumPy arrays.

    Arrays travel well (joblib maps large ones into every process, Dask does not copy them); sparse matrices and
    whatever else can be made again stay behind.
    """

    def __init__(self, hearing: Hearing) -> None:
        self.question, self.memory = hearing.question, hearing.memory
        self.objective = light = copy.copy(hearing.objective)
        light.data, light.model, light.parameters = copy.copy(light.data), independent_copy(light.model), {}
        for name in vars(hearing.objective):
            if isinstance(getattr(type(light), name, None), cached_property):
                delattr(light, name)
        self.given = _arrays({"steps": hearing.ballots.steps, "seats": hearing.seats, "asked": hearing.asked})
        self.fields = _arrays(vars(light))
        self.graph = _arrays(dict(light.data.items()))
        self.weights = _arrays(dict(light.model.named_parameters()))
        for name in self.fields:
            delattr(light, name)
        for name in self.graph:
            del light.data[name]
        for name in self.weights:
            light.model.get_parameter(name).data = torch.empty(0)
        undress(light.model)

    def __call__(self) -> Callable[[Tensor], Tally]:
        """The same hearing at the other end: its ``count``."""
        objective = copy.copy(self.objective)
        objective.data, objective.model = copy.copy(objective.data), independent_copy(objective.model)
        for name, tensor in _tensors(self.fields):
            setattr(objective, name, tensor)
        for name, tensor in _tensors(self.graph):
            objective.data[name] = tensor
        for name, tensor in _tensors(self.weights):
            objective.model.get_parameter(name).data = tensor
        dress(objective.model)
        objective.parameters = {n: p.detach() for n, p in objective.model.named_parameters() if p.requires_grad}
        return Hearing(objective, question=self.question, memory=self.memory, **dict(_tensors(self.given))).count


def _arrays(values: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The dense tensors among the values, as arrays that share their memory."""
    dense = {name: v for name, v in values.items() if isinstance(v, Tensor) and v.layout == torch.strided}
    return {name: v.detach().cpu().numpy() for name, v in dense.items() if v.dtype != torch.bfloat16}


def _tensors(arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[tuple[str, Tensor]]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to them
        yield from [(name, torch.from_numpy(array)) for name, array in arrays.items()]
