"""What a command sets up for its process, for good: put back, so that no test depends on which others ran before it."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def logs_as_before() -> Iterator[None]:
    """The root logger, the warnings, and what a thread that fails says."""
    root, report = logging.getLogger(), threading.excepthook
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    with warnings.catch_warnings():
        try:
            yield
        finally:
            threading.excepthook = report
            root.handlers[:] = handlers
            root.manager.disable = disabled
            root.setLevel(level)  # after which no logger remembers what it was asked before
