"""Options that several commands share, and the checks that need no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from jurygcn.cli.data import AsJson, Name
from jurygcn.curvature import CURVATURES
from jurygcn.errors import SettingError
from jurygcn.jackknife.ballots import parse_memory
from jurygcn.jackknife.claims import CHOSEN
from jurygcn.jackknife.intervals import check_alpha
from jurygcn.jackknife.jurors import LEAVE_OUT, MODES
from jurygcn.linalg import SOLVERS
from jurygcn.parallel import check_parallel

DEFAULT_WEIGHT_DECAY = 5e-4

__all__ = [
    "Alpha",
    "AsJson",
    "AsPrinted",
    "Checkpoint",
    "Chosen",
    "Curvature",
    "Diffusion",
    "Dropout",
    "Epochs",
    "Hidden",
    "Labels",
    "Layers",
    "LearningRate",
    "LeaveOut",
    "Memory",
    "Mode",
    "Name",
    "NumJurors",
    "Out",
    "Page",
    "Parallel",
    "PerClass",
    "Retrain",
    "SecondOpinion",
    "Seed",
    "Solver",
    "TrainNodes",
    "WeightDecay",
]


def one_of(option: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    """A check that the option names one of the choices."""

    def check(value: Any) -> Any:
        if value is not None and value not in choices:
            raise SettingError(f"expected {option} to be one of {', '.join(choices)}, got {value!r}; choose one")
        return value

    return check


def not_negative(option: str) -> Callable[[float | None], float | None]:
    """A check that the option is finite and at least 0."""

    def check(value: float | None) -> float | None:
        if value is not None and not 0.0 <= value < math.inf:
            raise SettingError(f"expected {option} to be a number of at least 0, got {value}; change it")
        return value

    return check


def _diffusion(value: str) -> str:
    if value != "auto" and not (value.isascii() and value.isdigit()):
        raise SettingError(f"expected --diffusion to be auto or a number of steps such as 0, 1 or 2, got {value!r}")
    return value


def _parallel(value: str | None) -> str | None:
    check_parallel(value)
    return value


def _memory(value: str) -> str:
    parse_memory(value)
    return value


Labels = Annotated[
    int | None, typer.Option("--labels", help="Nodes to label at random; 100, or the whole pool if smaller.")
]
PerClass = Annotated[int | None, typer.Option("--per-class", help="Nodes to label in each class, instead.")]
TrainNodes = Annotated[
    Path | None,
    typer.Option(
        "--train-nodes",
        help="Nodes to train on: a file with one node number or name per line; a CSV file with the columns node and "
        "label, whose labels are then used; the run.json of a run; or the word all, for every labelled node.",
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", help="Training epochs.")]
LearningRate = Annotated[float, typer.Option("--lr", help="Adam's learning rate.")]
WeightDecay = Annotated[
    float | None,
    typer.Option(
        "--weight-decay",
        callback=not_negative("--weight-decay"),
        help=f"L2 penalty, part of the objective that jurors minimise; {DEFAULT_WEIGHT_DECAY:g} by default.",
    ),
]
Dropout = Annotated[
    float, typer.Option("--dropout", help="Dropout; 0 if the model is to be quantified, so that it has an optimum.")
]
Hidden = Annotated[int, typer.Option("--hidden", min=1, help="Hidden units per layer.")]
Layers = Annotated[int, typer.Option("--layers", min=1, help="Graph convolutions.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of split, labels and weights.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write the results to.")]
Page = Annotated[Path | None, typer.Option("--report", help="An HTML page to write about the verdict; works offline.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--model",
        help="A state dict of jurygcn.GCN to quantify instead of training one; pass the training nodes with "
        "--train-nodes, unless the run.json of jurygcn train lies beside it.",
    ),
]
Alpha = Annotated[
    float, typer.Option("--alpha", callback=lambda a: check_alpha(a), help="Level of the interval behind width.")
]
LeaveOut = Annotated[
    str,
    typer.Option(
        "--leave-out",
        callback=one_of("--leave-out", LEAVE_OUT),
        help="How jurors leave a label out: newton, the paper's influence, or retrain (brute force).",
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
    bool, typer.Option("--as-printed", help="The paper's formulas as printed, errors included (influence jurors).")
]
Diffusion = Annotated[
    str,
    typer.Option(
        "--diffusion", callback=_diffusion, help="Average votes over neighbourhoods this often; auto lets jurors say."
    ),
]
SecondOpinion = Annotated[
    bool,
    typer.Option(
        "--second-opinion/--no-second-opinion",
        help="Also what ridge regressions on averaged features think of the predictions; takes seconds.",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        callback=one_of("--mode", MODES),
        help="How jurors vote: exact, linearized (for thousands of labels), or auto.",
    ),
]
Chosen = Annotated[
    str,
    typer.Option(
        "--chosen",
        callback=one_of("--chosen", CHOSEN),
        help="How the labels were chosen: random, 'per class' (the same number from each class), or actively, and then "
        "no coverage is claimed.",
    ),
]
NumJurors = Annotated[
    int | None, typer.Option("--jurors", min=1, help="Seat only this many jurors, drawn at random; all by default.")
]
Parallel = Annotated[
    str | None,
    typer.Option(
        "--parallel", callback=_parallel, help="Where to count ballots: a number of processes, or dask://host:port."
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", callback=_memory, help="How much a batch of ballots may take, in each process.")
]
Retrain = Annotated[
    int, typer.Option("--retrain", min=0, help="Jurors to retrain and compare with; 0 for the cheap checks only.")
]
