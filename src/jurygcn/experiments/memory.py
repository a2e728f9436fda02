"""Peak memory of a method, measured in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from jurygcn.choices import Recipe
from jurygcn.data import paper_split, random_labels
from jurygcn.errors import SettingError
from jurygcn.evaluation import micro_f1
from jurygcn.experiments import figure1
from jurygcn.experiments.cells import Row
from jurygcn.experiments.graphs import load
from jurygcn.jury import Jury
from jurygcn.models.training import fit_gcn

VERDICT = "gcn + verdict"
# The child's program. It removes the caller's folder, '', from the path, so that no module of it is imported.
CHILD = """
import sys
home = sys.argv.pop(1)
sys.path[:] = [place for place in sys.path if place]
if home not in sys.path:
    sys.path.insert(0, home)
from jurygcn.experiments.memory import main
main()
"""


def peak_mb() -> float:
    """The peak resident memory of this process, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the parent process's memory
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / 1024
    try:
        import resource
    except ImportError as error:
        raise SettingError("expected Linux or macOS to measure peak memory, got neither; leave figure2 out") from error
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measured_apart(dataset: str, labels: int, method: str, seed: int) -> Row:
    """Micro-F1 in %, peak memory, and its part for graph and libraries, measured in a separate process."""
    arguments = json.dumps({"dataset": dataset, "labels": labels, "method": method, "seed": seed})
    home = str(Path(__file__).parents[2])  # the folder of this package
    command = [sys.executable, "-c", CHILD, home, arguments, str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SettingError(
            f"expected to measure {method} on {dataset} in a separate process, got exit code {done.returncode} "
            f"({(done.stderr.strip().splitlines() or ['killed'])[-1]}); free memory, or leave figure2 out"
        )
    found: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure_here(dataset: str, labels: int, method: str, seed: int) -> Row:
    """The same measurement in this process."""
    load(dataset)
    before = peak_mb()
    measure = verdict_of_everyone if method == VERDICT else figure1.measure
    found = measure(dataset=dataset, labels=labels, seed=seed, **({} if method == VERDICT else {"method": method}))
    return {**found, "peak_mb": peak_mb(), "before_mb": before}


def verdict_of_everyone(dataset: str, labels: int, seed: int) -> Row:
    """Train the GCN without dropout, and compute the verdict on all nodes."""
    data = load(dataset)
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, labels, seed=seed)
    recipe = Recipe(dropout=0.0)
    model, _ = fit_gcn(data, nodes, recipe, seed=seed)
    verdict = Jury(model, data, nodes, weight_decay=recipe.weight_decay).fit().verdict(advice=None)
    return {"micro_f1": 100 * micro_f1(verdict.predicted_class[split.test], data.y[split.test])}


def main() -> None:
    """The child process of `measured_apart`: measure the cell in the arguments."""
    torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(measure_here(**json.loads(sys.argv[1]))))
