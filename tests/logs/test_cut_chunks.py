"""Texts that were cut, small chunks that were joined, and whether an event is inside of a range."""

import dataclasses
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.logs import (
    EventFields,
    count_unless_inside,
    discovery,
    find_log_chunks,
    parquet,
    read_joined,
    spread_chunks,
    text_files,
)
from dp_transforms.logs.discovery import cut_chunks, join_blocks
from dp_transforms.logs.id_columns import empty_batch
from dp_transforms.logs.log_chunk import ReadBlock
from dp_transforms.logs.rejected_events import RejectedEvents
from tests.helpers.event_files_oracle import read_chunks
from tests.helpers.log_files import write_avro, write_csv, write_json, write_parquet

FIELDS = EventFields(time_unit="s")
TYPES = (pa.string(), pa.string(), pa.int64())
ROWS = [
    (f"u{number % 7}", None if number % 11 == 0 else f"i{number % 5}", -1 if number % 13 == 0 else 1000 + number)
    for number in range(400)
]
WRITERS = {
    "csv": write_csv,
    "jsonl": write_json,
    "avro": lambda path, rows: write_avro(path, rows, ["string", ["null", "string"], "long"], "deflate", 200),
    "parquet": lambda path, rows: write_parquet(path, rows, TYPES, 125),
}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BLOCK_ROWS", 7)
    monkeypatch.setattr(discovery, "_LEAST_BYTES", 256)


BAD_LINES = [b"no row", b"{", b"", b" \t\r", b"{}\r", b"\xef\xbb\xbf{}", b'"', b"\xff", b"x" * 300]  # the last too long


def text_of(ending, seed):
    draws = random.Random(seed)
    line = b"u1,i1,5" if ending == "csv" else b'{"user": "u1", "item": "i1", "timestamp": 5}'
    lines = [*BAD_LINES, *(draws.choice((line, line + b"\r", *BAD_LINES)) for _ in range(16))]
    draws.shuffle(lines)
    header = b"\xef\xbb\xbf\n \nuser,item,timestamp\n" if ending == "csv" else b"\xef\xbb\xbf"
    return header + b"\n".join(lines) + draws.choice((b"", b"\n", b"\n\n"))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("seed", range(2))
def test_text_may_be_cut_at_any_byte(tmp_path, ending, seed, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 250)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_files, "_PIECE_BYTES", 17)
    monkeypatch.setattr(discovery, "_LEAST_BYTES", 100)
    path = tmp_path / f"log.{ending}"
    path.write_bytes(text_of(ending, seed))
    (whole,) = find_log_chunks([str(path)], FIELDS)
    found = read_chunks([whole], FIELDS)
    assert found[0]
    assert "line too long" in found[1]
    size, header = path.stat().st_size, 64
    for cut in range(header + seed, size, 29):
        ends = sorted({0, cut, min(size, cut + 1 + seed), size})
        parts = [
            dataclasses.replace(whole, span=(begin, end), bytes=end - begin) for begin, end in itertools.pairwise(ends)
        ]
        assert read_chunks(parts, FIELDS) == found, cut
    for_workers = cut_chunks([whole], 8)
    monkeypatch.setattr(discovery, "_LEAST_BYTES", 10)
    assert cut_chunks(for_workers, 8) == for_workers, "what was cut is not cut again"
    assert read_chunks(for_workers, FIELDS) == found
    assert len(for_workers) == sum(chunk.bytes for chunk in for_workers) // 100 > 1


# Small blocks and small files are joined.


def block_of(count, first, rejected):
    """Users have names of their own, so none can be lost or be there twice."""
    users = [f"u{first + number}" for number in range(count)]
    batch = EventBatch.of_columns(users, ["i"] * count, np.arange(first, first + count)) if count else empty_batch()
    bad = (RejectedEvents("log", tuple(range(rejected)), "broken line"),) if rejected else ()
    return ReadBlock(batch, bad)


def events_of(blocks):
    return sorted(
        event
        for block in blocks
        for event in zip(
            block.batch.user.to_pylist(), block.batch.item.to_pylist(), block.batch.time_micros.tolist(), strict=True
        )
    )


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([3, 3, 3, 3], [0, 0, 0, 12]),
        ([9, 9, 9], [0, 18, 0, 9]),
        ([10, 3, 40, 6, 1], [10, 0, 40, 0, 10]),
        ([0, 4, 0, 6, 0], [0, 0, 0, 10, 0]),
        ([0, 0], [0, 0]),
        ([1] * 25, [*[0] * 9, 10, *[0] * 9, 10, *[0] * 5, 5]),
    ],
)
def test_events_of_small_blocks_wait_and_nothing_else_does(sizes, joined):
    firsts = np.cumsum([0, *sizes]).tolist()
    blocks = [block_of(size, first, first % 3) for size, first in zip(sizes, firsts, strict=False)]
    found = list(join_blocks(blocks, 10))
    assert [len(block.batch) for block in found] == joined
    assert events_of(found) == events_of(blocks)
    said = [block.rejected for block in found]
    assert said[: len(blocks)] == [block.rejected for block in blocks]
    assert said[len(blocks) :] in ([], [()])


@pytest.mark.parametrize("workers", [1, 3])
def test_small_files_are_joined_as_far_as_workers_have_enough_and_read_as_they_are(tmp_path, workers, monkeypatch):
    monkeypatch.setattr(discovery, "JOINED_ROWS", 100)
    monkeypatch.setattr(discovery, "_BYTES_PER_ROW", 20)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 300)
    for number, ending in itertools.product(range(15), WRITERS):
        WRITERS[ending](tmp_path / f"{number:02}.{ending}", ROWS[10 * number : 10 * number + 6 + number % 5])
    chunks = find_log_chunks([str(tmp_path)], FIELDS)
    spread = spread_chunks(chunks, workers)
    assert [chunk for joined in spread for chunk in joined.chunks] == chunks, "in their order"
    assert spread_chunks(chunks, workers) == spread, "what was begun ahead is found again"
    assert 4 * workers <= len(spread) <= len(chunks) // 2
    share = sum(chunk.bytes for chunk in chunks) // (4 * workers) if workers > 1 else 1 << 30

    def is_small(some):
        rows = sum(chunk.bytes // 20 if chunk.events is None else chunk.events for chunk in some)
        return rows <= 100 and sum(chunk.bytes for chunk in some) <= share

    assert all(is_small(joined.chunks) or len(joined.chunks) == 1 for joined in spread)
    assert not any(is_small((*joined.chunks, after.chunks[0])) for joined, after in itertools.pairwise(spread))
    events, rejected = read_chunks(chunks, FIELDS)
    blocks = [block for joined in spread for block in read_joined(joined, FIELDS)]
    assert events_of(blocks) == sorted(events)
    found = [at for block in blocks for part in block.rejected for at in part.positions]
    assert sorted(found) == sorted(itertools.chain(*rejected.values()))


@pytest.mark.parametrize("place", [None, 0, 420, 999])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_event_inside_a_range_is_found_wherever_it_is(tmp_path, ending, place):
    """Among rows that cannot be read, in one of two files; and that there is none."""
    rows = [("u", "i" if row % 4 else "", 999 if row % 2 else 4600) for row in range(1_000)]
    if place is not None:
        rows[place] = ("u", "i", 1000 + place)
    for name, some in (("a", rows[:10]), ("b", rows[10:])):
        WRITERS[ending](tmp_path / f"{name}.{ending}", some)
    found = count_unless_inside(find_log_chunks([str(tmp_path)], FIELDS), FIELDS, WindowSchedule.fixed(1000, 4600, 60))
    assert found == ((750, 250) if place is None else None)
