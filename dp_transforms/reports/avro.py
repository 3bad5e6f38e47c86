"""Reports in Avro: an object container file, with `WINDOW_REPORT_AVRO_SCHEMA` and the header in the file metadata.

fastavro trusts a file that it reads: a 5 KB schema can end the process, and a small block can unpack to any size. So it
is given neither: the schema is compared before anything is decoded by it, and blocks are unpacked with a limit.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro
from fastavro.read import HEADER_SCHEMA, MAGIC, SYNC_SIZE

from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.reports.report_records import (
    HEADER_KEY,
    MAX_HEADER_BYTES,
    MAX_HEAVY_HITTERS,
    MAX_RECORD_BYTES,
    ReportFileError,
    ReportHeader,
    checked_report,
    decode_json,
    plain_fields,
    too_large_report,
)

# The schema, and the header of a report.
_MAX_CONTAINER_HEADER_BYTES = MAX_HEADER_BYTES + (1 << 16)
# A writer puts records into a block until it has 16,000 bytes: the last of them may be of any size.
_MAX_BLOCK_BYTES = MAX_RECORD_BYTES + (1 << 16)


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


# What is decoded one after the other: the head of a file, numbers, and of a report the fields before the heavy hitters,
# each of these, and the fields behind them. A long may hold times that datetime cannot.
_HEAD = fastavro.parse_schema(HEADER_SCHEMA)
_LONG, _ENTRY = fastavro.parse_schema("long"), fastavro.parse_schema(_HEAVY_HITTER)
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
    """Any other error means that the file is damaged."""
    head = io.BytesIO(handle.read(_MAX_CONTAINER_HEADER_BYTES))
    try:
        container = _decoded(head, _HEAD)
    except EOFError:
        if len(head.getvalue()) < _MAX_CONTAINER_HEADER_BYTES:
            raise
        problem = f"the header of the Avro file has more than {_MAX_CONTAINER_HEADER_BYTES} bytes."
        raise ReportFileError(problem) from None
    metadata = container["meta"]
    if container["magic"] != MAGIC or HEADER_KEY not in metadata:
        raise ReportFileError(f"the file is no Avro object container file with {HEADER_KEY}, so shh did not write it.")
    header = ReportHeader.from_fields(decode_json(metadata[HEADER_KEY], dict[str, Any]))  # first: it has the version
    schema: object = decode_json(metadata.get("avro.schema", b"null"), Any)
    if schema != WINDOW_REPORT_AVRO_SCHEMA:
        raise ReportFileError("the Avro schema is not that of a report, so shh did not write the file.")
    if metadata.get("avro.codec") != b"deflate":
        raise ReportFileError("the Avro codec of a report file must be deflate.")
    handle.seek(head.tell())
    return header, _reports(handle, container["sync"])


def _reports(handle: IO[bytes], sync: bytes) -> Iterator[WindowReport]:
    """Of all blocks."""
    while handle.read(1):
        handle.seek(-1, io.SEEK_CUR)
        count, length = _decoded(handle, _LONG), _decoded(handle, _LONG)
        data = handle.read(length if 0 <= length <= _MAX_BLOCK_BYTES else 0)
        if handle.read(SYNC_SIZE) != sync or len(data) != length:
            raise ReportFileError("the Avro file is truncated or damaged, or has too large a block: write it again.")
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        unpacked = inflater.decompress(data, _MAX_BLOCK_BYTES)
        if inflater.unconsumed_tail:
            raise ReportFileError(f"a block of the Avro file unpacks to more than {_MAX_BLOCK_BYTES} bytes.")
        stream = io.BytesIO(unpacked)
        for _ in itertools.repeat(None, max(0, count)):
            yield _read_report(stream)
        if stream.tell() != len(unpacked):
            raise ReportFileError("a block of the Avro file holds more than its records.")


def _read_report(stream: IO[bytes]) -> WindowReport:
    """The report at the position of a stream. Heavy hitters are counted before they are decoded."""
    fields, entries = _decoded(stream, _BEFORE), list[HeavyHitter]()
    while count := _decoded(stream, _LONG):
        if count < 0:  # the size of this part of the array in bytes follows
            count = -count
            _decoded(stream, _LONG)
        if len(entries) + count > MAX_HEAVY_HITTERS:
            raise too_large_report()
        entries += (HeavyHitter(**_decoded(stream, _ENTRY)) for _ in range(count))
    return checked_report(WindowReport(heavy_hitters=entries, **fields, **_decoded(stream, _BEHIND)))


def _decoded(stream: IO[bytes], schema: Any) -> Any:
    return fastavro.schemaless_reader(stream, schema, None)
