"""Ctrl-C and SIGTERM, counted and not obeyed, for a command that must end in order."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from dp_transforms.cli.exit_signals import INTERRUPTED, TERMINATED

_SECONDS_BETWEEN_GLANCES = 0.05


class StopSignals:
    """How often the operator asked to stop, and the exit code for the last signal.

    The handler takes no lock, so it cannot wake a waiting thread. It interrupts the main thread, which may hold that
    lock (it does while it waits for a `threading.Event`), and would then wait for itself forever.
    """

    def __init__(self) -> None:
        self.count = 0
        self.code = INTERRUPTED

    def __call__(self, number: int, frame: object) -> None:
        self.count += 1
        self.code = INTERRUPTED if number == signal.SIGINT else TERMINATED

    def wait(self, seconds: float, seen: int) -> bool:
        """Waits so long, or until the operator has asked more than ``seen`` times; returns whether that happened."""
        deadline = time.monotonic() + seconds
        while self.count <= seen and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SECONDS_BETWEEN_GLANCES))
        return self.count > seen


@contextlib.contextmanager
def caught_stops() -> Iterator[StopSignals]:
    """While the block runs, in the main thread, both signals are only counted."""
    stops = StopSignals()
    before = {number: signal.signal(number, stops) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
