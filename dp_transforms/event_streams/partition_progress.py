"""How far one partition is: its position, its clock, and which windows it has closed.

Row by row, and so independent of how the records are cut into polls. Record i has a clock value c_i (when it reached
the log, or when it says it happened), and C_i is the largest clock value before it. It is too late for a window that
ends at e when ``max(c_i, C_i - out_of_order) > e + allowed_lateness``, and a window is closed as soon as
``C - out_of_order > e + allowed_lateness``: from then on every record is too late for it. A record that claims to be
further ahead of its arrival than ``max_ahead`` is refused and moves no clock.

A partition in which nothing happens has no clock of its own: then the wall clock may close its windows, and so may the
operator. What they decide is no function of the records, so it is an *intent* first: stored at this position, with
reading stopped, and acted on when it is safe that no restart can forget it (docs/guarantee.md, section 6).
"""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.event_streams.stream_source import Polled
from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.window_schedule import MICROS_PER_SECOND, WindowSchedule

ARRIVAL = "arrival"
EVENT = "event"
# Before and after every time that a log can hold, and far enough from the limits of int64 to be added to.
CLOCK_BEGIN = -(2**62)
CLOCK_END = 2**62
_LONGEST_SECONDS = 366 * 86_400
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class StreamClock:
    """When a window is closed, and what is too late for it.

    kind: ``arrival``: a partition's clock is the log's own, which stamps each event when it arrives. Whether an event
        is in time is then a matter of this event alone. ``event``: the times of the events themselves, to replay history;
        then one event far ahead makes others late, by at most max_ahead_seconds (docs/guarantee.md, section 7).
    allowed_lateness_seconds: how long after the end of a window its events are still taken.
    out_of_order_seconds: how far clock values of one partition may step back.
    max_ahead_seconds: an event further ahead of its arrival than this is refused.
    idle_timeout_seconds: when nothing has come for so long, the wall clock, behind by as much, closes windows.
    """

    kind: str = ARRIVAL
    allowed_lateness_seconds: float = 60
    out_of_order_seconds: float = 10
    max_ahead_seconds: float = 300
    idle_timeout_seconds: float = 60

    def __post_init__(self) -> None:
        if self.kind not in (ARRIVAL, EVENT):
            raise ValueError(f"kind of a clock must be {ARRIVAL!r} or {EVENT!r}, got {self.kind!r}.")
        for name in ("allowed_lateness_seconds", "out_of_order_seconds", "max_ahead_seconds", "idle_timeout_seconds"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _LONGEST_SECONDS:
                raise ValueError(f"{name} must be from 0 to {_LONGEST_SECONDS:,} seconds (a year), got {value!r}.")
        if self.idle_timeout_seconds == 0:
            raise ValueError("idle_timeout_seconds must be > 0, got 0. Use 60 for a minute.")

    @property
    def behind_micros(self) -> int:
        """How far behind a partition's clock its windows close."""
        return self.lateness_micros + _micros(self.out_of_order_seconds)

    @property
    def lateness_micros(self) -> int:
        return _micros(self.allowed_lateness_seconds)

    @property
    def out_of_order_micros(self) -> int:
        return _micros(self.out_of_order_seconds)

    @property
    def max_ahead_micros(self) -> int:
        return _micros(self.max_ahead_seconds)

    @property
    def idle_timeout_micros(self) -> int:
        return _micros(self.idle_timeout_seconds)


def _micros(seconds: float) -> int:
    return math.ceil(seconds * MICROS_PER_SECOND)
