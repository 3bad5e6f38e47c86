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
    quiet: set[threading.Thread] | None = None  # None: every thread

    def is_quiet(thread: threading.Thread | None) -> bool:
        return quiet is None or thread in quiet

    def print_unless_quiet(*words: Any, **options: Any) -> None:
        if not is_quiet(threading.current_thread()):
            print(*words, **options)

    threading.excepthook = lambda failed: None if is_quiet(failed.thread) else report(failed)
    for module in _PRINTING:
        module.print = print_unless_quiet  # a global of the module hides the builtin
    try:
        yield
    finally:
        quiet = set(threading.enumerate()) - others
