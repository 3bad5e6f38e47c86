"""What goes wrong with worker processes, in words for the user."""

from __future__ import annotations


class PoolError(RuntimeError):
    """A worker process died or could not be started, or what it makes could not be stored. One line, without a cell."""
