"""The shape of the code: which way imports point, and what may not be in it at all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jurygcn.linalg import SOLVERS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "jurygcn"

# A layer imports from itself and from the layers before it. The package's own __init__ stands just before the
# command line: it may show any layer but that one. Layers that hold nothing yet are listed where they will stand.
LAYERS = (
    *(
        "signals",
        "errors",
        "checks",
        "choices",
        "io",
        "progress",
        "canvas",
        "allocator",
        "ambient",
        "annotators",
        "parallel",
        "linalg",
        "data",
        "graph",
    ),
    *("losses", "models", "derivatives", "engine", "curvature", "leave_one_out", "conformal", "display", "verdict"),
    *(
        "assembling",
        "adding",
        "settings",
        "costs",
        "finding",
        "diagnostics",
        "counting",
        "arrivals",
        "edits",
        "jury_storage",
        "jury",
        "evaluation",
        "baselines",
        "self_training",
        "active",
    ),
    *(
        "reweighting",
        "learning",
        "bandit",
        "experiments",
        "candidates",
        "selection",
        "web",
        "report",
        "app",
        "__init__",
        "cli",
        "__main__",
    ),
)
MAX_LINES = 400
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
MAY_UNPICKLE = {"data/planetoid.py"}

MODULES = sorted(SOURCE.rglob("*.py"))
SCRIPTS = sorted(path for folder in ("examples", "benchmarks") for path in (ROOT / folder).rglob("*.py"))


# --- the rules, as functions of a module's text -------------------------------------------------------------


def name_of(path: Path, root: Path = SOURCE) -> str:
    """The dotted name of a file: jurygcn.data.npz, or jurygcn.data for its __init__."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    """The layer a dotted name belongs to; the package itself is '__init__'."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported(text: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a module imports, wherever the import stands; relative ones resolved.

    What is imported for type checkers only is left out: it is never run.
    """
    tree = ast.parse(text)
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                anchor = package[: len(package) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            if base == "jurygcn":  # from jurygcn import data: what is meant is the layer, if there is one
                yield from ((node.lineno, f"jurygcn.{a.name}" if a.name in LAYERS else base) for a in node.names)
            elif base.startswith("jurygcn"):
                yield node.lineno, base
            else:
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def wrong_imports(text: str, module: str, *, is_package: bool = False) -> list[str]:
    """The imports of one module that point to a later layer."""
    own = LAYERS.index(layer_of(module))
    found = []
    for line, name in imported(text, module, is_package=is_package):
        if name.split(".")[0] != "jurygcn":
            continue
        other = layer_of(name)
        if other not in LAYERS:
            found.append(f"{module}:{line} imports {name}, which is in no known layer")
        elif LAYERS.index(other) > own:
            found.append(f"{module}:{line} ({layer_of(module)}) imports {name}: {other} is a later layer")
    return found


# What kind of model or solver there is, only these ask.
MAY_ASK_KINDS = {"engine", "linalg"}
_SOLVERS = "|".join(solver.__name__ for solver in SOLVERS.values())
KINDS = re.compile(rf"^(GCN|.*Engine|Prepared\w*|{_SOLVERS}|GGN|Hessian|Printed)$")


def asked_kinds(text: str, module: str) -> list[str]:
    """Tests for a kind of model, engine, curvature or solver outside the layers that may make them."""
    if layer_of(module) in MAY_ASK_KINDS:
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        kinds: list[ast.expr] = []
        if isinstance(node, ast.Call) and _name(node.func) in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and _name(node.left.func) == "type":
            kinds = node.comparators
        found += [f"{module}:{node.lineno} asks for {_name(k)}" for k in kinds if KINDS.match(_name(k))]
    return found


def unsafe_loads(text: str, where: str) -> list[str]:
    """Imports and calls that would run code out of a data file."""
    found = []
    for line, name in imported(text, "jurygcn.somewhere.module"):
        harmless = name == "pickle.UnpicklingError"  # torch.load's refusal, to be caught
        if name.split(".")[0] in UNPICKLERS and not harmless and where not in MAY_UNPICKLE:
            found.append(f"{where}:{line} imports {name}; only {', '.join(MAY_UNPICKLE)} may, with its allow-list")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        keywords = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        called = ast.unparse(node.func)
        if called.endswith("torch.load") and keywords.get("weights_only") is not True:
            found.append(f"{where}:{node.lineno} calls torch.load without weights_only=True")
        if keywords.get("allow_pickle", False) is not False:
            found.append(f"{where}:{node.lineno} calls {called} with allow_pickle")
        if called.endswith("joblib.load"):
            found.append(f"{where}:{node.lineno} calls joblib.load, which unpickles")
    return found


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- the code against the rules -----------------------------------------------------------------------------


def test_there_is_code_to_check():
    assert len(MODULES) > 20


def test_imports_point_one_way():
    for path in MODULES:
        text, is_package = path.read_text(encoding="utf-8"), path.stem == "__init__"
        assert wrong_imports(text, name_of(path), is_package=is_package) == [], short(path)


# The network itself, and the one training loop, which takes a shorter way for a plain GCN.
KNOWN_TO_ASK = {"jurygcn.models.gcn", "jurygcn.models.training"}


def test_nobody_asks_what_kind_of_model_or_solver_it_is():
    for path in MODULES:
        if name_of(path) not in KNOWN_TO_ASK:
            assert asked_kinds(path.read_text(encoding="utf-8"), name_of(path)) == [], short(path)


@pytest.mark.parametrize(
    "line",
    ["isinstance(model, GCN)", "isinstance(x, (int, PreparedDual))", "type(model) is GCN", "isinstance(op, linalg.CG)"],
)
def test_a_question_for_a_kind_is_caught(line: str):
    assert asked_kinds(line, "jurygcn.conformal.exact") != []
    assert asked_kinds(line, "jurygcn.engine.gcn") == []


def test_every_module_is_in_a_layer():
    there = {path.stem for path in SOURCE.glob("*.py")}
    there |= {folder.name for folder in SOURCE.iterdir() if any(folder.glob("*.py"))}
    assert there <= set(LAYERS), "a new layer needs a place in LAYERS and in ARCHITECTURE.md"


def test_the_picture_is_the_code():
    """ARCHITECTURE.md draws the layers that exist, in the order this test enforces."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    picture = re.search(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert picture is not None
    drawn = re.findall(r"^(\w+)(?:/|\.py)\s", picture[1], flags=re.MULTILINE)
    assert drawn == [layer for layer in LAYERS if layer in drawn]
    there = {p.stem for p in SOURCE.glob("*.py")} | {f.name for f in SOURCE.iterdir() if any(f.glob("*.py"))}
    assert there - {"__init__", "__main__"} <= set(drawn)
    assert {layer for layer in drawn if layer != "__init__"} <= there, "the picture shows a layer that is not there"


def test_the_table_of_modules_names_every_module():
    """ARCHITECTURE.md says what each module of the larger folders contains: no more, no less."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = re.search(r"^## The modules of (.*?)$(.*?)^## ", text, flags=re.DOTALL | re.MULTILINE)
    assert table is not None
    named: set[str] = set()
    for row in re.findall(r"^\| (`\w+/.*?) \|", table[2], flags=re.MULTILINE):
        folder, modules = row.strip("`").split("/")[0], re.findall(r"`(?:\w+/)?(\w+)`", row)
        named |= {f"{folder}/{module}" for module in modules}
    there = {f"{p.parent.name}/{p.stem}" for f in re.findall(r"\b(\w+)/", table[1]) for p in (SOURCE / f).glob("*.py")}
    assert {name for name in named if not name.startswith("web/")} == {n for n in there if not n.endswith("__init__")}


def test_files_can_be_read_in_one_sitting():
    lines = {short(path): len(path.read_text(encoding="utf-8").splitlines()) for path in [*MODULES, *SCRIPTS]}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_names_say_what_is_inside():
    everything = [*MODULES, *SCRIPTS, *(ROOT / "tests").rglob("*.py")]
    assert [short(path) for path in everything if VAGUE_NAMES & {path.stem, *path.relative_to(ROOT).parts}] == []


def test_nothing_unpickles():
    for path in [*MODULES, *SCRIPTS]:
        where = path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else short(path)
        assert unsafe_loads(path.read_text(encoding="utf-8"), where) == [], where


def test_every_dependency_has_a_reason():
    """CONTRIBUTING.md says why each package of pyproject.toml is there, and names no other."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    names = {re.split(r"[\[<>=! ]", requirement)[0] for requirement in wanted} - {"jurygcn"}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    given = set(re.findall(r"^\| `([\w-]+)` \|", text, flags=re.MULTILINE))
    assert given == names


# --- the checker can fail -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from jurygcn.jury import Jury", "jurygcn.linalg.cg"),
        ("import jurygcn.models.gcn", "jurygcn.data.npz"),
        ("from ..engine import Engine", "jurygcn.models.gcn"),
        ("from .. import jackknife", "jurygcn.curvature.operators"),
        ("from jurygcn import data", "jurygcn.linalg.cg"),
        ("from jurygcn import Jury", "jurygcn.evaluation.metrics"),
        ("def late():\n    from jurygcn.cli import app", "jurygcn.jury"),
        ("import importlib\nimportlib.import_module('jurygcn.jury')", "jurygcn.linalg.cg"),
        ("from jurygcn.unheard_of import thing", "jurygcn.cli.demo"),
        ("from jurygcn.cli import app", "jurygcn"),
    ],
)
def test_a_wrong_import_is_caught(text: str, module: str):
    assert len(wrong_imports(text, module, is_package=module == "jurygcn")) == 1


@pytest.mark.parametrize(
    ("text", "module", "is_package"),
    [
        ("from ..errors import DataError\nfrom .operator import Operator\nimport numpy", "jurygcn.linalg.cg", False),
        ("from .cg import CG\nfrom ..errors import SolverError", "jurygcn.linalg", True),
        ("from jurygcn.jury import Jury\nimport jurygcn", "jurygcn.cli.demo", False),
        ("from .jury import Jury\nfrom . import data", "jurygcn", True),
        ("from jurygcn.cli import main", "jurygcn.__main__", False),
    ],
)
def test_a_right_import_passes(text: str, module: str, is_package: bool):
    assert wrong_imports(text, module, is_package=is_package) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('model.pt')",
        "import torch\ntorch.load('model.pt', weights_only=False)",
        "import numpy as np\nnp.load('x.npz', allow_pickle=True)",
        "import numpy as np\nnp.load('x.npz', allow_pickle=trust)",
        "import joblib\njoblib.load('x')",
    ],
)
def test_an_unsafe_load_is_caught(text: str):
    assert len(unsafe_loads(text, "data/npz.py")) == 1


def test_a_safe_load_passes():
    text = "import torch, numpy as np\ntorch.load('m', weights_only=True)\nnp.load('x', allow_pickle=False)"
    assert unsafe_loads(text, "data/npz.py") == []
    assert unsafe_loads("import pickle", "data/planetoid.py") == []
