"""Who does the steps of a replay: this process, or worker processes beside it; and where what a step puts out lies.

Results do not depend on how many processes there are: a task is a pure function of its step, its element and the key. A
worker that dies fails the run. So no report is ever made of a part of the log.

Packed columns lie outside of any heap, in two files that all processes of a replay have: one in memory (Linux: memfd),
one on disk. Neither has a name: nobody else can open them, and the system takes them back when the processes end,
however they end. What is read travels as a `Stored`, which says where it lies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, forkserver, reduction, resource_tracker
from typing import Any, NamedTuple

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
_LEAST_STORED = 4096  # smaller blobs travel themselves
_LEAST_MAPPED = 1 << 20  # smaller ones are read faster than mapped


class Stored(NamedTuple):
    """Where packed columns lie, in which of the two files."""

    on_disk: bool
    offset: int
    length: int


Blob = bytes | Stored
"""Packed columns themselves, or where they lie."""


class Done(NamedTuple):
    """What a step made of one element. counts: for the operator."""

    outputs: list[Any]
    counts: Counter[str]


class ThisProcess:
    """Does the steps itself, and keeps what lies between them in its memory. secret: the noise key of the run.

    number: how many work at once.
    """

    number = 1

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        """What the step makes of each element, in their order. Raises what the step raises, if it is an error of ours,
        else StepFaultError; and PoolError for a worker that died."""
        work = step.start(self.secret)
        for element in elements:
            counts: Counter[str] = Counter()
            yield Done(list(work(element, counts)), counts)

    def get(self, blob: Blob) -> bytes | memoryview:
        """Packed columns that a step has put out."""
        assert isinstance(blob, bytes)
        return blob

    def free(self, blob: Blob) -> None:
        """They are not needed any more."""

    def __enter__(self) -> ThisProcess:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Ends all workers; at once, whatever they do, if the block has failed."""


class ProcessPool(ThisProcess):
    """``number`` worker processes do the steps, and a `BlobStore` has what lies between them.

    memory_bytes: so much of that may be in memory; the rest is on disk. The noise key goes to the workers through pipes
    that no other process has. Raises PoolError.
    """

    def __init__(self, number: int, memory_bytes: int, secret: bytes) -> None:
        super().__init__(secret)
        self.number = number
        with _starting():
            start_fork_server()
            self.store = BlobStore(memory_bytes)
        context = multiprocessing.get_context("forkserver")
        self._executor = ProcessPoolExecutor(number, context, _begin, (secret, self.store))

    def run(self, step: WorkerStep, elements: Iterable[Any]) -> Iterator[Done]:
        packed = self.store.put(pickle.dumps(step))  # read once by each worker, and not with each element
        try:
            with _starting():  # the first one starts the workers
                waiting = [self._executor.submit(_do, packed, element) for element in elements]
            for number, future in enumerate(waiting):
                yield future.result()
                waiting[number] = None  # type: ignore[call-overload]  # its outputs go as soon as nobody has them
        except BrokenProcessPool:
            raise PoolError(
                "a worker process ended before its work was done, as one does for lack of memory; nothing was"
                " published. Give the command again with --processes 1."
            ) from None
        self.store.free(packed)

    def get(self, blob: Blob) -> bytes | memoryview:
        return self.store.get(blob)

    def free(self, blob: Blob) -> None:
        self.store.free(blob)

    def __exit__(self, failed: object, *_: object) -> None:
        if failed:
            for process in list((self._executor._processes or {}).values()):
                process.kill()
        self._executor.shutdown(cancel_futures=True)
        self.store.close()


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
_store: BlobStore
_works: dict[Blob, Work] = {}  # of the step that it does, by how that is stored


def _begin(secret: bytes, store: BlobStore) -> None:
    """What a library says may hold cells of the log: a worker has no standard output."""
    global _secret, _store
    _secret, _store = secret, store
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


def _do(packed: Blob, element: Any) -> Done:
    """One task. What a step puts out by key and needs space is stored, and so is what comes in."""
    counts: Counter[str] = Counter()
    with faults_of_steps():
        if packed not in _works:
            _works.clear()
            _works[packed] = pickle.loads(_store.get(packed)).start(_secret)  # noqa: S301 (of the parent)
        if isinstance(element, tuple):  # a group
            key, *lists = element
            element = key, *([_store.get(blob) for blob in blobs] for blobs in lists)
        return Done([_stored(output) for output in _works[packed](element, counts)], counts)


def _stored(output: Any) -> Any:
    if type(output) is tuple and isinstance(output[1], bytes):
        return output[0], _store.put(output[1])
    return output


# --- What lies between two steps


class BlobStore:
    """The two files. most_bytes: so much is in memory, about; the rest goes to the folder for temporary files (TMPDIR).

    It can be pickled for a process that is being started, which then has the same files. Raises OSError.
    """

    def __init__(self, most_bytes: int, files: tuple[int, int] | None = None) -> None:
        if files is None:
            memory = os.memfd_create("shh", os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _file_without_name()
            files = memory, _file_without_name()
        self.most_bytes, self.files = most_bytes, files

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (self.most_bytes, *map(reduction.DupFd, self.files))

    def put(self, blob: bytes) -> Blob:
        """Where it lies, or the blob itself if it is small. Raises PoolError if there is no space."""
        if len(blob) < _LEAST_STORED:
            return blob
        on_disk = os.fstat(self.files[False]).st_blocks * 512 + len(blob) > self.most_bytes
        file = self.files[on_disk]
        try:
            offset = _take_space(file, len(blob))
            rest = memoryview(blob)
            while rest:
                rest = rest[os.pwrite(file, rest, offset + len(blob) - len(rest)) :]
        except OSError as error:
            raise PoolError(
                f"what lies between two steps cannot be stored: {error.strerror}; nothing was published. Give TMPDIR a"
                f" folder with more space than {tempfile.gettempdir()}, or free some memory."
            ) from None
        return Stored(on_disk, offset, len(blob))

    def get(self, blob: Blob) -> bytes | memoryview:
        """What `put` was given. A large one is a view of its file, and takes no memory of this process: pages of a file
        on disk are the system's, which takes them back when it needs them."""
        if isinstance(blob, bytes):
            return blob
        on_disk, offset, length = blob
        if length >= _LEAST_MAPPED:
            return memoryview(mmap.mmap(self.files[on_disk], length, access=mmap.ACCESS_READ, offset=offset))
        return os.pread(self.files[on_disk], length, offset)

    def free(self, blob: Blob) -> None:
        """Gives its space back, where the system can. It reads as zeros from then on, which are no packed columns."""
        if isinstance(blob, bytes) or not hasattr(mmap, "MADV_REMOVE"):
            return
        on_disk, offset, length = blob
        with contextlib.suppress(OSError), mmap.mmap(self.files[on_disk], _whole_pages(length), offset=offset) as view:
            view.madvise(mmap.MADV_REMOVE)  # not every file system has holes

    def close(self) -> None:
        for file in self.files:
            os.close(file)


def _received(most_bytes: int, *files: Any) -> BlobStore:
    memory, disk = (file.detach() for file in files)
    return BlobStore(most_bytes, (memory, disk))


def _file_without_name() -> int:
    with tempfile.TemporaryFile() as file:  # mode 0600, and without a name from the beginning
        return os.dup(file.fileno())


def _take_space(file: int, length: int) -> int:
    """Where so many bytes go, that no other process takes."""
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        offset = os.fstat(file).st_size
        os.ftruncate(file, offset + _whole_pages(length))
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
    return offset


def _whole_pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
