"""What a case of much memory or time is; and Avro and Parquet made for it: bombs, huge counts, giant schemas."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.avro_mutators import PACK, avro_container
from tests.fuzz.log_samples import AVRO_KINDS, avro_record, avro_schema
from tests.fuzz.mutators import varint, zigzag
from tests.helpers.report_samples import HEADER

MB = 1 << 20


@dataclasses.dataclass(frozen=True)
class BigCase:
    """write: puts the input at a path. sample: whose context the reader takes. verdict: what must come of it.

    seconds: of CPU. A case is read at the speed of its bytes: those that have gigabytes get more.
    """

    name: str
    reader: str
    sample: str
    ending: str
    write: Callable[[pathlib.Path], None]
    verdict: str = "refused"
    seconds: float = 10
    megabytes: float = 512


def as_file(data: Callable[[], bytes]) -> Callable[[pathlib.Path], None]:
    return lambda path: (path.write_bytes(data()), None)[1]


# Avro


Blocks = Callable[[], list[tuple[int, bytes]]]  # how many records and their bytes; made when a case is written


def _avro(blocks: Blocks, codec: str = "deflate", schema: Any = None) -> Callable[[pathlib.Path], None]:
    text = schema if isinstance(schema, bytes) else json.dumps(schema or AVRO_KINDS[0][1]).encode()
    return as_file(lambda: avro_container({"avro.schema": text, "avro.codec": codec.encode()}, blocks()))


def _bomb(codec: str, size: int) -> bytes:
    if codec == "deflate":
        packer = zlib.compressobj(wbits=-15)
        return b"".join(packer.compress(bytes(MB)) for _ in range(size // MB)) + packer.flush()
    return PACK[codec](bytes(size))


_LIST = {"name": "a", "type": {"type": "array", "items": "int"}}
_NULLS = {"name": "a", "type": {"type": "array", "items": "null"}}
_MAP = {"name": "a", "type": {"type": "map", "values": "null"}}
_RECORD = {"name": "next", "type": ["null", "Event"]}


def _beside(field: Any) -> dict[str, Any]:
    return avro_schema("string", "string", "string", beside=[field])


def _nested_type(depth: int) -> bytes:
    return b'{"type":"array","items":' * depth + b'"string"' + b"}" * depth


def avro_cases() -> list[BigCase]:
    log, report = ("avro", "text, deflate", ".avro"), ("report", "avro, four", ".avro")
    record = avro_record(AVRO_KINDS[0][1], AVRO_KINDS[0][2][0])
    cell = zigzag(15 * MB) + bytes(15 * MB) + record[1 + record[0] // 2 :]
    wide = b'{"type":"record","name":"E","fields":[%s]}'
    names = b",".join(b'{"name":"f%d","type":"int"}' % n for n in range(30_000))
    unions = json.dumps(
        {"name": "a", "type": [{"type": "record", "name": f"R{n}", "fields": []} for n in range(15_000)]}
    )
    huge = [("array", _LIST), ("map", _MAP)]
    return [
        *(
            BigCase(f"block of 1 GB, {codec}", *log, _avro(lambda codec=codec: [(1, _bomb(codec, 1024 * MB))], codec))
            for codec in ("deflate", "zstandard")
        ),
        BigCase("block of 1 GB, snappy", *log, _avro(lambda: [(1, varint(1 << 30) + b"\0" * 100)], "snappy")),
        BigCase("block that says 4 GB, snappy", *log, _avro(lambda: [(1, varint(2**32 - 1) + b"\0" * 100)], "snappy")),
        BigCase("a hundred blocks of 15 MB", *log, _avro(lambda: [(1, PACK["deflate"](cell))] * 100), "accepted", 30),
        BigCase("2^62 records", *log, _avro(lambda: [(2**62, PACK["deflate"](record))])),
        BigCase("minus 2^63 records", *log, _avro(lambda: [(-(2**63), PACK["deflate"](record))])),
        BigCase("text of 2^62 bytes", *log, _avro(lambda: [(1, zigzag(2**62) + record)], "null")),
        BigCase("text of minus 5 bytes", *log, _avro(lambda: [(1, zigzag(-5) + record)], "null")),
        *(
            BigCase(
                f"{name} of 2^62 values", *log, _avro(lambda: [(1, zigzag(2**62) + b"\0" * 64)], "null", _beside(field))
            )
            for name, field in huge
        ),
        *(
            BigCase(
                f"{name} of minus 2^62 values",
                *log,
                _avro(lambda: [(1, zigzag(-(2**62)) + zigzag(2**62) + b"\0" * 64)], "null", _beside(field)),
            )
            for name, field in huge
        ),
        BigCase(
            "array of 2^31 nulls", *log, _avro(lambda: [(1, zigzag(2**31) + b"\0" + record)], "null", _beside(_NULLS))
        ),
        BigCase("16 MB of tiny records", *log, _avro(lambda: [(4 * MB, bytes(12 * MB))], "null"), "accepted", 30),
        BigCase("a record in itself", *log, _avro(lambda: [(1, b"\2" * MB)], "null", _beside(_RECORD))),
        BigCase("type nested 30,000 deep", *log, _avro(lambda: [], "null", _nested_type(30_000))),
        BigCase("schema nested a million deep", *log, _avro(lambda: [(1, b"")], "null", b"[" * 10**6)),
        BigCase("30,000 fields", *log, _avro(lambda: [(1, b"\0")], "null", wide % names)),
        BigCase("15,000 branches", *log, _avro(lambda: [(1, b"\0")], "null", wide % unions.encode())),
        BigCase("header of 2 MB", *log, _avro(lambda: [], "null", b" " * (2 * MB))),
        BigCase("2^60 entries of metadata", *log, as_file(lambda: b"Obj\1" + zigzag(2**60) + b"\2a\2b" * 10**5)),
        BigCase("100,000 empty blocks", *log, _avro(lambda: [(0, b"")] * 100_000, "null"), "either", 30),
        BigCase("block of 1 GB", *report, _report_avro(lambda: [(1, _bomb("deflate", 1024 * MB))])),
        BigCase("240 MB of heavy hitters", *report, _report_avro(lambda: [(1, _hitters_packed(48 * 10**6))])),
        BigCase("10 million heavy hitters", *report, _report_avro(lambda: [(1, _hitters_packed(10**7))])),
        BigCase(
            "10 million blocks of a heavy hitter", *report, _report_avro(lambda: [(1, _hitters_packed(6 * 10**6, 1))])
        ),
        BigCase("a million records", *report, _report_avro(lambda: [(10**6, PACK["deflate"](_TINY_RECORD * 10**6))])),
        BigCase(
            "2^60 heavy hitters", *report, _report_avro(lambda: [(1, PACK["deflate"](_hitters(2**60, bytes(99))))])
        ),
        BigCase("schema nested a million deep", "avro-schema", "text", "", as_file(lambda: _nested_type(10**6))),
        BigCase("30,000 fields", "avro-schema", "text", "", as_file(lambda: wide % names)),
        BigCase(
            "record of 15 MB, nested", "json-record", "json 0", "", as_file(lambda: b"[" * (15 * MB)), "accepted", 30
        ),
    ]


def _hitters(count: int, rest: bytes = b"") -> bytes:
    return b"\2s" + zigzag(0) + zigzag(10**9) + zigzag(count) + rest


def _hitters_packed(count: int, block: int | None = None) -> bytes:
    """A record of ``count`` heavy hitters without a label or a number, in one array block or blocks of so many."""
    empty = bytes(_HITTER_BYTES)
    body = zigzag(count) + empty * count if block is None else (zigzag(block) + empty * block) * (count // block)
    return PACK["deflate"](b"\2s" + zigzag(0) + zigzag(10**9) + body + b"\0" + bytes(24))


_HITTER_BYTES = 5  # one for each field
_TINY_RECORD = b"\2s" + zigzag(0) + zigzag(10**9) + zigzag(1) + bytes(_HITTER_BYTES) + b"\0" + bytes(24)


def _report_avro(blocks: Blocks) -> Callable[[pathlib.Path], None]:
    from dp_transforms.reports.avro import WINDOW_REPORT_AVRO_SCHEMA

    metadata = {
        "avro.schema": json.dumps(WINDOW_REPORT_AVRO_SCHEMA).encode(),
        "avro.codec": b"deflate",
        "shh.header": HEADER.to_json().encode(),
    }
    return as_file(lambda: avro_container(metadata, blocks()))


# Parquet


def _parquet(columns: Callable[[], dict[str, Any]], **options: Any) -> Callable[[pathlib.Path], None]:
    def write(path: pathlib.Path) -> None:
        pq.write_table(pa.table(columns()), path, compression="zstd", **options)

    return write


def _repeated(text: str, rows: int) -> dict[str, Any]:
    moments = pa.array([1_506_829_287_000_000], pa.timestamp("us", "UTC"))
    return {
        "user": pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array([text])),
        "item": pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array(["i"])),
        "timestamp": pa.DictionaryArray.from_arrays(
            pa.nulls(rows, pa.int32()).fill_null(0), moments
        ).dictionary_decode(),
    }


def parquet_cases() -> list[BigCase]:
    log = ("parquet", "dictionary", ".parquet")
    return [
        BigCase("5 million equal rows", *log, _parquet(lambda: _repeated("u", 5 * 10**6)), "accepted", 60),
        # A page is decoded whole; its label is there in up to four copies.
        BigCase("one label of 300 MB", *log, _parquet(lambda: _repeated("u" * (300 * MB), 10)), "either", 10, 1536),
        BigCase(
            "a label of 16 KB in a million rows", *log, _parquet(lambda: _repeated("u" * 16_000, 10**6)), "accepted", 30
        ),
        BigCase(
            "a label of 16 KB in a million rows, plain",
            *log,
            _parquet(lambda: _repeated("u" * 1_000, 10**6), use_dictionary=False),
            "either",
            30,
            1536,
        ),
        BigCase(
            "20,000 columns",
            *log,
            _parquet(lambda: {**_repeated("u", 1), **{f"c{n}": [1] for n in range(20_000)}}),
            "either",
            30,
        ),
        BigCase("footer that says 4 GB", *log, as_file(lambda: b"PAR1" + bytes(100) + b"\xff\xff\xff\xff" + b"PAR1")),
    ]
