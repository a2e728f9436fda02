"""Counting votes exactly: a forward pass of every juror, in batches.

Any chunk of jurors can be counted by itself, and the counts of chunks merge. So chunks can be counted one after the
other, by several processes, or by several machines, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from jurygcn.conformal.asked import Asked, errors_of
from jurygcn.conformal.averaging import NeighbourAverages, take
from jurygcn.conformal.counts import Counts
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.conformal.resuming import CountsFile
from jurygcn.engine import PortableEngine
from jurygcn.engine.portable import as_arrays, as_tensors
from jurygcn.parallel import map_batches

# Counts travel back with every chunk, so chunks are long; but a long chunk keeps the other workers waiting at the end,
# and much is lost with it.
CHUNKS_PER_WORKER, LONGEST_CHUNK = 4, 64


class ExactCounter:
    """Counts what the jurors with these steps say about the asked nodes.

    Attributes:
        outputs: the trained model's predictions at the asked nodes, (m, C).
        averages: the candidate numbers of averages over neighbourhoods.
    """

    def __init__(self, asked: Asked, steps: Tensor, *, memory: str) -> None:
        self.asked, self.memory = asked, memory
        engine = asked.engine
        # The nodes that are voted on, and where among them the asked ones (None: all) and the jurors' own ones are.
        base, self.at_own = asked.nodes, asked.own_nodes
        self.at_asked: Tensor | None = None
        if not asked.everything:
            base, where = torch.cat([asked.nodes, asked.own_nodes]).unique(return_inverse=True)
            self.at_asked, self.at_own = where[: len(asked.nodes)], where[len(asked.nodes) :]
        self.smoothing = NeighbourAverages(engine.data, base, asked.question.diffusion if asked.classify else 0)
        self.averages = self.smoothing.candidates
        self.predictions = LeaveOneOutPredictions(engine, steps, self.smoothing.reach, memory=memory)
        self._model = self.smoothing(self.predictions.of_parameters(engine.theta[None]))
        self.outputs = take(self._model[0], self.at_asked)[:, :, 0]

    def averaged_outputs(self, steps: int) -> Tensor | None:
        """The trained model's predictions averaged so often, (m, C), if they are known."""
        return take(self._model[steps], self.at_asked)[:, :, 0] if steps in self._model else None

    def count_all(
        self,
        *,
        parallel: int | str | None = None,
        resume: str | Path | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Counts:
        """Count the votes of all jurors, from where the counts in the folder ``resume`` end, if there are any.

        Args:
            parallel: where to count; see :mod:`jurygcn.parallel`.
            resume: a folder to keep the counts in, so that they need not be made again.
            advance: called with the number of jurors that have just been counted.
        """
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
            if file is not None and part.jurors < self.asked.num_jurors:  # a single chunk leaves nothing to resume
                file.write(counts)
        assert counts is not None
        return counts

    def chunks(self, workers: int = 1, *, start: int = 0) -> list[Tensor]:
        """The jurors from ``start`` on, divided for this many workers; one worker takes a batch at a time."""
        jurors, batch = torch.arange(start, self.asked.num_jurors), self.predictions.batch_size
        share = min(LONGEST_CHUNK, ceil(len(jurors) / (CHUNKS_PER_WORKER * workers)))
        even = ceil(len(jurors) / max(1, ceil(len(jurors) / batch)))  # no small batch at the end
        size = even if workers == 1 else share if share <= batch else batch * ceil(share / batch)
        return list(jurors.split(size)) if len(jurors) else []

    @torch.no_grad()
    def count(self, jurors: Tensor) -> Counts:
        """Steps 7-10 of Algorithm 2 for a chunk of jurors, in batches that fit the memory budget."""
        return reduce(Counts.merge, map(self._count_batch, jurors.split(self.predictions.batch_size)))

    def empty_counts(self) -> Counts:
        """The counts before any juror has voted."""
        return self.asked.empty_counts(self.outputs, self.averages)

    def _count_batch(self, jurors: Tensor) -> Counts:
        """Some jurors vote at once, and their votes are counted."""
        counts, own, targets = self.empty_counts(), self.asked.own(jurors), self.asked.own_targets[jurors]
        voted = self.smoothing(self.predictions.of(jurors))  # f_{-i}(u) and f_{-i}(i) for every juror i
        at_own = {k: v[self.at_own[jurors], :, torch.arange(len(jurors))] for k, v in voted.items()}
        voted = {k: take(v, self.at_asked) for k, v in voted.items()}
        counts.bounds.add(self.asked.quantity(voted[0]), errors_of(at_own[0], targets), own)  # Eqs. (6)-(7)
        counts.spread.add(voted[0], own)
        for k, labels in counts.labels.items():
            labels.add_own(at_own[k], targets)
        if len(jurors) == self.asked.num_jurors and self.asked.classify:  # all vote at once: choose before counting
            best = counts.best_average
            counts = replace(counts, labels={best: counts.labels[best]})
        for k, labels in counts.labels.items():
            labels.add(voted[k], at_own[k], targets, own)
        return counts

    def portable(self) -> PortableCounter:
        """What another process needs to count the same."""
        return PortableCounter(self)


class PortableCounter:
    """A counter on its way to another process; calling it gives its ``count`` there."""

    def __init__(self, counter: ExactCounter) -> None:
        asked = counter.asked
        self.engine, self.question, self.memory = PortableEngine(asked.engine), asked.question, counter.memory
        steps = counter.predictions.steps
        self.arrays = as_arrays({"steps": steps, "positions": asked.positions, "nodes": asked.nodes})

    def __call__(self) -> Callable[[Tensor], Counts]:
        """The same counter's ``count`` at the other end."""
        given, question = dict(as_tensors(self.arrays)), self.question
        asked = Asked(self.engine(), given["positions"], given["nodes"], question)
        return ExactCounter(asked, given["steps"], memory=self.memory).count
