"""Reports as an Avro object container file, with `WINDOW_REPORT_AVRO_SCHEMA` and the header in the file metadata.

The container is read here and not by fastavro, which trusts the file: a 5 KB schema can end the process, and a small
block can unpack to any size. fastavro only decodes fields and heavy hitters, by our schema.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro

from dp_transforms.monitoring.window_report import WINDOW_REPORT_AVRO_SCHEMA, WindowReport
from dp_transforms.report_files.records import (
    HEADER_KEY,
    MAX_HEADER_BYTES,
    MAX_HEAVY_HITTERS,
    MAX_RECORD_BYTES,
    ReportFileError,
    ReportHeader,
    check_report,
    parse_header,
    parse_json,
    report_fields,
    too_many_heavy_hitters,
)

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_METADATA_ENTRIES = 64
# A record takes at least a byte for each of its 4 variable-length fields and 8 for each of its 3 doubles.
_MIN_RECORD_BYTES = 28
# A writer puts records into a block until it has 16,000 bytes: the last of them may be of any size.
_MAX_BLOCK_BYTES = MAX_RECORD_BYTES + (1 << 16)


def write(handle: IO[bytes], header: ReportHeader, reports: Sequence[WindowReport]) -> None:
    schema = fastavro.parse_schema(WINDOW_REPORT_AVRO_SCHEMA)
    records = [report_fields(report) for report in reports]
    metadata = {HEADER_KEY: header.to_json()}
    # The format asks for 16 random bytes. Derived from the content, the same reports make the same file.
    sync = hashlib.sha256(json.dumps([metadata, records]).encode()).digest()[:_SYNC_BYTES]
    fastavro.writer(handle, schema, records, codec="deflate", metadata=metadata, sync_marker=sync)


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    if handle.read(len(_MAGIC)) != _MAGIC:
        raise ReportFileError("the file is no Avro object container file.")
    metadata = _read_metadata(handle)
    if _shape(parse_json(metadata.get("avro.schema", b"null"))) != _shape(WINDOW_REPORT_AVRO_SCHEMA):
        raise ReportFileError("the Avro schema is not that of a report, so shh did not write the file.")
    codec = metadata.get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ReportFileError("the Avro codec of a report file must be null or deflate.")
    header = parse_header(metadata.get(HEADER_KEY))
    return header, _records(handle, _exactly(handle, _SYNC_BYTES), codec == b"deflate")


def _records(handle: IO[bytes], sync: bytes, deflated: bool) -> Iterator[WindowReport]:
    while first := handle.read(1):
        count = _read_long(handle, first)
        data = _exactly(handle, _read_long(handle))
        if _exactly(handle, _SYNC_BYTES) != sync:
            raise ReportFileError("a block of the Avro file does not end where it says.")
        block = _inflate(data) if deflated else data
        if not 0 <= count <= len(block) // _MIN_RECORD_BYTES:
            raise ReportFileError("a block of the Avro file does not hold as many records as it says.")
        stream = io.BytesIO(block)
        for _ in range(count):
            yield read_datum(stream)
        if stream.tell() != len(block):
            raise ReportFileError("a block of the Avro file holds more than its records.")


def read_datum(stream: IO[bytes]) -> WindowReport:
    """A report at the place where a stream is. Heavy hitters are counted before they are decoded.

    Raises ReportFileError, or what fastavro raises for broken bytes.
    """
    before, heavy_hitter, behind = _parts()
    fields: Any = fastavro.schemaless_reader(stream, before, None)
    entries: list[Any] = []
    while (count := _read_long(stream)) != 0:
        if count < 0:  # a negative count is followed by the size of the block in bytes
            count = -count
            _read_long(stream)
        if len(entries) + count > MAX_HEAVY_HITTERS:
            raise too_many_heavy_hitters()
        entries.extend(fastavro.schemaless_reader(stream, heavy_hitter, None) for _ in range(count))
    rest: Any = fastavro.schemaless_reader(stream, behind, None)
    return check_report({**fields, "heavy_hitters": entries, **rest})


@functools.cache
def _parts() -> tuple[Any, Any, Any]:
    """Parsed schemas: the fields before the heavy hitters, a heavy hitter, and the fields behind them."""
    schema = without_logical_types(WINDOW_REPORT_AVRO_SCHEMA)
    fields = schema["fields"]
    place = [field["name"] for field in fields].index("heavy_hitters")
    before, behind = ({**schema, "fields": part} for part in (fields[:place], fields[place + 1 :]))
    parts = (before, fields[place]["type"]["items"], behind)
    return tuple(fastavro.parse_schema(part) for part in parts)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    block = inflater.decompress(data, _MAX_BLOCK_BYTES)
    if not inflater.eof:  # bytes behind the end are no fault: fastavro leaves 3 of a checksum there
        raise ReportFileError(f"a block of the Avro file is broken or unpacks to more than {_MAX_BLOCK_BYTES} bytes.")
    return block


def _read_metadata(handle: IO[bytes]) -> dict[str, bytes]:
    """The Avro map of the file header, bounded in entries and size."""
    metadata: dict[str, bytes] = {}
    while (count := _read_long(handle)) != 0:
        if count < 0:  # a negative count is followed by the size of the block in bytes
            count = -count
            _read_long(handle)
        if len(metadata) + count > _MAX_METADATA_ENTRIES:
            raise ReportFileError(f"the Avro file has more than {_MAX_METADATA_ENTRIES} entries of metadata.")
        for _ in range(count):
            key = _exactly(handle, _read_long(handle), MAX_HEADER_BYTES).decode()
            metadata[key] = _exactly(handle, _read_long(handle), MAX_HEADER_BYTES)
    return metadata


def _exactly(handle: IO[bytes], size: int, max_bytes: int = _MAX_BLOCK_BYTES) -> bytes:
    if not 0 <= size <= max_bytes:
        raise ReportFileError(f"a part of the Avro file says that it has {size} bytes; at most {max_bytes} are read.")
    data = handle.read(size)
    if len(data) != size:
        raise ReportFileError("the Avro file is truncated: write it anew.")
    return data


def _read_long(handle: IO[bytes], first: bytes = b"") -> int:
    """A zig-zag varint of at most 64 bits. first: its first byte, if that has been read."""
    value = 0
    for shift in range(0, 70, 7):
        byte = first if first and not shift else handle.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ReportFileError("the Avro file is truncated or broken: write it anew.")


def _shape(schema: Any) -> Any:
    """A schema without documentation and namespaces, to compare. Its nesting is bounded by `parse_json`."""
    if isinstance(schema, list):
        return [_shape(branch) for branch in schema]
    if isinstance(schema, dict):
        kept = {key: _shape(value) for key, value in schema.items() if key not in ("doc", "namespace")}
        if isinstance(name := kept.get("name"), str):
            kept["name"] = name.rpartition(".")[2]
        return kept
    return schema


def without_logical_types(schema: Any) -> Any:
    """The same schema with times as plain microseconds: the calendar of datetime ends before that of a long."""
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return schema
