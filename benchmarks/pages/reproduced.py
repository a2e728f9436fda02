"""The paper's tables and figures on the results page."""

from __future__ import annotations

import pandas as pd

from jurygcn.experiments import EXPERIMENTS
from pages.rows import Document, Tables, markdown, values_of


def tables(document: Document) -> Tables:
    """Every table in the paper's layout."""
    for name in values_of(document["rows"], "experiment"):
        experiment = EXPERIMENTS[name]
        frame = pd.DataFrame([row for row in document["rows"] if row["experiment"] == name])
        for number, shown in enumerate(experiment.shown(frame).values(), start=1):
            yield (
                f"reproduction: {name}, part {number}",
                markdown(list(shown.columns), shown.astype(str).to_numpy().tolist()),
            )
