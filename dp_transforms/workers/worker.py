"""What runs beside the command: ``python -m dp_transforms.workers.worker LIBRARIES LIFE CONTROL CONNECTION... FILE...``

A fork server: it loads the libraries once and forks a worker for each connection, so that the workers share them. Then
it waits for them, and says by CONTROL how each ended. A worker takes one task after the other from its connection, and
answers each with what came out or with the error. They speak by sockets that both inherited and nobody else can reach.

LIBRARIES: names of modules, with commas. The others are numbers of what the process inherits; of FILE there are two for
each connection.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import socket
import struct
import sys
import threading
import traceback
import warnings
from collections import Counter
from typing import Any, NoReturn

from dp_transforms.workers.blob_store import BlobStore, OwnFiles

DONE, FAILED = "done", "failed"
_LENGTH = struct.Struct("<Q")


def main(arguments: list[str]) -> None:
    libraries, *numbers_of_files = arguments
    life, control, *rest = map(int, numbers_of_files)
    connections, files = rest[: len(rest) // 3], rest[len(rest) // 3 :]
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
