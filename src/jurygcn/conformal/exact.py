"""Exact votes: a forward pass of every juror, in batches.

Each chunk of jurors is counted separately, and the counts of chunks are merged. So one process, several processes or
several machines give the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from jurygcn.conformal.advice import Advice, chosen_advice
from jurygcn.conformal.asked import Asked, errors_of
from jurygcn.conformal.averaging import NeighbourAverages, take
from jurygcn.conformal.counts import Counts
from jurygcn.conformal.first_order import check_in_one_go
from jurygcn.conformal.predictions import (
    FirstOrderPredictions,
    LeaveOneOutPredictions,
    parse_memory,
    predictions_of,
)
from jurygcn.conformal.resuming import CountsFile
from jurygcn.engine import PortableEngine
from jurygcn.engine.portable import as_arrays, as_tensors
from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.leave_one_out.panel import Panel
from jurygcn.parallel import map_batches

# Every chunk sends its counts back, so chunks should be long. But other workers wait for a long chunk at the end, and
# more work is lost if its worker dies.
CHUNKS_PER_WORKER, LONGEST_CHUNK = 4, 64
# Up to this many bytes, and this share of the memory, votes are kept after the weights of the advice are chosen.
KEPT_BYTES, KEPT_SHARE = 64e6, 0.25


class ExactCounter:
    """Counts the votes of the jurors with these steps, or of compressed ones, on the queried nodes.

    Attributes:
        outputs: the trained model's predictions at the queried nodes, (m, C).
        averages: the candidate numbers of averages over neighbourhoods.
        advice: the advice that jurors take before labels are scored, if any.

    ``everywhere`` are the votes on all nodes, if they were computed before.
    """

    def __init__(
        self,
        asked: Asked,
        jurors: Tensor | CompressedJurors,
        *,
        memory: str,
        advice: Advice | None = None,
        everywhere: LeaveOneOutPredictions | None = None,
    ) -> None:
        self.asked, self.memory, self.advice = asked, memory, advice
        engine = asked.engine
        # The nodes that are voted on, and the positions of the queried nodes (None: all) and of the jurors' own nodes.
        base, self.at_own = asked.nodes, asked.own_nodes
        self.at_asked: Tensor | None = None
        if not asked.everything:
            base, where = torch.cat([asked.nodes, asked.own_nodes]).unique(return_inverse=True)
            self.at_asked, self.at_own = where[: len(asked.nodes)], where[len(asked.nodes) :]
        diffusion = asked.question.diffusion if advice is None else advice.diffusion
        self.smoothing = NeighbourAverages(engine.data, base, diffusion if asked.classify else 0)
        self.averages = self.smoothing.candidates
        reach = self.smoothing.reach
        self.predictions = everywhere or predictions_of(engine, jurors, reach, asked.own_nodes, memory=memory)
        self._model = self.smoothing(self.predictions.trained())
        self.outputs = take(self._model[0], self.at_asked)[:, :, 0]
        self._advice_here = None if advice is None else advice if asked.everything else advice.at(base)

    def averaged_outputs(self, steps: int) -> Tensor | None:
        """The trained model's predictions, averaged ``steps`` times, (m, C), or None."""
        return take(self._model[steps], self.at_asked)[:, :, 0] if steps in self._model else None

    def advised_outputs(self) -> Tensor | None:
        """The stacked jury's predictions, (m, C), or None without advice."""
        if self._advice_here is None:
            return None
        return take(self._advice_here.outputs(self._model[self._advice_here.diffusion][:, :, 0]), self.at_asked)

    def count_all(
        self,
        *,
        parallel: int | str | None = None,
        resume: str | Path | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Counts:
        """Count the votes of all jurors, continuing from saved counts in the folder ``resume``.

        Args:
            parallel: where to count; see :mod:`jurygcn.parallel`.
            resume: a folder for the counts so far.
            advance: called with the number of jurors just counted.
        """
        if isinstance(self.predictions, FirstOrderPredictions):
            check_in_one_go(parallel, resume)
        file = None if resume is None else CountsFile(Path(resume), self)
        counts = None if file is None else file.read()
        done = 0 if counts is None else counts.jurors
        advance(done)
        left = map_batches(
            self.count, lambda workers: self.chunks(workers, start=done), pack=self.portable, parallel=parallel
        )
        for part in left:
            advance(part.jurors)
            counts = part if counts is None else counts.merge(part)
            if file is not None and part.jurors < self.asked.num_jurors:  # a single chunk cannot be resumed
                file.write(counts)
        assert counts is not None
        return counts

    def chunks(self, workers: int = 1, *, start: int = 0) -> list[Tensor]:
        """The jurors from ``start`` on, divided into chunks for this many workers; a single worker counts batches."""
        if workers == 1:
            return self.predictions.batches(start=start)
        jurors, batch = torch.arange(start, self.asked.num_jurors), self.predictions.batch_size
        share = min(LONGEST_CHUNK, ceil(len(jurors) / (CHUNKS_PER_WORKER * workers)))
        return list(jurors.split(share if share <= batch else batch * ceil(share / batch))) if len(jurors) else []

    @torch.no_grad()
    def count(self, jurors: Tensor) -> Counts:
        """Steps 7-10 of Algorithm 2 for a chunk of jurors, in batches that fit the memory budget."""
        return reduce(Counts.merge, map(self._count_batch, jurors.split(self.predictions.batch_size)))

    def empty_counts(self) -> Counts:
        """The counts before any vote."""
        return self.asked.empty_counts(self.outputs, self.averages)

    def _count_batch(self, jurors: Tensor) -> Counts:
        """Compute and count the votes of one batch of jurors."""
        counts, own, targets = self.empty_counts(), self.asked.own(jurors), self.asked.own_targets[jurors]
        everywhere = self.smoothing(self.predictions.of(jurors))  # f_{-i}(u) and f_{-i}(i) for every juror i
        alone = take(everywhere[0], self.at_asked)  # without averages and advice
        counts.spread.add(alone, own)
        if self.asked.classify:  # the paper's interval is about the model
            mine = errors_of(self._own_votes(everywhere[0], jurors), targets)
            counts.bounds.add(self.asked.quantity(alone), mine, own)  # Eqs. (6)-(7)
        if self._advice_here is not None:
            everywhere = {k: self._advice_here.votes(everywhere[k], jurors) for k in self.averages}
        at_own = {k: self._own_votes(v, jurors) for k, v in everywhere.items()}
        voted = {k: take(v, self.at_asked) for k, v in everywhere.items()}
        if not self.asked.classify:
            counts.bounds.add(voted[0], errors_of(at_own[0], targets), own)
        for k, labels in counts.labels.items():
            labels.add_own(at_own[k], targets)
        if len(jurors) == self.asked.num_jurors and self.asked.classify:  # a single batch: choose before counting
            best = counts.best_average
            counts = replace(counts, labels={best: counts.labels[best]})
        for k, labels in counts.labels.items():
            labels.add(voted[k], at_own[k], targets, own, self.asked.same_group(jurors))
        return counts

    def _own_votes(self, votes: Tensor, jurors: Tensor) -> Tensor:
        """Each juror's vote on its own node, (r, C, b) -> (b, C)."""
        return votes[self.at_own[jurors], :, torch.arange(len(jurors))]

    def portable(self) -> PortableCounter:
        """A picklable copy, for another process."""
        return PortableCounter(self)


def advised_counter(
    asked: Asked,
    jurors: Tensor | CompressedJurors,
    panel: Panel,
    *,
    memory: str,
    known: dict[int | str, Advice],
    here: bool,
    heard: bool,
) -> ExactCounter:
    """A counter whose jurors take advice; the weights are chosen once for each number of averages, in ``known``.

    If all nodes are queried, votes are counted in this process (``here``) and there are few, they are computed once.
    """
    engine, diffusion = asked.engine, asked.question.diffusion if asked.classify else 0
    everywhere = None
    if diffusion not in known and isinstance(jurors, Tensor):
        size = len(asked.nodes) * engine.num_outputs * len(jurors) * engine.source_dtype.itemsize
        if asked.everything and here and size < min(KEPT_BYTES, KEPT_SHARE * parse_memory(memory)):
            everywhere = LeaveOneOutPredictions(engine, jurors, asked.nodes, memory=memory, keep=True)
    advice = chosen_advice(
        *(engine, jurors, panel, asked.positions),
        diffusion=diffusion,
        memory=memory,
        known=known,
        heard=heard,
        everywhere=everywhere,
    )
    return ExactCounter(asked, jurors, memory=memory, advice=advice, everywhere=everywhere)


class PortableCounter:
    """A picklable counter; calling it returns its ``count`` in the receiving process."""

    def __init__(self, counter: ExactCounter) -> None:
        asked = counter.asked
        self.engine, self.question, self.memory = PortableEngine(asked.engine), asked.question, counter.memory
        steps = counter.predictions.steps
        given = {"steps": steps, "positions": asked.positions, "nodes": asked.nodes}
        self.arrays = as_arrays(given if asked.groups is None else {**given, "groups": asked.groups})
        self.advice = None if counter.advice is None else counter.advice.portable()

    def __call__(self) -> Callable[[Tensor], Counts]:
        """The counter's ``count``, in the receiving process."""
        given, question = dict(as_tensors(self.arrays)), self.question
        asked = Asked(self.engine(), given["positions"], given["nodes"], question, given.get("groups"))
        advice = None if self.advice is None else self.advice()
        return ExactCounter(asked, given["steps"], memory=self.memory, advice=advice).count
