"""Close by watermark: packed pairs of a stream that Beam reads -> counted messages, by shard of users.

From here on such a stream is one like `MonitorStream`'s: each step knows by counting that a window is complete. Only
this step looks at the watermark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import operator_counter
from dp_transforms.core.messages import Message, ToShard
from dp_transforms.core.operator_counts import LATE_BATCHES
from dp_transforms.plan.window_schedule import WindowSchedule

_LEAST_NEAR_WINDOWS = 64
_START = (-1, b"")
_FIRST = np.array([0, _LEAST_NEAR_WINDOWS], dtype="<i8").tobytes()
_Packed = tuple[int, bytes]  # window and pairs; `_START` begins a shard and has none


class CloseByWatermark(beam.PTransform):
    """``((window, shard), packed pairs)`` -> ``(shard, message)``, with counted messages of one sender.

    All in the GlobalWindow. The timestamp of an element is at most that of its first event.

    Every shard of every window of the schedule is announced, in order, also one without events: known items are looked
    at in every window, and what is announced must not show who was there.
    """

    def __init__(self, schedule: WindowSchedule, shards: int) -> None:
        super().__init__()
        self._schedule = schedule
        self._shards = shards

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        starts = (
            packed.pipeline
            | "Once" >> beam.Impulse()
            | "StartShards" >> beam.FlatMap(_starts, self._shards).with_output_types(tuple[int, _Packed])
        )
        by_shard = packed | "ByShard" >> beam.Map(_by_shard).with_output_types(tuple[int, _Packed])
        return (
            (starts, by_shard)
            | "WithStarts" >> beam.Flatten()
            | "AnnounceWindows" >> beam.ParDo(CloseByWatermarkDoFn(self._schedule)).with_output_types(ToShard)
        )


class CloseByWatermarkDoFn(beam.DoFn):
    """Stateful, keyed by shard of users, since it counts what it has sent. Passes pairs on at once, and announces their
    number when the watermark passes the end of their window. What comes after that is dropped and counted.

    One event-time timer announces a window and is set again for the next one, whether anybody is there or not: so no
    user can decide whether late events of others count.

    Messages for windows far ahead are counted in a bag. So a message reads and writes some 1 KB, or 32 bytes times the
    root of the number of these windows, and not 16 bytes for each of them. (With a backlog of a year
    of hours a message took 3.2 ms that way, and takes 0.02 ms this way.)
    """

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    LATER = BagStateSpec("later_v1", BytesCoder())
    CLOSE = TimerSpec("close_v1", TimeDomain.WATERMARK)

    def __init__(self, schedule: WindowSchedule) -> None:
        self._schedule = schedule
        self._late = operator_counter(LATE_BATCHES)

    def process(
        self,
        element: tuple[int, _Packed],
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        later: Any = beam.DoFn.StateParam(LATER),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[ToShard]:
        shard, (window, blob) = element
        next_window, near_end, sent = _read(progress)
        if (window, blob) == _START:
            close.set(self._closing_time(next_window))
            return
        if window < next_window:
            self._late.inc()
            return
        if window < near_end:
            sent[window] = sent.get(window, 0) + 1
            _write(progress, next_window, near_end, sent)
        else:
            later.add(_packed({window: 1}))
        yield shard, Message(window, 0, blob)

    @on_timer(CLOSE)
    def announce_window(
        self,
        shard: int = beam.DoFn.KeyParam,
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        later: Any = beam.DoFn.StateParam(LATER),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[TimestampedValue]:
        """Announces the next window and sets the timer for the one after it."""
        window, near_end, sent = _read(progress)
        if window == self._schedule.horizon:
            return
        announcement = shard, Message(window, sent.pop(window, 0) + 1, b"")
        if window + 1 == near_end:
            near_end, sent = _come_near(window + 1, later)
        _write(progress, window + 1, near_end, sent)
        if window + 1 < self._schedule.horizon:
            close.set(self._closing_time(window + 1))
        yield TimestampedValue[ToShard](announcement, max_timestamp(self._schedule, window))

    def _closing_time(self, window: int) -> Timestamp:
        """The last millisecond of a window: engines hold the watermark back by it, so that no report is late.

        It is above the timestamps of all elements with earlier events. On Prism a timer may go before an element that
        has its time.
        """
        return Timestamp(micros=max_timestamp(self._schedule, window).micros // 1000 * 1000)


def _starts(once: bytes, shards: int) -> Iterator[tuple[int, _Packed]]:
    for shard in range(shards):
        yield shard, _START


def _by_shard(packed: tuple[tuple[int, int], bytes]) -> tuple[int, _Packed]:
    (window, shard), blob = packed
    return shard, (window, blob)


def _read(progress: Any) -> tuple[int, int, dict[int, int]]:
    """The first window that was not announced yet; the first one whose messages are counted in the bag; and how many
    messages were sent for each of those between."""
    next_window, near_end, *numbers = np.frombuffer(progress.read() or _FIRST, dtype="<i8").tolist()
    return next_window, near_end, dict(zip(numbers[::2], numbers[1::2], strict=True))


def _write(progress: Any, next_window: int, near_end: int, sent: dict[int, int]) -> None:
    progress.write(np.array([next_window, near_end], dtype="<i8").tobytes() + _packed(sent))


def _packed(sent: dict[int, int]) -> bytes:
    return np.array([number for entry in sent.items() for number in entry], dtype="<i8").tobytes()


def _come_near(window: int, later: Any) -> tuple[int, dict[int, int]]:
    """Takes the counts of the windows from this one on out of the bag, up to the first one that stays in it."""
    numbers = np.frombuffer(b"".join(later.read()), dtype="<i8").reshape(-1, 2)
    windows, rows = np.unique(numbers[:, 0], return_inverse=True)
    counts = np.bincount(rows, weights=numbers[:, 1], minlength=len(windows)).astype(np.int64)
    near_end = window + max(_LEAST_NEAR_WINDOWS, 2 * math.isqrt(len(windows)))
    later.clear()
    is_near = windows < near_end
    if not is_near.all():
        later.add(np.stack([windows[~is_near], counts[~is_near]], axis=1).astype("<i8").tobytes())
    return near_end, dict(zip(windows[is_near].tolist(), counts[is_near].tolist(), strict=True))
