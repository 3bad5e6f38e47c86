"""How far one partition is: its position, its clock, and which windows it has closed.

Everything is decided row by row, so it does not depend on how the records are cut into polls. A record has a clock
value, ``clock`` (the time when it reached the log, or the time of its event); ``latest`` is the largest one before it.
The record is too late for a window that ends at ``end`` when ``max(clock, latest - out_of_order) > end +
allowed_lateness``. A window is closed as soon as ``latest - out_of_order > end + allowed_lateness``: from then on every
record is too late for it. A record whose time is further ahead of its arrival than ``max_ahead`` is refused and does
not move the clock.

An operator's stop is one moment of arrivals for the whole run: what arrived by then counts, and what arrived later does
not, wherever the readers are at that time. From then on the log is read as if it ended after the last record that
counts.

A stop closes all windows that are left.

A partition without new records has a clock that does not move: then the wall clock may close its windows. What the wall
clock or the operator decides is not a function of the records. So it is an *intent* first: it is stored at this
position while reading stops, and acted on when no restart can forget it (docs/guarantee.md, "Streams and parts").
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.errors import InputError, StreamError
from dp_transforms.logs.streams.stream_source import NEVER, Polled
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule

ARRIVAL = "arrival"
EVENT = "event"
# Before and after every time that a log can hold, and far enough from the limits of int64 to be added to.
CLOCK_BEGIN = NEVER
CLOCK_END = 2**62
_LONGEST_SECONDS = 366 * 86_400
_STOP_SECONDS = 1.0  # the times of file systems are coarse
_VERSION = 3  # of what is stored


@dataclasses.dataclass(frozen=True)
class StreamClock:
    """When a window is closed, and which events are too late for it.

    clock: ``arrival``: the clock of a partition is the log's own, which sets a timestamp when an event arrives. Whether
        an event is in time then depends on this event alone. ``event``: the times of the events themselves, to replay
        history; then one event far ahead makes others late (docs/guarantee.md, "Which events of a stream are in time").
    allowed_lateness_seconds: how long after the end of a window its events are still accepted.
    out_of_order_seconds: how far clock values of one partition may step back.
    max_ahead_seconds: an event further ahead of its arrival than this is refused.
    idle_timeout_seconds: when nothing has come for so long, the wall clock minus this time closes windows.
    shown_within_seconds: how long after its timestamp the log may show a record, by the clock of the worker that reads
        it. A stop waits this long for what arrived before it. None: the idle timeout, which must not be shorter.
    """

    clock: str = ARRIVAL
    allowed_lateness_seconds: float = 60
    out_of_order_seconds: float = 10
    max_ahead_seconds: float = 300
    idle_timeout_seconds: float = 60
    shown_within_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.clock not in (ARRIVAL, EVENT):
            raise InputError("clock", f"must be {ARRIVAL!r} or {EVENT!r}, got {self.clock!r}.")
        for field in dataclasses.fields(self)[1:]:
            name, value = field.name, getattr(self, field.name)
            if value is None and name == "shown_within_seconds":
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _LONGEST_SECONDS:
                raise InputError(name, f"must be from 0 to {_LONGEST_SECONDS:,} seconds (a year), got {value!r}.")
        if self.idle_timeout_seconds == 0:
            raise InputError("idle_timeout_seconds", "must be > 0, got 0.", "Use 60 for a minute.")
        if self.shown_within_seconds is not None and self.shown_within_seconds > self.idle_timeout_seconds:
            raise InputError(
                "shown_within_seconds",
                f"must be at most the idle timeout ({self.idle_timeout_seconds!r}), got {self.shown_within_seconds!r}:"
                " a partition is idle only when what arrived before is shown.",
            )

    @property
    def lateness_micros(self) -> int:
        return _micros(self.allowed_lateness_seconds)

    @property
    def out_of_order_micros(self) -> int:
        return _micros(self.out_of_order_seconds)

    def first_arrival_micros(self, schedule: WindowSchedule) -> int:
        """Arrivals before this moment change nothing: their events are before the range, or too far ahead of their
        arrival, and a clock that they set closes no window (docs/guarantee.md, "Where reading begins")."""
        return schedule.start_seconds * MICROS_PER_SECOND - self.max_ahead_micros

    @property
    def max_ahead_micros(self) -> int:
        return _micros(self.max_ahead_seconds)

    @property
    def idle_timeout_micros(self) -> int:
        return _micros(self.idle_timeout_seconds)

    @property
    def shown_within_micros(self) -> int:
        shown = self.shown_within_seconds
        return self.idle_timeout_micros if shown is None else _micros(shown)

    def stop_micros(self, asked_micros: int) -> int:
        """The last arrival that counts if a stop was requested at this moment, by the clock of a file system.

        It is later than the request, by as much as clocks may differ. So a reader that has read a record, and then sees
        that nobody has requested a stop, knows that this record counts.
        """
        return asked_micros + self.out_of_order_micros + _micros(_STOP_SECONDS)


def _micros(seconds: float) -> int:
    return math.ceil(seconds * MICROS_PER_SECOND)


@dataclasses.dataclass(frozen=True, eq=False)
class Taken:
    """The result of a poll, in the order of the partition, without what was refused.

    batch: the events, late ones too: `first_open` lets them count in the windows that are open. first_open:
    int64[len(batch)], the first window for which each event is in time.
    from_the_future: int64[k], places of the events that were refused, or their times if they have no places.
    late: how many events of the declared range come too late for at least one of their windows. outside: how many are
    outside the range. after_stop: how many arrived after the stop, so that they do not count.
    """

    batch: EventBatch
    first_open: npt.NDArray[np.int64]
    from_the_future: npt.NDArray[np.int64]
    late: int
    outside: int
    after_stop: int


_Micros = Annotated[int, msgspec.Meta(ge=CLOCK_BEGIN, le=CLOCK_END)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the wall clock or the operator wants. name: unique.

    kind: ``clock``: this partition's clock at ``micros``; ``stop``: ``micros`` as the last arrival that counts.
    """

    name: str
    kind: Literal["clock", "stop"]
    micros: _Micros


class _Stored(msgspec.Struct, forbid_unknown_fields=True, tag_field="version", tag=_VERSION):
    """What an engine stores of a partition."""

    shards: int
    run: str
    position: str | None
    clock_micros: _Micros
    next_window: _Count
    stop_micros: _Micros | None
    intent: Intent | None
    read_at_micros: _Micros
    messages_sent: dict[int, list[_Count]]


class PartitionProgress:
    """The state of one partition. Every method is a function of this state and its arguments alone.

    shards: of users. run: a digest of what must stay the same during the run. position: where to read next; None at the
    beginning. clock_micros: the partition's clock. next_window: the first window that is not closed here. stop_micros:
    the last arrival that counts; None if nobody has requested a stop. intent: what must happen at this position before
    anything else is read. read_at_micros: wall clock when the last record with a clock value was read; a hint.
    messages_sent: by open window and shard of users.
    """

    def __init__(self, schedule: WindowSchedule, clock: StreamClock, shards: int, run: str = "") -> None:
        self._schedule, self._clock = schedule, clock
        self.shards, self.run = shards, run
        self.position: str | None = None
        self.clock_micros = self.read_at_micros = CLOCK_BEGIN
        self.next_window = 0
        self.stop_micros: int | None = None
        self.intent: Intent | None = None
        self.messages_sent: dict[int, list[int]] = {}

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(_Stored(**{name: getattr(self, name) for name in _Stored.__struct_fields__}))

    @classmethod
    def from_bytes(cls, data: bytes, schedule: WindowSchedule, clock: StreamClock, shards: int) -> PartitionProgress:
        """Inverse of `to_bytes`. Raises StreamError for another release or number of shards, and for damaged bytes."""
        try:
            stored = msgspec.json.decode(data, type=_Stored)
            if stored.next_window > schedule.horizon:
                raise ValueError
            for window, sent in stored.messages_sent.items():
                if not (stored.next_window <= window < schedule.horizon and len(sent) == stored.shards):
                    raise ValueError
        except (ValueError, RecursionError):
            raise StreamError(
                "the stored state is damaged, or of another release. Use the release that wrote it, or start a new run."
            ) from None
        if stored.shards != shards:
            raise StreamError(f"the run was started with shards={stored.shards}, got {shards}. Give the same.")
        progress = cls(schedule, clock, shards)
        for name in _Stored.__struct_fields__:
            setattr(progress, name, getattr(stored, name))
        return progress

    def _closed_by(self, clock_micros: int) -> int:
        """How many windows of the run a clock at this moment closes."""
        behind = self._clock.lateness_micros + self._clock.out_of_order_micros
        return int(self._schedule.windows_ended_before(np.array([clock_micros - behind]))[0])

    @property
    def windows_due(self) -> int:
        """Windows ``next_window .. windows_due - 1`` can be closed."""
        return self._closed_by(self.clock_micros)

    @property
    def is_read(self) -> bool:
        """Whether no other record could count, because all windows can be closed."""
        return self.windows_due == self._schedule.horizon

    @property
    def is_over(self) -> bool:
        """Whether all windows are closed."""
        return self.next_window == self._schedule.horizon

    def take(self, polled: Polled, now_micros: int) -> Taken:
        """Takes a poll that was made at this position, and moves to the position behind it. No intent is pending."""
        self.position = polled.position
        time, arrival = polled.batch.time_micros, _within_range(polled.arrival_micros)
        stop = CLOCK_END if self.stop_micros is None else self.stop_micros
        is_by_stop = arrival <= stop
        is_present = is_by_stop & (time <= arrival + self._clock.max_ahead_micros)
        from_the_future = (time if polled.places is None else polled.places)[is_by_stop & ~is_present]
        passed: int | npt.NDArray[np.int64] = CLOCK_BEGIN
        if self._clock.clock == ARRIVAL:
            # Every arrival moves this clock: otherwise broken records could hold it, and every window, forever. What
            # arrives after the stop moves it up to the stop, however the records are cut into polls.
            value = np.minimum(arrival, stop)
            if polled.passed_micros is not None:
                passed = np.minimum(_within_range(polled.passed_micros), stop)
        else:
            # Never beyond the arrival, however far ahead events may be.
            value = np.where(is_present, np.minimum(_within_range(time), arrival), CLOCK_BEGIN)
        set_to = np.maximum(np.append(CLOCK_BEGIN, value), passed)
        if (set_to > CLOCK_BEGIN).any():
            self.read_at_micros = now_micros
        # The clock before each row, and after the last one.
        clock = np.maximum.accumulate(np.maximum(set_to, self.clock_micros))
        self.clock_micros = int(clock[-1])
        batch, time = polled.batch.where(is_present), time[is_present]
        value, clock = value[is_present], clock[:-1][is_present]
        late_up_to = np.maximum(value, clock - self._clock.out_of_order_micros) - self._clock.lateness_micros
        first_open = self._schedule.windows_ended_before(late_up_to)
        first_window = self._schedule.first_window(time)
        is_inside = (first_window >= 0) & (first_window < self._schedule.horizon)
        late = int((is_inside & (first_window < first_open)).sum())
        after_stop = len(is_by_stop) - int(is_by_stop.sum())
        return Taken(batch, first_open, from_the_future, late, int((~is_inside).sum()), after_stop)

    def sent(self, window: int, shard: int, messages: int) -> None:
        """Counts messages sent to one shard of an open window."""
        self.messages_sent.setdefault(window, [0] * self.shards)[shard] += messages

    def close_windows(self, at_most: int) -> list[tuple[int, list[int]]]:
        """Closes windows that are due, in order: ``(window, messages sent by shard)``."""
        last = min(self.windows_due, self.next_window + at_most)
        nothing = [0] * self.shards
        closed = [(window, self.messages_sent.pop(window, nothing)) for window in range(self.next_window, last)]
        self.next_window = max(self.next_window, last)
        return closed

    def has_arrived_after(self, micros: int) -> bool:
        """Whether something was taken that arrived later. False with the clock ``event``, which cannot know."""
        return self._clock.clock == ARRIVAL and self.clock_micros > micros

    def wanted_clock_micros(self, polled: Polled, now_micros: int, since_micros: int) -> int | None:
        """What the wall clock may set this clock to, if the log confirms that all is read; else None.

        After a stop the end, once the log shows all that arrived by then. Before, the wall clock less the idle timeout,
        if nothing came since then and it closes a window. polled: was just taken. since_micros: when the reader was
        opened.
        """
        if self.stop_micros is not None:
            return CLOCK_END if now_micros >= self.stop_micros + self._clock.shown_within_micros else None
        target = now_micros - self._clock.idle_timeout_micros
        is_idle = polled.is_at_end and not polled.records and max(since_micros, self.read_at_micros) <= target
        return target if is_idle and self._closed_by(target) > self.windows_due else None

    def intend(self, kind: Literal["clock", "stop"], micros: int) -> None:
        """Binds this partition to set its clock at this position, or to count nothing that arrived after this moment,
        and stops reading until it acts."""
        self.intent = Intent(uuid.uuid4().hex, kind, micros)

    def act(self) -> None:
        """Acts on the intent, if there is one. Call it when no restart can forget the intent."""
        if self.intent is not None and self.intent.kind == "stop":
            self.stop_micros = self.intent.micros
        elif self.intent is not None:
            self.clock_micros = max(self.clock_micros, self.intent.micros)
        self.intent = None


def _within_range(micros: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Clipped: a hostile time near the int64 limits must not wrap around."""
    return np.clip(micros, CLOCK_BEGIN, CLOCK_END)
