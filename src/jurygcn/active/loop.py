"""The loop of active learning: choose nodes, ask for labels, train a new model, measure, repeat."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.active.asking import doubtful, settle
from jurygcn.active.history import History, Step
from jurygcn.active.learners import LabelledGraph, Learner, Predictor, find_learner, predictions
from jurygcn.active.oracle import Oracle, ask_oracle, truth
from jurygcn.active.protocol import Schedule
from jurygcn.active.registry import find_strategy
from jurygcn.active.scene import Choice, Scene, Strategy, hide_labels
from jurygcn.active.stopping import StoppingRule
from jurygcn.ambient import plain_torch
from jurygcn.checks import check_real, in_short
from jurygcn.choices import Recipe
from jurygcn.data import Split, paper_split, random_labels
from jurygcn.diagnostics.noise import NoiseModel
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import accuracy, micro_f1
from jurygcn.io.files import changing
from jurygcn.io.fingerprints import fingerprint
from jurygcn.models import GCN, fit_gcn
from jurygcn.progress import progress_bar


@plain_torch()
def run(
    data: Data,
    strategy: str | Strategy,
    *,
    initial: int | None = None,
    budget: int | None = None,
    step: int | None = None,
    seed: int = 0,
    count_initial: bool = True,
    split: Split | None = None,
    recipe: Recipe | None = None,
    learner: str | nn.Module | Predictor = "gcn",
    oracle: Oracle | None = None,
    stop: Sequence[StoppingRule] = (),
    explore: float = 0.0,
    doubts: float = 0.0,
    resume: str | Path | None = None,
    progress: bool = False,
) -> History:
    """Run active learning on ``data``, by default with the paper's protocol.

    Args:
        data: the graph with classes. A strategy sees only the labels that the oracle gave.
        strategy: a name of ``STRATEGIES``, or a function from a ``Scene`` to a ``Choice``.
        initial: number of initial labels, drawn at random from the pool.
        budget, step: number of labels at the end and per step; see ``Schedule``. The defaults of initial, budget and
            step are the paper's for its four graphs, and 10, 100, 20 for others.
        seed: of the split, the initial labels, the models and the strategy, each with its own generator.
        count_initial: whether ``budget`` counts the initial labels.
        split: pool, validation and test nodes; by default those of ``paper_split`` with this seed.
        recipe: how the GCN is trained.
        learner: what is learned with the labels, beside the GCN that strategies see: "advised" stacks the GCN and
            regressions on the graph, with weights chosen by left-out labels; "self-trained" trains a GCN on the labels
            and on pseudo-labels (:func:`jurygcn.learning.self_train`); a model is trained anew at every step, with the
            recipe; a function of the graph, the labelled nodes and a seed returns classes or scores of nodes.
            If labels may be wrong: "weighted" multiplies the GCN's losses by how much more probable it is that a label
            is right than that it is wrong; "screened" is the advised learner without labels that are probably wrong.
        oracle: the function that gives labels; by default it reads ``data.y``.
        stop: rules that can end the run early; see ``reached`` and ``settled``.
        explore: the share of all labels that is drawn at random from the pool before the run. The strategy cannot
            choose these nodes and does not see their labels; they are asked for in the last step, and the last model
            learns them. ``history.explored`` names them, for ``Jury(..., chosen="actively", drawn=history.explored)``:
            if they alone vote, coverage can be claimed as for random labels.
        doubts: the largest share of each step's answers that is spent on labels that are probably wrong: the oracle is
            asked about these nodes again. This helps only if its answers are independent. The predictions without the
            label and all answers settle the label, and ``error_rate`` of the history is estimated.
        resume: a JSON file for the history. After an interruption the same call continues from it.
        progress: show a bar on stderr.

    Implements: Application 1.
    """
    name, chooser = find_strategy(strategy)
    learner_name, learn = find_learner(learner)
    if data.y.is_floating_point() or int(data.num_classes) < 2:
        raise DataError(
            "expected a graph with at least two classes, got fewer or regression targets; give class labels"
        )
    schedule = Schedule.of(data, initial=initial, budget=budget, step=step, count_initial=count_initial)
    split, recipe = split or paper_split(data, seed=seed), recipe or Recipe()
    schedule = with_explored(schedule, explore, stop)
    check_real(doubts, "doubts", most=1.0)
    if schedule.last > len(split.pool):
        raise SettingError(
            f"expected at most the {len(split.pool)} labels of the pool, got a budget of {in_short(schedule.last)}; "
            "lower it"
        )
    settings = {
        "strategy": name,
        **{key: value for key, value in asdict(schedule).items() if key != "explored" or value},
        "seed": seed,
        **asdict(recipe),
        "graph": str(getattr(data, "name", "")),
        "features": fingerprint(data.x),
        "edges": fingerprint(data.edge_index, data.get("edge_weight")),
        "classes": fingerprint(data.y),
        "split": fingerprint(split),
        **({} if learner_name == "gcn" else {"learner": learner_name}),
        **({"doubts": doubts} if doubts else {}),
    }
    history = History(settings)
    path = None if resume is None else Path(resume)
    here = Run(data, split, schedule, recipe, seed, oracle or truth(data), learn, doubts)
    with ExitStack() as stack:
        if path is not None:
            # the lock prevents two runs from overwriting each other's answers
            stack.enter_context(changing(path, patience=0))
            if path.exists():
                history = History.load(path)
                history.check_same(settings, path)
                _check_nodes(history, data, split, path)
        here.check_consistent(history, resume, has_oracle=oracle is not None)
        shown = progress_bar(f"Labelling by {name}", total=len(schedule.sizes), unit="steps", show=progress)
        advance = stack.enter_context(shown)
        advance(len(history.steps))
        while not history.stopped:
            if len(history.steps) < len(schedule.sizes):
                history = here.advance(history, chooser)
                advance(1)
            history = replace(history, stopped=here.reason_to_stop(history, stop))
            if path is not None:
                history.save(path)
    return history


@dataclass(eq=False)
class Run:
    """The fixed settings of a run, and the model of the last step."""

    data: Data
    split: Split
    schedule: Schedule
    recipe: Recipe
    seed: int
    oracle: Oracle
    learn: Learner
    doubts: float = 0.0
    fitted: tuple[int, GCN, float] | None = None

    def advance(self, history: History, chooser: Strategy) -> History:
        """Do one more step: choose nodes (or draw the initial ones), ask for labels, train, measure."""
        number = len(history.steps)
        before = self.model(history) if number else None
        memory = deepcopy(dict(history.memory))
        again, noise = self._doubtful(history, before)
        nodes, scores, seconds = self._choose(history, chooser, before, memory, fewer=len(again))
        answers = self._ask(nodes)
        known = answers >= 0
        second = self._ask(again).tolist()
        settled, rate = tuple[int, ...](), math.nan
        if before is not None and noise is not None:
            settled, rate = settle(self._given(history, before), noise, again, second)
        labels = len(history.labelled) + int(known.sum())
        blank = Step(
            labels=labels,
            queried=labels - (len(history.steps[0].nodes) if number else labels),
            accuracy=math.nan,
            micro_f1=math.nan,
            val_accuracy=math.nan,
            changed=math.nan,
            seconds=seconds,
            training_seconds=0.0,
            nodes=tuple(nodes[known].tolist()),
            answers=tuple(answers[known].tolist()),
            skipped=tuple(nodes[~known].tolist()),
            scores=tuple(scores[known].tolist()) if number else (),
            again=tuple(again.tolist()),
            again_answers=tuple(second),
            settled=settled,
            error_rate=rate,
        )
        grown = history.with_step(blank, memory)
        return replace(grown, steps=(*history.steps, self._measured(blank, grown, before)))

    def _ask(self, nodes: Tensor) -> Tensor:
        return ask_oracle(self.oracle, nodes, int(self.data.num_classes)) if len(nodes) else torch.empty(0).long()

    def _doubtful(self, history: History, model: GCN | None) -> tuple[Tensor, NoiseModel | None]:
        """The nodes to ask about again in the next step, at least one answer less than the step has."""
        number, sizes = len(history.steps), self.schedule.sizes
        last = self.schedule.explored and number == len(sizes) - 1
        if not self.doubts or model is None or last:
            return torch.empty(0).long(), None
        step = sizes[number] - sizes[number - 1]
        return doubtful(self._given(history, model), min(int(self.doubts * step), step - 1))

    def _choose(
        self, history: History, chooser: Strategy, model: GCN | None, memory: dict[str, Any], *, fewer: int
    ) -> tuple[Tensor, Tensor, float]:
        number, sizes = len(history.steps), self.schedule.sizes
        if not number:
            if not sizes[0]:
                return torch.empty(0).long(), torch.empty(0), 0.0
            return self._initial(), torch.zeros(sizes[0]), 0.0
        if self.schedule.explored and number == len(sizes) - 1:
            return self.explored, torch.zeros(len(self.explored)), 0.0
        candidates = self.candidates(history)
        scene = Scene.of(
            self.data,
            history.labelled,
            history.labels,
            candidates=candidates,
            batch=min(sizes[number] - sizes[number - 1] - fewer, len(candidates)),
            model=model,
            weight_decay=self.recipe.weight_decay,
            generator=_generator(self.seed, "strategy", number),
            queried=history.steps[-1].queried,
            total=sizes[-1] - sizes[0] - self.schedule.explored,
            memory=memory,
        )
        started = time.perf_counter()
        choice = chooser(scene)
        seconds = time.perf_counter() - started
        check_choice(choice, scene)
        return choice.nodes, choice.scores, seconds

    @cached_property
    def explored(self) -> Tensor:
        """The nodes that are drawn before the run, each node of the pool with the same probability."""
        order = _generator(self.seed, "explore", 0).permutation(len(self.split.pool))
        return self.split.pool[torch.from_numpy(order[: self.schedule.explored]).long()].sort().values

    def _initial(self) -> Tensor:
        pool = self.split.pool[~torch.isin(self.split.pool, self.explored)]
        return random_labels(pool, self.schedule.sizes[0], seed=self.seed)

    def check_consistent(self, history: History, path: str | Path | None, *, has_oracle: bool) -> None:
        """Raise DataError for a history that this run cannot have produced.

        Its initial nodes, answers, step sizes and reason to stop must agree with this run.
        """
        sizes, steps = self.schedule.sizes, history.steps
        asked = [sorted([*step.nodes, *step.skipped, *step.again]) for step in steps]
        step_sizes = [size - before for size, before in zip(sizes, [0, *sizes])]
        first = self._initial().sort().values.tolist() if sizes[0] else []
        fits = [len(nodes) for nodes in asked] == step_sizes[: len(asked)] and asked[:1] in ([], [first])
        ended = {"budget": len(steps) == len(sizes), "pool": not len(self.candidates(history))}
        same_answers = has_oracle or torch.equal(history.labels, self.data.y[history.labelled].cpu())
        if not (fits and same_answers and ended.get(history.stopped, True)):
            raise DataError(
                f"expected {Path(path or '').name} to hold a history of this run, got other nodes, answers or another "
                "reason to stop; start a new run with another file"
            )

    def candidates(self, history: History) -> Tensor:
        """The nodes of the pool that were neither labelled nor skipped, nor drawn before the run."""
        used = torch.cat([history.labelled, history.skipped, self.explored])
        return self.split.pool[~torch.isin(self.split.pool, used)]

    def model(self, history: History) -> GCN | None:
        """The GCN of the last step. After an interruption it is trained again, with the same result."""
        if not len(history.labelled):
            return None
        if self.fitted is None or self.fitted[0] != len(history.steps):
            started = time.perf_counter()
            seen = hide_labels(self.data, history.labelled, history.labels)
            model, _ = fit_gcn(seen, history.labelled, self.recipe, seed=self._model_seed(history))
            self.fitted = (len(history.steps), model, time.perf_counter() - started)
        return self.fitted[1]

    def _model_seed(self, history: History) -> int:
        return int(_generator(self.seed, "model", len(history.steps)).integers(2**31 - 1))

    def _measured(self, step: Step, history: History, before: GCN | None) -> Step:
        old = None if before is None else predictions(before, self.data)
        model = self.model(history)
        if model is None or self.fitted is None:
            return step
        new, y = predictions(model, self.data), self.data.y
        found: dict[str, Any] = {
            key: metric(new[nodes], y[nodes])
            for key, metric, nodes in (
                ("accuracy", accuracy, self.split.test),
                ("micro_f1", micro_f1, self.split.test),
                ("val_accuracy", accuracy, self.split.val),
            )
            if len(nodes)
        }
        changed = math.nan if old is None else float((old != new).double().mean())
        found |= self._learner_results(history, model)
        return replace(step, **found, changed=changed, training_seconds=self.fitted[2])

    def _learner_results(self, history: History, model: GCN) -> dict[str, float]:
        """What the learner reaches at test and validation nodes."""
        reached, y = self.learn(self._given(history, model)), self.data.y.cpu()
        parts = {"learner_accuracy": self.split.test, "learner_val_accuracy": self.split.val}
        found = {key: accuracy(reached.classes[nodes], y[nodes]) for key, nodes in parts.items() if len(nodes)}
        found |= {"expected_accuracy": reached.expected, "left_out_accuracy": reached.left_out}
        return found | ({"error_rate": reached.wrong} if reached.wrong == reached.wrong else {})

    def _given(self, history: History, model: GCN) -> LabelledGraph:
        """What the learner learns from after these steps."""
        seen = hide_labels(self.data, history.labelled, history.labels)
        several = history.answers if any(step.again for step in history.steps) else ()
        return LabelledGraph(seen, history.labelled, model, self.recipe, self._model_seed(history), several)

    def reason_to_stop(self, history: History, rules: Sequence[StoppingRule]) -> str:
        """Why the run ends here; empty if it goes on."""
        if len(history.steps) >= len(self.schedule.sizes):
            return "budget"
        if not len(self.candidates(history)) and not self.schedule.explored:
            return "pool"
        return next((reason for rule in rules if (reason := rule(history))), "")


def with_explored(schedule: Schedule, explore: float, stop: Sequence[StoppingRule]) -> Schedule:
    """The schedule with a share of its labels drawn before the run."""
    check_real(explore, "explore", most=1.0)
    count = round(explore * schedule.last)
    if count and stop:
        raise SettingError("expected no stop with explore, got both; the drawn labels are asked for at the end")
    if count >= schedule.last - schedule.initial:
        raise SettingError(
            f"expected explore to leave labels for the strategy, got {count} of {schedule.last}; lower it"
        )
    return replace(schedule, explored=count)


def check_choice(choice: Choice, scene: Scene) -> None:
    """Raise SettingError unless the choice is a batch of different candidates."""
    if not isinstance(getattr(choice, "nodes", None), Tensor):
        raise SettingError(
            f"expected the strategy to return a Choice, got {type(choice).__name__}; return scene.top(scores), with a "
            "score for each node of the graph"
        )
    nodes = choice.nodes
    if len(nodes) != scene.batch or len(nodes.unique()) != len(nodes):
        raise SettingError(
            f"expected the strategy to choose {scene.batch} different nodes, got {len(nodes.unique())}; correct it"
        )
    outside = nodes[~torch.isin(nodes, scene.candidates)]
    if len(outside):
        raise SettingError(f"expected the strategy to choose candidates only, got node {int(outside[0])}; correct it")


def _check_nodes(history: History, data: Data, split: Split, path: Path) -> None:
    """Raise DataError for a history with nodes outside the pool, a node twice, or unknown classes."""
    nodes = [node for step in history.steps for node in (*step.nodes, *step.skipped)]
    answers = [label for step in history.steps for label in step.answers]
    inside = set(nodes) <= set(split.pool.tolist()) and len(set(nodes)) == len(nodes)
    if not inside or not all(0 <= label < int(data.num_classes) for label in answers):
        raise DataError(
            f"expected {path.name} to name nodes of the pool, each once, with classes 0..{int(data.num_classes) - 1}, "
            "got others; start a new run with another file"
        )


def _generator(seed: int, purpose: str, step: int) -> np.random.Generator:
    """A separate generator for each purpose and step, so that a resumed run makes the same draws."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), step])
