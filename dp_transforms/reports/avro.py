"""Reports in Avro: an object container file, with `WINDOW_REPORT_AVRO_SCHEMA` and the header in the file metadata.

fastavro trusts a file that it reads: a 5 KB schema can end the process, and a small block can unpack to any size. So it
is given neither: the schema is compared before anything is decoded by it, and blocks are unpacked with a limit.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro
import fastavro.schema

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

_MAGIC, _SYNC_BYTES = b"Obj\x01", 16
_CONTAINER = {
    "type": "record",
    "name": "container",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": len(_MAGIC)}},
        {"name": "metadata", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC_BYTES}},
    ],
}
# The schema, and the header of a report.
_MAX_CONTAINER_HEADER_BYTES = MAX_HEADER_BYTES + (1 << 16)
# A writer puts records into a block until it has 16,000 bytes: the last of them may be of any size.
_MAX_BLOCK_BYTES = MAX_RECORD_BYTES + (1 << 16)


WINDOW_REPORT_AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "WindowReport",
    "namespace": "shh",
    "doc": "Items held by many users in one window, differentially private for each user over the whole run.",
    "fields": [
        {"name": "stream", "type": "string", "doc": "Name of the stream."},
        {
            "name": "window_start",
            "type": {"type": "long", "logicalType": "timestamp-micros"},
            "doc": "Start of the window (inclusive), UTC.",
        },
        {
            "name": "window_end",
            "type": {"type": "long", "logicalType": "timestamp-micros"},
            "doc": "End of the window (exclusive), UTC.",
        },
        {
            "name": "heavy_hitters",
            "doc": "Items found heavy; above first, then by falling level, at_least_users, noisy_count; by label."
            " Ranks, and what is new, rising, falling or gone, follow from these: docs/read_a_report.md.",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "HeavyHitter",
                    "fields": [
                        {"name": "item", "type": "string", "doc": "Label of the item."},
                        {
                            "name": "zone",
                            "type": ["null", "string"],
                            "doc": "mode hits: above (free of charge) or between (charged); else null.",
                        },
                        {
                            "name": "noisy_count",
                            "type": ["null", "long"],
                            "doc": "Users that hold it, with discrete Laplace noise; null for above, kms21 and names.",
                        },
                        {
                            "name": "level",
                            "type": ["null", "long"],
                            "default": None,
                            "doc": "mode looks: boundaries that the noisy sum of weights reaches, from 1; else null.",
                        },
                        {
                            "name": "at_least_users",
                            "type": ["null", "long"],
                            "default": None,
                            "doc": "mode looks: at least so many users hold it, or 0: not stated; else null.",
                        },
                    ],
                },
            },
        },
        {"name": "epsilon_total", "type": "double", "doc": "Epsilon of the whole run, for each user."},
        {"name": "delta", "type": "double", "doc": "Delta of the whole run, for each user."},
        {
            "name": "epsilon_spent",
            "type": "double",
            "doc": "Running estimate of the part of epsilon_total used so far, from public output alone.",
        },
    ],
}


def write(handle: IO[bytes], header: ReportHeader, reports: Sequence[WindowReport]) -> None:
    """reports: of `checked_report`, in order."""
    records = [plain_fields(report) for report in reports]
    metadata = {HEADER_KEY: header.to_json()}
    # The format requires 16 random bytes. Derived from the content, they let the same reports make the same file.
    sync = hashlib.sha256(json.dumps([metadata, records], check_circular=False).encode()).digest()[:_SYNC_BYTES]
    # The schema is written as it is given. Parsed by fastavro, its keys would be in an order that differs by process.
    schema = WINDOW_REPORT_AVRO_SCHEMA
    fastavro.writer(handle, schema, records, codec="deflate", metadata=metadata, sync_marker=sync)


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    """Any other error means that the file is damaged."""
    head = io.BytesIO(handle.read(_MAX_CONTAINER_HEADER_BYTES))
    try:
        container: Any = fastavro.schemaless_reader(head, _parsed("container"), None)
    except EOFError:
        if len(head.getvalue()) < _MAX_CONTAINER_HEADER_BYTES:
            raise
        problem = f"the header of the Avro file has more than {_MAX_CONTAINER_HEADER_BYTES} bytes."
        raise ReportFileError(problem) from None
    metadata = container["metadata"]
    if container["magic"] != _MAGIC or HEADER_KEY not in metadata:
        raise ReportFileError(f"the file is no Avro object container file with {HEADER_KEY}, so shh did not write it.")
    header = ReportHeader.from_fields(decode_json(metadata[HEADER_KEY], dict[str, Any]))  # first: it has the version
    schema = decode_json(metadata.get("avro.schema", b"null"), dict[str, Any] | str | list | None)  # type: ignore[arg-type]
    if _shape(schema) != _shape(WINDOW_REPORT_AVRO_SCHEMA):
        raise ReportFileError("the Avro schema is not that of a report, so shh did not write the file.")
    codec = metadata.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ReportFileError("the Avro codec of a report file must be null or deflate.")
    handle.seek(head.tell())
    return header, _records(handle, codec == b"deflate", container["sync"])


def _records(handle: IO[bytes], is_packed: bool, sync: bytes) -> Iterator[WindowReport]:
    while handle.read(1):
        handle.seek(-1, io.SEEK_CUR)
        count, length = _long(handle), _long(handle)
        if not 0 <= length <= _MAX_BLOCK_BYTES:
            raise _too_large()
        data = handle.read(length)
        if handle.read(_SYNC_BYTES) != sync or len(data) != length:
            raise ReportFileError("the Avro file is truncated or damaged: write it again.")
        if is_packed:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            data = inflater.decompress(data, _MAX_BLOCK_BYTES)
            if inflater.unconsumed_tail:
                raise _too_large()
        stream = io.BytesIO(data)
        for _ in itertools.repeat(None, max(0, count)):
            yield _read_datum(stream)
        if stream.tell() != len(data):
            raise ReportFileError("a block of the Avro file holds more than its records.")


def _too_large() -> ReportFileError:
    return ReportFileError(f"a block of the Avro file unpacks to more than {_MAX_BLOCK_BYTES} bytes.")


def _read_datum(stream: IO[bytes]) -> WindowReport:
    """The report at the position of a stream. Heavy hitters are counted before they are decoded."""
    fields: Any = fastavro.schemaless_reader(stream, _parsed("before"), None)
    entries: list[HeavyHitter] = []
    while count := _long(stream):
        if count < 0:  # the size of this part of the array in bytes follows
            count = -count
            _long(stream)
        if len(entries) + count > MAX_HEAVY_HITTERS:
            raise too_large_report()
        for _ in range(count):
            entry: Any = fastavro.schemaless_reader(stream, _parsed("heavy_hitter"), None)
            entries.append(HeavyHitter(**entry))
    rest: Any = fastavro.schemaless_reader(stream, _parsed("behind"), None)
    return checked_report(WindowReport(heavy_hitters=entries, **fields, **rest))


def _long(stream: IO[bytes]) -> int:
    number: Any = fastavro.schemaless_reader(stream, _parsed("long"), None)
    return int(number)


@functools.cache
def _parsed(name: str) -> Any:
    """Parsed schemas: of a container, a number, a heavy hitter, and the fields of a report before and behind them."""
    schema = _without(WINDOW_REPORT_AVRO_SCHEMA, "logicalType")  # a long may hold times that datetime cannot
    fields = schema["fields"]
    place = [field["name"] for field in fields].index("heavy_hitters")
    known: dict[str, Any] = {"container": _CONTAINER, "long": "long"}
    known |= {"before": {**schema, "fields": fields[:place]}, "behind": {**schema, "fields": fields[place + 1 :]}}
    known |= {"heavy_hitter": fields[place]["type"]["items"]}
    return fastavro.parse_schema(known[name])


def _without(schema: Any, *keys: str) -> Any:
    """The same schema without these keys, wherever they stand."""
    if isinstance(schema, list):
        return [_without(branch, *keys) for branch in schema]
    if isinstance(schema, dict):
        return {key: _without(value, *keys) for key, value in schema.items() if key not in keys}
    return schema


def _shape(schema: Any) -> Any:
    """What decoding needs of a schema, to compare."""
    return _without(schema, "doc", "namespace", "default")
