"""Chunks that were cut, and small ones joined: the same events, positions, errors and pairs, in bounded memory."""

import dataclasses
import itertools
import os
import pathlib
import random
import re
import weakref

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.logs import (
    EventFields,
    EventFileError,
    avro,
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
from tests.helpers.event_files_oracle import expected, read_chunks, write_avro, write_csv, write_json, write_parquet

FIELDS = EventFields(time_unit="s")
ROWS = [
    (f"u{number % 7}", None if number % 11 == 0 else f"i{number % 5}", -1 if number % 13 == 0 else 1000 + number)
    for number in range(400)
]
BAD_LINES = (
    b"no row",
    b"{",
    b"",
    b" \t\r",
    b"{}\r",
    b"\xef\xbb\xbf{}",
    b'"',
    b"\xff",
    b"x" * 300,
)  # the last is too long


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parquet, "_LEAST_ROWS_TO_CUT", 100)
    monkeypatch.setattr(parquet, "MAX_BLOCK_ROWS", 7)
    monkeypatch.setattr(parquet, "_JOINED_ROWS", 40)
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 256)
    monkeypatch.setattr(text_files, "_MOST_BYTES", 1 << 12)
    monkeypatch.setattr(text_files, "_counted", {})


def write_log(folder, ending):
    path = folder / f"log.{ending}"
    if ending == "parquet":
        return write_parquet(path, ROWS, (pa.string(), pa.string(), pa.int64()))
    if ending == "csv":
        return write_csv(path, ROWS)
    if ending == "jsonl":
        return write_json(path, ROWS)
    return write_avro(path, ROWS, ["string", ["null", "string"], "long"], ending.partition(".")[0], 200)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "null.avro", "deflate.avro"])
@pytest.mark.parametrize("workers", [2, 3, 8])
def test_cut_chunks_have_the_rows_of_the_whole(tmp_path, ending, workers):
    chunks = find_log_chunks([write_log(tmp_path, ending)], FIELDS)
    cut = cut_chunks(chunks, workers)
    assert len(cut) == min(workers, 4) if ending == "parquet" else len(cut) > workers
    found = read_chunks(chunks, FIELDS)
    assert read_chunks(cut, FIELDS) == found
    assert len(found[0]) > 300
    assert sum(chunk.bytes for chunk in cut) == os.path.getsize(chunks[0].path)
    assert cut_chunks(chunks, workers) == cut, "what was begun ahead is found again"
    assert cut_chunks(cut, workers) == cut
    assert cut_chunks(chunks, 1) == chunks
    middle = read_chunks([cut[len(cut) // 2]], FIELDS)[1]
    assert middle, "a part alone has its positions in the file too"
    assert all(set(positions) < set(found[1][reason]) for reason, positions in middle.items())


def text_of(ending, seed):
    draws = random.Random(seed)
    line = b"u1,i1,5" if ending == "csv" else b'{"user": "u1", "item": "i1", "timestamp": 5}'
    lines = [*BAD_LINES, *(draws.choice((line, line + b"\r", *BAD_LINES)) for _ in range(16))]
    draws.shuffle(lines)
    header = b"\xef\xbb\xbf\n \nuser,item,timestamp\n" if ending == "csv" else b"\xef\xbb\xbf"
    return header + b"\n".join(lines) + draws.choice((b"", b"\n", b"\n\n"))


def test_parts_of_a_row_group_count_on_in_its_file(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), pa.int64()), 250)
    cut = cut_chunks(find_log_chunks([path], FIELDS), 4)
    assert [chunk.groups for chunk in cut] == [range(1)] * 4 + [range(1, 2)] * 4
    row = 0
    for chunk in cut:
        rows = ROWS[row : row + (chunk.events or 0)]
        assert read_chunks([chunk], FIELDS) == expected(rows, "s", row + 1)
        row += len(rows)
    assert row == len(ROWS)


def test_lines_of_an_exchanged_file_are_counted_again(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n" * 100)
    assert [text_files.line_ends_before(str(path), None, at) for at in (50, 80, 20)] == [50, 80, 20]
    path.write_bytes(b"-" * 99)
    assert text_files.line_ends_before(str(path), None, 80) == 0


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("seed", range(2))
def test_text_may_be_cut_at_any_byte(tmp_path, ending, seed, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 250)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_files, "_PIECE_BYTES", 17)
    path = tmp_path / f"log.{ending}"
    path.write_bytes(text_of(ending, seed))
    (whole,) = find_log_chunks([str(path)], FIELDS)
    found = read_chunks([whole], FIELDS)
    assert found[0]
    assert "line too long" in found[1]
    size, header = path.stat().st_size, 64
    for cut in range(header + seed, size, 13):
        ends = sorted({0, cut, min(size, cut + 1 + seed), size})
        parts = [
            dataclasses.replace(whole, span=(begin, end), bytes=end - begin) for begin, end in itertools.pairwise(ends)
        ]
        assert read_chunks(parts, FIELDS) == found, cut
        assert read_chunks(parts[::-1], FIELDS)[1] == found[1], "lines are counted again where a part before is read"


def test_a_line_over_many_parts_is_read_once(tmp_path):
    path = tmp_path / "log.jsonl"
    event = b'{"user": "u1", "item": "i1", "timestamp": 5}\n'
    path.write_bytes(event + b" " * 5000 + event + b"no row")
    chunks = find_log_chunks([str(path)], FIELDS)
    cut = cut_chunks(chunks, 3)
    assert len(cut) > 10
    assert read_chunks(cut, FIELDS) == ([("u1", "i1", 5_000_000)] * 2, {"broken line": [3]})


def test_a_damaged_part_is_an_error_that_names_the_row_of_the_file(tmp_path):
    path = pathlib.Path(write_log(tmp_path, "null.avro"))
    content = bytearray(path.read_bytes())
    span = cut_chunks(find_log_chunks([str(path)], FIELDS), 2)[3].span
    assert span is not None
    content[span[1] - 1] ^= 1  # of the sync marker at its end
    path.write_bytes(content)
    cut = cut_chunks(find_log_chunks([str(path)], FIELDS), 2)
    part = cut[3]
    read_chunks([*cut[:3], *cut[4:]], FIELDS)
    with pytest.raises(EventFileError, match="damaged after row") as error:
        read_chunks([part], FIELDS)
    row = int(re.findall(r"row (\d+)", str(error.value))[0])
    assert part.first_row < row < part.first_row + (part.events or 0)


def test_an_avro_file_that_is_damaged_or_changed_stays_whole(tmp_path):
    path = pathlib.Path(write_log(tmp_path, "null.avro"))
    chunks = find_log_chunks([str(path)], FIELDS)
    assert len(avro.cut_chunk(chunks[0], 4)) > 3
    content = path.read_bytes()
    for changed in (content + b"\x02", content[:-1], content[: len(content) // 2], b"", content + content[-20:]):
        path.write_bytes(changed)
        assert avro.cut_chunk(chunks[0], 4) == chunks
    path.unlink()
    assert avro.cut_chunk(chunks[0], 4) == chunks


def test_a_row_group_that_ends_early_is_an_error(tmp_path):
    (chunk,) = find_log_chunks([write_log(tmp_path, "parquet")], FIELDS)
    late = [
        dataclasses.replace(chunk, span=span, first_row=span[0], events=span[1] - span[0])
        for span in ((390, 410), (390, 399), (200, 402))
    ]
    for part in (late[0], late[2]):
        with pytest.raises(EventFileError, match="damaged after row 400"):
            read_chunks([part], FIELDS)
    assert read_chunks([late[1]], FIELDS) == expected(ROWS[390:399], "s", 391)


@pytest.mark.parametrize("place", [None, 0, 1_700, 3_999])
@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_an_event_inside_a_range_is_found_wherever_it_is(tmp_path, ending, place):
    """Among rows that cannot be read, in one of two files; and that there is none."""
    rows = [("u", "i" if row % 4 else "", 999 if row % 2 else 4600) for row in range(4_000)]
    if place is not None:
        rows[place] = ("u", "i", 1000 + place % 3600)
    for name, some in (("a", rows[:10]), ("b", rows[10:])):
        path = tmp_path / f"{name}.{ending}"
        if ending == "parquet":
            write_parquet(path, some, (pa.string(), pa.string(), pa.int64()), 500)
        else:
            {"csv": write_csv, "json": write_json}[ending](path, some)
    chunks = find_log_chunks([str(tmp_path)], FIELDS)
    found = count_unless_inside(chunks, FIELDS, WindowSchedule.fixed(1000, 4600, 60))
    assert found == ((3_000, 1_000) if place is None else None)


LIMIT = 10
WRITERS = {
    "csv": write_csv,
    "jsonl": write_json,
    "avro": lambda path, rows: write_avro(path, rows, ["string", ["null", "string"], "long"], "deflate", 200),
    "parquet": lambda path, rows: write_parquet(path, rows, (pa.string(), pa.string(), pa.int64()), 40),
}


def rows_of(count, seed):
    draws = random.Random(seed)
    return [
        (f"u{draws.randrange(30)}", None if number % 11 == 0 else f"i{draws.randrange(9)}", draws.randrange(32_400))
        for number in range(count)
    ]


def block_of(count, first=0, width=0, rejected=0):
    """Users have names of their own, so none can be lost or be there twice."""
    users = [f"u{first + number}".ljust(width, "-") for number in range(count)]
    batch = EventBatch.of_columns(users, ["i"] * count, np.arange(first, first + count)) if count else empty_batch()
    bad = (RejectedEvents("log", tuple(range(rejected)), "broken line"),) if rejected else ()
    return ReadBlock(batch, bad, count + rejected, 7 * count)


def blocks_of(sizes, width=0):
    firsts = np.cumsum([0, *sizes]).tolist()
    return [block_of(size, first, width, rejected=first % 3) for size, first in zip(sizes, firsts, strict=False)]


def events_of(blocks):
    return sorted(
        event
        for block in blocks
        for event in zip(
            block.batch.user.to_pylist(), block.batch.item.to_pylist(), block.batch.time_micros.tolist(), strict=True
        )
    )


def lengths(blocks):
    return [len(block.batch) for block in blocks]


@pytest.mark.parametrize(
    ("sizes", "joined"),
    [
        ([3, 3, 3, 3], [0, 0, 0, 12]),
        ([3, 3, 3], [0, 0, 0, 9]),
        ([9, 9, 9], [0, 18, 0, 9]),
        ([10, 3, 40, 6, 1], [10, 0, 40, 0, 10]),
        ([0, 4, 0, 6, 0], [0, 0, 0, 10, 0]),
        ([0, 0], [0, 0]),
        ([], []),
        ([1] * 25, [*[0] * 9, 10, *[0] * 9, 10, *[0] * 5, 5]),
    ],
)
def test_events_of_small_blocks_wait_and_nothing_else_does(sizes, joined):
    blocks = blocks_of(sizes)
    found = list(join_blocks(blocks, LIMIT))
    assert lengths(found) == joined
    assert events_of(found) == events_of(blocks)
    said = [(block.rejected, block.rows, block.bytes) for block in found]
    assert said[: len(blocks)] == [(block.rejected, block.rows, block.bytes) for block in blocks]
    assert said[len(blocks) :] in ([], [((), 0, 0)])


def test_wide_rows_are_joined_up_to_some_bytes(monkeypatch):
    """Each event takes its id of 1,000 bytes, and some 30 more."""
    monkeypatch.setattr(discovery, "_JOINED_BYTES", 10_000)
    blocks = blocks_of([4, 4, 4, 4, 20, 1], width=1000)
    found = list(join_blocks(blocks, 1_000_000))
    assert lengths(found) == [0, 0, 12, 0, 20, 0, 5]
    assert events_of(found) == events_of(blocks)


def test_what_was_joined_is_not_kept_while_the_next_block_is_read():
    seen = []

    def read():
        for first in range(0, 40, 5):
            assert not [batch for batch in seen if batch() is not None]
            yield block_of(5, first)

    for block in join_blocks(read(), LIMIT):
        if len(block.batch):
            seen.append(weakref.ref(block.batch))
        del block
    assert len(seen) == 4


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(discovery, "JOINED_ROWS", 100)
    monkeypatch.setattr(discovery, "_BYTES_PER_ROW", 20)
    monkeypatch.setattr(parquet, "_JOINED_ROWS", 40)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 300)
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 1 << 9)
    monkeypatch.setattr(text_files, "_MOST_BYTES", 1 << 12)


def write_files(folder, sizes):
    """Files of so many rows, in the order of their names."""
    for seed, (name, rows) in enumerate(sizes.items()):
        WRITERS[name.partition(".")[2]](folder / name, rows_of(rows, seed))
    return find_log_chunks([str(folder)], FIELDS)


def flat(spread):
    return [chunk for joined in spread for chunk in joined.chunks]


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_small_files_are_joined_as_far_as_workers_have_enough(tmp_path, ending, workers, small_limits):
    chunks = write_files(tmp_path, {f"{number:02}.{ending}": 6 + number % 5 for number in range(60)})
    spread = spread_chunks(chunks, workers)
    assert flat(spread) == chunks, "in their order"
    assert spread_chunks(chunks, workers) == spread, "what was begun ahead is found again"
    assert 4 * workers <= len(spread) <= len(chunks) // 2
    share = sum(chunk.bytes for chunk in chunks) // (4 * workers) if workers > 1 else 1 << 30

    def is_small(chunks):
        rows = sum(chunk.bytes // 20 if chunk.events is None else chunk.events for chunk in chunks)
        return rows <= 100 and sum(chunk.bytes for chunk in chunks) <= share

    assert all(is_small(joined.chunks) for joined in spread)
    assert not any(is_small((*joined.chunks, after.chunks[0])) for joined, after in itertools.pairwise(spread))


SMALL_FILES = {f"{number:02}.{ending}": 40 for number in range(4) for ending in WRITERS}


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_read_together_has_the_events_and_positions_of_its_chunks(tmp_path, workers, small_limits):
    chunks = write_files(tmp_path, SMALL_FILES)
    events, rejected = read_chunks(chunks, FIELDS)
    blocks = [block for joined in spread_chunks(chunks, workers) for block in read_joined(joined, FIELDS)]
    assert events_of(blocks) == sorted(events)
    assert sum(block.rows for block in blocks) == 40 * len(SMALL_FILES)
    assert sum(block.bytes for block in blocks) == sum(chunk.bytes for chunk in chunks)
    found = sorted((part.source, part.positions) for block in blocks for part in block.rejected)
    assert len({source for source, _ in found}) == len(SMALL_FILES)
    assert sorted(at for _, positions in found for at in positions) == sorted(itertools.chain(*rejected.values()))
