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


@dataclasses.dataclass(frozen=True, eq=False)
class Polled:
    """What one poll of a partition found.

    batch: the events that could be read, in the order of the partition.
    arrival_micros: int64[len(batch)], microseconds since 1970 UTC: when each event reached the log by the log's own
        clock (the timestamp of a Kafka record; the time at which the kernel saw a file come into the folder). Never
        taken from the event itself.
    position: where to go on, a text that only the source understands; to read from it again gives the same records.
    records: how many records were read, those that were rejected among them.
    is_at_end: whether nothing more was there.
    rejected: what could not be read, by place and reason.
    """

    batch: EventBatch
    arrival_micros: npt.NDArray[np.int64]
    position: str
    records: int
    is_at_end: bool
    rejected: Sequence[RejectedEvents] = ()


class PartitionReader(Protocol):
    """An open partition, in one process."""

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        """The records from ``position`` on (None: from the beginning), at most ``max_records`` of them (a whole file
        or record may exceed it); waits up to ``max_seconds`` for the first. Raises StreamError."""
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

    def partitions(self) -> Sequence[StreamPartition]:
        """All partitions, in a fixed order. Asked once, when the pipeline is built. Raises StreamError."""
        ...


class StreamError(RuntimeError):
    """A source or sink cannot be used. Its message is one line and holds no event."""
