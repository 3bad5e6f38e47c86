"""Chunks that were cut have the rows, the positions and the errors of the whole ones."""

import dataclasses
import gzip
import itertools
import os
import pathlib
import random
import re

import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.logs import (
    EventFields,
    EventFileError,
    avro,
    count_unless_inside,
    cut_chunks,
    find_log_chunks,
    parquet,
    text_files,
)
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
    cut = cut_chunks(chunks, FIELDS, workers)
    assert len(cut) == min(workers, 4) if ending == "parquet" else len(cut) > workers
    found = read_chunks(chunks, FIELDS)
    assert read_chunks(cut, FIELDS) == found
    assert len(found[0]) > 300
    assert sum(chunk.bytes for chunk in cut) == os.path.getsize(chunks[0].path)
    assert cut_chunks(chunks, FIELDS, workers) == cut, "what was begun ahead is found again"
    assert cut_chunks(cut, FIELDS, workers) == cut
    assert cut_chunks(chunks, FIELDS, 1) == chunks
    middle = read_chunks([cut[len(cut) // 2]], FIELDS)[1]
    assert middle, "a part alone has its positions in the file too"
    assert all(set(positions) < set(found[1][reason]) for reason, positions in middle.items())


@pytest.mark.parametrize("block_rows", [1, 7, 1000])
def test_parts_of_a_row_group_count_on_in_its_file(tmp_path, block_rows, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BLOCK_ROWS", block_rows)
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), pa.int64()), 250)
    cut = cut_chunks(find_log_chunks([path], FIELDS), FIELDS, 4)
    assert [chunk.groups for chunk in cut] == [range(1)] * 4 + [range(1, 2)] * 4
    row = 0
    for chunk in cut:
        assert chunk.first_row == row
        before = 250 * (row // 250)
        assert chunk.span == (row - before, row - before + (chunk.events or 0))
        row += chunk.events or 0
        rows = ROWS[chunk.first_row : chunk.first_row + (chunk.events or 0)]
        assert read_chunks([chunk], FIELDS) == expected(rows, "s", chunk.first_row + 1)


def test_later_parts_of_a_row_group_are_smaller(tmp_path):
    """They skip what comes before them."""
    chunks = find_log_chunks([write_log(tmp_path, "parquet")], FIELDS)
    rows = [chunk.events or 0 for chunk in cut_chunks(chunks, FIELDS, 4)]
    assert sum(rows) == len(ROWS)
    assert all(7 * later == pytest.approx(6 * row, abs=14) for row, later in itertools.pairwise(rows))


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
    cut = cut_chunks(chunks, FIELDS, 3)
    assert len(cut) > 10
    assert read_chunks(cut, FIELDS) == ([("u1", "i1", 5_000_000)] * 2, {"broken line": [3]})


def test_lines_of_an_exchanged_file_are_counted_again(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\n" * 100)
    assert [text_files.line_ends_before(str(path), None, at) for at in (50, 80, 20)] == [50, 80, 20]
    path.write_bytes(b"-" * 99)
    assert text_files.line_ends_before(str(path), None, 80) == 0


@pytest.mark.parametrize("name", ["log.jsonl.gz", "log.csv.gz"])
def test_what_is_packed_stays_whole(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"user,item,timestamp\nu1,i1,5\n" * 300, 0))
    chunks = find_log_chunks([str(tmp_path)], FIELDS)
    assert cut_chunks(chunks, FIELDS, 4) == chunks


def test_even_chunks_are_not_cut(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), pa.int64()), 40)
    chunks = find_log_chunks([path], FIELDS)
    assert len(chunks) == 10
    assert cut_chunks(chunks, FIELDS, 2) == chunks
    assert cut_chunks(chunks, FIELDS, 8) == chunks, "they are too small"


def test_a_damaged_part_is_an_error_that_names_the_row_of_the_file(tmp_path):
    path = pathlib.Path(write_log(tmp_path, "null.avro"))
    content = bytearray(path.read_bytes())
    span = cut_chunks(find_log_chunks([str(path)], FIELDS), FIELDS, 2)[3].span
    assert span is not None
    content[span[1] - 1] ^= 1  # of the sync marker at its end
    path.write_bytes(content)
    cut = cut_chunks(find_log_chunks([str(path)], FIELDS), FIELDS, 2)
    part = cut[3]
    read_chunks([*cut[:3], *cut[4:]], FIELDS)
    with pytest.raises(EventFileError, match="damaged after row") as error:
        read_chunks([part], FIELDS)
    row = int(re.findall(r"row (\d+)", str(error.value))[0])
    assert part.first_row < row < part.first_row + (part.events or 0)


def test_an_avro_file_that_is_damaged_or_changed_stays_whole(tmp_path):
    path = pathlib.Path(write_log(tmp_path, "null.avro"))
    chunks = find_log_chunks([str(path)], FIELDS)
    assert len(avro.cut_chunk(chunks[0], FIELDS, 4)) > 3
    content = path.read_bytes()
    for changed in (content + b"\x02", content[:-1], content[: len(content) // 2], b"", content + content[-20:]):
        path.write_bytes(changed)
        assert avro.cut_chunk(chunks[0], FIELDS, 4) == chunks
    path.unlink()
    assert avro.cut_chunk(chunks[0], FIELDS, 4) == chunks


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
