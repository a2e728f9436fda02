"""Would the tests notice? Small faults are put into the core, one at a time, and its tests are run on each.

A mutant is the source with one comparison, operator, constant, condition or returned value changed. Every mutant is
tried in a fork of a process that has the heavy libraries loaded already, and its tests stop at the first failure. The
results are written after every mutant, so that an interrupted run goes on where it stopped.

    python tools/mutants.py --sample 150 --out tools/mutants.json
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "jurygcn"

# The tests of each module, the closest first.
LINALG = ("tests/linalg", "tests/jury/test_jurors.py")
JURY = "tests/jury/test_jury.py"
TESTS = {
    "asked": (JURY, "tests/jury/test_first_order.py"),
    "averaging": (JURY,),
    "claims": ("tests/trust/test_claims.py",),
    "counts": (JURY, "tests/jury/test_intervals.py", "tests/trust/test_degenerate.py"),
    "estimated": ("tests/jury/test_jurors.py", "tests/trust/test_numerics.py", "tests/jury/test_first_order.py"),
    "exact": (JURY, "tests/test_resume.py", "tests/test_parallel.py"),
    "first_order": ("tests/jury/test_first_order.py",),
    "intervals": ("tests/jury/test_intervals.py", JURY),
    "jurors": ("tests/jury/test_jurors.py", "tests/jury/test_first_order.py"),
    "predictions": (JURY, "tests/jury/test_any_gnn.py"),
    "resuming": ("tests/test_resume.py",),
    "retraining": ("tests/jury/test_retrain.py",),
    "scores": (JURY, "tests/trust/test_degenerate.py"),
}
LEFT_OUT = {"__init__"}  # names only
PRELOAD = (
    *("torch", "torch.func", "torch_geometric.data", "torch_geometric.nn", "torch_geometric.utils", "scipy.stats"),
    *("scipy.sparse.linalg", "pandas", "joblib", "networkx", "hypothesis", "pytest", "rich.progress", "typer"),
    *("sklearn.cluster", "matplotlib", "numpy"),
)

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def places(tree: ast.Module) -> Iterator[tuple[list[Any], str]]:
    """Paths to everything that can be changed, with the kind of change.

    Left alone: what only people read (docstrings, messages of errors), types, imports, and the module's named
    constants, which are sizes and thresholds that a test cannot tell from their neighbours.
    """
    for index, statement in enumerate(tree.body):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield from _inside(statement, ["body", index])


def _inside(node: ast.AST, path: list[Any]) -> Iterator[tuple[list[Any], str]]:
    if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert):
        return
    kind = _kind(node)
    if kind:
        yield path, kind
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or _is_warning(node):
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if isinstance(child, ast.AST):
                yield from _inside(child, [*path, name, index] if isinstance(value, list) else [*path, name])


def _is_warning(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warnings.filterwarnings")


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        return "comparison"
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        return "operator"
    if isinstance(node, ast.BoolOp | ast.IfExp):
        return "condition"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return "sign"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return "constant"
    if isinstance(node, ast.Return) and node.value is not None:
        return "result"
    return ""


def mutated(tree: ast.Module, path: list[Any]) -> tuple[ast.Module, str, str, int]:
    """The tree with one change: also the text before and after it, and its line."""
    tree = copy.deepcopy(tree)
    parent, key = tree, path[-1]
    for step in path[:-1]:
        parent = parent[step] if isinstance(step, int) else getattr(parent, step)  # type: ignore[index]
    node: Any = parent[key] if isinstance(key, int) else getattr(parent, key)
    before, line = ast.unparse(node), node.lineno
    new: Any = node
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.UnaryOp):
        new = node.operand
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else 2 * value + 1
    else:
        node.value = ast.Constant(None)
    if isinstance(key, int):
        parent[key] = new  # type: ignore[index]
    else:
        setattr(parent, key, new)
    return ast.fix_missing_locations(tree), before, ast.unparse(new), line


def all_mutants() -> list[tuple[Path, list[Any], str]]:
    """Every place in the core, in order."""
    found = []
    for folder in ("linalg", "leave_one_out", "conformal"):
        for path in sorted((SOURCE / folder).glob("*.py")):
            if path.stem not in LEFT_OUT:
                found += [(path, place, kind) for place, kind in places(ast.parse(path.read_text(encoding="utf-8")))]
    return found


def tests_of(path: Path) -> list[str]:
    """The test files that are run on a mutant of this module."""
    return list(LINALG if path.parent.name == "linalg" else TESTS[path.stem])


def run_tests(path: Path, tree: ast.Module, tests: list[str]) -> int:
    """In a child process: import the mutant in place of the module and run the tests; pytest's exit code."""
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        if Path(self.path) == path:
            return compile(tree, str(path), "exec")
        return original(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not data", "--no-header"]
    return int(pytest.main([*options, "-o", "addopts=", *[str(ROOT / test) for test in tests]]))


def tried(path: Path, tree: ast.Module, tests: list[str], limit: float) -> str:
    """What became of a mutant: "caught", "survived" or "timeout"."""
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            code = run_tests(path, tree, tests)
        except BaseException:
            code = 3
        os._exit(0 if code == 0 else 1)
    started = time.monotonic()
    while time.monotonic() - started < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "caught"
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def main() -> None:
    """Draw mutants and try each; known results are kept, survivors tried again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=150, help="how many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds per mutant")
    parser.add_argument("--out", type=Path, default=ROOT / "tools" / "mutants.json")
    parser.add_argument("--only", help="part of a module's path")
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    for name in PRELOAD:
        importlib.import_module(name)
    everything = all_mutants()
    drawn = random.Random(given.seed).sample(everything, min(given.sample, len(everything)))
    results = _known(given.out)
    for path, place, kind in drawn:
        if given.only and given.only not in str(path):
            continue
        tree, before, after, line = mutated(ast.parse(path.read_text(encoding="utf-8")), place)
        key = f"{path.relative_to(ROOT)}:{line}: {before} -> {after}"
        if results.get(key, {}).get("outcome") in ("caught", "timeout"):
            continue
        outcome = tried(path, tree, tests_of(path), given.limit)
        results[key] = {"kind": kind, "outcome": outcome, **_note(results.get(key))}
        print(f"{outcome:9} {key}", flush=True)
        _write(given.out, results, given, len(everything))
    _write(given.out, results, given, len(everything))
    summary = json.loads(given.out.read_text(encoding="utf-8"))
    print(summary["caught"], "of", summary["tried"], "caught")


def _note(known: dict[str, str] | None) -> dict[str, str]:
    """Why a survivor changes nothing that matters, as written into the results by hand."""
    return {"equivalent": known["equivalent"]} if known and "equivalent" in known else {}


def _known(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    mutants: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    return mutants


def _write(path: Path, results: dict[str, dict[str, str]], given: argparse.Namespace, total: int) -> None:
    outcomes = [result["outcome"] for result in results.values()]
    content = {
        "places": total,
        "seed": given.seed,
        "tried": len(outcomes),
        "caught": sum(outcome != "survived" for outcome in outcomes),
        "equivalent": sum("equivalent" in result for result in results.values()),
        "mutants": dict(sorted(results.items())),
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()
