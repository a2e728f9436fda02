"""Write the tables and the picture of README.md, docs/results.md and docs/reliability.md from benchmarks/results/.

No number of those pages is typed by hand: what stands between ``<!-- numbers -->`` and ``<!-- /numbers -->`` is made
here. The name is not numbers.py because scripts of this folder would then find it in place of Python's own module.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pages.picture import PICTURE, draw, is_current
from pages.rows import Documents, documents
from pages.tables import endurance, readme, results

ROOT = Path(__file__).resolve().parents[1]
BETWEEN = re.compile(r"(<!-- numbers -->\n).*?(<!-- /numbers -->)", flags=re.DOTALL)
PAGES = {"README.md": readme, "docs/results.md": results, "docs/reliability.md": endurance}


def renewed(root: Path, found: Documents) -> dict[Path, str]:
    """The text that each page should have."""
    texts = {}
    for name, write in PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        if len(BETWEEN.findall(text)) != 1:
            raise SystemExit(f"{name} needs one pair of lines <!-- numbers --> and <!-- /numbers -->.")
        made = write(found)
        texts[root / name] = BETWEEN.sub(lambda match, made=made: f"{match[1]}\n{made}\n\n{match[2]}", text)
    return texts


def outdated(root: Path, found: Documents) -> list[str]:
    """The files that do not show these results."""
    old = [path for path, text in renewed(root, found).items() if path.read_text(encoding="utf-8") != text]
    names = [path.relative_to(root).as_posix() for path in old]
    return names if is_current(root / PICTURE, found) else [*names, PICTURE]


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
    draw(root / PICTURE, found)
    print(f"wrote {', '.join([*PAGES, PICTURE])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
