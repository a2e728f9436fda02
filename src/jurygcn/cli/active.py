"""`jurygcn active next|add|run`: choose nodes to label, add answers, run whole experiments."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.choices import LEARNERS, STRATEGIES, Recipe
from jurygcn.cli import options as given
from jurygcn.cli.output import check_out, say_written, write_csv
from jurygcn.cli.reporting import print_json, say, shown, visible
from jurygcn.errors import SettingError
from jurygcn.io.files import changing, replacing, write_text
from jurygcn.io.label_studio import as_json_text
from jurygcn.io.spreadsheet import as_csv
from jurygcn.progress import progress_bar

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from jurygcn.active import History, Task
    from jurygcn.active.oracle import Oracle

app = typer.Typer(help="Choose the next nodes to label, and add the answers.", no_args_is_help=True)

StrategyName = Annotated[
    str,
    typer.Option("--strategy", callback=given.one_of("--strategy", STRATEGIES), help=f"{', '.join(STRATEGIES)}."),
]
Known = Annotated[Path | None, typer.Option("--labels", help="CSV with the columns node and label: the labels so far.")]
Classes = Annotated[
    str | None, typer.Option("--classes", help="The classes, separated by commas, for a graph without labels.")
]
Dropout = Annotated[float, given.dropout("Dropout of the GCN that is trained at each step.")]
Decay = Annotated[float, given.weight_decay("L2 penalty.")]


@app.command("next")
def next_nodes(
    data: given.Name,
    labels: Known = None,
    batch: Annotated[int, given.whole("--batch", "Number of nodes to choose.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="tasks.json for Label Studio; tasks.csv and tasks.xml are written to the same folder."
        ),
    ] = None,
    strategy: StrategyName = "jury-design",
    candidates: Annotated[
        Path | None,
        typer.Option("--candidates", help="A file of nodes to choose from; by default all without a label."),
    ] = None,
    classes: Classes = None,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    lr: given.LearningRate = Recipe.lr,
    weight_decay: Decay = Recipe.weight_decay,
    dropout: Dropout = 0.5,
    hidden: given.Hidden = Recipe.hidden,
    as_json: given.AsJson = False,
) -> None:
    """Choose the nodes to label next.

    Only the labels in the --labels file are used, not those of the graph. Add the answers with jurygcn active add.
    """
    from jurygcn.active import next_tasks
    from jurygcn.active.overwriting import check_next_tasks
    from jurygcn.active.tasks import COLUMNS, label_studio_config, label_studio_tasks, tasks_csv
    from jurygcn.cli.nodes import read_any_nodes

    _check_file(out, "--out", ".json")
    if out is not None:
        check_next_tasks(out, "--out", data, COLUMNS)
    graph = _graph(data, labels, classes)
    known = _read_known(labels, graph)
    if labels is None:
        _note_unused(graph, data)
    recipe = Recipe(hidden=hidden, epochs=epochs, lr=lr, weight_decay=weight_decay, dropout=dropout)
    pool = None if candidates is None else read_any_nodes(candidates, graph, "--candidates")
    with progress_bar("Choosing nodes"):
        tasks = next_tasks(graph, known, strategy, batch=batch, candidates=pool, recipe=recipe, seed=seed)
    files: list[Path] = []
    if out is not None:
        texts = {
            out.with_suffix(".csv"): tasks_csv(tasks),
            out.with_suffix(".xml"): label_studio_config(graph),
            out: as_json_text(label_studio_tasks(tasks)),
        }
        files = _write_all(texts)
    if as_json:
        facts = {"command": "active next", "data": str(graph.name), "strategy": strategy, "labels": len(known)}
        print_json({**facts, "tasks": [asdict(task) for task in tasks], "files": [str(path) for path in files]})
        return
    console = Console()
    console.print(_task_table(tasks, title=f"Label next on {graph.name}: {strategy}, {len(known)} labels so far"))
    say_written(console, files)


@app.command()
def add(
    data: given.Name,
    answers: Annotated[
        Path, typer.Option("--answers", help="Label Studio's JSON or JSON-MIN export, or a CSV with node and label.")
    ],
    labels: Annotated[
        Path, typer.Option("--labels", help="The CSV file to add the labels to; created if it does not exist.")
    ],
    classes: Classes = None,
    as_json: given.AsJson = False,
) -> None:
    """Add people's answers to the file of labels.

    An unknown node or class, or an answer that contradicts an earlier one, is an error; the file is then not changed.
    A file with other columns than node, name, label and chosen, such as the graph's nodes.csv, is refused.
    A CSV with a column annotator, as the labelling page exports it, may have several answers for a node: the error rate
    of each annotator is estimated if three people have answered enough of the same nodes, otherwise one for all. The
    most probable class is added. Undecided nodes get no label and can be asked again.
    The column chosen of the file says how each node was chosen. Answers that do not say it count as chosen actively,
    and jurygcn quantify then claims no coverage.
    """
    from jurygcn.active.labels import merged, read_origins, with_classes, write_labels
    from jurygcn.active.overwriting import check_labels_file
    from jurygcn.active.tasks import read_agreement, read_answer_origins, read_answers
    from jurygcn.cli.trained_model import load_graph

    _check_file(labels, "--labels", ".csv")
    check_labels_file(labels, "--labels", data)
    bare, _ = load_graph(data)
    with changing(labels):
        there = labels if labels.exists() else None
        graph = with_classes(bare, there, _listed(classes))
        known = _read_known(there, graph)
        several = read_agreement(answers, graph)
        new = read_answers(answers, graph) if several is None else several.decided
        everything = merged(known, new, graph, answers.name)
        origins = dict.fromkeys(new.keys() - known.keys(), "actively") | read_answer_origins(answers, graph)
        origins |= {} if there is None else dict.fromkeys(known, "") | read_origins(there, graph)
        write_labels(labels, everything, graph, origins)
    added = len(everything) - len(known)
    if as_json:
        facts = {"command": "active add", "data": str(graph.name), "answers": len(new), "added": added}
        facts |= (
            {}
            if several is None
            else {"error_rates": several.error_rates, "ties": len(several.ties), "undecided": several.ties}
        )
        print_json({**facts, "labels": len(everything), "files": [str(labels)]})
        return
    said = "" if several is None else f". {several.words}"
    Console().print(
        shown(f"{added} new labels of {len(new)} answered nodes; {len(everything)} in {labels}{said}"),
        soft_wrap=True,
        highlight=False,
    )


@app.command("run")
def run_loop(
    data: given.Name,
    strategy: StrategyName = "jury-design",
    initial: Annotated[int | None, given.whole("--initial", "Random labels to begin with.", least=0)] = None,
    budget: Annotated[int | None, given.whole("--budget", "Total number of labels.")] = None,
    step: Annotated[int | None, given.whole("--step", "Labels between two trainings.")] = None,
    count_initial: Annotated[
        bool, typer.Option("--count-initial/--initial-on-top", help="Whether the budget counts the initial labels.")
    ] = True,
    learner: Annotated[
        str,
        typer.Option(
            "--learner",
            callback=given.one_of("--learner", LEARNERS),
            help=(
                "What learns from the labels: gcn; advised: the GCN and regressions on the graph; self-trained: a GCN "
                "with pseudo-labels; if labels may be wrong, weighted: the GCN with less weight on doubtful labels, or "
                "screened: advised without them."
            ),
        ),
    ] = "gcn",
    oracle: Annotated[
        str | None,
        typer.Option(
            "--oracle", help="Where labels come from: a CSV with node and label, or 'terminal'; default: the graph."
        ),
    ] = None,
    stop_at: Annotated[
        float | None, given.real("--stop-at", "Stop at this validation accuracy, between 0 and 1.", most=1.0)
    ] = None,
    explore: Annotated[
        float,
        given.real(
            "--explore",
            "Share of all labels that are drawn at random before the run, hidden from the strategy; if they alone vote "
            "(jurygcn quantify --drawn), coverage can be claimed as for random labels.",
            most=1.0,
        ),
    ] = 0.0,
    doubts: Annotated[
        float,
        given.real(
            "--doubts",
            "Largest share of each step's answers that is spent on asking again about labels that are probably wrong.",
            most=1.0,
        ),
    ] = 0.0,
    stop_settled: Annotated[
        bool, typer.Option("--stop-settled", help="Stop when new labels no longer change the predictions.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the history; after an interruption the same command continues from it."),
    ] = None,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    lr: given.LearningRate = Recipe.lr,
    weight_decay: Decay = Recipe.weight_decay,
    dropout: Dropout = 0.5,
    hidden: given.Hidden = Recipe.hidden,
    as_json: given.AsJson = False,
) -> None:
    """Run active learning to the end of the budget and print the test accuracy after each step.

    The default is the paper's protocol: for Cora and Citeseer 10 initial labels, 100 in total, steps of 20; for PubMed
    5, 50 and 10.
    """
    from jurygcn.active import from_file, reached, run, settled
    from jurygcn.active.overwriting import check_history_folder
    from jurygcn.cli.trained_model import load_graph

    check_out(out)
    if out is not None:
        check_history_folder(out, "--out")
    rules = [*([] if stop_at is None else [reached(stop_at)]), *([settled()] if stop_settled else [])]
    graph, _ = load_graph(data)
    answers = None
    if oracle is not None:
        answers = _person(graph) if oracle == "terminal" else from_file(oracle, graph)
    history = run(
        graph,
        strategy,
        initial=initial,
        budget=budget,
        step=step,
        seed=seed,
        count_initial=count_initial,
        recipe=Recipe(hidden=hidden, epochs=epochs, lr=lr, weight_decay=weight_decay, dropout=dropout),
        learner=learner,
        oracle=answers,
        stop=rules,
        explore=explore,
        doubts=doubts,
        resume=None if out is None else out / "history.json",
        progress=oracle != "terminal",
    )
    frame = history.to_frame()
    files: list[Path] = []
    if out is not None:
        with replacing(out / "history.csv") as path:
            write_csv(frame)(path)
        files = [out / "history.json", out / "history.csv"]
        if len(history.explored):
            files += _write_explored(history, graph, out)
    if as_json:
        facts = {"command": "active run", "settings": dict(history.settings), "stopped": history.stopped}
        rows = frame.to_dict(orient="records")
        nodes = {"nodes": history.labelled.tolist(), "drawn": history.explored.tolist()}
        print_json({**facts, "steps": rows, **nodes, "files": [str(path) for path in files]})
        return
    console = Console()
    console.print(_history_table(history, title=f"Active learning on {graph.name}: {strategy}"))
    say_written(console, files)


def _write_explored(history: History, graph: Data, out: Path) -> list[Path]:
    """labels.csv, all labels, and drawn.csv, those that were drawn at random, for jurygcn quantify."""
    from jurygcn.active.labels import write_labels
    from jurygcn.data.names import Names

    nodes, names = history.labelled.tolist(), Names.of_nodes(graph)
    labels = dict(zip(nodes, history.labels.tolist()))
    write_labels(out / "labels.csv", labels, graph, dict.fromkeys(nodes, "actively"))
    write_text(out / "drawn.csv", as_csv(["node"], [[names.text(node)] for node in history.explored.tolist()]))
    return [out / "labels.csv", out / "drawn.csv"]


# --- shared ---------------------------------------------------------------------------------------------------


def _person(graph: Data) -> Oracle:
    """An oracle that asks the person at the terminal."""
    from jurygcn.active import at_terminal

    return at_terminal(graph, ask=lambda words: input(visible(words)), say=lambda words: print(visible(words)))


def _graph(name: str, labels: Path | None, classes: str | None) -> Data:
    """The graph with its class names."""
    from jurygcn.active.labels import with_classes
    from jurygcn.cli.trained_model import load_graph

    graph, _ = load_graph(name)
    return with_classes(graph, labels, _listed(classes))


def _note_unused(graph: Data, name: str) -> None:
    """Say that the graph has labels that are not used, and that their nodes can be chosen."""
    from jurygcn.data import labelled

    count = int(labelled(graph).sum())
    table = Path(name) / "nodes.csv"
    if count and table.is_file():
        say(
            f"Note: {count:,} labels of the graph are not used, and their nodes can be chosen again; add "
            f"--labels {table} to use them",
            style="yellow",
        )


def _listed(classes: str | None) -> list[str] | None:
    return classes.split(",") if classes else None


def _read_known(labels: Path | None, graph: Data) -> dict[int, int]:
    from jurygcn.active.labels import read_labels

    if labels is None:
        return {}
    nodes, kinds = read_labels(labels, graph)
    return dict(zip(nodes.tolist(), kinds.tolist()))


def _check_file(path: Path | None, option: str, suffix: str) -> None:
    """Raise SettingError before the work starts if the file cannot be written."""
    if path is None:
        return
    if path.suffix.lower() != suffix or (path.exists() and not path.is_file()):
        raise SettingError(f"expected {option} to be a {suffix} file, got {path}; change it")
    check_out(path.parent)


def _write_all(texts: Mapping[Path, str]) -> list[Path]:
    """Write the files; all appear after the last one is complete, in order."""
    try:
        with ExitStack() as stack:
            for path, text in reversed(list(texts.items())):  # contexts exit in reverse order
                stack.enter_context(replacing(path)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"expected to write {min(texts)}, got {error.strerror or error}; change --out") from error
    return list(texts)


def _task_table(tasks: list[Task], *, title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=shown(title), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("node", overflow="fold", max_width=28)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for task in tasks:
        why = f"{task.reason}; neighbours: {task.neighbours}"
        table.add_row(shown(task.name), readable(task.score), shown(why))
    return table


def readable(score: float) -> str:
    """A score with three digits; very large and very small ones as powers of ten."""
    return f"{score:.3g}" if score == 0 or 1e-3 <= abs(score) < 1e6 else f"{score:.1e}"


def _history_table(history: History, *, title: str) -> Table:
    counted = "the budget counts the initial labels" if history.settings["count_initial"] else "initial labels on top"
    if len(history.explored):
        counted += f"; {len(history.explored)} labels were drawn at random before the run"
    table = Table(
        box=box.SIMPLE_HEAD,
        title=shown(title),
        title_justify="left",
        title_style="bold",
        caption=shown(f"{counted}; ended by: {history.stopped}. {history.outlook}"),
        caption_justify="left",
    )
    for column in ("labels", "queried", "test accuracy", "expected", "predictions changed", "choosing"):
        table.add_column(column, justify="right")
    for step in history.steps:
        shares = (step.learner_accuracy, step.expected_accuracy, step.changed)
        cells = (f"{100 * value:.1f} %" if value == value else "" for value in shares)
        table.add_row(str(step.labels), str(step.queried), *cells, f"{step.seconds:.2f} s")
    return table
