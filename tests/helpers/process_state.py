"""What a command sets up for its process, for good: put back, so that no test depends on which others ran before it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def logs_as_before() -> Iterator[None]:
    """The root logger and the warnings."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
    with warnings.catch_warnings():
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.manager.disable = disabled
            root.setLevel(level)  # after which no logger remembers what it was asked before
