"""Reports in Avro: an object container file, with `WINDOW_REPORT_AVRO_SCHEMA` and the header in the file metadata.

`avro_container` reads the container, not fastavro, which trusts the file: a 5 KB schema can end the process, and a
small block can unpack to any size. fastavro only decodes fields and heavy hitters, by our schema.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fastavro
import fastavro.schema

from dp_transforms.core.window_report import WindowReport
from dp_transforms.reports.report_records import (
    HEADER_KEY,
    MAX_HEADER_BYTES,
    MAX_HEAVY_HITTERS,
    MAX_RECORD_BYTES,
    ReportFileError,
    ReportHeader,
    check_report,
    parse_header,
    parse_json,
    plain_fields,
    too_many_heavy_hitters,
)
from dp_transforms.stores import avro_container
from dp_transforms.stores.avro_container import (
    BlockTooLargeError,
    DamagedContainerError,
    HeaderTooLargeError,
    read_long,
)

_SYNC_BYTES = 16
# The schema, and the header of a report.
_MAX_CONTAINER_HEADER_BYTES = MAX_HEADER_BYTES + (1 << 16)
# A record takes at least a byte for each of its 4 variable-length fields and 8 for each of its 3 doubles.
_MIN_RECORD_BYTES = 28
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
    """reports: of `check_report`, in order."""
    records = [plain_fields(report) for report in reports]
    metadata = {HEADER_KEY: header.to_json()}
    # The format requires 16 random bytes. Derived from the content, they let the same reports make the same file.
    sync = hashlib.sha256(json.dumps([metadata, records]).encode()).digest()[:_SYNC_BYTES]
    # The schema is written as it is given. Parsed by fastavro, its keys would be in an order that differs by process.
    schema = WINDOW_REPORT_AVRO_SCHEMA
    fastavro.writer(handle, schema, records, codec="deflate", metadata=metadata, sync_marker=sync)


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    try:
        container = avro_container.read_header(handle, _MAX_CONTAINER_HEADER_BYTES)
    except HeaderTooLargeError:
        raise ReportFileError(
            f"the header of the Avro file has more than {_MAX_CONTAINER_HEADER_BYTES} bytes."
        ) from None
    except DamagedContainerError:
        raise ReportFileError("the file is not an Avro object container file, or its header is damaged.") from None
    header = parse_header(container.metadata.get(HEADER_KEY.encode()))  # first, since it has the version
    if _shape(parse_json(container.schema or b"null")) != _shape(WINDOW_REPORT_AVRO_SCHEMA):
        raise ReportFileError("the Avro schema is not that of a report, so shh did not write the file.")
    if container.codec not in ("null", "deflate"):
        raise ReportFileError("the Avro codec of a report file must be null or deflate.")
    return header, _records(handle, container)


def _records(handle: IO[bytes], container: avro_container.Header) -> Iterator[WindowReport]:
    try:
        for count, begin, length in avro_container.iter_frames(handle, container):
            block = avro_container.read_block(handle, container, begin, length, _MAX_BLOCK_BYTES)
            if count > len(block) // _MIN_RECORD_BYTES:
                raise ReportFileError("a block of the Avro file does not hold as many records as it claims.")
            stream = io.BytesIO(block)
            for _ in range(count):
                yield _read_datum(stream)
            if stream.tell() != len(block):
                raise ReportFileError("a block of the Avro file holds more than its records.")
    except BlockTooLargeError:
        raise ReportFileError(f"a block of the Avro file unpacks to more than {_MAX_BLOCK_BYTES} bytes.") from None
    except DamagedContainerError:
        raise ReportFileError("the Avro file is truncated or damaged: write it again.") from None


def _read_datum(stream: IO[bytes]) -> WindowReport:
    """The report at the position of a stream. Heavy hitters are counted before they are decoded.

    Raises ReportFileError, DamagedContainerError, or what fastavro raises for broken bytes.
    """
    before, heavy_hitter, behind = _parts()
    fields: Any = fastavro.schemaless_reader(stream, before, None)
    entries = [fastavro.schemaless_reader(stream, heavy_hitter, None) for _ in _counted(stream)]
    rest: Any = fastavro.schemaless_reader(stream, behind, None)
    return check_report({**fields, "heavy_hitters": entries, **rest})


def _counted(stream: IO[bytes]) -> Iterator[None]:
    """One for each element of an array, which then stands at the position of the stream. Raises ReportFileError before
    a block with which there would be too many."""
    found = 0
    while (count := read_long(stream)) != 0:
        if count < 0:  # a negative count is followed by the size of the block in bytes
            count = -count
            read_long(stream)
        found += count
        if found > MAX_HEAVY_HITTERS:
            raise too_many_heavy_hitters()
        yield from itertools.repeat(None, count)


@functools.cache
def _parts() -> tuple[Any, Any, Any]:
    """Parsed schemas: the fields before the heavy hitters, a heavy hitter, and the fields after them."""
    schema = _without(WINDOW_REPORT_AVRO_SCHEMA, "logicalType")  # a long may hold times that datetime cannot
    fields = schema["fields"]
    place = [field["name"] for field in fields].index("heavy_hitters")
    before, behind = ({**schema, "fields": part} for part in (fields[:place], fields[place + 1 :]))
    parts = (before, fields[place]["type"]["items"], behind)
    return tuple(fastavro.parse_schema(part) for part in parts)


def _without(schema: Any, *keys: str) -> Any:
    """The same schema without these keys, wherever they stand. Its nesting is bounded by `parse_json`."""
    if isinstance(schema, list):
        return [_without(branch, *keys) for branch in schema]
    if isinstance(schema, dict):
        return {key: _without(value, *keys) for key, value in schema.items() if key not in keys}
    return schema


def _shape(schema: Any) -> Any:
    """What decoding needs of a schema, to compare."""
    return _without(schema, "doc", "namespace", "default")
