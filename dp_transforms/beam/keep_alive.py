"""Keep alive: names of partitions -> the same names, as an input that never ends.

An engine drops the state and the timers of a pipeline whose input has ended. Partitions that are read in timers
therefore hang on an input that stays open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration

_KEEP_ALIVE_SECONDS = 600


class EmitDoFn(beam.DoFn):
    """Emits the names of the partitions, each with its number. Its input ends."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def process(self, once: bytes) -> Iterator[tuple[str, int]]:
        for number, name in enumerate(self._names):
            yield name, number


class _Forever(RestrictionProvider):
    """A restriction that never ends: one position for each time that the engine comes back."""

    def initial_restriction(self, element: bytes) -> OffsetRange:
        return OffsetRange(0, 2**60)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: bytes, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: bytes, restriction: OffsetRange) -> None:
        return None


class KeepAliveDoFn(beam.DoFn):
    """Emits the same once, and then nothing, forever.

    It comes back seldom, because some engines keep a little memory for each return.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        once: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(_Forever()),  # noqa: B008
    ) -> Iterator[tuple[str, int]]:
        returns = tracker.current_restriction().start
        if not tracker.try_claim(returns):
            return
        if returns == 0:
            for number, name in enumerate(self._names):
                yield name, number
        tracker.defer_remainder(Duration(seconds=_KEEP_ALIVE_SECONDS))
