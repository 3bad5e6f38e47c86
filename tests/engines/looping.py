"""The smallest pipeline of the shape of `MonitorStream`: a keep-alive, a loop of timers per key, and a keyed reader."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.utils.timestamp import Duration, Timestamp

KEYS = ("left", "right")
TICK_SECONDS = 0.05


class _Forever(RestrictionProvider):
    def initial_restriction(self, element):
        return OffsetRange(0, 1 << 60)

    def create_tracker(self, restriction):
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element, restriction):
        return 1


RESTRICTION = beam.DoFn.RestrictionParam(_Forever())


class KeepAlive(beam.DoFn):
    """Emits each key once and never ends, so that the watermark never reaches the end of time."""

    @beam.DoFn.unbounded_per_element()
    def process(self, element, tracker=RESTRICTION):
        step = tracker.current_restriction().start
        if not tracker.try_claim(step):
            return
        if step == 0:
            yield from ((key, 0) for key in KEYS)
        tracker.defer_remainder(Duration(seconds=600))


class CountByTimer(beam.DoFn):
    """Counts 0, 1, 2, ... per key, one number each time its timer fires, up to `limit`."""

    NEXT = ReadModifyWriteStateSpec("next_v1", VarIntCoder())
    TICK = TimerSpec("tick", TimeDomain.REAL_TIME)

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def process(self, element, number=beam.DoFn.StateParam(NEXT), tick=beam.DoFn.TimerParam(TICK)):
        number.write(0)
        tick.set(Timestamp(time.time() + TICK_SECONDS))

    @on_timer(TICK)
    def fire(self, key=beam.DoFn.KeyParam, number=beam.DoFn.StateParam(NEXT), tick=beam.DoFn.TimerParam(TICK)):
        now = number.read()
        yield key, now
        number.write(now + 1)
        if now + 1 < self._limit:
            tick.set(Timestamp(time.time() + TICK_SECONDS))


class WriteWithTotal(beam.DoFn):
    """Appends (key, number, how many this key had before) to a file: lost or repeated elements show in the total."""

    SEEN = ReadModifyWriteStateSpec("seen_v1", VarIntCoder())

    def __init__(self, path: str) -> None:
        self._path = path

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)):
        key, number = element
        before = seen.read() or 0
        seen.write(before + 1)
        with open(self._path, "a") as file:
            file.write(json.dumps([key, number, before, os.getpid()]) + "\n")


def build(pipeline: beam.Pipeline, path: pathlib.Path, limit: int) -> None:
    """Writes `limit` numbers for each of KEYS to `path`, one at a time, and then keeps the job alive."""
    _ = (
        pipeline
        | beam.Impulse()
        | "KeepAlive" >> beam.ParDo(KeepAlive()).with_output_types(tuple[str, int])
        | "Count" >> beam.ParDo(CountByTimer(limit)).with_output_types(tuple[str, int])
        | "Write" >> beam.ParDo(WriteWithTotal(str(path)))
    )


def written(path: pathlib.Path) -> Iterator[tuple[str, int, int, int]]:
    """Complete lines so far."""
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        yield tuple(json.loads(line))


def wait_until_written(path: pathlib.Path, limit: int, timeout_seconds: float) -> None:
    """Returns when each of KEYS reached `limit` numbers. Raises TimeoutError naming how far they came."""
    deadline = time.monotonic() + timeout_seconds
    while len({(key, number) for key, number, _, _ in written(path)}) < limit * len(KEYS):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_seconds} s: {sorted({row[:2] for row in written(path)})[-3:]}")
        time.sleep(0.1)
