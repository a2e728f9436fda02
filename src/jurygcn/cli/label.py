"""`jurygcn label`: label a graph in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jurygcn import signals
from jurygcn.app.rounds import Source
from jurygcn.cli import options as given
from jurygcn.cli.output import check_out, say_written
from jurygcn.cli.reporting import visible
from jurygcn.errors import SettingError

LOCAL = ("127.0.0.1", "localhost", "::1")
Port = Annotated[int, given.whole("--port", "The port; 0 for a free one.", least=0, most=65535)]
Host = Annotated[str, typer.Option("--host", help="The address to listen on; other machines need --share too.")]
Share = Annotated[
    bool,
    typer.Option(
        "--share",
        help="With --host: everybody who can reach this machine and knows the address can read the graph and label "
        "it. Nothing is encrypted.",
    ),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", help="Labels to begin with: a CSV with node and label, or Label Studio's JSON."),
]
Classes = Annotated[
    str | None, typer.Option("--classes", help="The classes, separated by commas, for a graph without labels.")
]
AnswersFile = Annotated[
    Path | None,
    typer.Option("--answers", help="The file of answers; answers.sqlite in the graph's folder by default."),
]
Batch = Annotated[int, given.whole("--batch", "The model learns after every half batch of answers.", most=1000)]


def label(
    data: given.Name,
    labels: LabelsFile = None,
    classes: Classes = None,
    answers: AnswersFile = None,
    batch: Batch = 20,
    annotator: Annotated[str, typer.Option("--annotator", help="The name that the page suggests.")] = "",
    overlap: Annotated[int, given.whole("--overlap", "The number of annotators for each node.", most=100)] = 1,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write labels.csv, or Label Studio's JSON, from the answers, and end."),
    ] = None,
    port: Port = 0,
    host: Host = "127.0.0.1",
    share: Share = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    seed: given.Seed = 0,
) -> None:
    """Label a graph in the browser. The jury chooses the nodes while people work.

    Only the answers and the --labels file are used, not labels of the graph. Answers are saved at once; stop with
    Ctrl-C and start again at any time.
    """
    check_host(host, share)
    server = load_app("server")
    source, path = prepared(data, labels, classes, answers, seed)
    if export is not None:
        from jurygcn.app.offline import write_export

        count = write_export(source, path, export)
        say_written(Console(), [export])
        print(f"{count:,} {'label' if count == 1 else 'labels'} so far")
        return

    def announce(address: str) -> None:
        print(visible(f"Label at {address}"), flush=True)
        print(visible(f"Answers are saved in {path}. Ctrl-C ends."), flush=True)
        if browser and has_display():
            with suppress(webbrowser.Error, OSError):
                webbrowser.open(address)

    settings = server.Settings(source, path, batch, overlap, host, port, annotator)
    with signals.until_interrupted():
        server.serve(settings, announce=announce)
    if signals.received() is None:
        kept = f"Answers are saved in {path}; the same command goes on." if path.exists() else "There are no answers."
        print(visible(f"Ended. {kept}"), flush=True)


def prepared(
    data: str, labels: Path | None, classes: str | None, answers: Path | None, seed: int
) -> tuple[Source, Path]:
    """What to load, and the file of answers; raise SettingError if it cannot be written."""
    path = answers or default_answers(data)
    check_out(path.parent)
    return Source(data, labels, tuple(classes.split(",")) if classes else None, seed), path


def load_app(module: str) -> Any:
    """A module of the application; raise SettingError if its packages are missing."""
    try:
        return import_module(f"jurygcn.app.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "jurygcn":
            raise
        raise SettingError(
            f"expected the packages of the labelling page, got no {error.name}; install them with "
            "pip install 'jurygcn[app]'"
        ) from error


def check_host(host: str, share: bool) -> None:
    """Raise SettingError for a host other than loopback without --share."""
    if host not in LOCAL and not share:
        raise SettingError(
            f"expected --share beside --host {host}, got none; with it everybody who can reach this machine and knows "
            "the address can read the graph and label it, and nothing is encrypted"
        )


def default_answers(data: str) -> Path:
    """answers.sqlite in the folder of the graph, or NAME.answers.sqlite here for a graph that is no folder."""
    path = Path(data)
    return path / "answers.sqlite" if path.is_dir() else Path(f"{path.stem}.answers.sqlite")


def has_display() -> bool:
    """Whether a browser with windows can be opened."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
