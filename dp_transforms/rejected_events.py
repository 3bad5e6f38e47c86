"""Rows that could not be read, told by place and reason and never by content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RejectedEvents(NamedTuple):
    """Rows of one source that were left out for one reason.

    source: the file, or ``element`` for rows that came as elements of a PCollection.
    positions: where they are: row numbers (Parquet, Avro, CSV) or line numbers (JSON lines), counted from 1; offsets
        of Kafka records; for elements their event times in microseconds.
    reason: why, in words that contain no cell.
    """

    source: str
    positions: Sequence[int]
    reason: str
