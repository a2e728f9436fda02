"""The package as other projects see it: its version, its types."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONSUMER = Path(__file__).parent / "consumer" / "use.py"


def check_types(cache: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """mypy, as a project with its own strict settings runs it; only PyG, which has no types, is excused."""
    pytest.importorskip("mypy")
    settings = cache / "consumer.ini"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[mypy]\nstrict = true\n[mypy-torch_geometric.*]\nignore_missing_imports = true\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(cache)]
    return subprocess.run(
        [*command, *map(str, paths)], cwd=CONSUMER.parent, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_typed_project_sees_our_types(tmp_path: Path):
    """The project and a wrong copy of it in one run: only the copy has errors.

    The cache is the repository's: only the first run takes a quarter of a minute of CPU.
    """
    wrong = tmp_path / "wrong_use.py"
    text = CONSUMER.read_text(encoding="utf-8")
    wrong.write_text(text.replace("verdict.claim(0.1).words, str", "verdict.claim(0.1).words, int"), encoding="utf-8")
    found = check_types(ROOT / ".mypy_cache" / "consumer", CONSUMER, wrong)
    lines = found.stdout.splitlines()
    assert found.returncode == 1, found.stdout + found.stderr
    assert lines[-1].startswith("Found 1 error in 1 file (checked 2 source files)"), found.stdout
    assert "wrong_use.py" in lines[0]
    assert "[assert-type]" in lines[0]


def test_the_changelog_describes_this_version():
    """Its first numbered heading is the version of pyproject.toml."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    written = re.findall(r'^version = "(.+)"$', project, flags=re.MULTILINE)
    headings = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[:1] == written
