"""Parquet logs: round trips over column types and row groups, rejected rows, schemas that cannot be used, damage."""

import dataclasses
import datetime
import pathlib
import subprocess
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dp_transforms.cli.doctor import look_at
from dp_transforms.local.replay_table import read_table
from dp_transforms.logs import EventFields, EventFileError, estimate_log, find_log_chunks, id_columns, parquet
from dp_transforms.logs.discovery import read_log_chunk
from tests.helpers.event_files_oracle import SECRET, expected, read_all, read_chunks, write_parquet

UTC = datetime.UTC
MOMENT = datetime.datetime(2017, 10, 1, 3, 0, 0, 123_456, UTC)
MICROS = pa.timestamp("us", "UTC")
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


@pytest.mark.parametrize(
    "id_type",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.string_view(),
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 7, 1000])
def test_text_columns_of_any_layout(tmp_path, id_type, group):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (id_type, id_type, MICROS), group)
    assert read_all(path) == expected(ROWS)


@pytest.mark.parametrize("id_type", [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()], ids=str)
def test_whole_numbers_are_their_decimal_text(tmp_path, id_type):
    info = np.iinfo(str(id_type))
    rows = [(int(info.max), int(info.min), 5), (None, 7, 6), (7, 7, 7)]
    path = write_parquet(tmp_path / "log.parquet", rows, (id_type, id_type, pa.int64()))
    assert read_all(path, EventFields(time_unit="ms")) == expected(rows, "ms")


@pytest.mark.parametrize("unit", [None, "s", "iso"])
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


def test_a_file_without_a_user_is_no_fault_of_its_folder(tmp_path):
    """Hours as pandas writes them: with events, without, of anonymous readers alone, and without times."""
    pandas = pytest.importorskip("pandas")
    times = pandas.date_range("2026-02-20T08:00", periods=40, freq="min", tz="UTC")
    hour = pandas.DataFrame({"user": [f"u{n}" for n in range(40)], "item": ["/p"] * 40, "timestamp": times})
    frames = {
        "08": hour.iloc[:10].assign(user=None),
        "09": hour,
        "10": hour.iloc[:0],
        "11": hour.iloc[:0].assign(item=hour.item.iloc[:0].astype("category")),
        "12": hour.iloc[:10].assign(timestamp=None),
    }
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    events, rejected = read_all(str(tmp_path))
    assert len(events) == 40
    assert rejected == {"missing user": [*range(1, 11)], "missing time": [*range(1, 11)]}
    glance = look_at([str(tmp_path)], {}, EventFields())
    assert glance.is_ready, "the file without a value says nothing of the type of a field"


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
    encoded = pa.DictionaryArray.from_arrays(pa.array([2, None, 0]), columns[0])
    assert id_columns.encode_ids(encoded).faults.tolist() == [0, 1, 0]
    assert id_columns.encode_ids(encoded).values.to_pylist()[:3] == [str(one) for one in IDS]
    assert id_columns.encode_ids(columns[0][1:4]).values.to_pylist()[:2] == [str(one) for one in IDS[1:]]


def test_chunks_are_the_row_groups_small_ones_together_and_share_the_bytes_of_the_file(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), MICROS), 7)
    (chunk,) = find_log_chunks([path], EventFields())
    assert (chunk.groups, chunk.events) == (range(5), len(ROWS))
    assert read_chunks([chunk], EventFields()) == expected(ROWS)
    monkeypatch.setattr(parquet, "_JOINED_ROWS", 9)
    chunks = find_log_chunks([path], EventFields())
    assert [(chunk.groups, chunk.events, chunk.first_row) for chunk in chunks] == [
        (range(0, 1), 7, 0), (range(1, 2), 7, 7), (range(2, 3), 7, 14), (range(3, 5), 9, 21),
    ]  # fmt: skip
    assert read_chunks(chunks, EventFields()) == expected(ROWS)
    assert sum(chunk.bytes for chunk in chunks) == pathlib.Path(path).stat().st_size
    assert estimate_log(chunks, EventFields()).events == len(ROWS)
    events, rejected = read_chunks(chunks[2:3], EventFields())
    assert events == expected(ROWS[14:21])[0]
    assert rejected == {
        reason: [position + 14 for position in positions] for reason, positions in expected(ROWS[14:21])[1].items()
    }


def test_a_dictionary_with_repeated_empty_and_null_values(tmp_path):
    from dp_transforms.logs.id_columns import encode_ids

    values = pa.array(["a", "a", "", None, "b", "unused"])
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 4, None], pa.int8()), values)
    column = encode_ids(array)
    assert column.faults.tolist() == [0, 0, 2, 1, 0, 1]
    assert [column.values[index].as_py() for index in column.indices[[0, 1, 4]].tolist()] == ["a", "a", "b"]
    assert encode_ids(pa.array([None, None], pa.string())).faults.tolist() == [1, 1]
    assert encode_ids(pa.array([], pa.string())).faults.tolist() == []


def test_times_of_every_kind(tmp_path):
    texts = ["2017-10-01T03:00:00Z", "2017-10-01", "x", "", None, "2017-10-01T05:00:00.5+02:00"]
    rows = [("u", "i", text) for text in texts]
    for text_type in (pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        path = write_parquet(tmp_path / "log.parquet", rows, (pa.string(), pa.string(), text_type))
        assert read_all(path) == expected(rows)
    numbers = [("u", "i", value) for value in (1.5, float("nan"), None, 1e300, -0.25)]
    path = write_parquet(tmp_path / "log.parquet", numbers, (pa.string(), pa.string(), pa.float64()))
    assert read_all(path, EventFields(time_unit="s")) == expected(numbers, "s")
    table = pa.table({"user": ["u"], "item": ["i"], "timestamp": pa.array([datetime.datetime(3000, 1, 1)])})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert read_all(path)[0] == [("u", "i", 32_503_680_000_000_000)]


@pytest.mark.parametrize(
    ("types", "unit", "words"),
    [
        ((pa.float64(), pa.string(), MICROS), None, ["'user' has type double", "Convert it"]),
        ((pa.decimal128(9, 0), pa.string(), MICROS), None, ["'user' has type decimal128"]),
        ((pa.binary(16), pa.string(), MICROS), None, ["'user' has type fixed_size_binary"]),
        ((pa.list_(pa.string()), pa.string(), MICROS), None, ["'user' has type list"]),
        ((pa.string(), pa.string(), pa.int64()), None, ["'timestamp' holds numbers", "--time-format s, ms or us"]),
        ((pa.string(), pa.string(), pa.time64("us")), "s", ["'timestamp' has type time64"]),
    ],
)
def test_a_schema_that_cannot_serve(tmp_path, types, unit, words):
    path = write_parquet(tmp_path / "log.parquet", [(None, None, None)], types)
    with pytest.raises(EventFileError) as caught:
        find_log_chunks([path], EventFields(time_unit=unit))
    assert all(word in str(caught.value) for word in [path, *words])


def test_a_missing_or_repeated_field_names_the_option(tmp_path):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), MICROS))
    for fields, flag in (
        (EventFields(user="who"), "--user-field"),
        (EventFields(item="what"), "--item-field"),
        (EventFields(time="when"), "--time-field"),
    ):
        with pytest.raises(EventFileError, match=rf"its fields are: user, item, timestamp\. Name one with {flag}\."):
            find_log_chunks([path], fields)
    column = pa.array(["x"])
    twice = pa.table([column, column, column, pa.array([1], MICROS)], names=["user", "user", "item", "timestamp"])
    pq.write_table(twice, path)
    with pytest.raises(EventFileError, match="2 fields called 'user'"):
        find_log_chunks([path], EventFields())


def test_a_damaged_file_is_told_by_place_and_not_by_content(tmp_path):
    """What else damage may do, tests/fuzz tries."""
    rows = [(f"{SECRET}{n}", SECRET, MOMENT) for n in range(4000)]
    path = pathlib.Path(write_parquet(tmp_path / "log.parquet", rows, (pa.string(), pa.string(), MICROS), 1000))
    good = path.read_bytes()
    for data in (good[: len(good) // 2], good[:100] + bytes(byte ^ 0xFF for byte in good[100:400]) + good[400:]):
        path.write_bytes(data)
        with pytest.raises(EventFileError, match=r"it is damaged.*, or not in Parquet format") as caught:
            read_all(str(path))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__


def test_numbers_of_rows_whose_sum_wraps_around(tmp_path):
    path = pathlib.Path(write_parquet(tmp_path / "log.parquet", ROWS[:1] * 28, (pa.string(),) * 2 + (MICROS,), 7))
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # In Thrift, a field, and what it holds times 2. Row groups end so: sizes, rows, then a field of another type.
    huge = b"\x16" + bytes([128] * 9 + [1])  # 2^62
    footer = content[begin:-8].replace(b"\x16\x38", b"\x16\x00", 1).replace(b"\x16\x0e", huge)
    path.write_bytes(content[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(group).num_rows for group in range(4)] == [2**62] * 4
    assert metadata.num_rows == 0
    with pytest.raises(EventFileError, match="it is damaged, or not in Parquet format"):
        find_log_chunks([str(path)], EventFields())


@pytest.mark.parametrize("more", [-1, 1])
def test_other_rows_than_the_footer_says(tmp_path, more):
    path = write_parquet(tmp_path / "log.parquet", ROWS, (pa.string(), pa.string(), MICROS))
    (chunk,) = find_log_chunks([path], EventFields())
    claimed = dataclasses.replace(chunk, events=len(ROWS) + more)
    with pytest.raises(EventFileError, match=f"it is damaged after row {len(ROWS)}, or not in Parquet format"):
        list(read_log_chunk(claimed, EventFields()))


@pytest.mark.parametrize("index", [2, -1, 127, -128])
def test_an_index_outside_of_its_dictionary(index):
    from dp_transforms.logs.id_columns import encode_ids
    from dp_transforms.logs.times import parse_times

    indices = pa.array([0, 1, index, None], pa.int8())
    for values in (pa.array(["a", "b"]), pa.array([], pa.string())):
        array = pa.DictionaryArray.from_arrays(indices, values, safe=False)
        with pytest.raises(ValueError, match="outside of its dictionary"):
            encode_ids(array)
        with pytest.raises(IndexError):
            parse_times(array, None)


@pytest.mark.parametrize(
    ("distinct", "more"), [(8_000, 0), (50, 0), (50, 50_000)], ids=["pages", "dictionary", "dictionary and pages"]
)
def test_long_labels_of_one_row_group_are_never_all_in_memory(tmp_path, distinct, more):
    """130 MB of them. Arrow unpacks a column's whole row group if it is not told to stream its pages; a text of
    a dictionary may be that of every row, whatever the size of the column says."""
    labels = [f"{number % distinct:016384d}" for number in range(8_000)] + [f"{at:060d}" for at in range(more)]
    path = tmp_path / "log.parquet"
    times = pa.array([0] * len(labels), pa.timestamp("us"))
    pq.write_table(
        pa.table({"user": ["u"] * len(labels), "item": labels, "timestamp": times}), path, compression="none"
    )
    found, held = [], []
    before = pa.total_allocated_bytes()
    for block in read_log_chunk(find_log_chunks([str(path)], EventFields())[0], EventFields()):
        held.append(pa.total_allocated_bytes() - before)
        found += block.batch.item.to_pylist()
    assert found == labels
    assert max(held) < 96 << 20


_ESTIMATE = """
import sys
from dp_transforms.logs import EventFields, estimate_log, find_log_chunks
def held():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
few, many = (find_log_chunks([log], EventFields()) for log in sys.argv[1:])
estimate_log(few, EventFields())
before = held()
print(estimate_log(many, EventFields()).long_label_bytes, held() - before)
"""


def test_an_estimate_gives_back_what_its_block_took(tmp_path):
    """In a process of its own. The command makes it, and holds what it kept until its workers end."""
    logs = [tmp_path / "few.parquet", tmp_path / "many.parquet"]
    for rows, log in zip((1, 4_000), logs, strict=True):
        labels = [f"{number:016032d}" for number in range(rows)]
        table = pa.table({"user": labels, "item": labels, "timestamp": pa.array([0] * rows, MICROS)})
        pq.write_table(table, log, compression="none")
    done = subprocess.run([sys.executable, "-c", _ESTIMATE, *logs], capture_output=True, text=True, check=True)
    size, kilobytes = map(int, done.stdout.split())
    assert size == 4_000 * 16_000
    assert kilobytes < 90_000


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize(("start", "most"), [("", 4_000), ("x" * 16_000, 2_100)], ids=["short", "long"])
def test_texts_that_are_stored_by_their_differences_are_read(tmp_path, encoding, start, most):
    """As DuckDB and others do. Arrow makes no dictionaries of them, and a start that all share is stored once."""
    path, labels = tmp_path / "log.parquet", [f"{start}{number % 9}" for number in range(4_000)]
    table = pa.table({"user": labels, "item": labels, "timestamp": pa.array([0] * len(labels), MICROS)})
    encodings = {"user": encoding, "item": encoding, "timestamp": "PLAIN"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encodings, compression="zstd")
    blocks = [*read_log_chunk(find_log_chunks([str(path)], EventFields())[0], EventFields())]
    assert [label for block in blocks for label in block.batch.item.to_pylist()] == labels
    assert max(block.rows for block in blocks) <= most


def test_long_texts_of_times_are_never_all_in_memory(tmp_path):
    path, count = tmp_path / "log.parquet", 2_000
    times = [f"{number % 3}" * 200_000 for number in range(count)]
    pq.write_table(pa.table({"user": ["u"] * count, "item": ["a"] * count, "timestamp": times}), path)
    blocks = [*read_log_chunk(find_log_chunks([str(path)], EventFields())[0], EventFields())]
    assert (sum(block.rows for block in blocks), sum(len(block.batch) for block in blocks)) == (count, 0)
    assert max(block.rows for block in blocks) < 200


def test_a_large_row_group_after_an_empty_one_is_read_and_cut_as_if_it_were_alone(tmp_path, monkeypatch):
    path, rows = tmp_path / "log.parquet", ROWS * 200
    table = pq.read_table(write_parquet(path, rows, (pa.string(), pa.string(), MICROS)))
    with pq.ParquetWriter(path, table.schema) as writer:
        for part in (table[:0], table[:0], table, table[:0], table[:30], table[:0]):
            writer.write_table(part)
    chunks = find_log_chunks([str(path)], EventFields())
    assert [(chunk.groups, chunk.events) for chunk in chunks] == [(range(2, 3), 6000), (range(4, 6), 30)]
    monkeypatch.setattr(parquet, "_LEAST_ROWS_TO_CUT", 1000)
    parts = parquet.cut_chunk(chunks[0], 3)
    assert len(parts) == 3
    assert read_chunks(parts, EventFields()) == expected(rows)
    assert read_chunks(chunks, EventFields()) == expected([*rows, *rows[:30]])


def test_a_long_text_in_the_dictionaries_of_small_row_groups_comes_in_small_blocks(tmp_path):
    """Of 40 kB, which would be 800 MB in one piece."""
    path, count = tmp_path / "log.parquet", 2000
    items = ["x" * 200_000] * (count - 1) + ["a"]
    table = pa.table({"user": ["u"] * count, "item": items, "timestamp": pa.array([0] * count, MICROS)})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.write_table(table)
    (chunk,) = find_log_chunks([str(path)], EventFields())
    blocks = [*read_log_chunk(chunk, EventFields())]
    assert max(block.rows for block in blocks) < 400
    assert sum(len(block.batch) for block in blocks) == 2
    assert sum(block.rows for block in blocks) == 2 * count
