"""What runs beside the command: ``python -m dp_transforms.local.worker LIBRARIES LIFE CONTROL CONNECTION... FILE...``

A fork server: it loads the libraries once and forks a worker for each connection, so that the workers share them. Then
it waits for them, and says by CONTROL how each ended. A worker takes one task after the other from its connection, and
answers each with what came out or with the error. They speak by sockets that both inherited and nobody else can reach.

Between two steps packed columns lie outside of the heap of any process (`BlobStore`): in memory, and on disk where that
is declared. Each worker writes to two files of its own, and all processes read all of them: one file in memory (Linux:
memfd) and one on disk. Neither has a name: nobody else can open them, and the system takes them back when the processes
end, however they end. What is read travels as a *handle*, a few bytes that say where it lies.

LIBRARIES: names of modules, with commas. The others are numbers of what the process inherits; of FILE there are two for
each connection.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from dp_transforms.errors import PoolError
from dp_transforms.lean_imports import go_without_pandas

DONE, FAILED = "done", "failed"
_LENGTH = struct.Struct("<Q")

_MAGIC = b"SHHB"  # packed columns begin with another word (`core.messages`)
_HANDLE = struct.Struct("<4sIqq")
_LEAST_STORED = 4096  # smaller blobs travel themselves
_LEAST_MAPPED = 1 << 20  # smaller ones are read faster than mapped
_PAGE = mmap.PAGESIZE


class OwnFiles(NamedTuple):
    """The two files of one worker, as file descriptors."""

    memory: int
    disk: int


class StoredBlob(NamedTuple):
    """Where a blob lies. file: number of its file, 2 for each worker."""

    file: int
    offset: int
    length: int

    @property
    def in_memory(self) -> bool:
        return self.file % 2 == 0


def make_files() -> OwnFiles:
    """For one worker. The file on disk is in the folder for temporary files (TMPDIR). Raises OSError."""
    with tempfile.TemporaryFile() as on_disk:  # mode 0600, and without a name from the beginning
        disk = os.dup(on_disk.fileno())
    if hasattr(os, "memfd_create"):
        return OwnFiles(os.memfd_create("shh", os.MFD_CLOEXEC), disk)
    with tempfile.TemporaryFile() as file:
        return OwnFiles(os.dup(file.fileno()), disk)


class BlobStore:
    """The files of all workers. own: the number of the worker that writes by this store; None: it only reads."""

    def __init__(self, files: Sequence[OwnFiles], own: int | None = None) -> None:
        self._files = [descriptor for of_worker in files for descriptor in of_worker]
        self._own = own
        self._ends = [0, 0]

    def put(self, blob: bytes, *, to_disk: bool) -> bytes:
        """A handle of the blob, or the blob itself if it is small. Raises PoolError if there is no space."""
        if len(blob) < _LEAST_STORED:
            return blob
        assert self._own is not None
        place = 2 * self._own + to_disk
        offset = self._ends[to_disk]
        rest = memoryview(blob)
        try:
            while rest:
                rest = rest[os.pwrite(self._files[place], rest, offset + len(blob) - len(rest)) :]
        except OSError as error:
            where = f"in {tempfile.gettempdir()} (TMPDIR)" if to_disk else "in memory"
            raise PoolError(
                f"what lies between two steps cannot be stored {where}: {error.strerror}; nothing was published. Give"
                f" {'TMPDIR a folder with more space, or more' if to_disk else 'less'} --memory."
            ) from None
        self._ends[to_disk] = -(-(offset + len(blob)) // _PAGE) * _PAGE
        return _HANDLE.pack(_MAGIC, place, offset, len(blob))

    def get(self, blob: bytes) -> bytes | memoryview:
        """What `put` was given. Raises OSError or ValueError if it is not there any more.

        A large one is a view of its file, and takes no memory of this process: pages of a file on disk are the
        system's, which takes them back when it needs them."""
        stored = stored_blob(blob)
        if stored is None:
            return blob
        if stored.length >= _LEAST_MAPPED:
            file = self._files[stored.file]
            return memoryview(mmap.mmap(file, stored.length, access=mmap.ACCESS_READ, offset=stored.offset))
        parts, position = [], stored.offset
        end = stored.offset + stored.length
        while position < end:
            part = os.pread(self._files[stored.file], end - position, position)
            if not part:
                raise ValueError("a stored blob is not there any more.")
            parts.append(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def free(self, blob: bytes) -> None:
        """Gives its space back, where the system can. It reads as zeros from then on, which are no packed columns."""
        stored = stored_blob(blob)
        if stored is None or not hasattr(mmap, "MADV_REMOVE") or stored.length < _PAGE:
            return
        with contextlib.suppress(OSError):  # a file system without holes
            whole_pages = stored.length // _PAGE * _PAGE
            with mmap.mmap(self._files[stored.file], whole_pages, offset=stored.offset) as view:
                view.madvise(mmap.MADV_REMOVE)

    def close(self) -> None:
        for descriptor in self._files:
            os.close(descriptor)
        self._files = []


def stored_blob(blob: bytes) -> StoredBlob | None:
    """Of a handle; None for a blob itself."""
    if len(blob) != _HANDLE.size or blob[:4] != _MAGIC:
        return None
    _, file, offset, length = _HANDLE.unpack(blob)
    return StoredBlob(file, offset, length)


def main(arguments: list[str]) -> None:
    libraries, *numbers_of_files = arguments
    life, control, *rest = map(int, numbers_of_files)
    connections, files = rest[: len(rest) // 3], rest[len(rest) // 3 :]
    go_without_pandas()
    for name in filter(None, libraries.split(",")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no worker looks through them again, which would copy their pages
    # The only other thread is that of jemalloc, in Arrow, which is made for forks. Python 3.12 warns of any.
    warnings.simplefilter("ignore", DeprecationWarning)
    numbers = {}
    for number, connection in enumerate(connections):
        worker = os.fork()
        if not worker:
            _work(number, connection, life, files, {control, *connections} - {connection})
        numbers[worker] = number
    for connection in connections:
        os.close(connection)
    _end_with_parent(life)
    with socket.socket(fileno=control) as channel:
        while numbers:
            worker, status = os.wait()
            send(channel, (numbers.pop(worker), os.waitstatus_to_exitcode(status)))


def _work(number: int, connection: int, life: int, files: list[int], of_others: set[int]) -> NoReturn:
    """A worker, to its end."""
    code = 1
    try:
        for descriptor in of_others:
            os.close(descriptor)
        _end_with_parent(life)
        pairs = [OwnFiles(*files[at : at + 2]) for at in range(0, len(files), 2)]
        with socket.socket(fileno=connection) as channel:
            _serve(channel, BlobStore(pairs, number))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with_parent(life: int) -> None:
    """The command alone holds the other end of this pipe, and writes nothing to it."""

    def wait() -> None:
        os.read(life, 1)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _serve(channel: socket.socket, store: BlobStore) -> None:
    works: dict[int, tuple[Any, Any]] = {}
    answer: tuple[Any, ...]
    while True:
        try:
            number, start, element, room = receive(channel)
        except EOFError:
            return
        try:
            if start is not None:  # the first task of this step
                step, secret = start
                works[number] = (step, step.start(secret))
            answer = (DONE, *_run(*works[number], element, store, room))
        except BaseException as error:
            answer = (FAILED, error if _may_travel(error) else None, traceback.format_exc())
        send(channel, answer)


def _run(step: Any, work: Any, element: Any, store: BlobStore, room: int) -> tuple[list[Any], dict[str, int]]:
    """room: bytes that may go to memory; the rest goes to disk."""
    counts: Counter[str] = Counter()
    outputs = []
    for output in work(step.fetched(element, store.get), counts):
        if step.stores and type(output) is tuple:  # and no record, such as of rejected rows
            key, blob = output
            output = (key, store.put(blob, to_disk=len(blob) > room))
            room -= len(blob)
        outputs.append(output)
    return outputs, dict(counts)


def _may_travel(error: BaseException) -> bool:
    """Errors of ours are made to be pickled, and hold no cell."""
    return type(error).__module__.startswith("dp_transforms.")


def send(connection: socket.socket, content: Any) -> None:
    """Raises OSError if the other process has ended."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def receive(connection: socket.socket) -> Any:
    """Raises EOFError if the other process has ended."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))  # noqa: S301 (of a process that this one started, or its parent)


def _exactly(connection: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        try:
            count = connection.recv_into(view)
        except OSError:
            count = 0
        if not count:
            raise EOFError
        view = view[count:]
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
