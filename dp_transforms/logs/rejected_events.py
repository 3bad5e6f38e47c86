"""Rows that could not be read, reported by place and reason and never by content."""

from __future__ import annotations

import array
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_FEW = 1000
MOST_REJECTED = 0.5  # of rows, else nothing is published; it is high, since one user can write such rows


class RejectedEvents(NamedTuple):
    """Rows of one source that were left out for one reason.

    source: the file, the partition, or ``element`` for rows that came as elements of a PCollection.
    positions: where they are, as `compact` keeps them: row numbers (Parquet, Avro) or line numbers (CSV, JSON lines),
        counted from 1; offsets of Kafka records; for elements their event times in microseconds.
    reason: why, in words that contain no cell.
    """

    source: str
    positions: Sequence[int]
    reason: str


def compact(positions: Rows) -> Sequence[int]:
    """Positions in little memory where they are many: a small packed file can hold millions of bad rows."""
    return tuple(positions.tolist()) if len(positions) < _FEW else array.array("q", positions.tobytes())


def as_array(positions: Sequence[int]) -> Rows:
    return np.asarray(positions, "<i8")


def reject(
    source: str, count: int, reasons: Mapping[str, Rows], positions_of: Callable[[Rows], Rows]
) -> tuple[tuple[RejectedEvents, ...], Rows]:
    """Which of ``count`` rows are rejected, each for the first reason that names it; and the numbers of the others.

    reasons: numbers of rows, from 0, some perhaps twice. positions_of: numbers of rows -> their positions in the
    source; asked only for rejected rows.
    """
    is_left, rejected = np.ones(count, np.bool_), []
    for reason, rows in reasons.items():
        found = np.unique(rows[is_left[rows]])
        if len(found):
            is_left[found] = False
            rejected.append(RejectedEvents(source, compact(positions_of(found)), reason))
    return tuple(rejected), np.flatnonzero(is_left)


def pack_rejected(rejected: RejectedEvents) -> bytes:
    """Source and reason as a line of JSON, then the positions as little-endian int64. Never empty."""
    place = json.dumps([rejected.source, rejected.reason]).encode()
    return place + b"\n" + as_array(rejected.positions).tobytes()


def write_rejected_lines(handle: IO[bytes], packed: Iterable[bytes]) -> None:
    """Writes one line of JSON per row, sorted by source and position. packed: from `pack_rejected`.

    Positions stay int64 until they are written.
    """
    by_source: dict[str, list[tuple[str, Rows]]] = {}
    for data in packed:
        place, _, positions = data.partition(b"\n")
        source, reason = json.loads(place)
        by_source.setdefault(source, []).append((reason, np.frombuffer(positions, dtype="<i8")))
    for source, parts in sorted(by_source.items()):
        reasons = sorted({reason for reason, _ in parts})
        position = np.concatenate([positions for _, positions in parts])
        numbers = np.repeat([reasons.index(reason) for reason, _ in parts], [len(positions) for _, positions in parts])
        for row in np.lexsort((numbers, position)):
            line = {"file": source, "position": int(position[row]), "reason": reasons[numbers[row]]}
            handle.write(json.dumps(line).encode() + b"\n")
