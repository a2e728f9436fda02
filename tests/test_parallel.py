"""The same verdict wherever ballots are counted, also when workers die: real processes, schedulers and workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import joblib
import pytest
import torch
from joblib.parallel import ThreadingBackend
from torch_geometric.data import Data

from batch_functions import Deadly, Fatal, KillScheduler, Noted, fail, process_of
from cases import two_block, undirected
from gnn_zoo import ZOO
from jurygcn import parallel as parallel_module
from jurygcn.conformal.asked import Asked, Question
from jurygcn.conformal.exact import ExactCounter
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.errors import JuryError, JuryWarning, SettingError
from jurygcn.jury import Jury
from jurygcn.models import train
from jurygcn.parallel import ClusterError, map_batches
from jurygcn.settings import Run
from jurygcn.verdict import Verdict

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("dask.distributed")

MAIN = os.getpid()
FIELDS = ("outputs", "lower", "upper", "p_values", "loo_variance", "label_flips", "loo_errors", "neighbour_doubt")


def jury_of(name: str = "gcn", *, dtype: torch.dtype = torch.float32, **settings) -> Jury:
    """80 jurors on a graph of 120 nodes."""
    generator = torch.Generator().manual_seed(0)
    edges = undirected(two_block(120, generator))
    x = torch.randn(120, 5, generator=generator, dtype=dtype)
    data = Data(x=x, edge_index=edges, y=torch.arange(120) % 3, num_nodes=120)
    nodes = torch.arange(0, 120)[torch.arange(120) % 3 != 0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ZOO[name](5, 3).to(dtype)
    train(model, data, nodes, epochs=50, weight_decay=0.01)
    return Jury(model, data, nodes, weight_decay=0.01, **settings).fit()


@pytest.fixture(scope="module")
def reference() -> Verdict:
    return jury_of().verdict()


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(params=[2, "dask"], ids=["processes", "dask"])
def workers(request, cluster) -> int | str:
    return cluster.scheduler_address.replace("tcp", "dask") if request.param == "dask" else request.param


def assert_same(verdict: Verdict, reference: Verdict) -> None:
    assert verdict.diffusion == reference.diffusion
    assert verdict.kinds == reference.kinds
    for name in FIELDS:
        torch.testing.assert_close(getattr(verdict, name), getattr(reference, name), rtol=1e-6, atol=1e-6, msg=name)


# --- the same verdict everywhere ------------------------------------------------------------------------------


def memory_for(jury: Jury, batch_size: int) -> str:
    """The least memory with which a batch holds this many jurors."""
    low, high = 0, 2**30
    while high - low > 1:
        middle = (low + high) // 2
        ballots = LeaveOneOutPredictions(jury.engine, jury.jurors.steps, torch.arange(120), memory=f"{middle}B")
        low, high = (low, middle) if ballots.batch_size >= batch_size else (middle, high)
    return f"{high}B"


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_batches_processes_and_machines_change_nothing(batch_size: int, workers, reference: Verdict):
    jury = jury_of()
    jury.run = Run(memory=memory_for(jury, batch_size))
    assert (
        LeaveOneOutPredictions(jury.engine, jury.jurors.steps, torch.arange(120), memory=jury.run.memory).batch_size
        == batch_size
    )
    assert_same(jury.verdict(), reference)
    jury.run = replace(jury.run, parallel=workers)
    assert_same(jury.verdict(), reference)


@pytest.mark.parametrize("name", ["gat", "batch_norm", "weight_norm"])
def test_any_model_travels(name: str, workers):
    jury = jury_of(name, dtype=torch.float64, run=Run(memory="10MB"))
    here = jury.verdict([3, 1, 77], nonconformity="aps")
    jury.run = replace(jury.run, parallel=workers)
    assert_same(jury.verdict([3, 1, 77], nonconformity="aps"), here)


@pytest.mark.parametrize("backend", ["loky", "threading", "dask"])
def test_the_users_own_joblib_configuration(backend: str, cluster, reference: Verdict):
    with distributed.Client(cluster), joblib.parallel_config(backend=backend, n_jobs=2):
        assert_same(jury_of().verdict(), reference)
        if backend != "threading":
            assert set(map_batches(process_of, range(6))) - {MAIN}
        assert set(map_batches(process_of, range(6), parallel="serial")) == {MAIN}


class Withholding(ThreadingBackend):
    """A backend that hands over all results at the end, like Ray's."""

    supports_return_generator = False


def test_backends_that_hand_over_all_at_once(reference: Verdict):
    joblib.register_parallel_backend("withholding", Withholding)
    with joblib.parallel_config(backend="withholding", n_jobs=2):
        assert_same(jury_of().verdict(), reference)


def test_what_batches_share_arrives_once_per_worker(workers, tmp_path: Path):
    notes = tmp_path / "notes"
    results = map_batches(abs, range(-20, 0), pack=lambda: Noted(notes), parallel=workers)
    assert list(results) == list(range(20, 0, -1))
    there = notes.read_text().split()
    assert 1 <= len(there) == len(set(there)) <= 2
    assert str(MAIN) not in there


@pytest.mark.parametrize("memory", [1, 7, 64])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_chunks_share_the_jurors_out(memory: int, workers: int):
    jury = jury_of()
    question = Question(alpha=0.1, exact_ranks=False, interval="jackknife+", nonconformity="lac", diffusion=0)
    nodes = torch.arange(120)
    asked = Asked(jury.engine, jury.positions, nodes, question)
    counter = ExactCounter(asked, jury.jurors.steps, memory=memory_for(jury, memory))
    for start in (0, 13):
        chunks = counter.chunks(workers, start=start)
        assert torch.cat(chunks).tolist() == list(range(start, 80))
        assert len(chunks) >= 2 * workers or workers == 1
    assert counter.chunks(workers, start=80) == []


@pytest.mark.parametrize("parallel", ["serial", "workers"])
def test_an_error_is_the_same_error(parallel: str, workers):
    with pytest.raises(FileNotFoundError, match="is wrong"):
        list(map_batches(fail, range(3), parallel=workers if parallel == "workers" else parallel))


# --- accidents ------------------------------------------------------------------------------------------------


def test_a_worker_dies_and_nobody_notices(workers, tmp_path: Path):
    marker = tmp_path / "died"
    jury = jury_of(forward=Fatal(marker, MAIN), run=Run(memory="3MB"))
    here = jury.verdict()
    jury.run = replace(jury.run, parallel=workers)
    assert_same(jury.verdict(), here)
    assert marker.exists()


def test_a_batch_that_kills_every_worker_is_done_here(workers):
    with pytest.warns(JuryWarning, match="run in this process"):
        assert list(map_batches(Deadly(MAIN), range(6), parallel=workers)) == list(range(6))


def test_a_lost_scheduler_is_one_sentence(tmp_path: Path):
    address = tmp_path / "scheduler.json"
    common = ["--no-dashboard", "--scheduler-file", str(address)]
    here = Path(__file__).parent
    found = os.pathsep.join([str(here), str(here.parent / "src")])  # these tests and this library, in a worktree too
    quiet = {"stderr": subprocess.DEVNULL, "env": {**os.environ, "PYTHONPATH": found}}
    run = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*run, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *common], **quiet
    )
    worker = subprocess.Popen(
        [*run, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *common, "--local-directory", tmp_path],
        **quiet,
    )
    try:
        deadline = time.monotonic() + 60
        while not (address.exists() and address.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        where = json.loads(address.read_text())["address"]
        with pytest.raises(ClusterError, match="to answer") as caught:
            list(map_batches(KillScheduler(scheduler.pid), range(8), parallel=where))
        assert isinstance(caught.value, JuryError)
        assert "\n" not in str(caught.value)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()


def test_nobody_answers(monkeypatch):
    monkeypatch.setattr(parallel_module, "PATIENCE", 0.5)
    with pytest.raises(ClusterError, match="no answer"):
        jury_of(run="dask://127.0.0.1:9").verdict()


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    with pytest.raises(ClusterError, match=r"pip install 'jurygcn\[cluster\]'"):
        list(map_batches(abs, [1], parallel="dask://127.0.0.1:9"))


@pytest.mark.parametrize("parallel", [0, -2, True, "many", "processes:0", "dask://", "dask://host", "http://host:1"])
def test_places_that_are_refused(parallel):
    with pytest.raises(SettingError, match="dask://host:port"):
        jury_of(run=parallel)
