"""The page in a real browser: sorting, searching, choosing a node; nothing fetched, logged or run that is not ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judged import CLASSES, IMAGE, NODES, SCRIPT, judged, judged_regression, reported

from browsers import FLAGS, playing
from jurygcn.report import report_on


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with playing() as (playwright, path):
        profile = tmp_path_factory.mktemp("profile")
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=path, headless=True, args=FLAGS, viewport={"width": 1400, "height": 900}
        )
        context.set_default_timeout(20_000)
        yield context
        context.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    jury, verdict = judged()
    return {
        "classes": report_on(jury, verdict, health=jury.health(), details=40).write(folder / "classes.html"),
        "target": report_on(*judged_regression()).write(folder / "target.html"),
    }


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Opens a page of ours in a new tab; at the end nothing may have been logged, fetched or popped up."""
    tab, complaints = browser.new_page(), []
    tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
    tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    tab.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))

    def open_page(kind: str = "classes", fragment: str = "") -> Any:
        tab.goto(pages[kind].as_uri() + fragment)
        return tab

    yield open_page
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in requests) == 1  # the page itself
    tab.close()


def column(tab: Any, heading: str) -> list[str]:
    headings = [text.rstrip(" ↓↑") for text in tab.locator("#headings th").all_inner_texts()]
    place = headings.index(heading) + 1
    return tab.locator(f"#rows tr td:nth-child({place})").all_inner_texts()


def test_everything_is_there(visit):
    tab = visit()
    assert tab.title() == "Verdict on <i>graph</i>"
    assert tab.locator("h1").inner_text() == "Verdict on <i>graph</i>"
    assert tab.locator("#headline .tile").count() >= 5
    assert tab.locator("#rows tr").count() == 20
    assert tab.locator("#charts figure svg").count() == 8
    assert tab.locator("#checkup .panel").count() == 2
    assert tab.locator("#shown").inner_text() == f"1–20 of {NODES}"


def test_left_out_labels(visit):
    """The section is there, lists the flagged labels, and their links choose nodes."""
    tab = visit()
    found = reported().content["left_out"]
    assert tab.locator("#left-out").is_visible()
    assert found["words"] in tab.locator("#left-out-words").inner_text()
    assert tab.locator("#left-out-charts figure").count() == 2
    rows = tab.locator("#suspicious tbody tr")
    assert rows.count() == len(found["suspicious"]["node"])
    counts = tab.locator(".confusion tbody td").all_inner_texts()
    assert [int(text or 0) for text in counts] == [number for row in found["confusion"] for number in row]
    for width in (1400, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.set_viewport_size({"width": 1400, "height": 900})


def test_names_are_shown_whole(visit):
    """No name is cut, on a desktop or on a phone; long ones are broken over lines."""
    tab = visit()
    for width in (1400, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        for name in tab.locator("#rows td.node button, #rows .class > span:last-child, .chips span:last-child").all():
            cut = "e => e.scrollWidth > e.clientWidth + 1 || getComputedStyle(e).textOverflow === 'ellipsis'"
            assert not name.evaluate(cut), name.inner_text()
    tab.set_viewport_size({"width": 1400, "height": 900})


def test_a_table_that_goes_on_says_so(visit):
    tab = visit()
    tab.set_viewport_size({"width": 390, "height": 900})
    assert tab.locator("#clipped").is_visible()
    assert tab.locator(".edge.clipped").count() == 1
    tab.locator("#table").evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    tab.locator(".edge:not(.clipped)").wait_for(state="attached")
    tab.set_viewport_size({"width": 1400, "height": 900})


def test_charts_have_counts(visit):
    tab = visit()
    charts = tab.locator("#charts").inner_text()
    assert "right (" in charts
    assert " of " in charts
    sizes = tab.locator("#charts figure", has_text="Set sizes").locator("svg text").all_text_contents()
    counts = judged()[1].set_size(0.1).bincount()
    assert all(str(int(count)) in sizes for count in counts if count)
    assert "AUROC for errors" in tab.locator("#headline").inner_text()


def test_caution_stands_before_everything_else(visit):
    tab = visit()
    shown = tab.locator("#caution")
    said = report_on(*judged(), health=judged()[0].health()).content["caution"]
    assert shown.is_visible() == bool(said)
    assert shown.inner_text() == said if said else True
    assert tab.locator("header > *").nth(1).get_attribute("id") == "caution"


def test_sorting(visit):
    tab = visit()
    default = column(tab, "Node")
    tab.get_by_role("button", name="Credibility").click()
    down = [float(text) for text in column(tab, "Credibility")]
    assert down == sorted(down, reverse=True)
    heading = tab.locator("#headings th", has_text="Credibility")
    assert heading.get_attribute("aria-sort") == "descending"
    tab.keyboard.press("Enter")  # the heading keeps the focus
    up = [float(text) for text in column(tab, "Credibility")]
    assert up == sorted(up)
    assert up[0] < down[0]
    assert heading.get_attribute("aria-sort") == "ascending"
    tab.locator("#headings th", has_text="Node").get_by_role("button").first.click()
    papers = [name for name in column(tab, "Node") if name.startswith("paper")]
    assert papers == sorted(papers, key=lambda name: int(name.split()[1]))  # by the number in the name
    assert papers != default


def test_searching_filtering_and_pages(visit):
    tab = visit()
    search = tab.get_by_label("Search")
    search.fill("PAPER 42")
    assert column(tab, "Node") == ["paper 42"]
    search.fill("nowhere to be found")
    assert tab.locator("#rows").inner_text() == "No node matches."
    assert tab.locator("#shown").inner_text() == "0 nodes"
    search.fill("gamma")
    assert all("gamma" in a + b for a, b in zip(column(tab, "Prediction"), column(tab, "True label")))
    search.fill("")
    tab.get_by_role("button", name="Next").click()
    tab.get_by_role("button", name="Next").click()
    assert tab.locator("#shown").inner_text() == f"41–60 of {NODES}"
    assert tab.get_by_role("button", name="Next").is_disabled()
    tab.get_by_label("Show").select_option("trained")
    assert tab.locator("#shown").inner_text() == "1–20 of 20"
    assert set(column(tab, "Trained on")) == {"yes"}
    tab.get_by_label("Show").select_option("wrong")
    wrong = int((judged()[1].predicted_class != judged()[0].data.y)[judged()[0].data.y >= 0].sum())
    assert tab.locator("#shown").inner_text().endswith(f"of {wrong}")
    assert all("✗" in text for text in column(tab, "True label"))


def test_choosing_a_node(visit):
    jury, _verdict = judged()
    tab = visit()
    tab.get_by_label("Search").fill("paper 42")
    tab.get_by_role("button", name="paper 42", exact=True).first.click()
    panel = tab.locator("#node")
    assert panel.locator("h3").inner_text() == "paper 42 (node 42)"
    assert tab.evaluate("location.hash") == "#node=42"
    assert tab.locator("#rows tr.chosen").get_attribute("data-node") == "42"
    neighbours = {f"paper {b}" for a, b in jury.data.edge_index.T.tolist() if a == 42} - {"paper 3", "paper 4"}
    assert neighbours <= set(panel.locator(".chips button span:last-child").all_inner_texts())
    # travel by keyboard along the picture
    other = panel.locator("svg .spot[role=button]").first
    name = other.get_attribute("aria-label").split(",")[0]
    other.focus()
    tab.keyboard.press("Enter")
    assert panel.locator("h3").inner_text().startswith(name)


def test_drivers_are_named_with_their_sign(visit):
    jury, verdict = judged()
    node = int(verdict.ranking()[0])
    tab = visit(fragment=f"#node={node}")
    expected = jury.influence_on(node).head(8)
    listed = tab.locator("#node .drivers li", has=tab.locator(".middle"))
    assert listed.count() == 8
    for place, row in enumerate(expected.itertuples()):
        words = listed.nth(place).inner_text()
        assert jury.data.node_names[row.train_node] in words
        assert ("+" if row.support >= 0 else "−") in words
    lines = tab.locator("#node svg line.for").count(), tab.locator("#node svg line.against").count()
    drawn = expected[expected["train_node"] != node]["support"]
    assert lines[0] >= int((drawn >= 0).sum())
    assert lines[1] >= int((drawn < 0).sum())
    last = int(verdict.ranking()[-1])
    tab.goto(tab.url.split("#")[0] + f"#node={last}")
    assert "Not available for this node" in tab.locator("#node").inner_text()


def test_choosing_an_edge_says_what_happens_without_it(visit):
    tab = visit()
    tab.locator("#rows td.node button").first.click()
    assert tab.locator("#without").inner_text() == ""
    tab.locator("#node [data-link]").first.dispatch_event("click")
    said = tab.locator("#without").inner_text()
    assert said.startswith("Without the edge to ")
    assert "through training" in said
    assert tab.locator("#node .edge-choice.chosen").count() == 1
    tab.locator("#node [data-link]").nth(1).focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#without").inner_text() != said


def test_markup_in_names_is_text(visit):
    tab = visit()
    for name in (SCRIPT, IMAGE):
        tab.get_by_label("Search").fill(name.split()[0])
        tab.get_by_role("button", name=name, exact=True).first.click()
        assert tab.locator("#node h3").inner_text().startswith(name)
    assert tab.locator("img, b, i:not(.legend i)").count() == 0
    assert tab.locator("script").count() == 2
    assert CLASSES[0] in tab.locator("body").inner_text()


def test_light_dark_and_phone(visit):
    tab = visit()

    def background() -> str:
        return tab.evaluate("getComputedStyle(document.body).backgroundColor")

    tab.emulate_media(color_scheme="light")
    light = background()
    tab.emulate_media(color_scheme="dark")
    dark = background()
    assert dark != light
    tab.locator("#theme").click()
    assert background() == light
    tab.locator("#theme").click()
    assert background() == dark
    tab.set_viewport_size({"width": 380, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 380
    tab.set_viewport_size({"width": 1400, "height": 900})
    tab.evaluate("localStorage.clear()")


def test_regression_page(visit):
    tab = visit("target")
    assert tab.locator("#rows tr").count() == 20
    widths = [float(text) for text in column(tab, "Width")]
    assert widths == sorted(widths, reverse=True)
    tab.locator("#rows button").nth(3).click()
    assert tab.locator("#node svg").first.is_visible()
    assert "Possible labels" not in tab.locator("#node").inner_text()
