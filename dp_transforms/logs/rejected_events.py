"""Rows that could not be read, reported by place and reason and never by content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt


class RejectedEvents(NamedTuple):
    """Rows of one source that were left out for one reason.

    source: the file, the partition, or ``element`` for rows that came as elements of a PCollection.
    positions: where they are: row numbers (Parquet, Avro) or line numbers (CSV, JSON lines), counted from 1; offsets
        of Kafka records; for elements their event times in microseconds.
    reason: why, in words that contain no cell.
    """

    source: str
    positions: Sequence[int]
    reason: str


def pack_rejected(rejected: RejectedEvents) -> bytes:
    """Source and reason as a line of JSON, then the positions as little-endian int64. Never empty."""
    place = json.dumps([rejected.source, rejected.reason]).encode()
    return place + b"\n" + np.asarray(rejected.positions, dtype="<i8").tobytes()


def write_rejected_lines(handle: IO[bytes], packed: Iterable[bytes]) -> None:
    """Writes one line of JSON per row, sorted by source and position. packed: from `pack_rejected`.

    Positions stay int64 until they are written.
    """
    by_source: dict[str, list[tuple[str, npt.NDArray[np.int64]]]] = {}
    for data in packed:
        place, _, positions = data.partition(b"\n")
        source, reason = json.loads(place)
        by_source.setdefault(source, []).append((reason, np.frombuffer(positions, dtype="<i8")))
    for source in sorted(by_source):
        reasons = sorted({reason for reason, _ in by_source[source]})
        position = np.concatenate([positions for _, positions in by_source[source]])
        reason_index = np.concatenate(
            [np.full(len(positions), reasons.index(reason), np.int32) for reason, positions in by_source[source]]
        )
        for row in np.lexsort((reason_index, position)):
            fields: dict[str, Any] = {
                "file": source,
                "position": int(position[row]),
                "reason": reasons[reason_index[row]],
            }
            handle.write(json.dumps(fields).encode() + b"\n")
