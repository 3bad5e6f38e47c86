"""What a stream source is: partitions that can be read again from any position, always in the same order.

Everything downstream is a function of the content of the partitions, position by position. So when a worker dies
between any two lines and another one reads the same positions again, no window gets two different contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.logs.rejected_events import RejectedEvents

NEVER = -(2**62)  # before every time that a log can hold


@dataclasses.dataclass(frozen=True, eq=False)
class Polled:
    """The result of one poll of a partition.

    batch: the events that could be read, in the order of the partition.
    arrival_micros: int64[len(batch)], microseconds since 1970 UTC: when each event reached the log, by the log's own
        clock (the timestamp of a Kafka record; the time at which the kernel saw a file come into the folder). Never
        taken from the event itself.
    position: where to read next, a text that only the source understands; None: the beginning. Reading from it again
        returns the same records.
    records: how many records were read, including rejected ones.
    is_at_end: whether there was nothing more, as far as the reader knew: a hint that the next poll may wait.
    is_drained: whether less was left in the log than was read: a later poll will find more at once.
    rejected: what could not be read, by place and reason.
    passed_micros: int64[len(batch) + 1], the latest arrival of the records that were rejected between each event and
        the one before it, and after the last one; `NEVER` if there are none there. None: there are none at all.
    places: int64[len(batch)], the place of each event, for people: the offset of a Kafka record. None: report its time.
    """

    batch: EventBatch
    arrival_micros: npt.NDArray[np.int64]
    position: str | None
    records: int
    is_at_end: bool
    rejected: Sequence[RejectedEvents] = ()
    passed_micros: npt.NDArray[np.int64] | None = None
    places: npt.NDArray[np.int64] | None = None
    is_drained: bool = False


def passed_arrivals(arrival_micros: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """`Polled.passed_micros`, from the arrivals of all records and the rising numbers of those that are events."""
    if len(rows) == len(arrival_micros):
        return None
    is_event = np.zeros(len(arrival_micros), dtype=bool)
    is_event[rows] = True
    passed = np.full(len(rows) + 1, NEVER, dtype=np.int64)
    np.maximum.at(passed, np.cumsum(is_event)[~is_event], arrival_micros[~is_event])
    return passed


class PartitionReader(Protocol):
    """An open partition, in one process."""

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """The records from ``position`` on (None: from the beginning), at most ``max_records`` of them (one file or
        record may exceed it). Waits up to ``max_seconds`` for the first one. Raises StreamError."""
        ...

    def confirm_end(self) -> bool:
        """Whether the log itself says, after the last poll began, that it has nothing after that poll's position.

        False if it does not answer. What the wall clock decides depends on it (docs/guarantee.md, "Which events of a
        stream are in time").
        """
        ...

    def confirm_passed(self) -> bool:
        """Whether everything is read that the log showed at the first call since the reader was opened, or since a poll
        that did not follow the one before it: the last poll's position is there or later.

        False if the log does not answer. So records that keep coming forever do not delay the end of a run.
        """
        ...

    def close(self) -> None: ...


class StreamPartition(Protocol):
    """Names a partition; small, and can be pickled into a job graph."""

    @property
    def name(self) -> str: ...

    def open(self, since_micros: int) -> PartitionReader:
        """A reader that, at the beginning, may skip some or all records that arrived before ``since_micros``: none of
        them can count (`StreamClock.first_arrival_micros`)."""
        ...


class StreamSource(Protocol):
    """Names a source; small, and can be pickled into a job graph."""

    def fingerprint(self) -> str:
        """Everything that decides which events the records are, and whose: fields, formats, schemas. A run that
        continues from stored state must have the same: with another user field, no user would be recognized."""
        ...

    def partitions(self) -> Sequence[StreamPartition]:
        """All partitions, in a fixed order. Called once, when the pipeline is built. Raises StreamError."""
        ...
