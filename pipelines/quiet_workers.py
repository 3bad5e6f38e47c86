"""Keeps what Beam prints without using a log from the terminal, unless --verbose is given."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from apache_beam.runners.worker import log_handler, sdk_worker

_PRINTING = (sdk_worker, log_handler)


@contextlib.contextmanager
def quiet_workers() -> Iterator[None]:
    """While the block runs, workers in this process print nothing at default verbosity.

    A worker that fails prints its whole traceback, and a message of other code in it may contain a cell of the data.
    Threads of Beam end with a traceback when a job is cancelled or its engine stops. On a busy machine they do so after
    the block: threads that were started in it stay quiet to their end.
    """
    if logging.getLogger().level < logging.CRITICAL:
        yield
        return
    report, others = threading.excepthook, set(threading.enumerate())
    threading.excepthook = _say_nothing
    for module in _PRINTING:
        module.print = _say_nothing  # a global of the module hides the builtin
    try:
        yield
    finally:
        threading.excepthook = _only_of_other_threads(report, set(threading.enumerate()) - others)
        for module in _PRINTING:
            vars(module).pop("print", None)


def _only_of_other_threads(report: Any, quiet: set[threading.Thread]) -> Any:
    return lambda failed: None if failed.thread in quiet else report(failed)


def _say_nothing(*_: object, **__: object) -> None:
    return
