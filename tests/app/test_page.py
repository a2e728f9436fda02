"""The labelling page in a real browser, with the real worker: two people label by keyboard."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotators import CLASSES, NODES, PATIENCE, SCRIPT, Server, labelling, truth, write_graph

from browsers import FLAGS, playing
from jurygcn.active.labels import with_classes
from jurygcn.active.tasks import read_answers
from jurygcn.data import load_dataset

EACH = 30  # nodes per annotator
# elements without a name for screen readers
NAMELESS = """() => [...document.querySelectorAll('button, input, textarea, a')]
  .filter((e) => e.offsetParent !== null && !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.title))
  .map((e) => e.outerHTML)"""
# texts with a contrast below 4.5, as WCAG defines it
PALE = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (e) => {
    const colour = e ? parse(getComputedStyle(e).backgroundColor) : [255, 255, 255];
    return colour.length === 3 ? colour : behind(e.parentElement);
  };
  const ratio = (e) => {
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const hasText = (e) => [...e.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  return [...document.querySelectorAll('main *, header *')]
    .filter((e) => !(e instanceof SVGElement) && !e.disabled && e.offsetParent !== null && hasText(e))
    .filter((e) => ratio(e) < 4.5).map((e) => e.outerHTML);
}"""


class Person:
    """An annotator with a browser of their own; notes every complaint and every request."""

    def __init__(self, browser: Any, server: Server, name: str) -> None:
        self.context = browser.new_context(viewport={"width": 1400, "height": 900}, accept_downloads=True)
        self.context.set_default_timeout(60_000)
        self.server, self.name, self.complaints, self.requests = server, name, list[str](), list[str]()
        self.tab = self.open()
        self.begin(self.tab)

    def open(self) -> Any:
        tab = self.context.new_page()
        tab.on("console", lambda message: self.complaints.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.goto(self.server.address)
        return tab

    def begin(self, tab: Any) -> None:
        tab.get_by_label("Your name").fill(self.name)
        tab.keyboard.press("Enter")
        tab.locator("#task[data-node]").wait_for()

    def node(self, tab: Any = None) -> int:
        return int((tab or self.tab).get_attribute("#task", "data-node"))

    def press(self, key: str, tab: Any = None) -> int:
        """Press a key that leads to another node; returns the node before."""
        tab, before = tab or self.tab, self.node(tab)
        tab.keyboard.press(key)
        tab.wait_for_function("n => document.getElementById('task').dataset.node !== String(n)", arg=before)
        return before

    def label(self, tab: Any = None) -> int:
        return self.press(str(truth(self.node(tab)) + 1), tab)

    def check(self) -> None:
        assert self.complaints == []
        assert {url for url in self.requests if not url.startswith((self.server.address, "data:"))} == set()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_graph(tmp_path_factory.mktemp("page") / "graph")
    with labelling(folder, "--classes", ",".join(CLASSES), "--batch", "10") as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playing() as (playwright, path):
        made = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def people(browser: Any, server: Server) -> list[Person]:
    return [Person(browser, server, name) for name in ("Ann <b>", "Bob")]


def download(person: Person, name: str) -> Path:
    with person.tab.expect_download() as found:
        person.tab.locator(f"a[href='export/{name}']").click()
    return Path(found.value.path())


def wait_for_curve(server: Server, points: int) -> None:
    """Wait until the model has learned so often."""
    deadline = time.monotonic() + PATIENCE
    while len(server.client().state()["curve"]) < points:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def two_people_label_sixty_nodes(people: list[Person], server: Server, folder: Path) -> None:
    """By keyboard, at once; no node is given twice; everything is exported; the curve grows."""
    ann, bob = people
    seen = []
    for step in range(EACH):
        seen += [person.label() for person in people]
        if step in (5, 15):  # on a busy machine the worker needs a moment
            wait_for_curve(server, points=1 + step // 10)
    assert len(set(seen)) == 2 * EACH
    state = server.client("Bob").state()
    assert state["labels"] == 2 * EACH
    assert state["annotators"]["Ann <b>"]["label"] == EACH
    wait_for_curve(server, points=3)
    ann.tab.locator("#curve .point").nth(2).wait_for()  # from the poll
    points = [point["labels"] for point in server.client().state()["curve"]]
    assert points == sorted(set(points))
    assert len(points) >= 3
    assert "Each label is predicted by a juror that has not seen it" in ann.tab.locator("#curve").inner_text()
    assert "no random sample" in ann.tab.locator("#curve").inner_text()

    rows = list(csv.DictReader(io.StringIO(download(bob, "labels.csv").read_text())))
    assert {int(row["node"]): row["label"] for row in rows} == {node: CLASSES[truth(node)] for node in seen}
    assert {row["chosen"] for row in rows} == {"actively"}
    exported = folder / "export.json"
    exported.write_bytes(download(bob, "label-studio.json").read_bytes())
    graph = with_classes(load_dataset(server.process.args[4]), None, CLASSES)
    assert read_answers(exported, graph) == {node: truth(node) for node in seen}
    assert len(json.loads(exported.read_text())) == 2 * EACH


def undo_shows_the_node_and_its_answer(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    ann.tab.keyboard.press("c")
    ann.tab.keyboard.type("I am 1 of 2 minds")  # digits in a comment are no answers
    ann.tab.keyboard.press("Enter")
    before = server.client().state()["labels"]
    node = ann.label()
    assert server.client().state()["labels"] == before + 1
    ann.press("u")
    assert ann.node() == node
    assert ann.tab.locator("#comment").input_value() == "I am 1 of 2 minds"
    assert ann.tab.locator("#choices .before").inner_text().splitlines()[-1] == CLASSES[truth(node)]
    assert server.client().state()["labels"] == before
    assert ann.label() == node
    assert server.client().state()["labels"] == before + 1


def skip_and_unknown(people: list[Person], server: Server, folder: Path) -> None:
    ann, bob = people
    skipped, unknown = ann.press("s"), ann.press("0")
    counts = server.client().state()["annotators"]["Ann <b>"]
    assert (counts["skip"], counts["unknown"]) == (1, 1)
    assert ann.node() not in (skipped, unknown)
    rows = download(bob, "answers.csv").read_text().splitlines()
    assert sum(",skip," in row or ",unknown," in row for row in rows) == 2


def reload_and_a_second_tab(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    held = ann.node()
    ann.tab.reload()
    ann.tab.locator("#task[data-node]").wait_for()
    assert ann.node() == held
    second = ann.open()
    ann.begin(second)
    assert ann.node(second) != held
    answered = ann.label(second)
    assert answered != held
    assert ann.node() == held
    second.close()


def texts_links_and_pictures(people: list[Person], server: Server, folder: Path) -> None:
    """Markup is text; a link is a link; a picture of the folder is shown, others are not fetched."""
    ann, _ = people
    page = server.client("Ann <b>").post("look", node=4)[1]["page"]
    kinds = {entry["column"]: entry["kind"] for entry in page["texts"]}
    assert kinds == {"title": "text", "home": "link", "image": "image"}
    for node, kind in ((5, "text"), (6, "link"), (7, "text")):
        page = server.client("Ann <b>").post("look", node=node)[1]["page"]
        assert {entry["column"]: entry["kind"] for entry in page["texts"]}["image"] == kind
    column = 2  # of the columns of text
    assert server.client().send("GET", f"picture/4/{column}")[2]["content-type"] == "image/png"
    for node in (5, 6, 7, NODES):  # outside the folder, on another machine, no picture, no node
        assert server.client().send("GET", f"picture/{node}/{column}")[0] == 404
    while not ann.tab.locator("#texts img").count():
        ann.label()
    assert ann.tab.locator("#texts img").evaluate("e => e.complete && e.naturalWidth") == 1
    assert SCRIPT in ann.tab.locator("#texts").inner_text()
    link = ann.tab.locator("#texts a").first
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert ann.tab.evaluate("window.hacked") is None


def the_model_can_be_hidden(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    assert "The model predicts" in ann.tab.locator("#verdict").inner_text()
    ann.tab.keyboard.press("h")
    assert not ann.tab.locator("#verdict").is_visible()
    labels = [spot.get_attribute("aria-label") for spot in ann.tab.locator("#neighbourhood .spot").all()]
    assert labels
    assert not any("predicted" in label for label in labels)
    ann.tab.keyboard.press("h")
    assert ann.tab.locator("#verdict").is_visible()


def a_second_look_replaces_the_answer(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    for _ in range(3):
        ann.press(str((truth(ann.node()) + 1) % len(CLASSES) + 1))
    for _ in range(5):  # half a batch: the wrong labels are learned
        ann.label()
    before = server.client().state()["labels"]
    ann.tab.evaluate("document.querySelector('#again').scrollIntoView()")
    entry = ann.tab.locator("#again button").first
    entry.wait_for()
    node = int(entry.get_attribute("data-node"))
    entry.click()
    ann.tab.wait_for_function("n => document.getElementById('task').dataset.node === String(n)", arg=node)
    assert "second look" in ann.tab.locator("#mode").inner_text()
    ann.press(str(truth(node) + 1))
    assert server.client().state()["labels"] == before


def an_answer_waits_for_the_server(people: list[Person], server: Server, folder: Path) -> None:
    """An answer that does not arrive is sent again; it counts once."""
    ann, _ = people
    lost = []

    def lose(route: Any) -> None:
        lost.append(route.request.url)
        route.abort()

    ann.tab.route("**/api/answer", lose, times=2)
    kept = list(ann.complaints)
    node = ann.label()
    assert len(lost) == 2
    assert ann.node() != node
    assert not ann.tab.locator("#alarm").is_visible()
    ann.complaints[:] = kept  # the browser notes the requests that were cut here


def everything_has_a_name_and_contrast(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    assert ann.tab.evaluate(NAMELESS) == []
    for scheme in ("light", "dark"):
        ann.tab.emulate_media(color_scheme=scheme)
        assert ann.tab.evaluate(PALE) == []
    ann.tab.emulate_media(color_scheme="light")


def phone(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    ann.tab.set_viewport_size({"width": 360, "height": 780})
    assert ann.tab.evaluate("document.documentElement.scrollWidth") <= 360
    for button in ann.tab.locator("#choices button").all():
        assert button.bounding_box()["height"] >= 44
    ann.tab.set_viewport_size({"width": 1400, "height": 900})


def the_focus_is_visible_and_reaches_the_answers(people: list[Person], server: Server, folder: Path) -> None:
    ann, _ = people
    node = ann.node()
    ann.tab.locator("#choices button").nth(truth(node)).focus()
    assert ann.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") in ("solid", "auto")
    ann.press("Enter")
    assert ann.tab.evaluate("document.activeElement.dataset.label") == str(truth(node))  # the focus stays


def nothing_was_complained_about_or_fetched_elsewhere(people: list[Person], server: Server, folder: Path) -> None:
    for person in people:
        person.check()


def no_node_is_left_in_the_end(people: list[Person], server: Server, folder: Path) -> None:
    """The rest over HTTP; then the page says so, and Ctrl-C ends the program."""
    client = server.client("Carol")
    found = client.post("next")[1]
    while found["page"]:
        node = found["page"]["node"]
        found = client.answer(node, truth(node), request=f"c{node}")[1]
    assert client.state()["labels"] >= NODES - 6
    code, said = server.interrupt()
    assert (code, said) == (0, "")
    assert not list(Path(server.process.args[4]).glob("*wal"))


STEPS = (
    two_people_label_sixty_nodes,
    undo_shows_the_node_and_its_answer,
    skip_and_unknown,
    reload_and_a_second_tab,
    texts_links_and_pictures,
    the_model_can_be_hidden,
    a_second_look_replaces_the_answer,
    an_answer_waits_for_the_server,
    everything_has_a_name_and_contrast,
    phone,
    the_focus_is_visible_and_reaches_the_answers,
    nothing_was_complained_about_or_fetched_elsewhere,
    no_node_is_left_in_the_end,
)


@pytest.mark.filterwarnings("ignore::jurygcn.errors.DataNotice")
def test_a_day_of_labelling(people: list[Person], server: Server, tmp_path: Path) -> None:
    """One test, because every step goes on from the one before."""
    for step in STEPS:
        step(people, server, tmp_path)
