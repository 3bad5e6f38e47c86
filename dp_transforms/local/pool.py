"""Who does the steps of a replay: this process, or worker processes beside it.

Results do not depend on how many there are: a task is a pure function of its step, its element and the key. A worker
that dies fails the run. So no report is ever made of a part of the log.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, resource_tracker, util
from typing import Any, NamedTuple, Protocol

from dp_transforms.core.stage import Work, WorkerStep
from dp_transforms.errors import PoolError, StepFaultError
from dp_transforms.local.stored_blobs import BlobStore

_LIBRARIES = "dp_transforms.local.libraries"
FOLDER = "SHH_FORK_SERVER"  # variable of the environment: where the fork server has its socket
_LONGEST_FOLDER = 60  # bytes of TMPDIR: with the names below it a socket may have 104
# Columns come and go: without these glibc gives their memory back each time, and the system clears it again, which
# takes a sixth of the time of a worker. No threads: there are processes.
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Done(NamedTuple):
    """What a step made of one element. counts: for the operator."""

    outputs: list[Any]
    counts: Counter[str]


class Workers(Protocol):
    """number: of those that work at once. secret: the noise key of the run."""

    number: int
    secret: bytes

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        """What the step makes of each element, in their order. Raises what the step raises, if it is an error of ours,
        else StepFaultError; and PoolError for a worker that died."""
        ...

    def get(self, blob: bytes) -> bytes | memoryview:
        """Packed columns that a step has put out."""
        ...

    def free(self, blob: bytes) -> None:
        """They are not needed any more."""
        ...


class ThisProcess:
    """Does the steps itself, and keeps what lies between them in its memory."""

    def __init__(self, secret: bytes) -> None:
        self.number, self.secret = 1, secret

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        work = step.start(self.secret)
        for element in elements:
            counts: Counter[str] = Counter()
            yield Done(list(work(element, counts)), counts)

    def get(self, blob: bytes) -> bytes | memoryview:
        return blob

    def free(self, blob: bytes) -> None:
        return


class ProcessPool:
    """``number`` worker processes, and a `BlobStore` with what lies between their steps.

    memory_bytes: so much of that may be in memory; the rest is on disk. shows_faults: what a worker says on stderr is
        shown; it may contain cells of the log.
    The noise key goes to the workers through pipes that no other process has. Raises PoolError.
    """

    def __init__(self, number: int, memory_bytes: int, secret: bytes, *, shows_faults: bool = False) -> None:
        self.number, self.secret = number, secret
        try:
            start_fork_server()
            self.store = BlobStore(memory_bytes)
        except OSError as error:
            raise _not_started(error) from None
        self._executor = ProcessPoolExecutor(
            number,
            multiprocessing.get_context("forkserver"),
            _begin,
            (secret, self.store, shows_faults, dict(os.environ)),
        )
        self._processes = self._executor._processes  # its own words do not say how one has ended

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        packed = self.store.put(pickle.dumps(step))  # read once by each worker, and not with each element
        try:
            waiting = [self._submit(packed, element) for element in elements]
            for number, future in enumerate(waiting):
                yield future.result()
                waiting[number] = None  # type: ignore[call-overload]  # its outputs go as soon as nobody has them
        except BrokenProcessPool:
            raise self._death() from None
        self.store.free(packed)

    def _submit(self, packed: bytes, element: Any) -> Future[Done]:
        """The first one starts the workers."""
        try:
            return self._executor.submit(_do, packed, element)
        except OSError as error:
            raise _not_started(error) from None

    def get(self, blob: bytes) -> bytes | memoryview:
        return self.store.get(blob)

    def free(self, blob: bytes) -> None:
        self.store.free(blob)

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Ends all workers; at once, whatever they do, if the block has failed."""
        if failed:
            for process in list(self._processes.values()):
                process.kill()
        self._executor.shutdown(cancel_futures=True)
        self.store.close()

    def _death(self) -> PoolError:
        self._executor.shutdown(cancel_futures=True)  # which ends the others by SIGTERM, and waits for all
        codes = [process.exitcode for process in self._processes.values()]
        died = [code for code in codes if code not in (None, 0, -signal.SIGTERM)]
        code = died[0] if died else None
        how = "ended" if code is None else f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        reason = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return PoolError(
            f"a worker process {how}{reason}; nothing was published. Give the command again, with less --memory or with"
            " --processes 1."
        )


def _not_started(error: OSError) -> PoolError:
    return PoolError(f"no worker process could be started: {error.strerror or error}.")


def start_fork_server() -> None:
    """Begins to load what workers need, in a process of its own that forks them; it ends with this one. Repeatable."""
    before = {name: os.environ.get(name) for name in (*_ENVIRONMENT, FOLDER)}
    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if before[name] is None})
    os.environ[FOLDER] = _socket_folder()  # whatever the caller has there
    multiprocessing.set_forkserver_preload([_LIBRARIES])
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C is for this process, with which they end
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _socket_folder() -> str:
    """Private, and removed with this process. The path of a socket has at most some 100 characters, so with a long
    TMPDIR it is in the folder that every system has."""
    usual = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    try:
        return util.get_temp_dir()
    finally:
        tempfile.tempdir = usual


@contextlib.contextmanager
def faults_of_steps() -> Iterator[None]:
    """Errors of libraries become StepFaultErrors: their words may hold a cell, and ours never do."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("dp_transforms."):
            raise
        raise StepFaultError(f"in a step\n{traceback.format_exc()}") from None


# ---------------------------------------------------------------------------------------------------------------------
# In a worker
# ---------------------------------------------------------------------------------------------------------------------


class _Worker(NamedTuple):
    secret: bytes
    store: BlobStore
    works: dict[bytes, Work]  # of the step that it does, by how that is stored


_worker: _Worker | None = None


def _begin(secret: bytes, store: BlobStore, shows_faults: bool, environment: dict[str, str]) -> None:
    """environment: of the command, which may have changed since the fork server has started."""
    global _worker
    os.environ.update(environment)
    _worker = _Worker(secret, store, {})
    silent = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if shows_faults else (0, 1, 2):
        os.dup2(silent, standard)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """However it ends: then the last writer of this pipe is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(0)


def _do(packed: bytes, element: Any) -> Done:
    """One task. What a step puts out by key and needs space is stored, and so is what comes in."""
    assert _worker is not None
    secret, store, works = _worker
    counts: Counter[str] = Counter()
    with faults_of_steps():
        if packed not in works:
            works.clear()
            works[packed] = pickle.loads(store.get(packed)).start(secret)  # noqa: S301 (of the parent)
        if isinstance(element, tuple):  # a group
            key, *lists = element
            element = key, *([store.get(blob) for blob in blobs] for blobs in lists)
        return Done([_stored(output, store) for output in works[packed](element, counts)], counts)


def _stored(output: Any, store: BlobStore) -> Any:
    if type(output) is tuple and isinstance(output[1], bytes):
        return output[0], store.put(output[1])
    return output
