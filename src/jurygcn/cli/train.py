"""`jurygcn train`: train the paper's GCN or another method on a few labels, and print its test scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from jurygcn.choices import METHODS
from jurygcn.cli import options as given
from jurygcn.cli.output import check_out, say_written, write_run
from jurygcn.cli.reporting import print_json
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from jurygcn.cli.trained_model import Session

Method = Annotated[
    str,
    typer.Option(
        "--method",
        callback=given.one_of("--method", METHODS),
        help=f"{', '.join(METHODS)}. All but gcn have their authors' settings by default.",
    ),
]
Epochs = Annotated[int | None, given.epochs("Training epochs; default 100 for gcn, else the method's own.")]
LearningRate = Annotated[
    float | None, given.learning_rate("Adam's learning rate; default 0.01 for gcn, else the method's own.")
]
Dropout = Annotated[
    float | None, given.dropout("Dropout; default 0 for gcn, so that it can be quantified, else the method's own.")
]
Hidden = Annotated[int | None, given.hidden("Hidden units; default 16 for gcn, else the method's own.")]
Layers = Annotated[int | None, given.layers("Graph convolutions of gcn; default 2.")]


def train(
    data: given.Name,
    method: Method = "gcn",
    preset: given.Preset = None,
    labels: given.Labels = None,
    per_class: given.PerClass = None,
    train_nodes: given.TrainNodes = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    weight_decay: given.WeightDecay = None,
    dropout: Dropout = None,
    hidden: Hidden = None,
    layers: Layers = None,
    seed: given.Seed = 0,
    out: given.Out = None,
    as_json: given.AsJson = False,
) -> None:
    """Train on some labelled nodes and print the test accuracy.

    gcn is the paper's GCN, for jurygcn quantify. reweight and self-train use the jury's uncertainty. gat, sgnn, gpn and
    the others are baselines. Methods that stop early or calibrate use the split's validation nodes; so does
    self-train-validated, to choose its teachers.

    With --out, gcn writes model.pt (a state dict for jurygcn quantify --model) and run.json; the other methods write
    predictions.csv, state.pt and run.json.
    """
    import torch

    from jurygcn.cli.methods import fit_method
    from jurygcn.cli.tables import facts_table
    from jurygcn.cli.trained_model import Settings, open_session

    check_out(out)
    chosen = {"epochs": epochs, "lr": lr, "dropout": dropout, "hidden": hidden, "layers": layers}
    stated = {key: value for key, value in chosen.items() if value is not None}
    nodes = {"labels": labels, "per_class": per_class, "train_nodes": train_nodes, "seed": seed}
    if preset is not None and method not in ("gat", "gpn"):
        raise SettingError(f"expected --preset with gat or gpn, got it with {method}; leave it out")
    if method != "gcn":
        if weight_decay is not None:
            stated["weight_decay"] = weight_decay
        fit_method(data, method, Settings(**nodes), stated, out, preset=preset, as_json=as_json)  # type: ignore[arg-type]
        return
    session = open_session(data, Settings(weight_decay=weight_decay, **nodes, **stated))  # type: ignore[arg-type]
    run = {**session.describe("train"), "test": test_scores(session)}
    files = []
    if out is not None:
        state = session.model.state_dict()
        files = write_run(out, run, {"model.pt": lambda path: torch.save(state, path)})
    if as_json:
        print_json({**run, "files": [str(path) for path in files]})
        return
    console = Console()
    console.print(facts_table(training_facts(session) | score_facts(run["test"]), title=f"GCN on {session.data.name}"))
    say_written(console, files)


def test_scores(session: Session) -> dict[str, Any]:
    """Accuracy and micro-F1 on the test nodes; None without test nodes."""
    from jurygcn.evaluation import accuracy, micro_f1
    from jurygcn.models import ReceptiveField

    nodes = session.test_nodes
    if not len(nodes):
        return {"nodes": 0, "accuracy": None, "micro_f1": None}
    field = ReceptiveField.of(session.model, session.data, nodes)
    weights = [weight.detach() for weight in session.model.weights]
    predicted, truth = field.logits(weights).argmax(dim=1), session.data.y[nodes]
    return {"nodes": len(nodes), "accuracy": accuracy(predicted, truth), "micro_f1": micro_f1(predicted, truth)}


def score_facts(test: dict[str, Any]) -> dict[str, str]:
    """Test scores as rows of a table."""
    if not test["nodes"]:
        return {"test": "no labelled nodes left to test on"}
    return {
        "test accuracy": f"{100 * test['accuracy']:.1f} % of {test['nodes']:,} nodes",
        "micro-F1": f"{test['micro_f1']:.3f}",
    }


def training_facts(session: Session) -> dict[str, str]:
    """The graph, the model and its training as rows of a table."""
    from jurygcn.cli.tables import in_words

    data, s = session.data, session.settings
    widths = [session.model.weights[0].shape[0], *[W.shape[1] for W in session.model.weights]]
    facts = {
        "graph": f"{data.num_nodes:,} nodes, {data.num_edges // 2:,} edges, {data.x.shape[1]:,} features, "
        f"{data.num_classes} classes",
        "labels": f"{len(session.train_nodes):,}",
        "model": f"GCN {' → '.join(map(str, widths))}" + (", from the checkpoint" if session.training is None else ""),
    }
    if session.training is not None:
        facts["training"] = (
            f"{session.training.epochs} epochs, lr {s.lr:g}, weight decay {session.weight_decay:g}, "
            f"dropout {s.dropout:g}, seed {s.seed}; loss {session.loss:.4f}"
        )
    return facts | {"time": in_words(session.seconds)}
