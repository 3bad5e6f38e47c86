"""Small pieces of a log together, so that each message to a shard is about many events.

A message costs as much as some hundred events, whatever it holds, and a block becomes one for each shard. So events of
small blocks wait until half a million are together, and small chunks are read one after the other as if they were one.
What is released does not depend on it: pairs are distinct, and which of them count is decided where all pairs of a user
are (`monitor.contributions`, `monitor.replay_weights`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from dp_transforms.logs import id_columns
from dp_transforms.logs.cutting import PARTS_PER_WORKER, cut_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import EventFields, LogChunk, ReadBlock
from dp_transforms.monitor.event_batch import EventBatch, concatenate

JOINED_ROWS = 500_000
_JOINED_BYTES = 32 << 20  # of columns: rows may be wide
_BYTES_PER_ROW = 64  # of chunks that do not say how many rows they have: so 32 MB of them at most


@dataclasses.dataclass(frozen=True)
class JoinedChunks:
    """Chunks that one worker reads, one after the other; at least one."""

    chunks: tuple[LogChunk, ...]


def spread_chunks(chunks: Sequence[LogChunk], fields: EventFields, workers: int) -> list[JoinedChunks]:
    """The same rows, with the same positions, for so many workers at once; the same ones each time.

    Large chunks are cut (`cut_chunks`). Neighbours are joined as long as they have half a million rows at most, and a
    quarter of a worker's share.
    """
    share = sum(chunk.bytes for chunk in chunks) // (PARTS_PER_WORKER * workers) if workers > 1 else None
    joined: list[JoinedChunks] = []
    some: list[LogChunk] = []
    rows = size = 0
    for chunk in cut_chunks(chunks, fields, workers):
        rows, size = rows + _rows(chunk), size + chunk.bytes
        if some and (rows > JOINED_ROWS or (share is not None and size > share)):
            joined.append(JoinedChunks(tuple(some)))
            some, rows, size = [], _rows(chunk), chunk.bytes
        some.append(chunk)
    return [*joined, JoinedChunks(tuple(some))] if some else joined


def read_joined(joined: JoinedChunks, fields: EventFields, windows_per_event: int = 1) -> Iterator[ReadBlock]:
    """The blocks of all chunks. Raises EventFileError.

    windows_per_event: in so many windows an event counts; the more, the fewer events are together.
    """
    blocks = itertools.chain.from_iterable(read_log_chunk(chunk, fields) for chunk in joined.chunks)
    return join_blocks(blocks, max(1, JOINED_ROWS // windows_per_event))


def join_blocks(blocks: Iterable[ReadBlock], most_rows: int) -> Iterator[ReadBlock]:
    """The same blocks, but events of small ones come later, with those of the next ones, once there are ``most_rows``
    of them or 32 MB of columns. So no batch has twice as much, unless the block that it came with has.

    What else blocks say, such as rejected rows, does not wait: it may take more memory than events.
    """
    waiting: list[EventBatch] = []
    rows = size = 0
    for block in blocks:
        count, width = len(block.batch), _bytes(block.batch)
        if count >= most_rows or width >= _JOINED_BYTES:
            yield block
            continue
        if count:
            waiting.append(block.batch)
            rows, size = rows + count, size + width
        if rows < most_rows and size < _JOINED_BYTES:
            yield dataclasses.replace(block, batch=id_columns.empty_batch())
            continue
        batch = concatenate(waiting)
        waiting, rows, size = [], 0, 0
        yield dataclasses.replace(block, batch=batch)
        del batch  # before the next block is read
    if waiting:
        yield ReadBlock(concatenate(waiting), (), 0, 0)


def _rows(chunk: LogChunk) -> int:
    return chunk.bytes // _BYTES_PER_ROW if chunk.events is None else chunk.events


def _bytes(batch: EventBatch) -> int:
    return int(batch.user.nbytes + batch.item.nbytes + batch.time_micros.nbytes)
