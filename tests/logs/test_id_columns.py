"""Labels of several item fields are made alike by every reader, and the same rows are rejected."""

import json

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.local.replay_table import read_table
from dp_transforms.logs import EventFields, EventFileError, find_log_chunks
from dp_transforms.logs.discovery import read_log_chunk
from dp_transforms.logs.event_ids import joined_label
from tests.helpers.event_files_oracle import found_in, read_all

FIELDS = EventFields(item=["kind", "item"])
TIME, MICROS = "2026-01-01T00:00:00", 1_767_225_600_000_000
LONG = "x" * (MAX_ID_BYTES - 1)
# Both cells of an event, as all formats have them, but for the number 7; CSV has no null.
CELLS = [
    *(("search", "shoes"), ("click", "shoes"), ("search", ""), ("", "shoes"), ("", ""), ("a", "b / c"), ("a / b", "c")),
    *(("s", LONG[3:]), ("s", LONG[2:]), ("kind", "7"), ("größe", "ß"), (LONG, "y"), ("s", LONG + "xx")),
    *(("DE", "/a/b"), ("/", "/"), ("\\", " / / "), ("a /", "b"), ("a", "/ b"), ("a \\", " ")),
    ("s", "\\" + LONG[3:]),
]
NULLS = [(None, "shoes"), ("click", None), (None, None), (None, "")]


def joined(cells):
    """In plain Python: user and label of the events; the positions of the others, by their reason."""
    events, rejected = [], {}
    for row, cells_of_row in enumerate(cells):
        faults = [fault for cell in cells_of_row if (fault := fault_of("item", cell))]
        label = "" if faults else joined_label([str(cell) for cell in cells_of_row])
        reason = faults[0] if faults else fault_of("item", label)
        if reason is None:
            events.append((f"u{row}", label, MICROS))
        else:
            rejected.setdefault(reason, []).append(row + 1)
    return events, rejected


def fault_of(name, cell):
    if cell is None:
        return f"missing {name}"
    size = len(str(cell).encode())
    return f"empty {name}" if not size else f"{name} is longer than 16,384 bytes" if size > MAX_ID_BYTES else None


def rows_of(cells):
    return [
        {"user": f"u{row}", "item": item, "timestamp": TIME, "kind": kind} for row, (kind, item) in enumerate(cells)
    ]


def test_every_reader_of_files_and_tables_joins_alike(tmp_path):
    for name, cells in (("text", CELLS), ("null", [*NULLS, *CELLS, *NULLS])):
        rows = rows_of(cells)
        table = pa.Table.from_pylist(rows)
        encoded = table
        for column in ("item", "kind"):
            at = encoded.schema.get_field_index(column)
            encoded = encoded.set_column(at, column, encoded.column(column).dictionary_encode())
        tables = [table, encoded, table.to_pandas(), pa.table({**dict_of(table), "item": large(table, "item")})]
        for of_memory in tables:
            assert found_in(read_table(of_memory, FIELDS)) == joined(cells), f"{name}: {type(of_memory)}"
        pq.write_table(table, tmp_path / "log.parquet", use_dictionary=["kind", "item"])
        pq.write_table(table, tmp_path / "plain.parquet", use_dictionary=False)
        pq.write_table(table, tmp_path / "groups.parquet", row_group_size=3)
        (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with (tmp_path / "log.avro").open("wb") as file:
            fastavro.writer(file, avro_schema(), rows, sync_interval=20_000)
        if name == "text":
            pa.csv.write_csv(table, tmp_path / "log.csv")
        for path in sorted(tmp_path.iterdir()):
            header = 1 if path.suffix == ".csv" else 0
            events, rejected = read_all(str(path), FIELDS)
            lines = {reason: [line - header for line in places] for reason, places in rejected.items()}
            assert (events, lines) == joined(cells), f"{name}: {path.name}"
            path.unlink()


def test_a_long_item_that_a_dictionary_has_once_takes_no_more_memory_than_in_a_column_of_texts(tmp_path):
    """One user could have a million rows of one dictionary, each with another kind: 16 GB. The batches stay small."""
    rows, item = 9_000, LONG[:-8]
    pq.write_table(
        pa.table(
            {
                "user": pa.array(["u"] * rows).dictionary_encode(),
                "item": pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [item]),
                "timestamp": [TIME] * rows,
                "kind": [f"{row:05}" for row in range(rows - 1)] + [""],
            }
        ),
        tmp_path / "log.parquet",
    )
    (chunk,) = find_log_chunks([str(tmp_path / "log.parquet")], FIELDS)
    blocks = list(read_log_chunk(chunk, FIELDS))
    assert len(blocks) > 1
    assert all(block.batch.item.nbytes < 2 << 26 for block in blocks)
    kinds = [label[:5] for block in blocks for label in block.batch.item.to_pylist()]
    assert kinds == [f"{row:05}" for row in range(rows - 1)]
    assert [(part.reason, part.positions) for part in blocks[-1].rejected] == [("empty item", (rows,))]


@pytest.mark.parametrize("item", [[], [""], ["item", "item"], ["user", "item"], [7, "a"]])
def test_item_fields_are_different_ones(item):
    with pytest.raises(ValueError, match="user, item and time must name three different fields"):
        EventFields(item=item)
    assert EventFields(item=["page"]) == EventFields(item="page")
    assert FIELDS.names == ("user", "kind", "timestamp", "item")


def test_more_than_two_fields_and_numbers_among_them():
    table = pa.table({"user": [1, 2], "a": [7, 8], "b": ["x", "/"], "c": ["y", None], "timestamp": [TIME] * 2})
    found = found_in(read_table(table, EventFields(item=("a", "b", "c"))))
    assert found == ([("1", "7 / x / y", MICROS)], {"missing item": [2]})


def dict_of(table):
    return dict(zip(table.column_names, table.columns, strict=True))


def large(table, name):
    return table.column(name).cast(pa.large_string())


def avro_schema(*more):
    texts = [{"name": name, "type": "string"} for name in ("user", "timestamp")]
    cells = [{"name": name, "type": ["null", "string", *more]} for name in ("item", "kind")]
    return {"type": "record", "name": "Event", "fields": [*texts, *cells]}


def test_what_cannot_be_an_item_is_named_with_its_option(tmp_path):
    table = pa.Table.from_pylist(rows_of(CELLS)).drop_columns("kind")
    floats = table.append_column("kind", pa.array([0.5] * len(table)))
    for wrong, words in (
        (table, r"no field 'kind'.*its fields are: user, item, timestamp.*--item-field"),
        (floats, "the field 'kind' has type double"),
    ):
        pq.write_table(wrong, tmp_path / "log.parquet")
        with pytest.raises(EventFileError, match=words):
            find_log_chunks([str(tmp_path / "log.parquet")], FIELDS)
        with pytest.raises(EventFileError, match=words):
            list(read_table(wrong, FIELDS))
