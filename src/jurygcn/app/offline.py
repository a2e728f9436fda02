"""Exports without a server."""

from __future__ import annotations

from pathlib import Path

from jurygcn.active.overwriting import check_exported
from jurygcn.app.exports import label_studio_json, labels_csv
from jurygcn.app.preparation import load
from jurygcn.app.rounds import Source
from jurygcn.app.store import Answers
from jurygcn.errors import SettingError
from jurygcn.io.files import changing, write_text

EXPORTS = {".csv": labels_csv, ".json": label_studio_json}


def write_export(source: Source, answers: Path, out: Path) -> int:
    """Write the labels as CSV, or the answers as Label Studio's JSON, by the suffix of ``out``.

    Returns the number of labels.
    """
    if out.suffix.lower() not in EXPORTS:
        raise SettingError(f"expected --export to be a .csv or .json file, got {out}; change it")
    if not answers.is_file():
        raise SettingError(f"expected a file of answers at {answers}, got none; name it with --answers")
    check_exported(out, "--export", source.data)
    with changing(answers, patience=0):
        kept = Answers(answers)
        try:
            classes = source.classes or tuple(kept.facts.get("classes", ())) or None
            _, loaded = load(Source(source.data, source.labels, classes, source.seed))
            kept.bind(loaded.table.facts)
            kept.add_given(loaded.labels, loaded.origins)
            write_text(out, EXPORTS[out.suffix.lower()](kept, loaded.table))
            return len(kept.labels)
        finally:
            kept.close()
