"""Write the tables and the pictures of README.md and of pages of docs/ from benchmarks/results/.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` and is made here. The text around it is written by
hand. The name is not numbers.py because scripts of this folder would then find it in place of Python's own module.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pages.pictures import PICTURES
from pages.rows import Documents, documents
from pages.tables import all_tables

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(r"<!-- table: (?P<name>[^>]+?) -->\n.*?<!-- end -->", flags=re.DOTALL)
PAGES = (
    "README.md",
    "docs/reliability.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "results").glob("*.md")),
)


def renewed(root: Path, found: Documents) -> dict[Path, str]:
    """The text that each page should have: the same text with new tables."""
    made = all_tables(found)
    pages = {root / name: (root / name).read_text(encoding="utf-8") for name in PAGES}
    shown = [match["name"] for text in pages.values() for match in TABLE.finditer(text)]
    wrong = sorted(set(made).symmetric_difference(shown) | {name for name in shown if shown.count(name) > 1})
    if wrong:
        raise SystemExit(
            f"Every table needs a result and one place on {', '.join(PAGES)}, between lines <!-- table: NAME --> and "
            f"<!-- end -->. These have not: {', '.join(wrong)}."
        )
    return {
        path: TABLE.sub(lambda match: f"<!-- table: {match['name']} -->\n\n{made[match['name']]}\n\n<!-- end -->", text)
        for path, text in pages.items()
    }


def outdated(root: Path, found: Documents) -> list[str]:
    """The files that do not show these results."""
    old = [path for path, text in renewed(root, found).items() if path.read_text(encoding="utf-8") != text]
    names = [path.relative_to(root).as_posix() for path in old]
    return names + [path for path, picture in PICTURES.items() if not picture.is_current(root / path, found)]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    parser.add_argument("--quick", action="store_true", help="write nothing, only say what is out of date")
    chosen = parser.parse_args(arguments)
    found = documents(root)
    old = outdated(root, found)
    if chosen.check or chosen.quick:
        print(
            f"out of date: {', '.join(old)}; run benchmarks/number_tables.py" if old else "all numbers are up to date"
        )
        return int(chosen.check and bool(old))
    for path, text in renewed(root, found).items():
        path.write_text(text, encoding="utf-8")
    for name, picture in PICTURES.items():
        if name in old:
            picture.write(root / name, found)
    print(f"wrote {', '.join([*PAGES, *(name for name in PICTURES if name in old)])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
