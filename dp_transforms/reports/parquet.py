"""Reports as Parquet: typed columns, the header in the schema metadata, the meaning of each field beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dp_transforms.monitor.window_report import WINDOW_REPORT_AVRO_SCHEMA, WindowReport
from dp_transforms.reports.report_records import (
    HEADER_KEY,
    MAX_HEADER_BYTES,
    MAX_HEAVY_HITTERS,
    MAX_RECORD_BYTES,
    ReportFileError,
    ReportHeader,
    check_report,
    parse_header,
    plain_fields,
    too_many_heavy_hitters,
)

_ROW_GROUP_WINDOWS = 1024
_ROW_GROUP_HEAVY_HITTERS = 1 << 17
# The reader's limit: a full row group, and one more window.
_MAX_VALUES_PER_COLUMN = _ROW_GROUP_HEAVY_HITTERS + MAX_HEAVY_HITTERS
_MAX_METADATA_ITEMS = 1 << 20
_BATCH_WINDOWS = 64
_TEXTS = ("stream", "heavy_hitters.list.element.item", "heavy_hitters.list.element.zone")
_TYPES = {"string": pa.string(), "long": pa.int64(), "double": pa.float64()}


def _arrow_type(avro: Any) -> pa.DataType:
    if isinstance(avro, str):
        return _TYPES[avro]
    if isinstance(avro, list):  # ["null", type]
        return _arrow_type(avro[1])
    if avro["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(avro["items"]), nullable=False))
    if avro["type"] == "record":
        return pa.struct([_arrow_field(field) for field in avro["fields"]])
    return pa.timestamp("us", tz="UTC")


def _arrow_field(avro: dict[str, Any]) -> pa.Field:
    nullable = isinstance(avro["type"], list)
    return pa.field(avro["name"], _arrow_type(avro["type"]), nullable, metadata={"doc": avro["doc"]})


def arrow_schema() -> pa.Schema:
    """Names, types and documentation follow the Avro schema."""
    return pa.schema([_arrow_field(each) for each in WINDOW_REPORT_AVRO_SCHEMA["fields"]])


def write(handle: IO[bytes], header: ReportHeader, reports: Sequence[WindowReport]) -> None:
    """reports: of `check_report`, in order."""
    schema = arrow_schema().with_metadata({HEADER_KEY: header.to_json()})
    with pq.ParquetWriter(handle, schema) as writer:
        rows: list[dict[str, Any]] = []
        heavy_hitters = 0
        for report in reports:
            rows.append(plain_fields(report))
            heavy_hitters += len(report.heavy_hitters)
            if len(rows) >= _ROW_GROUP_WINDOWS or heavy_hitters >= _ROW_GROUP_HEAVY_HITTERS:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                rows, heavy_hitters = [], 0
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    # A table schema is text of up to 4/3 of the metadata that it carries.
    limits = {"thrift_string_size_limit": 2 * MAX_HEADER_BYTES, "thrift_container_size_limit": _MAX_METADATA_ITEMS}
    metadata = pq.ParquetFile(handle, **limits).metadata
    schema = metadata.schema.to_arrow_schema()
    header = parse_header((schema.metadata or {}).get(HEADER_KEY.encode()))  # first, since it has the version
    if not schema.equals(arrow_schema(), check_metadata=False):
        raise ReportFileError("the Parquet schema is not that of a report, so shh did not write the file.")
    # A label of megabytes in every row takes a few bytes in the file, and also here until it is measured.
    file = pq.ParquetFile(handle, metadata=metadata, read_dictionary=_TEXTS, **limits)
    return header, _records(file)


def _records(file: pq.ParquetFile) -> Iterator[WindowReport]:
    # If the metadata of a column contradict the schema, Arrow ends the process when they are looked up; a scan raises
    # an error instead. It keeps nothing of what it reads.
    file.scan_contents()
    for row_group in range(file.metadata.num_row_groups):
        columns = file.metadata.row_group(row_group)
        if any(columns.column(i).num_values > _MAX_VALUES_PER_COLUMN for i in range(columns.num_columns)):
            raise ReportFileError(f"a row group of the Parquet file has more than {_MAX_VALUES_PER_COLUMN} values.")
        for batch in file.iter_batches(batch_size=_BATCH_WINDOWS, row_groups=[row_group]):
            if _is_within_bounds(batch):
                yield from _decoded(batch)
            else:
                for row in range(len(batch)):
                    window = batch.slice(row, 1)
                    if not _is_within_bounds(window):
                        raise too_many_heavy_hitters()
                    yield from _decoded(window)


def _is_within_bounds(batch: pa.RecordBatch) -> bool:
    """Whether all of it together is not larger than one report may be."""
    heavy_hitters = batch.column("heavy_hitters").flatten()
    texts = [batch.column("stream"), heavy_hitters.field("item"), heavy_hitters.field("zone")]
    size = sum(
        pc.sum(pc.binary_length(text.dictionary).cast(pa.int64()).take(text.indices)).as_py() or 0 for text in texts
    )
    return len(heavy_hitters) <= MAX_HEAVY_HITTERS and size <= MAX_RECORD_BYTES


def _decoded(batch: pa.RecordBatch) -> Iterator[WindowReport]:
    """Column by column: a scalar for each cell would take a multiple of the time."""
    windows = batch.column("heavy_hitters")
    entries = windows.flatten()
    names = [field.name for field in entries.type]
    cells = zip(*(entries.field(name).to_pylist() for name in names), strict=True)
    hitters = (dict(zip(names, entry, strict=True)) for entry in cells)
    columns = {
        # Times as plain microseconds: the calendar of datetime ends before that of an int64.
        field.name: (column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column).to_pylist()
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if field.name != "heavy_hitters"
    }
    columns["heavy_hitters"] = [
        list(itertools.islice(hitters, count)) for count in pc.list_value_length(windows).to_pylist()
    ]
    for values in zip(*columns.values(), strict=True):
        yield check_report(dict(zip(columns, values, strict=True)))
