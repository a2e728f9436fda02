"""What a report says, against the verdict it is made of."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import torch
from judged import CLASSES, IMAGE, NODES, SCRIPT, judged, judged_regression, reported

from jurygcn import GCN, Jury, train
from jurygcn.conformal.advice import MODEL
from jurygcn.diagnostics.fidelity import Fidelity
from jurygcn.diagnostics.influence import influence_of_labels
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import accuracy, distance_to_labels, set_coverage
from jurygcn.io.fingerprints import sealed
from jurygcn.report import Report, report_on
from jurygcn.report import content as gathering
from jurygcn.settings import Run, Votes
from jurygcn.web import as_script_data


def test_rows_are_the_verdict():
    jury, verdict = judged()
    rows = reported().content["rows"]
    frame = verdict.to_frame().set_index("node")
    assert rows["node"] == verdict.ranking().tolist()
    sets = verdict.label_sets(0.1)
    for place, node in enumerate(rows["node"]):
        assert rows["name"][place] == jury.data.node_names[node]
        assert rows["prediction"][place] == frame.loc[node, "predicted_class"]
        assert rows["ambiguity"][place] == pytest.approx(frame.loc[node, "ambiguity"], rel=1e-3)
        assert rows["width"][place] == pytest.approx(frame.loc[node, "width"], rel=1e-3)
        assert rows["sets"][rows["set"][place]] == sets[node].nonzero()[:, 0].tolist()
        assert rows["truth"][place] == (None if node == 5 else int(jury.data.y[node]))
        assert rows["trained"][place] == (node % 3 == 0)
        assert rows["degree"][place] == int((jury.data.edge_index[0] == node).sum())


def test_headline_and_charts_are_of_the_test_nodes():
    jury, verdict = judged()
    tested = torch.tensor([node for node in range(NODES) if node % 3 and node != 5])
    truth = jury.data.y[tested]
    content = reported().content
    tiles = {tile["what"]: tile["value"] for tile in content["headline"]}
    assert tiles["Accuracy"] == f"{100 * accuracy(verdict.predicted_class[tested], truth):.1f} %".replace(".0 %", " %")
    charts = content["charts"]
    assert sum(map(sum, charts["scores"]["series"].values())) == NODES
    assert sum(charts["scores"]["series"]["wrong"]) == int((verdict.predicted_class[tested] != truth).sum()) > 0
    assert sum(charts["reliability"]["count"]) == len(tested)
    assert sum(charts["sizes"]["counts"]) == NODES
    for target, coverage in zip(charts["levels"]["target"], charts["levels"]["coverage"]):
        assert coverage == pytest.approx(set_coverage(verdict.label_sets(1 - target)[tested], truth), rel=1e-3)
    by_degree, by_distance, by_class = charts["groups"]
    assert by_class["group"] == CLASSES
    for c in range(3):
        of_class = tested[truth == c]
        assert by_class["nodes"][c] == len(of_class)
        assert by_class["coverage"][c] == pytest.approx(
            set_coverage(verdict.label_sets(0.1)[of_class], jury.data.y[of_class]), rel=1e-3
        )
    steps = distance_to_labels(jury.data.edge_index, jury.train_nodes, num_nodes=NODES)[tested]
    assert by_distance["nodes"][0] == int((steps == -1).sum()) == 1  # the last node stands alone
    assert by_distance["group"][0] == "not connected"
    assert sum(by_degree["nodes"]) == len(tested)
    few = report_on(jury, verdict, test_nodes=tested[:4], details=0).content
    assert sum(few["charts"]["reliability"]["count"]) == 4


def test_distrust_is_the_first_sentence():
    """Nothing claimed, jurors that differ from retrained ones, doubts about their health: said before any number."""
    jury, verdict = judged()
    assert verdict.claim(0.1).kind == "target"
    assert reported().content["caution"] == ""
    chosen = replace(verdict, grounds=replace(verdict.grounds, against=("The labels were chosen actively.",)))
    content = report_on(jury, chosen, details=0).content
    assert content["caution"] == "No coverage is claimed. The labels were chosen actively."
    assert not any("No coverage" in note or "no coverage" in note for note in content["notes"])
    tiles = {tile["what"]: tile["note"] for tile in content["headline"]}
    assert "nothing is claimed" in tiles["Coverage"]
    unlike = Fidelity(0.3, (0.5, 0.1), 0.4, pd.DataFrame({"node": [0]}))
    assert (
        report_on(jury, verdict, fidelity=unlike, details=0)
        .content["caution"]
        .startswith("No coverage is claimed. Estimated jurors correlate 0.300 with retrained ones")
    )
    ill = replace(jury.health(), doubts=("The curvature is ill-conditioned.",))
    alone = jury.verdict(advice=None)
    said = report_on(jury, alone, health=ill, details=0).content["caution"]
    assert said == "The jurors may be inaccurate. The curvature is ill-conditioned."
    for share, first in (
        (0.04, "The model's own jurors may be inaccurate (jurygcn doctor"),
        (0.3, "The jurors may be"),
    ):
        table = pd.DataFrame({"member": [MODEL, "other"], "share": [share, 1 - share], "weight": [1.0, 1.0]})
        mixed = replace(verdict, advice=replace(jury.advice(), table=table))
        said = report_on(jury, mixed, health=ill, details=0).content["caution"]
        assert said.startswith(first)
        assert ("4% of the stacked jury" in said) == (share < 0.05)
    alike = Fidelity(0.99, (0.1, 0.1), 0.0, pd.DataFrame({"node": [0]}))  # a measurement outweighs a doubt
    assert report_on(jury, verdict, health=ill, fidelity=alike, details=0).content["caution"] == ""


def test_sets_without_the_prediction_are_explained():
    """An empty set lacks the prediction because no label fits, not because another class is preferred."""
    _, verdict = judged()
    sets, rows = verdict.label_sets(0.1), torch.arange(len(verdict))
    empty = int((sets.sum(dim=1) == 0).sum())
    others = int((~sets[rows, verdict.predicted_class]).sum()) - empty
    notes = " ".join(reported().content["notes"])
    assert (f"{empty:,} sets are empty: no label fits." in notes) == (empty > 0)
    assert ("lack the model's own prediction" in notes) == (others > 0)
    assert empty + others > 0


def test_a_report_is_short_in_words():
    jury, verdict = judged()
    words = repr(report_on(jury, verdict, title="A title", details=0))
    assert words == "Report('A title': 60 nodes, 13 columns; write it with report.write(path))"


def test_drivers_are_the_influences():
    jury, verdict = judged()
    content = report_on(jury, verdict, details=7).content
    assert content["details"]["count"] == len(content["details"]["drivers"]) == 7
    assert any("7 most uncertain nodes" in note for note in content["notes"])
    for place in range(7):
        node = content["rows"]["node"][place]
        expected = jury.influence_on(node).head(8)
        found = [content["training"]["node"][seat] for seat in content["details"]["drivers"][place]]
        assert found == expected["train_node"].tolist()
        assert content["details"]["support"][place] == pytest.approx(expected["support"].tolist(), rel=1e-2)
        assert content["details"]["p_values"][place] == pytest.approx(verdict.p_values[node].tolist(), rel=1e-2)


def test_drivers_do_not_depend_on_batches():
    jury, verdict = judged()
    whole = influence_of_labels(jury, verdict.nodes, count=5)
    before, jury.run = jury.run, Run(memory="1KB")
    try:
        apart = influence_of_labels(jury, verdict.nodes, count=5)
    finally:
        jury.run = before
    assert torch.allclose(whole.support, apart.support)
    assert whole.support.abs().diff(dim=1).le(1e-12).all()


def test_a_verdict_on_some_nodes_only():
    jury, _ = judged()
    content = report_on(jury, jury.verdict([4, 8, 9])).content
    assert sorted(content["rows"]["node"]) == [4, 8, 9]
    assert len(content["training"]["node"]) == 20


def test_without_truth():
    jury, verdict = judged()
    content = report_on(jury, verdict, test_nodes=[]).content
    assert [tile["what"] for tile in content["headline"]] == ["Expected accuracy", "Labels per set"]
    assert content["charts"]["reliability"] is content["charts"]["levels"] is None
    assert content["charts"]["groups"] == []
    assert "Verdict on" in Report(content).to_html()


def test_large_graphs_are_cut(monkeypatch):
    jury, verdict = judged()
    monkeypatch.setattr(gathering, "MAX_ROWS", 25)
    monkeypatch.setattr(gathering, "MAX_EDGES", 50)
    monkeypatch.setattr(gathering, "MAX_NEIGHBOURS", 3)
    content = report_on(jury, verdict, details=4).content
    assert content["rows"]["node"] == verdict.ranking()[:25].tolist()
    assert any("25 most uncertain" in note for note in content["notes"])
    assert not content["edges"]["complete"]
    assert any("up to 3 neighbours" in note for note in content["notes"])
    pairs = torch.tensor(content["edges"]["pairs"]).reshape(-1, 2)
    detailed = set(content["rows"]["node"][:4])
    assert all(detailed & set(pair) for pair in pairs.tolist())
    assert 6 <= len(pairs) <= 12
    real = set(map(tuple, jury.data.edge_index.T.tolist()))
    assert all(tuple(pair) in real for pair in pairs.tolist())
    assert sum(content["charts"]["sizes"]["counts"]) == NODES  # charts are about all


def test_linearised_jurors_have_no_drivers():
    jury, verdict = judged()
    before, jury.votes = jury.votes, Votes("linearized")
    try:
        content = report_on(jury, verdict).content
    finally:
        jury.votes = before
    assert content["details"]["drivers"] is None
    assert any("linearised" in note for note in content["notes"])


def test_regression():
    jury, verdict = judged_regression()
    content = report_on(jury, verdict).content
    rows = content["rows"]
    assert content["kind"] == "target"
    assert [column["key"] for column in content["columns"]] == [
        *("node", "prediction", "lower", "upper", "width", "truth", "trained")
    ]
    place = rows["node"].index(8)
    assert rows["upper"][place] == pytest.approx(float(verdict.upper[8]), rel=1e-3)
    assert rows["truth"][rows["node"].index(7)] is None
    tiles = {tile["what"]: tile["value"] for tile in content["headline"]}
    assert tiles["Coverage"].endswith("%")
    assert set(content["charts"]["scores"]["series"]) <= {"inside", "outside", "unknown"}


def test_several_targets_are_refused():
    jury, verdict = judged_regression()
    double = type(verdict)(**{**verdict.__dict__, "outputs": verdict.outputs.repeat(1, 2)})
    with pytest.raises(SettingError, match="got 2 targets"):
        report_on(jury, double)


def test_checkup_in_words():
    jury, verdict = judged()
    health, fidelity = jury.health(), jury.fidelity(3)
    asked = report_on(jury, verdict, health=health, fidelity=fidelity, details=0).content["checkup"]
    assert asked[0]["state"] == ("good" if health.well else "care")
    assert asked[0]["advice"] == list(health.advice)
    assert asked[1]["said"] == ["3 jurors were retrained for comparison.", fidelity.advice]
    assert [part["state"] for part in reported().content["checkup"]] == ["unknown", "unknown"]


def test_saving_and_loading(tmp_path: Path):
    report = reported()
    report.save(tmp_path / "results")
    again = Report.load(tmp_path / "results")
    assert again.to_html() == report.to_html() == Report.load(tmp_path / "results" / "report.json").to_html()
    with pytest.raises(DataError, match="quantify --out"):
        Report.load(tmp_path / "nowhere")
    for text in ("{", "[]", '{"format": 9}', '{"format": 1, "title": "t"}'):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(DataError, match="write it again"):
            Report.load(tmp_path)


@pytest.mark.parametrize("made", [judged, judged_regression])
def test_links_say_what_happens_without_an_edge(made):
    jury, verdict = made()
    content = report_on(jury, verdict, details=5).content
    links = content["details"]["links"]["rows"]
    assert len(links) == 5
    tried = 0
    for place, row in enumerate(links):
        node = content["rows"]["node"][place]
        for k, other in enumerate(row["node"][:2]):
            result = jury.what_if([node], remove_edges=[(node, other)])
            c = int(result.before[0].argmax())
            assert row["direct"][k] == pytest.approx(-float(result.direct_effect[0, c]), rel=1e-2, abs=1e-6)
            assert row["through"][k] == pytest.approx(-float(result.parameter_effect[0, c]), rel=2e-2, abs=1e-4)
            without = int(result.after[0].argmax()) if made is judged else float(result.after[0, 0])
            assert row["without"][k] == pytest.approx(without, rel=1e-2)
            tried += 1
    assert tried > 4


def test_nothing_is_said_of_edges_that_are_not_taken_away():
    """A directed graph has no such edits in the report."""
    said = "What happens without an edge is computed for the first 1 of them."
    assert said in reported_on_part(judged()[0])
    jury = judged()[0]
    data = jury.data.clone()
    data.edge_index = data.edge_index[:, 1:]
    model = GCN(data.num_features, 4, int(data.num_classes))
    train(model, data, jury.train_nodes, epochs=5, weight_decay=5e-3)
    assert said not in reported_on_part(Jury(model, data, jury.train_nodes, weight_decay=5e-3).fit())


def reported_on_part(jury: Jury) -> list[str]:
    return report_on(jury, jury.verdict(), details=1).content["notes"]


FORGED = {
    "a link to a class that is none": lambda c: c["details"]["links"]["rows"][0]["without"].__setitem__(0, 9),
    "a link without its effect": lambda c: c["details"]["links"]["rows"][0]["direct"].pop(),
    "a p-value of 111,111": lambda c: c["details"]["p_values"][0].__setitem__(0, 111_111.0),
    "p-values of fewer classes": lambda c: c["details"]["p_values"][0].pop(),
    "p-values of fewer nodes": lambda c: c["details"]["p_values"].pop(),
    "a credibility below zero": lambda c: c["rows"]["credibility"].__setitem__(0, -0.5),
    "a probability in words": lambda c: c["rows"]["probability"].__setitem__(0, "high"),
    "a class that is none": lambda c: c["rows"]["prediction"].__setitem__(0, 3),
    "a set of another size": lambda c: c["rows"]["size"].__setitem__(0, 1 + c["rows"]["size"][0]),
    "a set that is none": lambda c: c["rows"]["set"].__setitem__(0, 99),
    "a label twice in a set": lambda c: c["rows"]["sets"].__setitem__(0, [1, 1]),
    "a column too short": lambda c: c["rows"]["width"].pop(),
    "a node twice": lambda c: c["rows"]["node"].__setitem__(0, c["rows"]["node"][1]),
    "half an edge": lambda c: c["edges"]["pairs"].pop(),
    "a driver that is no juror": lambda c: c["details"]["drivers"][0].__setitem__(0, 20),
    "a level of 7": lambda c: c.__setitem__("alpha", 7),
    "another kind": lambda c: c.__setitem__("kind", "target"),
    "a title that is no text": lambda c: c.__setitem__("title", {"a": 1}),
    "no details": lambda c: c.__setitem__("details", []),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_report_that_cannot_be_is_refused(tmp_path: Path, forgery: str):
    """Forged with a digest that agrees: only the numbers themselves tell."""
    path = reported().save(tmp_path)
    document = json.loads(path.read_text())
    del document["digest"]
    FORGED[forgery](document)
    path.write_text(json.dumps(sealed(document)))
    with pytest.raises(DataError, match="write it again"):
        Report.load(tmp_path)


def test_a_report_that_was_altered_is_refused(tmp_path: Path):
    """A number that can be, in a file whose digest is of another."""
    path = reported().save(tmp_path)
    document = json.loads(path.read_text())
    document["details"]["p_values"][0][0] = 0.5
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="altered or damaged"):
        Report.load(tmp_path)


def test_a_report_on_targets_is_read_back(tmp_path: Path):
    report = report_on(*judged_regression())
    report.save(tmp_path)
    assert Report.load(tmp_path).to_html() == report.to_html()


class Elements(HTMLParser):
    """Every start tag of a page, and the text of its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data, self._inside = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "report-data"

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""


def test_the_page_holds_user_text_as_data_only():
    page = reported().to_html()
    assert SCRIPT not in page
    assert IMAGE not in page
    assert "<i>graph" not in page
    assert "&lt;i&gt;graph&lt;/i&gt;" in page  # the title
    found = Elements(page)
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert {"img", "b", "i"} & {tag for tag, _ in found.tags} == set()
    content = json.loads(found.data)
    assert content["classes"] == CLASSES
    assert {SCRIPT, IMAGE} <= set(content["rows"]["name"])


def test_the_page_points_nowhere():
    found = Elements(reported().to_html())
    links = [value for _, attributes in found.tags for key, value in attributes.items() if key in ("src", "href")]
    assert sorted(links) == ["#nodes", "data:,"]
    (policy,) = [a["content"] for t, a in found.tags if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert re.search(r"script-src 'sha256-[\w+/=]+'", policy)
    assert "unsafe-eval" not in policy
    assert {"base-uri 'none'", "form-action 'none'"} <= set(policy.split("; "))


def test_script_data_cannot_leave_its_element():
    text = as_script_data({"title": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"title": "</script><!--\u2028&"}


def test_size_stays_reasonable():
    """The part that grows with the graph: bytes per node, so that 20,000 nodes stay below 6 MB."""
    jury, verdict = judged()
    page = len(report_on(jury, verdict, details=0).to_html())
    detailed = len(reported().to_html())
    empty = len(report_on(jury, jury.verdict([0]), details=0).to_html())
    per_node, per_detail = (page - empty) / NODES, (detailed - page) / NODES
    assert empty + 20_000 * per_node + 2_000 * per_detail < 6e6


def test_left_out_labels_on_the_page():
    jury, _ = judged()
    report = reported()
    found, expected, errors = report.content["left_out"], jury.expected_accuracy(), jury.label_errors()
    assert found["accuracy"] == pytest.approx(expected.accuracy, rel=1e-3)
    assert found["confusion"] == expected.confusion.to_numpy().tolist()
    assert found["suspicious"]["node"] == errors.flagged.tolist()[:30]
    assert [CLASSES[c] for c in found["suspicious"]["label"]] == errors.table["label"][: len(errors.flagged)].tolist()
    assert report.content["headline"][0]["what"] == "Expected accuracy"
    jury, verdict = judged_regression()
    assert report_on(jury, verdict).content["left_out"] is None


@pytest.mark.parametrize("part", ["accuracy", "classes", "confusion", "suspicious", "words", "temperature"])
def test_left_out_content_is_checked(part: str, tmp_path: Path):
    content = json.loads(reported().to_json())
    del content["digest"]
    content["left_out"][part] = {
        "accuracy": 2.0,
        "classes": {**content["left_out"]["classes"], "labels": [1]},
        "confusion": [[-1] * 3] * 3,
        "suspicious": {**content["left_out"]["suspicious"], "node": [0, 1, 2, 3]},
        "words": 3,
        "temperature": "hot",
    }[part]
    (tmp_path / "report.json").write_text(json.dumps(sealed(content)))
    with pytest.raises(DataError, match="invalid"):
        Report.load(tmp_path)
