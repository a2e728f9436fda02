"""Draw docs/figures/what_if.png: the neighbourhood view of a report on Cora, with one edge chosen.

Needs Chromium and playwright. The node is the first in the list of the most uncertain ones that has at least three
edges, of which one changes its prediction.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "what_if.png"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
WIDTH = 420


def chosen(document: dict[str, Any]) -> tuple[int, int]:
    """A node with an edge that changes its prediction, and the place of that edge by influence."""
    rows = document["rows"]
    for node, prediction, links in zip(
        rows["node"], rows["prediction"], document["details"]["links"]["rows"], strict=False
    ):
        support = [abs(a + b) for a, b in zip(links["direct"], links["through"], strict=True)]
        order = sorted(range(len(support)), key=lambda k: -support[k])
        changes = [place for place, k in enumerate(order) if links["without"][k] != prediction]
        if len(order) >= 3 and changes:
            return node, changes[0]
    raise SystemExit("expected a node with three edges, one of which changes its prediction, found none")


def main() -> None:
    """Make the report, choose the node and the edge, draw."""
    parser = argparse.ArgumentParser(description="Draw docs/figures/what_if.png.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the file to write")
    out = parser.parse_args().out
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("expected Chromium to draw the page, found none; install it")
    with tempfile.TemporaryDirectory() as folder:
        for command in (["quantify", "cora", "--out", folder], ["report", folder]):
            subprocess.run([sys.executable, "-m", "jurygcn", *command], check=True, stdout=subprocess.DEVNULL)
        node, edge = chosen(json.loads((Path(folder) / "report.json").read_text()))
        with sync_playwright() as playwright:
            program = playwright.chromium.launch(executable_path=path, args=FLAGS)
            tab = program.new_page(viewport={"width": WIDTH, "height": 1200}, device_scale_factor=2)
            tab.goto(f"{(Path(folder) / 'report.html').as_uri()}#node={node}")
            tab.locator("#without").wait_for(state="attached")
            tab.locator("#node ul.measures").first.locator("button").nth(edge).click()
            top, bottom = tab.locator("#node svg").first.bounding_box(), tab.locator("#without").bounding_box()
            scroll = tab.evaluate("scrollY")
            height = bottom["y"] + bottom["height"] - top["y"]
            clip = {"x": 16, "y": top["y"] + scroll - 8, "width": WIDTH - 32, "height": height + 16}
            tab.screenshot(path=str(out), full_page=True, clip=clip)
            program.close()
    print(f"Wrote {out}: node {node}")


if __name__ == "__main__":
    main()
