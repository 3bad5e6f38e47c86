"""One process at a time works on a state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

from dp_transforms.runs.state_header import StateError, at_path


@contextlib.contextmanager
def hold_state(path: str | os.PathLike[str]) -> Iterator[None]:
    """While the block runs, no other process can hold this state. The lock ends with the process, however it ends.

    The lock is on an empty file beside the state, ``.NAME.lock``, which stays: the state itself is replaced.
    Raises StateError if another process holds it, or the file system has no locks.
    """
    target = pathlib.Path(path)
    lock = target.with_name(f".{target.name}.lock")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(lock, flags, 0o600)
    except OSError as error:
        reason = f"its lock {lock} cannot be made: {error.strerror}. Check the folder."
        raise at_path(os.fspath(path), StateError(reason)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = "another process works on it. Wait until it has ended, and try again."
            raise at_path(os.fspath(path), StateError(reason)) from None
        except OSError as error:
            reason = f"its file system has no locks ({error.strerror}). Keep the state on one that has."
            raise at_path(os.fspath(path), StateError(reason)) from None
        yield
    finally:
        os.close(descriptor)
