"""Who does the steps of a replay: this process, or worker processes beside it; and where what a step puts out lies.

Results do not depend on how many processes there are: a task is a pure function of its step, its element and the key. A
worker that dies fails the run. So no report is ever made of a part of the log.

Workers keep nothing. What they make comes back to this process, through pipes that no other process has, and lies in
its memory or, where there is no room, in files without a name: nobody else can open them, and the system takes them
back when this process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, resource_tracker
from typing import IO, Any, NamedTuple

from dp_transforms.core.stage import Work, WorkerStep
from dp_transforms.errors import InputError, PoolError, StepFaultError

# Columns come and go: without these glibc gives their memory back each time, and the system clears it again, which
# takes a sixth of the time of a worker. No threads: there are processes.
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_AT_ONCE = 3  # steps: what one makes, what it is made of, and what users have for all rounds


class OnDisk(NamedTuple):
    """Packed columns for which there was no room in memory; to a worker they travel as bytes."""

    file: IO[bytes]
    offset: int
    length: int

    def __bytes__(self) -> bytes:
        return os.pread(self.file.fileno(), self.length, self.offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (bytes(self),)


Blob = bytes | OnDisk
"""Packed columns; ``bytes(blob)`` are they themselves."""


class Done(NamedTuple):
    """What a step made of one element, and the how manyth that was. counts: for the operator."""

    number: int
    outputs: list[Any]
    counts: Counter[str]


class ThisProcess:
    """Does the steps itself. secret: the noise key of the run. number: how many work at once."""

    number = 1

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        """What the step makes of each element, in the order in which they are done. Raises what the step raises, if it
        is an error of ours, else StepFaultError; and PoolError for a worker that died."""
        work = step.start(self.secret)
        for number, element in enumerate(elements):
            counts: Counter[str] = Counter()
            yield Done(number, list(work(element, counts)), counts)

    def __enter__(self) -> ThisProcess:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Ends all workers; at once, whatever they do, if the block has failed."""


class ProcessPool(ThisProcess):
    """``number`` worker processes do the steps.

    memory_bytes: so much of what lies between steps may be in memory; the rest is on disk. The noise key goes to the
    workers through pipes that no other process has. Raises PoolError.
    """

    def __init__(self, number: int, memory_bytes: int, secret: bytes) -> None:
        super().__init__(secret)
        self.number, self._room = number, memory_bytes // _AT_ONCE
        with _starting():
            start_fork_server()
        self._executor = ProcessPoolExecutor(number, multiprocessing.get_context("forkserver"), _begin, (secret,))

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        packed, kept = pickle.dumps(step), _Kept(self._room)
        try:
            with _starting():  # the first one starts the workers
                futures = {self._executor.submit(_do, packed, element): n for n, element in enumerate(elements)}
            for future in as_completed(futures):
                outputs, counts = future.result()
                yield Done(futures.pop(future), [kept.output(each) for each in outputs], counts)
        except BrokenProcessPool:
            raise PoolError(
                "a worker process ended before its work was done, as one does for lack of memory; nothing was"
                " published. Give the command again with --processes 1."
            ) from None

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            for process in list((self._executor._processes or {}).values()):
                process.kill()
            # Who reads what they hand back would wait for the rest of it, as long as anybody could write it.
            self._executor._result_queue._writer.close()  # type: ignore[attr-defined]
        self._executor.shutdown(cancel_futures=True)


class _Kept:
    """What one step puts out, until nobody has it any more. room: so many bytes are in memory; the rest goes to the
    folder for temporary files (TMPDIR)."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._file: IO[bytes] | None = None

    def output(self, output: Any) -> Any:
        """Packed columns by a key, where they lie; all else as it is. Raises PoolError if there is no space."""
        if type(output) is not tuple or not isinstance(output[1], bytes):
            return output
        key, packed = output
        self._room -= len(packed)
        return key, packed if self._room >= 0 else self._written(packed)

    def _written(self, packed: bytes) -> OnDisk:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (mode 0600, and never with a name)
            offset = self._file.seek(0, os.SEEK_END)
            if self._file.write(packed) != len(packed):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise PoolError(
                f"what lies between two steps cannot be stored: {error.strerror}; nothing was published. Give TMPDIR a"
                f" folder with more space than {tempfile.gettempdir()}, or free some memory."
            ) from None
        return OnDisk(self._file, offset, len(packed))


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PoolError(f"no worker process could be started: {error.strerror or error}.") from None


def start_fork_server() -> None:
    """Begins to load what workers need, in a process of its own that forks them; it ends with this one. Repeatable."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    multiprocessing.set_forkserver_preload(["dp_transforms.local.libraries"])
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C is for this process, with which they end
    os.environ.update(added)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def faults_of_steps() -> Iterator[None]:
    """Errors of libraries become StepFaultErrors: their words may hold a cell, and ours never do."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith("dp_transforms.") and not isinstance(error, InputError):
            raise  # an InputError may hold the value
        raise StepFaultError(f"in a step\n{traceback.format_exc()}") from None


# --- In a worker

_secret: bytes


def _begin(secret: bytes) -> None:
    """What a library says may hold cells of the log: a worker has no standard output."""
    global _secret
    _secret = secret
    silent = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(silent, standard)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """However it ends: then the last writer of this pipe is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(0)


def _do(packed: bytes, element: Any) -> tuple[list[Any], Counter[str]]:
    """One task: outputs, and counts."""
    counts: Counter[str] = Counter()
    with faults_of_steps():
        return list(_work_of(packed)(element, counts)), counts


@functools.lru_cache(maxsize=1)
def _work_of(packed: bytes) -> Work:
    """Of the step that all workers do now, begun once in each."""
    step: WorkerStep = pickle.loads(packed)  # noqa: S301 (of the parent)
    return step.start(_secret)
