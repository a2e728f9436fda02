"""Options that several commands share, and checks that need no data.

Modules that need torch are imported in the functions that use them, here and in the modules of the commands: the help
texts appear without torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jurygcn.checks import MOST_DECAY, MOST_EPOCHS, MOST_HIDDEN, MOST_LAYERS, MOST_RATE, in_short
from jurygcn.choices import CHOSEN, CURVATURES, MOST_STEPS, PRESETS, SETS, SOLVERS, VOTES, Recipe
from jurygcn.cli.data import Name
from jurygcn.cli.reporting import AsJson
from jurygcn.errors import SettingError

MOST_NODES = 10**9  # upper bound for nodes, labels and jurors; larger graphs fit into no machine

__all__ = [
    "Advice",
    "Alpha",
    "AsJson",
    "AsPrinted",
    "Checkpoint",
    "Chosen",
    "Curvature",
    "Diffusion",
    "Drawn",
    "Dropout",
    "Epochs",
    "Groups",
    "Hidden",
    "Labels",
    "Layers",
    "LearningRate",
    "LeaveOut",
    "MaxJurors",
    "Memory",
    "Name",
    "NewData",
    "Out",
    "Page",
    "Parallel",
    "PerClass",
    "Preset",
    "Retrain",
    "Seed",
    "Solver",
    "TrainNodes",
    "Votes",
    "WeightDecay",
]


def one_of(option: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    """A callback that checks that the value is one of the choices."""

    def check(value: Any) -> Any:
        if value is not None and value not in choices:
            raise SettingError(f"expected {option} to be one of {', '.join(choices)}, got {value!r}; choose one")
        return value

    return check


def whole(option: str, about: str, *, least: int = 1, most: int = MOST_NODES) -> Any:
    """An option for a whole number between two bounds, written in the digits 0 to 9."""

    def parse(text: Any) -> int:
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,20}", str(text)) else None
        if number is None or not least <= number <= most:
            raise typer.BadParameter(
                f"expected a whole number between {least} and {most}, got {in_short(text)}; change it"
            )
        return number

    return typer.Option(option, parser=parse, metavar="INTEGER", help=about)


def real(option: str, about: str, *, most: float, callback: Callable[[float], float] | None = None) -> Any:
    """An option for a number between 0 and a bound, written in the digits 0 to 9."""

    def parse(text: Any) -> float:
        written = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", str(text))
        number = float(text) if written else -1.0
        if not 0.0 <= number <= most:
            raise typer.BadParameter(f"expected a number between 0 and {most:g}, got {in_short(text)}; change it")
        return number

    return typer.Option(option, parser=parse, callback=callback, metavar="NUMBER", help=about)


# Options with the same bounds in all commands, but other help texts or defaults.
epochs = partial(whole, "--epochs", most=MOST_EPOCHS)
hidden = partial(whole, "--hidden", most=MOST_HIDDEN)
layers = partial(whole, "--layers", most=MOST_LAYERS)
learning_rate = partial(real, "--lr", most=MOST_RATE)
weight_decay = partial(real, "--weight-decay", most=MOST_DECAY)
dropout = partial(real, "--dropout", most=1.0)


def _diffusion(value: str) -> str:
    if value != "auto" and not (re.fullmatch("[0-9]{1,9}", value) and int(value) <= MOST_STEPS):
        raise SettingError(
            f"expected --diffusion to be auto or a whole number of steps between 0 and {MOST_STEPS}, "
            f"got {in_short(value)}; change it"
        )
    return value


def _alpha(value: float) -> float:
    from jurygcn.conformal.intervals import check_alpha

    return check_alpha(value)


def _parallel(value: str | None) -> str | None:
    from jurygcn.parallel import check_parallel

    check_parallel(value)
    return value


def _memory(value: str) -> str:
    from jurygcn.conformal.predictions import parse_memory

    parse_memory(value)
    return value


Labels = Annotated[
    int | None, whole("--labels", "Number of random labels; 100, or the whole pool if smaller.", least=0)
]
PerClass = Annotated[
    int | None, whole("--per-class", "Number of random labels per class, instead of --labels.", least=0)
]
TrainNodes = Annotated[
    Path | None,
    typer.Option(
        "--train-nodes",
        help="Nodes to train on: a file with one node number or name per line; a CSV file with the columns node and "
        "label, which also sets the labels; the run.json of a run; or a word: all, for every labelled "
        "node, or mask, for the graph's own train_mask.",
    ),
]
Epochs = Annotated[int, epochs("Training epochs.")]
LearningRate = Annotated[float, learning_rate("Adam's learning rate.")]
WeightDecay = Annotated[
    float | None,
    weight_decay(f"L2 penalty of the training objective; {Recipe.weight_decay:g} by default."),
]
Dropout = Annotated[float, dropout("Dropout; use 0 for a model to quantify, so that its objective has an optimum.")]
Hidden = Annotated[int, hidden("Hidden units per layer.")]
Layers = Annotated[int, layers("Graph convolutions.")]
Seed = Annotated[int, whole("--seed", "Seed of split, labels and weights.", least=0, most=2**32 - 1)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write the results to.")]
Page = Annotated[Path | None, typer.Option("--report", help="HTML page of the verdict to write; it works offline.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="A state dict of jurygcn.GCN to quantify instead of training one; pass the training nodes with "
        "--train-nodes, unless the run.json of jurygcn train is in the same folder.",
    ),
]
Alpha = Annotated[
    float, real("--alpha", "Level of the jackknife interval whose width is reported.", most=0.5, callback=_alpha)
]
LeaveOut = Annotated[
    str,
    typer.Option(
        "--leave-out",
        callback=one_of("--leave-out", ("newton", "influence", "retrain")),
        help="How to leave a label out: newton, influence (the paper's), or retrain (brute force).",
    ),
]
Curvature = Annotated[
    str,
    typer.Option("--curvature", callback=one_of("--curvature", CURVATURES), help=f"{', '.join(CURVATURES)}."),
]
Solver = Annotated[
    str,
    typer.Option("--solver", callback=one_of("--solver", ("auto", *SOLVERS)), help=f"{', '.join(('auto', *SOLVERS))}."),
]
AsPrinted = Annotated[
    bool,
    typer.Option("--as-printed", help="Use the paper's formulas as printed, with their errors (influence jurors)."),
]
Diffusion = Annotated[
    str,
    typer.Option(
        "--diffusion",
        callback=_diffusion,
        help="How often to average votes over neighbourhoods; auto chooses by the left-out labels.",
    ),
]
Advice = Annotated[
    bool,
    typer.Option(
        "--advice/--no-advice",
        help="Let jurors vote with regressions on averaged features and walks: smaller label sets, a better score.",
    ),
]
Votes = Annotated[
    str,
    typer.Option(
        "--votes",
        callback=one_of("--votes", VOTES),
        help="How to compute the jurors' predictions: exact, linearized (for thousands of labels), or auto.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        callback=one_of("--preset", PRESETS),
        help=f"Settings that the authors of GAT, GPN and CF-GNN use for one graph: {', '.join(PRESETS)}.",
    ),
]
Chosen = Annotated[
    str | None,
    typer.Option(
        "--chosen",
        callback=one_of("--chosen", CHOSEN),
        help="How the labels were chosen: random, 'per class' (the same number from each class), or actively (then "
        "no coverage is claimed); by default what the file of --train-nodes says, else random.",
    ),
]
MaxJurors = Annotated[int | None, whole("--max-jurors", "Number of jurors, drawn at random; all by default.")]
Parallel = Annotated[
    str | None,
    typer.Option(
        "--parallel", callback=_parallel, help="Where to count votes: a number of processes, or dask://host:port."
    ),
]
Sets = Annotated[
    str,
    typer.Option(
        "--sets", callback=one_of("--sets", SETS), help=f"Method of the label sets: {', '.join(SETS)} (slower)."
    ),
]
By = Annotated[
    str,
    typer.Option(
        "--by",
        callback=one_of("--by", ("all", "class", "group")),
        help="all; class compares a label with labelled nodes of its own class only, so that sets aim at coverage "
        "within each class; group compares within --groups.",
    ),
]
Groups = Annotated[
    Path | None,
    typer.Option(
        "--groups",
        help="Groups for --by group: a CSV file with the columns node and group, or the word degree, for four bands of "
        "the number of neighbours.",
    ),
]
Drawn = Annotated[
    Path | None,
    typer.Option(
        "--drawn",
        help="The training nodes that were drawn at random before others were chosen actively, such as drawn.csv of "
        "jurygcn active run --explore: only these vote, so that coverage can be claimed.",
    ),
]
NewData = Annotated[
    str | None,
    typer.Option(
        "--new-data",
        help="The graph with nodes and edges that arrived after training, the old nodes first: the verdict is on "
        "all of its nodes, and nothing is trained again.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", callback=_memory, help="Memory for jurors and votes, in each process.")
]
Retrain = Annotated[
    int, whole("--retrain", "Number of jurors to retrain for comparison; 0 for the quick checks only.", least=0)
]
