"""Large chunks in parts, so that many workers have work."""

from __future__ import annotations

from collections.abc import Sequence

from dp_transforms.logs.discovery import module_of_format
from dp_transforms.logs.log_chunk import EventFields, LogChunk

PARTS_PER_WORKER = 4  # the last part to end keeps the others waiting


def cut_chunks(chunks: Sequence[LogChunk], fields: EventFields, workers: int) -> list[LogChunk]:
    """The same rows, with the same positions, in chunks for so many workers at once; the same ones each time.

    A chunk is cut if it is more than a quarter of a worker's share: row groups of more than a million rows, Avro files
    that are not in a store, JSON lines, and CSV without line ends in cells; text that is not packed. What was cut is
    not cut again.
    """
    if workers < 2:
        return list(chunks)
    share = max(1, sum(chunk.bytes for chunk in chunks) // (PARTS_PER_WORKER * workers))
    return [part for chunk in chunks for part in _cut(chunk, fields, -(-chunk.bytes // share), workers)]


def _cut(chunk: LogChunk, fields: EventFields, parts: int, workers: int) -> list[LogChunk]:
    if chunk.part is not None:
        parts = min(parts, workers)  # each part of a row group skips what is before it
    if parts < 2 or chunk.span is not None:
        return [chunk]
    cut: list[LogChunk] = module_of_format(chunk.format).cut_chunk(chunk, fields, parts)
    return cut
