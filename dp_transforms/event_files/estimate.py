"""Guesses from the first rows of a log: how large it is, for the check of memory, and in which unit its times count."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from dp_transforms.event_files.discovery import read_log_chunk
from dp_transforms.event_files.log_chunk import EventFields, EventFileError, LogChunk, ReadBlock
from dp_transforms.event_files.times import MICROS_PER_UNIT

_SHORT_LABEL = 32  # bytes; the cost of an event includes such labels
_GROUPS_OF_WINDOWS = 128
_LOOKED_AT_BLOCKS = 16


@dataclasses.dataclass(frozen=True)
class LogEstimate:
    """events: about how many. long_label_bytes: about how many bytes of long item labels they carry."""

    events: int
    long_label_bytes: int


def estimate_log(chunks: Sequence[LogChunk], fields: EventFields) -> LogEstimate:
    """Reads the first block of the largest chunk of each format. Raises EventFileError if it cannot be read."""
    events = long_label_bytes = 0.0
    for file_format in sorted({chunk.format for chunk in chunks}):
        alike = [chunk for chunk in chunks if chunk.format == file_format]
        size = sum(chunk.bytes for chunk in alike)
        block = _first_rows(max(alike, key=lambda chunk: chunk.bytes), fields)
        if block is None:
            continue
        rows = [chunk.events for chunk in alike if chunk.events is not None]
        count = sum(rows) if len(rows) == len(alike) else size * block.rows / max(1, block.bytes)
        events += count
        long_label_bytes += count * _long_label_bytes(block) / block.rows
    return LogEstimate(int(events), int(long_label_bytes))


def unit_hint(chunks: Sequence[LogChunk], fields: EventFields) -> str | None:
    """Words on another unit, if with it the first rows are of 1990 to 2100, and are not with the declared one; for the
    operator, where nearly no row of a run was read or was in its range."""
    declared = fields.time_unit
    if declared not in MICROS_PER_UNIT or not chunks:
        return None
    for unit in (declared, *(unit for unit in MICROS_PER_UNIT if unit != declared)):
        try:
            block = _first_rows(chunks[0], dataclasses.replace(fields, time_unit=unit))
        except (EventFileError, OSError):  # it was said already
            return None
        if block is not None and _is_of_our_days(block):
            return None if unit == declared else f"perhaps the unit is {unit}: --time-unit {unit}"
    return None


def _is_of_our_days(block: ReadBlock) -> bool:
    years = block.batch.time_micros.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return bool(len(years)) and bool(((years >= 1990) & (years < 2100)).sum() > block.rows / 2)


def _first_rows(chunk: LogChunk, fields: EventFields) -> ReadBlock | None:
    # Only some blocks: a file may begin with gigabytes of blank lines.
    blocks = itertools.islice(read_log_chunk(chunk, fields), _LOOKED_AT_BLOCKS)
    return next((block for block in blocks if block.rows), None)


def _long_label_bytes(block: ReadBlock) -> float:
    """Counted once for each event of this block, but at most once for each group of windows."""
    excess = np.maximum(0, pc.binary_length(block.batch.item.dictionary).to_numpy(zero_copy_only=False) - _SHORT_LABEL)
    by_event = float(excess[block.batch.item.indices.to_numpy()].sum())
    return min(by_event, float(excess.sum()) * _GROUPS_OF_WINDOWS)
