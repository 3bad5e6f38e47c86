"""Parquet logs: columns of any layout, row groups, schemas that cannot be used, damage, long texts in little memory."""

import dataclasses
import datetime
import pathlib
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli.log_sample import look
from dp_transforms.local.replay_table import read_table
from dp_transforms.logs import EventFields, EventFileError, find_log_chunks, id_columns
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.id_columns import encode_ids
from dp_transforms.logs.times import parse_times
from tests.helpers.event_files_oracle import SECRET, expected, read_all, read_chunks
from tests.helpers.log_files import write_parquet

UTC = datetime.UTC
MOMENT = datetime.datetime(2017, 10, 1, 3, 0, 0, 123_456, UTC)
MICROS = pa.timestamp("us", "UTC")
TYPES = (pa.string(), pa.string(), MICROS)
ROWS = [
    ("7", "a", MOMENT),
    ("007", "ä€𝄞", MOMENT + datetime.timedelta(seconds=1)),
    (None, "a", MOMENT),
    ("", "a", MOMENT),
    ("u", None, MOMENT),
    ("u", "", None),
    ("u", "a", None),
    ("e\u0301", "\u00e9", MOMENT),
    (None, None, None),
    ("\0", " ", datetime.datetime(1, 1, 1, tzinfo=UTC)),
] * 3
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()]


@pytest.mark.parametrize("id_type", [*TEXTS, pa.dictionary(pa.int8(), pa.string())], ids=str)
@pytest.mark.parametrize("group", [1, 7, 1000])
def test_text_columns_of_any_layout(tmp_path, id_type, group):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (id_type, id_type, MICROS), group)
    assert read_all(path) == expected(ROWS)


@pytest.mark.parametrize("id_type", [pa.int8(), pa.int64(), pa.uint64()], ids=str)
def test_whole_numbers_are_their_decimal_text(tmp_path, id_type):
    info = np.iinfo(str(id_type))
    rows = [(int(info.max), int(info.min), 5), (None, 7, 6), (7, 7, 7)]
    path = write_parquet(tmp_path / "log.parquet", rows, (id_type, id_type, pa.int64()))
    assert read_all(path, EventFields(time_unit="ms")) == expected(rows, "ms")


@pytest.mark.parametrize("unit", [None, "s"])
@pytest.mark.parametrize("count", [0, 3])
def test_a_column_that_never_has_a_value_is_one_of_missing_cells(tmp_path, unit, count):
    """Which writers do where no row has one: so one user may decide about the type."""
    null = pa.null()
    for types, row in (
        ((null, pa.string(), pa.string()), (None, "i", "2017-10-01")),
        ((pa.int8(), null, pa.string()), (7, None, "2017-10-01")),
        ((pa.string(), pa.string(), null), ("u", "i", None)),
        ((null, null, null), (None, None, None)),
    ):
        path = write_parquet(tmp_path / "log.parquet", [row] * count, types)
        assert read_all(path, EventFields(time_unit=unit)) == expected([row] * count, unit)
    assert count == 0 or look([path], None, None)[1], "it says nothing of the type of a field"


IDS = [uuid.UUID(int=number << 90) for number in (0, 1, 2**38 - 1)]


@pytest.mark.parametrize("stored", [True, False], ids=["by Arrow", "by others"])
@pytest.mark.parametrize("group", [1, 100])
def test_a_uuid_is_its_text(tmp_path, stored, group):
    """Of the same user in a file of text and in one of UUIDs, as DuckDB and pandas write them."""
    rows = [*((str(one), str(one), MOMENT) for one in IDS), (None, str(IDS[0]), MOMENT), (str(IDS[1]), None, MOMENT)]
    columns = [
        pa.array([None if row[at] is None else uuid.UUID(row[at]).bytes for row in rows], pa.uuid()) for at in (0, 1)
    ]
    table = pa.table({"user": columns[0], "item": columns[1], "timestamp": pa.array([MOMENT] * 5, MICROS)})
    path = str(tmp_path / "log.parquet")
    pq.write_table(table, path, row_group_size=group, store_schema=stored)
    assert read_all(path) == expected(rows)
    parts = [part for block in read_table(table, EventFields()) for part in block.batch.user.to_pylist()]
    assert parts == [str(one) for one in IDS]
    encoded = id_columns.encode_ids(pa.DictionaryArray.from_arrays(pa.array([2, None, 0]), columns[0]))
    assert (encoded.faults.tolist(), encoded.values.to_pylist()[:3]) == ([0, 1, 0], [str(one) for one in IDS])


def test_a_row_group_is_a_chunk_and_an_empty_one_is_none(tmp_path):
    table = pq.read_table(write_parquet(tmp_path / "log.parquet", ROWS, TYPES))
    path = tmp_path / "log.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for begin, end in ((0, 0), (0, 7), (7, 14), (14, 21), (0, 0), (21, 28), (28, 30), (0, 0)):
            writer.write_table(table[begin:end])
    chunks = find_log_chunks([str(path)], EventFields())
    assert [(chunk.events, chunk.first_row) for chunk in chunks] == [(7, 0), (7, 7), (7, 14), (7, 21), (2, 28)]
    assert read_chunks(chunks, EventFields()) == expected(ROWS)
    assert sum(chunk.bytes for chunk in chunks) == path.stat().st_size
    assert read_chunks(chunks[2:3], EventFields()) == expected(ROWS[14:21], first=15), "places are those of the file"


def test_times_of_every_kind(tmp_path):
    texts = ["2017-10-01T03:00:00Z", "2017-10-01", "x", "", None, "2017-10-01T05:00:00.5+02:00"]
    rows = [("u", "i", text) for text in texts]
    for text_type in (pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        path = write_parquet(tmp_path / "log.parquet", rows, (pa.string(), pa.string(), text_type))
        assert read_all(path) == expected(rows)
    table = pa.table({"user": ["u"], "item": ["i"], "timestamp": pa.array([datetime.datetime(3000, 1, 1)])})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert read_all(path)[0] == [("u", "i", 32_503_680_000_000_000)]


@pytest.mark.parametrize(
    ("types", "unit", "words"),
    [
        ((pa.float64(), pa.string(), MICROS), None, "'user' has type double; an id must be text or a whole number"),
        ((pa.binary(16), pa.string(), MICROS), None, "'user' has type fixed_size_binary"),
        ((pa.string(), pa.string(), pa.int64()), None, "'timestamp' holds numbers without a unit"),
        ((pa.string(), pa.string(), pa.time64("us")), "s", "'timestamp' has type time64"),
    ],
)
def test_a_schema_that_cannot_serve(tmp_path, types, unit, words):
    path = write_parquet(tmp_path / "log.parquet", [(None, None, None)], types)
    with pytest.raises(EventFileError, match=words):
        find_log_chunks([path], EventFields(time_unit=unit))


def test_a_damaged_file_is_told_by_place_and_not_by_content(tmp_path):
    rows = [(f"{SECRET}{n}", SECRET, MOMENT) for n in range(4000)]
    path = pathlib.Path(write_parquet(tmp_path / "log.parquet", rows, TYPES, 1000))
    good = path.read_bytes()
    for data in (good[: len(good) // 2], good[:100] + bytes(byte ^ 0xFF for byte in good[100:400]) + good[400:]):
        path.write_bytes(data)
        with pytest.raises(EventFileError, match=r"it is damaged.*, or not in Parquet format") as caught:
            read_all(str(path))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__


def test_numbers_of_rows_whose_sum_wraps_around(tmp_path):
    path = pathlib.Path(write_parquet(tmp_path / "log.parquet", ROWS[:1] * 28, TYPES, 7))
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # In Thrift, a field, and what it holds times 2. Row groups end so: sizes, rows, then a field of another type.
    huge = b"\x16" + bytes([128] * 9 + [1])  # 2^62
    footer = content[begin:-8].replace(b"\x16\x38", b"\x16\x00", 1).replace(b"\x16\x0e", huge)
    path.write_bytes(content[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert (pq.read_metadata(path).row_group(0).num_rows, pq.read_metadata(path).num_rows) == (2**62, 0)
    with pytest.raises(EventFileError, match="it is damaged, or not in Parquet format"):
        find_log_chunks([str(path)], EventFields())


@pytest.mark.parametrize("more", [-1, 1])
def test_other_rows_than_the_footer_says(tmp_path, more):
    path = write_parquet(tmp_path / "log.parquet", ROWS, TYPES)
    (chunk,) = find_log_chunks([path], EventFields())
    claimed = dataclasses.replace(chunk, events=len(ROWS) + more)
    with pytest.raises(EventFileError, match=f"it is damaged after row {len(ROWS)}, or not in Parquet format"):
        list(read_log_chunk(claimed, EventFields()))


@pytest.mark.parametrize("index", [2, -1, 127, -128])
def test_an_index_outside_of_its_dictionary(index):
    indices = pa.array([0, 1, index, None], pa.int8())
    for values in (pa.array(["a", "b"]), pa.array([], pa.string())):
        array = pa.DictionaryArray.from_arrays(indices, values, safe=False)
        with pytest.raises(ValueError, match="outside of its dictionary"):
            encode_ids(array)
        with pytest.raises(IndexError):
            parse_times(array, None)


def _blocks(path):
    (chunk,) = find_log_chunks([str(path)], EventFields())
    return [*read_log_chunk(chunk, EventFields())]


@pytest.mark.parametrize(
    ("distinct", "more"), [(8_000, 0), (50, 0), (50, 50_000)], ids=["pages", "dictionary", "dictionary and pages"]
)
def test_long_labels_of_one_row_group_are_never_all_in_memory(tmp_path, distinct, more):
    """130 MB of them. Arrow unpacks a column's whole row group if it is not told to stream its pages; a text of
    a dictionary may be that of every row, whatever the size of the column says."""
    labels = [f"{number % distinct:016384d}" for number in range(8_000)] + [f"{at:060d}" for at in range(more)]
    path = tmp_path / "log.parquet"
    times = pa.array([0] * len(labels), pa.timestamp("us"))
    table = pa.table({"user": ["u"] * len(labels), "item": labels, "timestamp": times})
    pq.write_table(table, path, compression="none")
    found, held = [], []
    before = pa.total_allocated_bytes()
    for block in read_log_chunk(find_log_chunks([str(path)], EventFields())[0], EventFields()):
        held.append(pa.total_allocated_bytes() - before)
        found += block.batch.item.to_pylist()
    assert found == labels
    assert max(held) < 96 << 20


@pytest.mark.parametrize(
    ("encoding", "start", "most"),
    [
        ("DELTA_BYTE_ARRAY", "", 2_500),
        ("DELTA_LENGTH_BYTE_ARRAY", "", 2_500),
        ("DELTA_BYTE_ARRAY", "x" * 16_000, 2_100),
    ],
    ids=["short", "lengths", "long"],
)
def test_texts_that_are_stored_by_their_differences_are_read(tmp_path, encoding, start, most):
    """As DuckDB and others do. Arrow makes no dictionaries of them, and a start that all share is stored once."""
    path, labels = tmp_path / "log.parquet", [f"{start}{number % 9}" for number in range(2_500)]
    table = pa.table({"user": labels, "item": labels, "timestamp": pa.array([0] * len(labels), MICROS)})
    encodings = {"user": encoding, "item": encoding, "timestamp": "PLAIN"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encodings, compression="zstd")
    blocks = _blocks(path)
    assert [label for block in blocks for label in block.batch.item.to_pylist()] == labels
    assert max(block.rows for block in blocks) <= most
