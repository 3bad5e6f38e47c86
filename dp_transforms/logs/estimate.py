"""What the first rows of a log say of its size; and whether it has an event in a range, which may take all of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dp_transforms.logs.discovery import cut_chunks, read_log_chunk
from dp_transforms.logs.log_chunk import (
    EventFields,
    LogChunk,
    ReadBlock,
)
from dp_transforms.plan.window_schedule import WindowSchedule

_LOOKED_AT_BLOCKS = 16
_MOST_UNPACKED = 1032  # bytes that deflate makes of one
_PROBES = 32  # places of a log at which an event inside a range is looked for first


def estimate_events(chunks: Sequence[LogChunk], fields: EventFields) -> int:
    """About how many: where a format does not say it, by the first block of the largest chunk. Raises
    EventFileError if it cannot be read."""
    events = 0.0
    for file_format in sorted({chunk.format for chunk in chunks}):
        alike = [chunk for chunk in chunks if chunk.format == file_format]
        rows = [chunk.events for chunk in alike if chunk.events is not None]
        if len(rows) == len(alike):
            events += sum(rows)
        elif block := _first_rows(max(alike, key=lambda chunk: chunk.bytes), fields):
            events += sum(chunk.bytes for chunk in alike) * block.rows / max(1, block.bytes)
    return int(events)


def most_label_bytes(chunks: Sequence[LogChunk]) -> int:
    """What labels may have together, by the sizes of files alone: the first rows say nothing of the last ones."""
    return sum(chunk.bytes * (1 if _is_plain_text(chunk) else _MOST_UNPACKED) for chunk in chunks)


def _is_plain_text(chunk: LogChunk) -> bool:
    return chunk.format in ("csv", "json") and not chunk.path.lower().endswith(".gz")


def count_unless_inside(
    chunks: Sequence[LogChunk], fields: EventFields, schedule: WindowSchedule
) -> tuple[int, int] | None:
    """None if an event is inside the range; else how many events there are, and how many rows that cannot be read. All
    of the log is read only to find that none is. Raises EventFileError."""

    def is_inside(block: ReadBlock) -> bool:
        return bool((schedule.first_window(block.batch.time_micros) >= 0).any())

    places = cut_chunks(chunks, _PROBES)
    for place in places[:: max(1, len(places) // _PROBES)]:
        block = _first_rows(place, fields)
        if block is not None and is_inside(block):
            return None
    events = rejected = 0
    for block in itertools.chain.from_iterable(read_log_chunk(chunk, fields) for chunk in chunks):
        if is_inside(block):
            return None
        events += len(block.batch)
        rejected += block.rows - len(block.batch)
    return events, rejected


def _first_rows(chunk: LogChunk, fields: EventFields) -> ReadBlock | None:
    # Only some blocks: a file may begin with gigabytes of blank lines.
    blocks = itertools.islice(read_log_chunk(chunk, fields), _LOOKED_AT_BLOCKS)
    return next((block for block in blocks if block.rows), None)
