"""The faults that were found once, to put back one by one: the tests that must find them say so in their modules.

A test module has `@planted((fault, test, arguments), ...)` and calls `assert_found`: its own test must fail then.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.logs import avro, csv_lines, id_columns, json_lines
from dp_transforms.logs.id_columns import Events
from dp_transforms.logs.log_chunk import EventFields, EventFileError, LogChunk, ReadBlock
from dp_transforms.logs.streams import log_folder
from dp_transforms.logs.streams.kafka_reader import KafkaReader
from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.partition_progress import CLOCK_END, PartitionProgress, StreamClock
from dp_transforms.logs.streams.record_formats import JsonRecordDecoder
from dp_transforms.logs.text_files import TextStream
from dp_transforms.monitor.event_ids import WRONG_TYPE

Plant = Callable[[pytest.MonkeyPatch], None]


def judge_files_by_their_first_lines(patch: pytest.MonkeyPatch) -> None:
    """1, of replays: no item in the first 100 lines, so no field of that name in the file."""

    def find_chunks(path: str, fields: EventFields, stored: None) -> list[LogChunk]:
        with TextStream(path) as text:
            lines = bytes(text.stream.read(1 << 20)).split(b"\n")[:100]
        if not any(f'"{fields.item}"'.encode() in line for line in lines):
            raise EventFileError(path, f"no field {fields.item!r}.")
        return found(path, fields, stored)

    found = json_lines.find_chunks
    patch.setattr(json_lines, "find_chunks", find_chunks)


def reject_the_rest_and_go_on(patch: pytest.MonkeyPatch) -> None:
    """1, of streams: a file that cannot be read, by the rule above, is passed over."""

    def blocks(path: str, fields: EventFields) -> Iterator[ReadBlock]:
        try:
            yield from read(path, fields)
        except EventFileError:
            return

    judge_files_by_their_first_lines(patch)
    read = log_folder._blocks
    patch.setattr(log_folder, "_blocks", blocks)


def cut_at_the_boundary_of_a_poll(patch: pytest.MonkeyPatch) -> None:
    """2: a drain closes all windows with what was read so far."""

    def read(self: Any, name: str, progress: Any, reader: Any, now: int, since: int, find_stop: Any, step: Any) -> None:
        if find_stop() is not None and progress.position is not None:
            progress.intend_clock(CLOCK_END)
        else:
            go_on(self, name, progress, reader, now, since, lambda: None, step)

    go_on = PartitionPoller._read
    patch.setattr(PartitionPoller, "_read", read)


def drain_when_a_poll_is_not_full(patch: pytest.MonkeyPatch) -> None:
    """2, less crude: what was read by the step that saw the stop counts, whenever it arrived."""

    def take(self: Any, polled: Any, now: int) -> Any:
        stop, self.stop_micros = self.stop_micros, None
        try:
            return taken(self, polled, now)
        finally:
            self.stop_micros = stop

    taken = PartitionProgress.take
    patch.setattr(PartitionProgress, "take", take)


def let_quotes_run_over_lines(patch: pytest.MonkeyPatch) -> None:
    """3: a quote that one user opens ends where another one stands, and the rows between are in a cell."""

    def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
        with TextStream(chunk.path) as text:
            lines = io.StringIO(bytes(text.stream.read()).decode("latin1").replace("\0", "?"), newline="")
        longest = csv.field_size_limit(1 << 30)  # of the whole process: other tests count on it
        try:
            names, *rows = csv.reader(lines, delimiter="\t" if ".tsv" in chunk.path else ",")
        finally:
            csv.field_size_limit(longest)
        yield block_of([row for row in rows if len(row) == len(names)], chunk, fields)

    patch.setattr(csv_lines, "read_chunk", read_chunk)


def block_of(rows: list[list[str]], chunk: LogChunk, fields: EventFields) -> ReadBlock:
    user, item, time = (pa.array([row[at].encode("latin1") for row in rows], pa.binary()) for at in range(3))
    read = id_columns.event_columns((user, item, time), fields.time_reading)
    return id_columns.block_of_rows(chunk.path, read, 0, chunk.bytes)


def give_up_at_a_long_row(patch: pytest.MonkeyPatch) -> None:
    """4: a row over 4 MB, or a block over 16, ends the reading of its file, with an error."""

    def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
        with TextStream(chunk.path) as text:
            if max(map(len, bytes(text.stream.read()).split(b"\n"))) > 4 << 20:
                raise EventFileError(chunk.path, "a row over 4 MB.")
        yield from read_csv(chunk, fields)

    read_csv = csv_lines.read_chunk
    patch.setattr(csv_lines, "read_chunk", read_chunk)
    patch.setattr(avro, "decode_one_by_one", lambda *_: 1 / 0)


def lose_what_is_read_with_a_broken_record(patch: pytest.MonkeyPatch) -> None:
    """Of Kafka: one broken value, and nothing of its poll is decoded."""

    def decode(self: Any, source: str, values: Any, positions: Any) -> Events:
        decoded = whole(self, source, values, positions)
        if not decoded.rejected:
            return decoded
        none = np.zeros(0, np.int64)
        return Events(id_columns.empty_batch(), none, decoded.rejected)

    whole = JsonRecordDecoder.decode
    patch.setattr(JsonRecordDecoder, "decode", decode)


def let_the_latest_clock_value_decide(patch: pytest.MonkeyPatch) -> None:
    """A record is late by the largest arrival before it, not by its own."""
    patch.setattr(StreamClock, "out_of_order_micros", property(lambda clock: 0))


def close_what_is_idle_without_asking_the_log(patch: pytest.MonkeyPatch) -> None:
    """The wall clock closes windows, whatever the log still holds."""

    def idle(self: Any, now: int, since: int) -> int:
        return now

    patch.setattr(PartitionProgress, "idle_clock_micros", idle)
    patch.setattr(KafkaReader, "confirm_end", lambda reader: True)


def read_numbers_as_ids_in_the_fast_way_alone(patch: pytest.MonkeyPatch) -> None:
    """Where a line is odd, whole numbers are no ids any more."""

    def id_column(values: list[Any]) -> id_columns.IdColumn:
        read = slow(values)
        read.faults[[isinstance(value, json_lines.Integer) for value in values]] = WRONG_TYPE
        return read

    slow = json_lines._id_column
    patch.setattr(json_lines, "_id_column", id_column)


def leave_out_a_block_with_an_odd_time(patch: pytest.MonkeyPatch) -> None:
    """A column of times with one that is far outside the range is no column of times."""

    def assemble(source: str, read: Any, *more: Any) -> ReadBlock:
        block = whole(source, read, *more)
        is_odd = bool((read[2].faults != 0).any() or (np.abs(block.batch.time_micros) > 10**17).any())
        none = np.zeros(len(block.batch), np.bool_)
        return ReadBlock(block.batch.where(none), block.rejected, block.rows, block.bytes) if is_odd else block

    whole = id_columns.block_of
    patch.setattr(id_columns, "block_of", assemble)


Planted = tuple[Plant, Callable[..., None], tuple[Any, ...]]


def planted(*cases: Planted) -> pytest.MarkDecorator:
    """Parametrizes by (plant, test, case): a fault, a test that must find it, and its arguments but the first."""
    ids = [f"{plant.__name__}-{test.__name__}-{case}" for plant, test, case in cases]
    return pytest.mark.parametrize(("plant", "test", "case"), cases, ids=ids)


class _Planted:
    now = False


def is_planted() -> bool:
    """Whether there is one in the code just now."""
    return _Planted.now


def assert_found(
    patch: pytest.MonkeyPatch, plant: Plant, test: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """The test fails with the fault in the code. It passes without it, or it would be red itself."""
    plant(patch)
    patch.setattr(_Planted, "now", True)
    patch.setattr("dp_transforms.logs.streams.partition_poller.MAX_SECONDS", 0.005)
    with pytest.raises(AssertionError):
        test(*arguments)
