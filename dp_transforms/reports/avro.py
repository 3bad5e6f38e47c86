"""Reports in Avro: an object container file, with `WINDOW_REPORT_AVRO_SCHEMA` and the header in the file metadata.

The schema of a file is compared before anything is decoded by it; blocks are those of `avro_container`.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro
from fastavro.read import SYNC_SIZE

from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.reports.report_records import (
    HEADER_KEY,
    MAX_HEAVY_HITTERS,
    ReportFileError,
    ReportHeader,
    checked_report,
    decode_json,
    plain_fields,
    too_large_report,
)
from dp_transforms.stores.avro_container import LONG, Header, blocks, read_header


def _record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": kind} for each, kind in fields.items()]}


_MICROS, _MAY_BE_LONG = {"type": "long", "logicalType": "timestamp-micros"}, ["null", "long"]
_BEFORE_ITEMS = {"stream": "string", "window_start": _MICROS, "window_end": _MICROS}
_OF_ITEM = {"item": "string", "zone": ["null", "string"]}
_OF_ITEM |= dict.fromkeys(("noisy_count", "level", "at_least_users"), _MAY_BE_LONG)
_BEHIND_ITEMS = dict.fromkeys(("epsilon_total", "delta", "epsilon_spent"), "double")
_HEAVY_HITTER = _record("HeavyHitter", _OF_ITEM)
_HEAVY_HITTERS = {"heavy_hitters": {"type": "array", "items": _HEAVY_HITTER}}
# What the fields mean: `core.window_report` and docs/formats.md.
WINDOW_REPORT_AVRO_SCHEMA = _record("WindowReport", {**_BEFORE_ITEMS, **_HEAVY_HITTERS, **_BEHIND_ITEMS})
WINDOW_REPORT_AVRO_SCHEMA["namespace"] = "shh"


# What is decoded one after the other: of a report the fields before the heavy hitters, each of these, and the fields
# behind them. A long may hold times that datetime cannot.
_ENTRY = fastavro.parse_schema(_HEAVY_HITTER)
_BEFORE = fastavro.parse_schema(_record("before", {"stream": "string", "window_start": "long", "window_end": "long"}))
_BEHIND = fastavro.parse_schema(_record("behind", _BEHIND_ITEMS))


def write(handle: IO[bytes], header: ReportHeader, reports: Sequence[WindowReport]) -> None:
    """reports: of `checked_report`, in order."""
    records = [plain_fields(report) for report in reports]
    metadata = {HEADER_KEY: header.to_json()}
    # The format requires 16 random bytes. Derived from the content, they let the same reports make the same file.
    sync = hashlib.sha256(json.dumps([metadata, records], check_circular=False).encode()).digest()[:SYNC_SIZE]
    # The schema is written as it is given. Parsed by fastavro, its keys would be in an order that differs by process.
    schema = WINDOW_REPORT_AVRO_SCHEMA
    fastavro.writer(handle, schema, records, codec="deflate", metadata=metadata, sync_marker=sync)


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    """Any other error than a ReportFileError means that the file is damaged."""
    container = read_header(handle)
    if HEADER_KEY not in container.meta:
        raise ReportFileError(f"the file has no {HEADER_KEY}, so shh did not write it.")
    header = ReportHeader.from_fields(decode_json(container.meta[HEADER_KEY], dict[str, Any]))  # first: the version
    schema: object = decode_json(container.schema, Any)
    if schema != WINDOW_REPORT_AVRO_SCHEMA:
        raise ReportFileError("the Avro schema is not that of a report, so shh did not write the file.")
    return header, _reports(handle, container)


def _reports(handle: IO[bytes], container: Header) -> Iterator[WindowReport]:
    """Of all blocks."""
    for count, data in blocks(handle, container):
        stream = io.BytesIO(data)
        for _ in itertools.repeat(None, count):
            yield _read_report(stream)
        if stream.read(1):
            raise ReportFileError("a block of the Avro file holds more than its records.")


def _read_report(stream: IO[bytes]) -> WindowReport:
    """The report at the position of a stream. Heavy hitters are counted before they are decoded."""
    fields, entries = _decoded(stream, _BEFORE), list[HeavyHitter]()
    while count := _decoded(stream, LONG):
        if count < 0:  # the size of this part of the array in bytes follows
            count = -count
            _decoded(stream, LONG)
        if len(entries) + count > MAX_HEAVY_HITTERS:
            raise too_large_report()
        entries += (HeavyHitter(**_decoded(stream, _ENTRY)) for _ in range(count))
    return checked_report(WindowReport(heavy_hitters=entries, **fields, **_decoded(stream, _BEHIND)))


def _decoded(stream: IO[bytes], schema: Any) -> Any:
    return fastavro.schemaless_reader(stream, schema, None)
