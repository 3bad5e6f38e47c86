"""What runs in a worker process: ``python -m dp_transforms.processes.worker CONNECTION LIFE NUMBER FILE...``.

All arguments are numbers: of this worker, and of what it inherits. It takes one task after the other from its
connection, and answers each with what came out or with the error.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
from collections import Counter
from typing import Any

from dp_transforms.processes.blob_store import BlobStore, OwnFiles
from dp_transforms.processes.messages import receive, send

DONE, FAILED = "done", "failed"


def main(arguments: list[str]) -> None:
    connection, life, number, *files = map(int, arguments)
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
    _load_libraries()
    pairs = [OwnFiles(*files[at : at + 2]) for at in range(0, len(files), 2)]
    with socket.socket(fileno=connection) as channel:
        _serve(channel, BlobStore(pairs, number))


def _end_with_parent(life: int) -> None:
    """The parent alone holds the other end of this pipe, and writes nothing to it."""
    os.read(life, 1)
    os._exit(0)


def _load_libraries() -> None:
    """While the parent still makes its plan."""
    import dp_transforms.steps.all_steps  # noqa: F401


def _serve(channel: socket.socket, store: BlobStore) -> None:
    works: dict[int, tuple[Any, Any]] = {}
    answer: tuple[Any, ...]
    while True:
        try:
            number, start, element, to_disk = receive(channel)
        except EOFError:
            return
        try:
            if start is not None:  # the first task of this step
                step, secret = start
                works[number] = (step, step.start(secret))
            answer = (DONE, *_run(*works[number], element, store, to_disk))
        except BaseException as error:
            answer = (FAILED, error if _may_travel(error) else None, traceback.format_exc())
        send(channel, answer)


def _run(step: Any, work: Any, element: Any, store: BlobStore, to_disk: bool) -> tuple[list[Any], dict[str, int]]:
    counts: Counter[str] = Counter()
    outputs = []
    for output in work(step.fetched(element, store.get), counts):
        if step.stores and type(output) is tuple:  # and no record, such as of rejected rows
            key, blob = output
            output = (key, store.put(blob, to_disk=to_disk))
        outputs.append(output)
    return outputs, dict(counts)


def _may_travel(error: BaseException) -> bool:
    """Errors of ours are made to be pickled, and hold no cell."""
    return type(error).__module__.startswith("dp_transforms.")


if __name__ == "__main__":
    main(sys.argv[1:])
