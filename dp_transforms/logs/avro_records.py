"""Blocks of any size, record by record. Cells that are too long for an id are skipped and never held in memory.

Avro writes the length of a text before it, so a text that is too long costs only its record. Nothing else is skipped:
a block must not exceed MAX_BLOCK_BYTES, or the caller's limit, without such cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fastavro

from dp_transforms.logs.avro_schema import EventSchema
from dp_transforms.monitor.event_ids import MAX_ID_BYTES
from dp_transforms.stores.avro_container import BlockTooLargeError

MAX_BLOCK_BYTES = 16 << 20  # without the long cells; writers make blocks of 16 kB to a few MB
_RECORDS_AT_ONCE = 4096
_BYTES_AT_ONCE = 1 << 20


def decode_one_by_one(
    pieces: Iterator[bytes], count: int, schema: EventSchema, most_bytes: int | None = None
) -> Iterator[list[dict[str, Any]]]:
    """The records of a block, some at a time, with only the fields ``user``, ``item`` and ``time``.

    pieces: the unpacked bytes of the block. count: the number of its records, as the file claims it. most_bytes: limit
    of the block without its long cells, each of which takes about a microsecond; None: MAX_BLOCK_BYTES.
    Raises BlockTooLargeError, and any error for a block that does not hold exactly so many records.
    """
    writer = fastavro.parse_schema(schema.record)
    used = [field for field in schema.record["fields"] if field["name"] in ("user", "item", "time")]
    reader = fastavro.parse_schema({**schema.record, "fields": used})
    cells = _Cells(pieces, MAX_BLOCK_BYTES if most_bytes is None else most_bytes)
    records: list[dict[str, Any]] = []
    given = 0
    for _ in range(count):
        records.append(fastavro.schemaless_reader(cells, writer, reader))
        if len(records) == _RECORDS_AT_ONCE or cells.returned - given > _BYTES_AT_ONCE:
            yield records
            records, given = [], cells.returned
    if not cells.is_at_end():
        raise ValueError("not the records claimed")
    if records:
        yield records


class _LongCell(bytes):
    """Replaces a cell that is longer than an id may be, so that it is rejected. Its ``len`` is that of the cell."""

    _length = 0

    @classmethod
    def of_length(cls, length: int) -> _LongCell:
        cell = cls(MAX_ID_BYTES + 1)
        cell._length = length
        return cell

    def __len__(self) -> int:
        return self._length


class _Cells:
    """The file that fastavro reads. It returns the bytes of the block, and a `_LongCell` in place of each long cell.

    returned: how many bytes it has returned.
    """

    def __init__(self, pieces: Iterator[bytes], most_bytes: int) -> None:
        self._pieces, self._most_bytes = pieces, most_bytes
        self._piece, self._at = b"", 0
        self._kept = 0  # bytes of the block, without those skipped
        self.returned = 0

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes. Raises ValueError if there are fewer."""
        begin, end = self._at, self._at + size
        if begin <= end <= len(self._piece) and size <= MAX_ID_BYTES:
            self._at = end
            self.returned += size
            return self._piece[begin:end]
        if size < 0:
            raise ValueError("negative length")
        if size > MAX_ID_BYTES:
            self._skip(size)
            self.returned += MAX_ID_BYTES + 1
            return _LongCell.of_length(size)
        parts = []
        left = size
        while left:
            if self._at == len(self._piece):
                self._next_piece()
            part = self._piece[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        self.returned += size
        return b"".join(parts)

    def is_at_end(self) -> bool:
        return self._at == len(self._piece) and not any(self._pieces)

    def _skip(self, size: int) -> None:
        while size:
            if self._at == len(self._piece):
                self._next_piece()
            step = min(size, len(self._piece) - self._at)
            self._at += step
            self._kept -= step
            size -= step

    def _next_piece(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise ValueError("a record that ends after its block")
        self._piece, self._at = piece, 0
        self._kept += len(piece)
        if self._kept > self._most_bytes + len(piece):
            raise BlockTooLargeError
