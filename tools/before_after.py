"""CPU time of fit + verdict at an earlier commit and now, in turns, in one process tree.

    python tools/before_after.py 52f1a63^ --turns 40

Both versions run in processes of their own, on one thread, and take turns, so that other work on the machine slows both
alike. The model is trained once by each version, with the same seed. Both keep freed memory (`jurygcn.allocator`), as
earlier versions did in every process.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GRAPHS = ("cora", "citeseer", "pubmed")
WORKER = """
import inspect, sys, time
import torch
torch.set_num_threads(1)
import jurygcn
try:  # what speed.py and the command line use; earlier versions always did
    from jurygcn.allocator import keep_freed_memory
    keep_freed_memory()
except ImportError:
    pass
from jurygcn.data import load_dataset, paper_split, random_labels
data = load_dataset(sys.argv[1])
nodes = random_labels(paper_split(data, seed=0).pool, int(sys.argv[2]), seed=0)
torch.manual_seed(0)
model = jurygcn.GCN(data.num_features, 16, int(data.num_classes))
jurygcn.train(model, data, nodes, epochs=100, weight_decay=5e-4, seed=0)
plain = {"advice": None} if "advice" in inspect.signature(jurygcn.Jury.verdict).parameters else {}
for _ in sys.stdin:
    started = time.process_time()
    jurygcn.Jury(model, data, nodes, weight_decay=5e-4).fit().verdict(**plain)
    print(time.process_time() - started, flush=True)
"""


def start(source: Path, graph: str, labels: int) -> subprocess.Popen[str]:
    """A worker with this version of the library."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", WORKER, graph, str(labels)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def turn(worker: subprocess.Popen[str]) -> float:
    """The CPU seconds of one fit + verdict."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the earlier commit")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--labels", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = subprocess.run(
            ["git", "archive", chosen.before, "src"], check=True, capture_output=True, cwd=ROOT
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            archive.extractall(folder, filter="data")
        print(
            f"CPU ms of fit + verdict without advice, {chosen.labels} labels, best and median of {chosen.turns} turns"
        )
        for graph in GRAPHS:
            workers = [start(source, graph, chosen.labels) for source in (Path(folder) / "src", ROOT / "src")]
            for worker in workers * 3:
                turn(worker)  # caches, allocator
            times = [[turn(worker) for worker in workers] for _ in range(chosen.turns)]
            before, now = ([1000 * t for t in column] for column in zip(*times, strict=True))
            for worker in workers:
                worker.communicate()
            best, middle = min(now) / min(before), statistics.median(now) / statistics.median(before)
            print(
                f"{graph:9} before {min(before):6.1f} {statistics.median(before):6.1f}   "
                f"now {min(now):6.1f} {statistics.median(now):6.1f}   ratio {best:.3f} {middle:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
