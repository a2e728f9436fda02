"""Map a function over batches in this process, on local processes, or on a cluster, with the same results in order.

``parallel`` chooses where the work runs:

- ``None``: in this process, or where a surrounding ``joblib.parallel_config`` chooses;
- ``"serial"``: in this process;
- ``2``, ``-1`` (all cores), ``"processes:2"``: on local processes, through joblib;
- ``"dask://host:port"``: on the Dask cluster with this scheduler.

Data that all batches share is sent to a worker once (see :class:`Parcel`). Batches of a worker that dies are repeated.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import torch
from joblib import Parallel, cpu_count, delayed, effective_n_jobs
from joblib.parallel import get_active_backend

from jurygcn.checks import in_short
from jurygcn.errors import JuryError, JuryWarning, SettingError

B = TypeVar("B")
R = TypeVar("R")
Recipe = Callable[[], Callable[[B], R]]

ATTEMPTS = 2  # with workers; the remaining batches then run in this process
MOST_PROCESSES = 1024  # more is taken for a mistake
PATIENCE = 10.0  # seconds for a scheduler to answer and for a first worker to appear


class ClusterError(JuryError, RuntimeError):
    """The cluster cannot be reached, or the connection was lost."""


class WorkerLostError(Exception):
    """A worker died before it finished its batches."""


def map_batches(
    function: Callable[[B], R],
    batches: Sequence[B] | Callable[[int], Sequence[B]],
    *,
    pack: Callable[[], Recipe[B, R]] | None = None,
    parallel: int | str | None = None,
) -> Iterator[R]:
    """Yield the results of ``function`` for all batches, in order, as they become available.

    Args:
        function: the function of one batch.
        batches: the batches, or a function from the number of workers to the batches.
        pack: returns a picklable recipe for ``function``: called in a worker, the recipe returns the function. By
            default the function itself is pickled.
        parallel: where to work; see the module.
    """
    with _crew(parallel) as crew:
        todo = deque(batches(crew.size) if callable(batches) else batches)
        parcel = Parcel(function, pack)
        for _ in range(ATTEMPTS):
            try:
                for result in crew.run(parcel, list(todo)):
                    todo.popleft()
                    yield result
            except WorkerLostError:
                continue
            return
    warnings.warn(
        f"Workers died {ATTEMPTS} times, perhaps for lack of memory; the last {len(todo)} batches run in this process.",
        JuryWarning,
        stacklevel=2,
    )
    yield from map(function, todo)


# --- what is sent to workers ----------------------------------------------------------------------------------


class Parcel(Generic[B, R]):
    """A function to send to workers: it is pickled as a recipe, and each worker runs the recipe once.

    Arrays in the recipe are the same objects in every batch, so joblib writes large ones to a shared file once, and
    Dask sends the whole parcel once per worker.
    """

    def __init__(self, function: Callable[[B], R], pack: Callable[[], Recipe[B, R]] | None) -> None:
        self.token, self.threads = uuid.uuid4().hex, 0
        self._function: Callable[[B], R] | None = function
        self._pack = pack or (lambda: _AsItIs(function))
        self._recipe: Recipe[B, R] | None = None

    def __call__(self, batch: B) -> R:
        """The function's result for the batch."""
        return self.unpacked()(batch)

    def unpacked(self) -> Callable[[B], R]:
        """The original function in the process that created it, the recipe's function in a worker."""
        if self._function is None:
            assert self._recipe is not None
            with _following:
                function: Callable[[B], R] | None = _followed.get(self.token)
                if function is None:
                    if self.threads:
                        torch.set_num_threads(self.threads)
                    _followed.clear()
                    function = _followed[self.token] = self._recipe()
            return function
        return self._function

    def __getstate__(self) -> dict[str, Any]:
        if self._recipe is None:
            self._recipe = self._pack()
        return {"token": self.token, "threads": self.threads, "_recipe": self._recipe, "_function": None}


class _AsItIs(Generic[B, R]):
    """The recipe of a function that is pickled itself."""

    def __init__(self, function: Callable[[B], R]) -> None:
        self.function = function

    def __call__(self) -> Callable[[B], R]:
        """The function."""
        return self.function


# The function of the last parcel in this worker. Every batch has its own copy of the parcel, so it cannot be kept
# there.
_followed: dict[str, Any] = {}
_following = threading.Lock()


def _clear_function() -> None:
    with _following:
        _followed.clear()


# --- workers --------------------------------------------------------------------------------------------------


class Crew(Protocol):
    """A group of workers."""

    size: int

    def run(self, parcel: Parcel[B, R], batches: Sequence[B]) -> Iterator[R]:
        """Yield results in order; raise :class:`WorkerLostError` if a worker is lost."""
        ...


SAFE_PATH = "PYTHONSAFEPATH"


class _Guard:
    """The number of active blocks, and the variable's value before the first one."""

    lock, count = threading.Lock(), 0
    before: str | None = None


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep Python processes that start in this block from importing modules of their working folder (Python 3.11+).

    joblib starts workers by ``python -m``, which puts that folder first on the path: a ``joblib.py`` in it would be
    run. Workers get this process's path afterwards, so they can import the same modules.
    """
    with _Guard.lock:
        if not _Guard.count:
            _Guard.before, os.environ[SAFE_PATH] = os.environ.get(SAFE_PATH), "1"
        _Guard.count += 1
    try:
        yield
    finally:
        with _Guard.lock:
            _Guard.count -= 1
            if not _Guard.count and _Guard.before is None:
                os.environ.pop(SAFE_PATH, None)
            elif not _Guard.count:
                os.environ[SAFE_PATH] = str(_Guard.before)


class JoblibCrew:
    """The workers of joblib: local processes, or the backend of the surrounding ``parallel_config``."""

    def __init__(self, processes: int | None) -> None:
        self.settings: dict[str, Any] = {} if processes is None else {"n_jobs": processes, "backend": "loky"}
        self.size = effective_n_jobs(None) if processes is None else processes
        self.threads = 0 if processes is None else max(1, cpu_count() // processes)
        # not every backend can return results one by one (Ray's cannot)
        flowing = processes is not None or get_active_backend()[0].supports_return_generator
        self.settings["return_as"] = "generator" if flowing else "list"

    def run(self, parcel: Parcel[B, R], batches: Sequence[B]) -> Iterator[R]:
        """Yield results in order; processes get arrays as copy-on-write memory maps."""
        parcel.threads = self.threads
        workers = Parallel(**self.settings, batch_size=1, mmap_mode="c", max_nbytes="100K")
        try:
            with safe_path():
                yield from workers(delayed(_call)(parcel, batch) for batch in batches)
        except BrokenExecutor as error:
            raise WorkerLostError from error


class DaskCrew:
    """The workers of a Dask cluster.

    The client is used directly, because joblib's backend keeps the parcel on one worker and loses it with that worker.
    """

    def __init__(self, client: Any) -> None:
        self.client, self.dask = client, _distributed()
        with self._connection_errors(final=True):
            client.wait_for_workers(1, timeout=PATIENCE)
            answers = client.run(_clear_function, on_error="return").values()
            self.size = int(sum(client.nthreads().values()))
        missing = next((answer for answer in answers if isinstance(answer, ImportError)), None)
        if missing is not None:
            raise ClusterError(f"expected every worker to have jurygcn, got {missing}; install it there") from missing

    def run(self, parcel: Parcel[B, R], batches: Sequence[B]) -> Iterator[R]:
        """Yield results in order; two batches per worker are submitted at any time."""
        parcel.threads = 1
        source, under_way = iter(batches), deque[Any]()
        try:
            with self._connection_errors():
                there = self.client.scatter(parcel, broadcast=True, hash=False)
            for wanted in (2 * self.size, *[1] * len(batches)):
                for batch in islice(source, wanted):
                    under_way.append(self.client.submit(_call, there, batch, pure=False))
                if not under_way:
                    return
                yield self._result(under_way.popleft())
        except WorkerLostError:
            with self._connection_errors(final=True):  # a lost scheduler looks like a lost worker at first
                self.client.run(_clear_function, on_error="ignore")
            raise
        finally:
            if self.client.status == "running":
                with suppress(OSError, CancelledError, self.dask.TimeoutError):
                    self.client.cancel(list(under_way))
                    self.client.run(_clear_function, on_error="ignore")

    def _result(self, future: Any) -> Any:
        with self._connection_errors():
            error = future.exception()
            if error is None:
                return future.result()
        if isinstance(error, self.dask.KilledWorker):
            raise WorkerLostError from error
        raise error  # the function's own

    @contextmanager
    def _connection_errors(self, *, final: bool = False) -> Iterator[None]:
        """Raise ClusterError for a lost scheduler, WorkerLostError for a lost worker."""
        try:
            yield
        except (OSError, CancelledError, self.dask.TimeoutError) as error:
            if self.client.status == "running" and not final:
                raise WorkerLostError from error
            raise ClusterError(
                f"expected the Dask cluster to answer, got {type(error).__name__}; check that its scheduler and "
                "workers run, then try again"
            ) from error


def _call(parcel: Parcel[B, R], batch: B) -> R:
    return parcel(batch)


def check_parallel(parallel: int | str | None) -> int | str | None:
    """Convert ``parallel`` to a number of local processes, a scheduler's address, or None."""
    if parallel is None:
        return None
    text = parallel if isinstance(parallel, str) else in_short(parallel)
    words = {"serial": "1", "processes": "-1"}.get(text, text.removeprefix("processes:"))
    if re.fullmatch(r"-1|[1-9][0-9]{0,8}", words) and int(words) <= MOST_PROCESSES and not isinstance(parallel, bool):
        return int(cpu_count()) if words == "-1" else int(words)
    address = re.fullmatch(r"(dask|tcp|tls)(://.+:[0-9]{1,5})", words)
    if address is None:
        raise SettingError(
            f"expected parallel to be 'serial', a number of processes up to {MOST_PROCESSES} (-1 for all cores), or "
            f"'dask://host:port', got {in_short(parallel)}; choose one"
        )
    return address[1].replace("dask", "tcp") + address[2]


@contextmanager
def _crew(parallel: int | str | None) -> Iterator[Crew]:
    """The workers that ``parallel`` chooses."""
    where = check_parallel(parallel)
    if isinstance(where, str):
        with _client(where) as client:
            yield DaskCrew(client)
    elif where is None and hasattr(get_active_backend()[0], "client"):
        yield DaskCrew(get_active_backend()[0].client)
    else:
        yield JoblibCrew(where)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    """A connection to the scheduler at ``address``."""
    try:
        client = _distributed().Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"expected a Dask scheduler at {address}, got no answer; start 'dask scheduler' there or check the address"
        ) from error
    log = logging.getLogger("distributed.client")
    level = log.level
    try:
        yield client
    finally:
        if client.status != "running":  # ClusterError reports the loss
            log.setLevel(logging.CRITICAL)
        client.close()
        log.setLevel(level)


def _distributed() -> Any:
    """The module ``dask.distributed``, an optional dependency."""
    try:
        return import_module("dask.distributed")
    except ImportError as error:
        raise ClusterError(
            "expected Dask to be installed for parallel='dask://...', got none; run pip install 'jurygcn[cluster]'"
        ) from error
