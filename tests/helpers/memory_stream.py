"""A stream source in memory: partitions of events, each with the time of its arrival."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.randomness import IdKeys
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_poller import PartitionPoller, Polling
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import Polled, passed_arrivals
from tests.helpers.small_runs import batch_of
from tests.reference.log import Event

BROKEN = ("", "", 0)  # a record that cannot be read


class Arrival(NamedTuple):
    """An event, or `BROKEN`, and when it reached the log, in microseconds."""

    event: Event
    micros: int


@dataclasses.dataclass(frozen=True)
class MemoryPartition:
    """records_per_poll: at most so many at once, however many are asked for."""

    name: str
    arrivals: tuple[Arrival, ...]
    records_per_poll: int

    def open(self, since_micros: int = 0) -> MemoryReader:
        return MemoryReader(self, since_micros)


class MemoryReader:
    def __init__(self, partition: MemoryPartition, since_micros: int) -> None:
        self._partition, self.name = partition, partition.name
        early = itertools.takewhile(lambda arrival: arrival.micros < since_micros, partition.arrivals)
        self._begin = self._high = sum(1 for _ in early)

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        low = self._begin if position is None else int(position)
        arrivals = self._partition.arrivals[low : low + min(max_records, self._partition.records_per_poll)]
        high = self._high = low + len(arrivals)
        readable = [arrival for arrival in arrivals if arrival.event != BROKEN]
        rows = np.flatnonzero([arrival.event != BROKEN for arrival in arrivals])
        broken = [low + at for at, arrival in enumerate(arrivals) if arrival.event == BROKEN]
        return Polled(
            batch_of([arrival.event for arrival in readable]),
            np.array([arrival.micros for arrival in readable], dtype=np.int64),
            str(high),
            len(arrivals),
            high == len(self._partition.arrivals),
            [RejectedEvents(self._partition.name, broken, "broken")] if broken else [],
            passed_arrivals(np.array([arrival.micros for arrival in arrivals], dtype=np.int64), rows),
        )

    def confirm_end(self) -> bool:
        return True  # what it has never changes

    def confirm_passed(self) -> bool:
        return self._high == len(self._partition.arrivals)

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class MemoryStream:
    all_partitions: tuple[MemoryPartition, ...]

    @classmethod
    def of(cls, partitions: Sequence[Sequence[Arrival]], records_per_poll: int = 100) -> MemoryStream:
        return cls(
            tuple(
                MemoryPartition(f"partition-{number}", tuple(arrivals), records_per_poll)
                for number, arrivals in enumerate(partitions)
            )
        )

    def fingerprint(self) -> str:
        return "memory"

    def partitions(self) -> Sequence[MemoryPartition]:
        return self.all_partitions


def poller_of(
    run: PlannedRun,
    keys: IdKeys,
    clock: StreamClock,
    shards: int,
    *,
    confirm: bool = False,
    source: str = "",
    public_items: ItemTable | None = None,
    **more: int,
) -> PartitionPoller:
    """A poller that is given its readers (`step_at`). more: of `PartitionPoller`."""
    polling = Polling({}, run, clock, source, shards, confirm, None, 0.5)
    return PartitionPoller(polling, keys, public_items, **more)
