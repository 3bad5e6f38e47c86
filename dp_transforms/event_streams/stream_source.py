"""What a stream source is: partitions that can be read again from any position, each in one order.

Everything downstream is a function of what the partitions hold, position by position. So a worker that dies between two
lines, and another that reads the same positions again, cannot give a window two different contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.monitoring.event_batch import EventBatch
from dp_transforms.rejected_events import RejectedEvents

NEVER = -(2**62)  # before every time that a log can hold


@dataclasses.dataclass(frozen=True, eq=False)
class Polled:
    """What one poll of a partition found.

    batch: the events that could be read, in the order of the partition.
    arrival_micros: int64[len(batch)], microseconds since 1970 UTC: when each event reached the log by the log's own
        clock (the timestamp of a Kafka record; the time at which the kernel saw a file come into the folder). Never
        taken from the event itself.
    position: where to go on, a text that only the source understands; to read from it again gives the same records.
    records: how many records were read, those that were rejected among them.
    is_at_end: whether nothing more was there, as far as the reader knew: a hint that the next poll may wait.
    rejected: what could not be read, by place and reason.
    passed_micros: int64[len(batch) + 1], the latest arrival of the records that were rejected between each event and
        the one before it, and behind the last one; `NEVER` where there are none. None: there are none at all.
    places: int64[len(batch)], where each event lies, for people: the offset of a Kafka record. None: its time tells.
    """

    batch: EventBatch
    arrival_micros: npt.NDArray[np.int64]
    position: str
    records: int
    is_at_end: bool
    rejected: Sequence[RejectedEvents] = ()
    passed_micros: npt.NDArray[np.int64] | None = None
    places: npt.NDArray[np.int64] | None = None


def passed_arrivals(arrival_micros: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """`Polled.passed_micros` out of the arrivals of all records, and the rows, rising, of those that are events."""
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
        """The records from ``position`` on (None: from the beginning), at most ``max_records`` of them (a whole file
        or record may exceed it); waits up to ``max_seconds`` for the first. Raises StreamError."""
        ...

    def confirm_end(self) -> bool:
        """Whether the log itself says, after the last poll began, that it shows nothing behind that poll's position.

        False where it does not answer. What the wall clock decides hangs on it (docs/guarantee.md, section 7).
        """
        ...

    def confirm_passed(self) -> bool:
        """Whether all has been read that the log showed when this was first asked since the reader was opened, or since
        a poll that did not follow the one before it: the last poll's position lies there or behind.

        False where the log does not answer. So records that come for ever do not put off the end of a run.
        """
        ...

    def close(self) -> None: ...


class StreamPartition(Protocol):
    """Names a partition; small, and can be pickled into a job graph."""

    @property
    def name(self) -> str: ...

    def open(self, since_micros: int) -> PartitionReader:
        """A reader that, at the beginning, may pass over what arrived before ``since_micros``, or over a part of it:
        none of it can count (`StreamClock.first_arrival_micros`)."""
        ...


class StreamSource(Protocol):
    """Names a source; small, and can be pickled into a job graph."""

    def fingerprint(self) -> str:
        """All that decides which events its records are, and whose: fields, formats, schemas. A run that goes on from
        stored state must have the same: under another user field no user would be known again."""
        ...

    def partitions(self) -> Sequence[StreamPartition]:
        """All partitions, in a fixed order. Asked once, when the pipeline is built. Raises StreamError."""
        ...


class StreamError(RuntimeError):
    """A source or sink cannot be used. Its message is one line and holds no event."""
