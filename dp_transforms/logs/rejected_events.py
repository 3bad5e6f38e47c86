"""Rows that could not be read, reported by place and reason and never by content."""

from __future__ import annotations

import array
import json
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
_FEW = 1000


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
    """Positions that rise, in little memory where they are many: a small packed file can hold millions of bad rows."""
    if len(positions) < _FEW:
        return tuple(positions.tolist())
    first, last = int(positions[0]), int(positions[-1])
    return range(first, last + 1) if last - first + 1 == len(positions) else array.array("q", positions.tobytes())


def as_array(positions: Sequence[int]) -> Rows:
    return np.arange(positions.start, positions.stop) if isinstance(positions, range) else np.asarray(positions, "<i8")


class Reasons:
    """Why each of n rows is rejected: the first reason given for it counts."""

    def __init__(self, count: int) -> None:
        self._codes = np.zeros(count, np.uint8)
        self._texts: list[str] = []

    def add(self, text: str, rows: Rows) -> None:
        """rows: their numbers, from 0; some perhaps twice."""
        new = rows[self._codes[rows] == 0]
        if not len(new):
            return
        if text not in self._texts:
            self._texts.append(text)
        self._codes[new] = self._texts.index(text) + 1

    def add_others(self, text: str, rows: Rows) -> None:
        """Rejects all rows but these, which rise."""
        if len(rows) == len(self._codes):
            return
        is_other = np.ones(len(self._codes), np.bool_)
        is_other[rows] = False
        self.add(text, np.flatnonzero(is_other))

    def good(self) -> Rows:
        """The rows that are not rejected."""
        return np.flatnonzero(self._codes == 0)

    def report(self, source: str, positions_of: Callable[[Rows], Rows]) -> tuple[RejectedEvents, ...]:
        """positions_of: numbers of rows -> their positions in the source; asked only for rejected rows."""
        return tuple(
            RejectedEvents(source, compact(positions_of(np.flatnonzero(self._codes == code))), text)
            for code, text in enumerate(self._texts, 1)
        )


def pack_rejected(rejected: RejectedEvents) -> bytes:
    """Source and reason as a line of JSON, then the positions as little-endian int64. Never empty."""
    place = json.dumps([rejected.source, rejected.reason]).encode()
    return place + b"\n" + as_array(rejected.positions).tobytes()


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
