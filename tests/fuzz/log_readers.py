"""Readers of logs: files, folders of a stream, and where in a folder a stream was."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_transforms.core.event_batch import MAX_ID_BYTES, EventBatch
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields, EventFileError, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.log_chunk import ReadBlock
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.log_folder import LogFolder
from tests.fuzz import format_mutators, log_samples
from tests.fuzz.reader import CELL_MARKS, FaultError, Reader, Sample, check_words, place_file

_FIRST_MICROS, _END_MICROS = -62_135_596_800_000_000, 253_402_300_800_000_000
_UNREAD = (StreamError,)
_ID_TYPE = pa.dictionary(pa.int32(), pa.string())


def check_batch(batch: EventBatch) -> None:
    """What every batch holds to, whatever it was read from."""
    for column in (batch.user, batch.item):
        if column.type != _ID_TYPE or column.null_count or column.dictionary.null_count:
            raise FaultError("batch", f"a column of type {column.type} with {column.null_count} nulls")
        column.validate(full=True)
        column.dictionary.validate(full=True)
        lengths = pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False)
        if len(lengths) and not 1 <= lengths.min() <= lengths.max() <= MAX_ID_BYTES:
            raise FaultError("batch", f"ids of {lengths.min()} to {lengths.max()} bytes")
        for text in column.dictionary.to_pylist():
            text.encode()
    if batch.time_micros.dtype != np.int64 or len(batch.time_micros) != len(batch.user):
        raise FaultError("batch", "times of another type or number")


def check_times(batch: EventBatch) -> None:
    times = batch.time_micros
    if len(times) and not _FIRST_MICROS <= times.min() <= times.max() < _END_MICROS:
        raise FaultError("times", f"from {times.min()} to {times.max()}")


def check_rejected(rejected: tuple[RejectedEvents, ...], first: int, last: float) -> int:
    """How many there are."""
    seen: set[int] = set()
    for part in rejected:
        check_words(part.reason, CELL_MARKS)
        positions = list(part.positions)
        if not positions or any(type(position) is not int for position in positions):
            raise FaultError("positions", f"{part.reason}: {positions[:5]}")
        if not first <= min(positions) <= max(positions) <= last:
            raise FaultError("positions", f"{part.reason}: {min(positions)} to {max(positions)}, of {first} to {last}")
        if len(set(positions)) < len(positions) or seen & set(positions):
            raise FaultError("positions", f"{part.reason}: the same one twice")
        seen.update(positions)
    return len(seen)


def events_of(batch: EventBatch) -> list[tuple[str, str, int]]:
    return list(zip(batch.user.to_pylist(), batch.item.to_pylist(), batch.time_micros.tolist(), strict=True))


def _check_block(block: ReadBlock, last_position: float) -> None:
    check_batch(block.batch)
    check_times(block.batch)
    rejected = check_rejected(block.rejected, 1, last_position)
    if block.rows != len(block.batch) + rejected:
        raise FaultError("rows", f"{block.rows} rows: {len(block.batch)} read and {rejected} rejected")
    for part in block.rejected:
        if not part.source.isprintable():
            raise FaultError("words", "a source that is not printable")


def read_log(sample: Sample, path: str) -> Any:
    """All of a log, with every check; what was read, to compare."""
    fields: EventFields = sample.context
    seen: list[Any] = []
    positions: set[int] = set()
    for chunk in find_log_chunks([path], fields):
        last = float("inf") if chunk.events is None else chunk.first_row + chunk.events
        blocks = []
        for block in read_log_chunk(chunk, fields):
            _check_block(block, last)
            blocks.append(block)
        rows, shares = sum(block.rows for block in blocks), [block.bytes for block in blocks]
        if chunk.events not in (None, rows):
            raise FaultError("rows", f"{rows} rows of the {chunk.events} that the file tells")
        if sum(shares) != chunk.bytes or min(shares, default=0) < 0:
            raise FaultError("shares", f"{shares} of {chunk.bytes}")
        for block in blocks:
            for part in block.rejected:
                if positions & set(part.positions):
                    raise FaultError("positions", f"{part.reason}: in two blocks")
                positions.update(part.positions)
            seen += [events_of(block.batch), [(part.reason, tuple(part.positions)) for part in block.rejected]]
    return seen


def count_rows(sample: Sample, path: str) -> Any:
    """All of a log, and nothing that takes memory or time beside: for measuring."""
    chunks = find_log_chunks([path], sample.context)
    return sum(block.rows for chunk in chunks for block in read_log_chunk(chunk, sample.context))


def read_parquet(sample: Sample, path: str) -> Any:
    """`read_log`, and what it accepts pyarrow's own reader accepts.

    Which refuses a file for columns beside those that it is asked for; so files that have others are not compared.
    """
    seen = read_log(sample, path)
    if len(pq.read_schema(path)) > len(sample.context.names):
        return seen
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read(columns=list(sample.context.names), use_threads=False).num_rows
            claimed = file.metadata.num_rows
    except Exception as error:  # pyarrow names no common type of its errors
        raise FaultError("lenient", f"pyarrow refuses it with {type(error).__name__}") from None
    if rows != claimed:
        raise FaultError("lenient", f"pyarrow reads {rows} rows of {claimed}")
    return seen


_FILE_TIME = 1_506_829_287_000_000_000
_GOOD = b"".join(log_samples.json_line("good-QZX", "good-QZX", time) + b"\n" for time in log_samples.TIMES)


def _place_folder(folder: str, name: str, sample: Sample, data: bytes) -> str:
    """A folder in which good files come before and behind the mutated input."""
    path = os.path.join(folder, name)
    os.mkdir(path)
    for file, content in (("a.jsonl", _GOOD), (f"b{sample.ending}", data), ("c.jsonl", _GOOD)):
        with open(os.path.join(path, file), "wb") as handle:
            handle.write(content)
    return path


def _folder_of(sample: Sample, path: str) -> LogFolder:
    return LogFolder(path, sample.context, settle_seconds=0.1)


def _read_folder(sample: Sample, path: str) -> Any:
    """To the end, and from each position on to the end again: others' rows are there whatever the changed one holds."""
    try:
        return _poll_folder(sample, path)
    finally:
        shutil.rmtree(path)


def _poll_folder(sample: Sample, path: str) -> Any:
    reader = _folder_of(sample, path).partitions()[0].open()
    events: list[Any] = []
    positions: list[tuple[str, int]] = []
    position, is_at_end, polls = None, False, 0
    while not is_at_end:
        polled = reader.poll(position, max_records=20, max_seconds=0)
        _check_polled(polled)
        events += events_of(polled.batch)
        position, is_at_end, polls = polled.position, polled.is_at_end, polls + 1
        positions.append((position, len(events)))
        if polls > 1000:
            raise FaultError("folder", "1,000 polls and no end")
    reader.close()
    good = sum(event[:2] == ("good-QZX", "good-QZX") for event in events)
    # Of files whose times are numbers in a unit, or in a form of their own, the texts of the good ones are rejected.
    is_iso = sample.context.time_unit is None and sample.context.time_format is None
    expected = 2 * log_samples.ROWS if is_iso else 0
    if good < expected:
        raise FaultError("others", f"{good} events of others, of {expected}")
    at, before = positions[len(positions) // 2]
    again, behind = _folder_of(sample, path).partitions()[0].open(), []
    polled = again.poll(at, max_records=10**6, max_seconds=0)
    behind += events_of(polled.batch)
    while not polled.is_at_end:
        polled = again.poll(polled.position, max_records=10**6, max_seconds=0)
        behind += events_of(polled.batch)
    again.close()
    if behind != events[before:]:
        raise FaultError("again", f"{len(behind)} events behind a position, not {len(events) - before}")
    return events


def _check_polled(polled: Any) -> None:
    check_batch(polled.batch)
    check_times(polled.batch)
    if len(polled.arrival_micros) != len(polled.batch):
        raise FaultError("folder", "arrivals of another number")
    for part in polled.rejected:
        check_words(part.reason, CELL_MARKS)


def _folder_samples() -> list[Sample]:
    kinds = (log_samples.parquet_samples()[:3], log_samples.avro_samples()[:4], log_samples.csv_samples()[:3])
    more = (log_samples.json_samples()[:3], log_samples.gzip_samples()[:4])
    return [sample for samples in (*kinds, *more) for sample in samples]


def _place_position(folder: str, _name: str, _sample: Sample, data: bytes) -> tuple[str, bytes]:
    """One folder for all: it is made once, and old enough when the first position is read."""
    path = os.path.join(folder, "positions")
    if not os.path.isdir(path):
        os.mkdir(path)
        for name in ("a.jsonl", "c.jsonl"):
            with open(os.path.join(path, name), "wb") as file:
                file.write(_GOOD)
            os.utime(os.path.join(path, name), ns=(_FILE_TIME, _FILE_TIME))
        time.sleep(0.2)
    return path, data


def _read_position(sample: Sample, placed: tuple[str, bytes]) -> Any:
    path, data = placed
    reader = _folder_of(sample, path).partitions()[0].open()
    polled = reader.poll(data.decode("utf-8", "surrogateescape"), max_records=1000, max_seconds=0)
    _check_polled(polled)
    again = reader.poll(polled.position, max_records=1000, max_seconds=0)
    reader.close()
    return [events_of(polled.batch), events_of(again.batch)]


def _position_samples() -> list[Sample]:
    fields: dict[str, object] = {"mtime_ns": _FILE_TIME, "size": len(_GOOD), "blocks": 1}
    begun = {**fields, "events": 24, "is_done": False, "ctime_ns": _FILE_TIME, "name": "a.jsonl"}
    done = {**begun, "is_done": True, "blocks": 2}
    at_begin = dict.fromkeys(("ctime_ns", "mtime_ns", "size", "blocks", "events"), 0) | {"name": "", "is_done": True}
    return [
        Sample(f"position {index}", json.dumps(one).encode(), "", format_mutators.JSON, EventFields())
        for index, one in enumerate((begun, done, at_begin))
    ]


def log_readers() -> list[Reader]:
    of_file = {"refusals": (EventFileError,), "place": place_file}
    return [
        Reader("parquet", log_samples.parquet_samples, read=read_parquet, cost=0.7, **of_file),
        Reader("avro", log_samples.avro_samples, read=read_log, cost=0.3, **of_file),
        Reader("csv", log_samples.csv_samples, read=read_log, cost=1, **of_file),
        Reader("json", log_samples.json_samples, read=read_log, cost=1, **of_file),
        Reader("gzip", log_samples.gzip_samples, read=read_log, cost=0.5, **of_file),
        Reader("folder", _folder_samples, _UNREAD, _place_folder, _read_folder, settle_seconds=0.12, cost=10),
        Reader("folder-position", _position_samples, (StreamError,), _place_position, _read_position, cost=0.5),
    ]
