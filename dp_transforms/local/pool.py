"""A pool of worker processes on this machine.

Results do not depend on how many there are: a task is a pure function of its step, its element and the key. A worker
that dies fails the run. So no report is ever made of a part of the log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple, Protocol

from dp_transforms.errors import PoolError
from dp_transforms.local.worker import DONE, BlobStore, OwnFiles, make_files, receive, send, stored_blob

_SECONDS_TO_END = 10.0
# Columns come and go: without these glibc gives their memory back each time, and the system clears it again, which
# takes a sixth of the time of a worker. No threads: there are processes.
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


Work = Callable[[Any, "Counter[str]"], Iterator[Any]]
"""An element, and what is counted for the operator (`operator_counts`) -> outputs."""


class Step(Protocol):
    """A step with all its settings, and without the key. Equal ones do the same. It can be pickled.

    stores: whether its outputs, pairs of a key and packed columns, are read by other steps alone.
    """

    @property
    def stores(self) -> bool: ...

    def start(self, secret: bytes) -> Work:
        """What is done once on each worker, before the first element. secret: the noise key of the run."""
        ...

    def fetched(self, element: Any, get: Callable[[bytes], bytes]) -> Any:
        """The element with its packed columns, which may lie elsewhere: ``get`` fetches them."""
        ...


class WorkerFaultError(RuntimeError):
    """An error of a library in a worker process, with its traceback, which may contain cells of the log."""


class Result(NamedTuple):
    """What a step made of one element. counts: for the operator."""

    outputs: list[Any]
    counts: Counter[str]


@dataclasses.dataclass(eq=False)
class _Worker:
    """steps: numbers of those that it has started."""

    number: int
    connection: socket.socket
    steps: set[int]


class ProcessPool:
    """Starts ``processes`` workers at once. Their fork server loads their libraries while this process goes on.

    memory_bytes: so much of what lies between two steps may be in memory; the rest is on disk. shows_faults: what a
        worker says on stderr is shown; it may contain cells of the log. libraries: modules that the workers will need,
        which are loaded while they wait for their first task.
    The noise key goes to the workers through sockets that no other process has.
    Raises PoolError.
    """

    _live: ClassVar[dict[str, ProcessPool]] = {}

    def __init__(
        self, processes: int, memory_bytes: int, *, shows_faults: bool = False, libraries: Sequence[str] = ()
    ) -> None:
        self.token = secrets.token_hex(8)
        self.processes = processes
        self.memory_bytes = memory_bytes
        self.stored_bytes = 0
        """In memory, of all that is stored now."""
        self.spilled_bytes = 0
        """On disk, of all that was ever stored."""
        self.secret: bytes | None = None
        """The noise key of the run."""
        self._steps: list[Any] = []
        self._ahead: dict[int, dict[Any, Future[Result]]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._exit_codes: dict[int, int] = {}
        self._files: list[OwnFiles] = []
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._life_end, self._life = os.pipe()
        try:
            for _ in range(processes):
                self._files.append(make_files())
            self.store = BlobStore(self._files)
            self._start(shows_faults, ",".join(libraries))
        except OSError as error:
            self._end_workers()
            raise PoolError(f"no worker process could be started: {error.strerror}. Use --processes 1.") from None
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(processes, "shh-pool")
        self._live[self.token] = self

    @classmethod
    def of(cls, token: str) -> ProcessPool:
        """A DoFn is pickled on its way to a thread of this process. So it carries the token alone."""
        return cls._live[token]

    def use_key(self, secret: bytes) -> None:
        """The noise key of the run, before its first task."""
        self.secret = secret

    def submit_ahead(self, step: Any, element: Any) -> None:
        """A task for which `submit` will ask later: it begins now, if it has not yet."""
        ahead = self._ahead.setdefault(self._number(step), {})
        if element not in ahead:
            ahead[element] = self._submit(step, element)

    def submit(self, step: Any, element: Any) -> Future[Result]:
        """Its result raises what the step raised, or PoolError if the worker died."""
        ahead = self._ahead.get(self._number(step))
        future = ahead.pop(element, None) if ahead else None
        return future or self._submit(step, element)

    def release(self, blob: bytes) -> None:
        """What is stored under this handle is not needed any more."""
        stored = stored_blob(blob)
        if stored is None:
            return
        self.store.free(blob)
        if stored.in_memory:
            with self._lock:
                self.stored_bytes -= stored.length

    def close(self) -> None:
        """Ends all workers, whatever they do. Repeatable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._live.pop(self.token, None)
        self._end_workers()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, shows_faults: bool, libraries: str) -> None:
        with contextlib.ExitStack() as theirs:
            self._control, control = socket.socketpair()
            inherited = [self._life_end, theirs.enter_context(control).fileno()]
            for number in range(self.processes):
                ours, connection = socket.socketpair()
                self._workers.append(_Worker(number, ours, set()))
                inherited.append(theirs.enter_context(connection).fileno())
            inherited += [each for files in self._files for each in files]
            self._fork_server = subprocess.Popen(
                [sys.executable, "-P", "-m", "dp_transforms.local.worker", libraries, *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if shows_faults else subprocess.DEVNULL,
                pass_fds=inherited,
                process_group=0,  # of it and its workers; Ctrl-C goes to the parent, with which they end
                env={**_ENVIRONMENT, **os.environ},
            )

    def _number(self, step: Any) -> int:
        with self._lock:
            if step not in self._steps:
                self._steps.append(step)
            return self._steps.index(step)

    def _submit(self, step: Any, element: Any) -> Future[Result]:
        return self._threads.submit(self._run, self._number(step), element)

    def _run(self, number: int, element: Any) -> Result:
        worker = self._idle.get()
        try:
            start = None if number in worker.steps else (self._steps[number], self.secret)
            worker.steps.add(number)
            room = max(0, self.memory_bytes - self.stored_bytes) // self.processes  # for all that work now
            send(worker.connection, (number, start, element, room))
            kind, *content = receive(worker.connection)
        except (OSError, EOFError):
            raise self._death(worker) from None
        finally:
            self._idle.put(worker)
        if kind != DONE:
            error, text = content
            raise error or WorkerFaultError(f"in a worker process\n{text}")
        outputs, counts = content
        self._note_stored(outputs)
        return Result(outputs, Counter(counts))

    def _note_stored(self, outputs: list[Any]) -> None:
        places = [stored_blob(output[1]) for output in outputs if type(output) is tuple and type(output[1]) is bytes]
        with self._lock:
            for stored in filter(None, places):
                if stored.in_memory:
                    self.stored_bytes += stored.length
                else:
                    self.spilled_bytes += stored.length

    def _death(self, worker: _Worker) -> PoolError:
        if self._closed:
            return PoolError("the run has ended.")
        code = self._exit_code(worker)
        how = "ended" if code is None else f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        reason = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
        return PoolError(
            f"a worker process {how}{reason}; nothing was published. Give the command again, with less --memory or with"
            " --processes 1."
        )

    def _exit_code(self, worker: _Worker) -> int | None:
        """Of a worker that has ended; None if its fork server ended before it."""
        with self._lock, contextlib.suppress(OSError, EOFError):
            self._control.settimeout(_SECONDS_TO_END)
            while worker.number not in self._exit_codes:
                number, code = receive(self._control)
                self._exit_codes[number] = code
        return self._exit_codes.get(worker.number)

    def _end_workers(self) -> None:
        """At once; or, if none has work, when their fork server has seen each of them end by itself."""
        none_works = self._idle.qsize() == len(self._workers)
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.connection.shutdown(socket.SHUT_RDWR)
        if self._fork_server is not None:
            if none_works:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._fork_server.wait(_SECONDS_TO_END)
            if self._fork_server.returncode is None:  # so the number is still its own
                with contextlib.suppress(OSError):
                    os.killpg(self._fork_server.pid, signal.SIGKILL)
                self._fork_server.wait()
            self._control.close()
        os.close(self._life)
        os.close(self._life_end)
