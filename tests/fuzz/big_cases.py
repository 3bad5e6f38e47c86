"""Inputs made to take memory or time: bombs, huge counts, deep nesting, giant schemas, long lines.

Each is written to a file and read in a process of its own, with a limit of CPU and of memory.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.avro_mutators import PACK, avro_container
from tests.fuzz.log_samples import AVRO_KINDS, avro_record, avro_schema, csv_samples, json_samples
from tests.fuzz.mutators import varint, zigzag
from tests.pipeline_helpers import small_plan
from tests.unit.report_samples import HEADER, LABELS

MB = 1 << 20
_BEGIN = json_samples()[0].data
_CSV = csv_samples()[0].data
_HEADER_LINE = f'{{"header": {HEADER.to_json()}}}\n'.encode()
_WINDOW = b'{"stream":"s","window_start":"2017-10-01T03:00:00Z","window_end":"2017-10-01T04:00:00Z",'
_WINDOW += b'"epsilon_total":1,"delta":0.1,"epsilon_spent":1,"heavy_hitters":'


@dataclasses.dataclass(frozen=True)
class BigCase:
    """write: puts the input at a path. sample: whose context the reader takes. verdict: what must come of it.

    seconds: of CPU. A case is read at the speed of its bytes: those that have gigabytes get more, and are ``long``.
    """

    name: str
    reader: str
    sample: str
    ending: str
    write: Callable[[pathlib.Path], None]
    verdict: str = "refused"
    seconds: float = 10
    megabytes: float = 512
    is_long: bool = False


def _bytes(data: Callable[[], bytes]) -> Callable[[pathlib.Path], None]:
    return lambda path: (path.write_bytes(data()), None)[1]


def _pieces(pieces: Callable[[], Iterable[bytes]], *, packed: bool = False) -> Callable[[pathlib.Path], None]:
    def write(path: pathlib.Path) -> None:
        with gzip.open(path, "wb", compresslevel=1) if packed else open(path, "wb") as file:
            for piece in pieces():
                file.write(piece)

    return write


def _times(piece: bytes, count: int, before: bytes = b"", behind: bytes = b"") -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield before
        for _ in range(count):
            yield piece
        yield behind

    return pieces


# Text


def _text_cases() -> list[BigCase]:
    line, quoted = b"x" * MB, b"user,item,timestamp\n" + b'"'
    good = _BEGIN + b'{"user":"'
    json_file, csv_file = ("json", "plain", ".jsonl"), ("csv", "plain", ".csv")
    in_json, in_csv = ("gzip", "plain", ".jsonl.gz"), ("gzip", "plain", ".csv.gz")
    end = b'","item":"i","timestamp":"2017-10-01T03:00:00Z"}\n' + _BEGIN
    return [
        BigCase("100 MB line", *json_file, _pieces(_times(line, 100, good, end)), "accepted"),
        BigCase("100 MB line without an end", *json_file, _pieces(_times(line, 100, good)), "accepted"),
        BigCase("100 MB in one line, the first", *json_file, _pieces(_times(line, 100)), "either"),
        BigCase("100 MB of one cell", *csv_file, _pieces(_times(line, 100, _CSV)), "either"),
        BigCase("100 MB behind a quote", *csv_file, _pieces(_times(_CSV * 100, 1000, quoted)), "either"),
        BigCase("100 MB of quotes", *csv_file, _pieces(_times(b'"' * MB, 100, _CSV)), "either"),
        BigCase("100 MB of separators", *csv_file, _pieces(_times(b"," * MB, 100, _CSV)), "either"),
        BigCase("100 MB of carriage returns", *csv_file, _pieces(_times(b"\r" * MB, 100, _CSV)), "either", 30),
        BigCase("100 MB of NUL", *csv_file, _pieces(_times(bytes(MB), 100, _CSV)), "either"),
        BigCase("100 MB of NUL", *json_file, _pieces(_times(bytes(MB), 100, _BEGIN)), "either"),
        BigCase("header of a million names", *csv_file, _bytes(lambda: b"c," * 10**6 + _CSV), "either"),
        BigCase("nested a million deep, lists", *json_file, _bytes(lambda: _BEGIN + b"[" * 10**6), "accepted"),
        BigCase(
            "nested a million deep, closed",
            *json_file,
            _bytes(lambda: _BEGIN + b"[" * 10**6 + b"]" * 10**6 + b"\n" + _BEGIN),
            "accepted",
        ),
        BigCase(
            "nested a million deep, objects",
            *json_file,
            _bytes(lambda: _BEGIN + b'{"a":' * 10**6 + b"1" + b"}" * 10**6),
            "accepted",
        ),
        BigCase(
            "nested 199 deep, 5,000 times",
            *json_file,
            _bytes(lambda: _BEGIN + (b'{"a":' + b"[" * 198 + b"]" * 198 + b"}\n") * 5000),
            "accepted",
        ),
        BigCase(
            "10 MB of names in one object",
            *json_file,
            _bytes(lambda: _BEGIN + b"{" + b",".join(b'"%d":0' % n for n in range(10**6)) + b"}\n"),
            "accepted",
        ),
        BigCase(
            "a number of 10 MB",
            *json_file,
            _bytes(lambda: _BEGIN + b'{"user":"u","item":"i","timestamp":' + b"9" * 10**7 + b"}\n"),
            "accepted",
        ),
        BigCase(
            "10 MB of backslashes",
            *json_file,
            _bytes(lambda: _BEGIN + b'{"user":"' + b"\\" * 10**7 + b'"}\n'),
            "accepted",
        ),
        BigCase("256 MB of blank lines", *in_json, _pieces(_times(b"\n" * MB, 256, _BEGIN), packed=True), "accepted"),
        BigCase(
            "2 GB of blank lines",
            *in_json,
            _pieces(_times(b"\n" * MB, 2048, _BEGIN), packed=True),
            "accepted",
            60,
            is_long=True,
        ),
        BigCase(
            "2 GB of blanks and line ends",
            *in_json,
            _pieces(_times(b" \r\n\t\n" * (MB // 5), 2048), packed=True),
            "either",
            120,
            is_long=True,
        ),
        BigCase("256 MB of blank lines", *in_csv, _pieces(_times(b"\n" * MB, 256, _CSV), packed=True), "either", 30),
        BigCase("1 GB in one line", *in_json, _pieces(_times(line, 1024, good, end), packed=True), "accepted", 30),
        BigCase("1 GB in one line", *in_csv, _pieces(_times(line, 1024, _CSV), packed=True), "either", 30),
        BigCase(
            "4 GB in one line", *in_csv, _pieces(_times(line, 4096, _CSV), packed=True), "either", 120, is_long=True
        ),
        BigCase(
            "4 GB in one line", *in_json, _pieces(_times(line, 4096, good), packed=True), "accepted", 120, is_long=True
        ),
        BigCase("10,000 members", *in_json, _bytes(lambda: gzip.compress(_BEGIN[:100]) * 10_000), "either"),
        BigCase(
            "100,000 empty members",
            *in_csv,
            _bytes(lambda: gzip.compress(_CSV) + gzip.compress(b"") * 100_000),
            "either",
        ),
    ]


# Avro


def _avro(
    blocks: list[tuple[int, bytes]], codec: str = "deflate", schema: Any = None
) -> Callable[[pathlib.Path], None]:
    text = schema if isinstance(schema, bytes) else json.dumps(schema or AVRO_KINDS[0][1]).encode()
    return _bytes(lambda: avro_container({"avro.schema": text, "avro.codec": codec.encode()}, blocks))


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


def _avro_cases() -> list[BigCase]:
    log = ("avro", "text, deflate", ".avro")
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
            BigCase(f"block of 1 GB, {codec}", *log, _avro([(1, _bomb(codec, 1024 * MB))], codec))
            for codec in ("deflate", "zstandard")
        ),
        BigCase("block of 1 GB, snappy", *log, _avro([(1, varint(1 << 30) + b"\0" * 100)], "snappy")),
        BigCase("block that says 4 GB, snappy", *log, _avro([(1, varint(2**32 - 1) + b"\0" * 100)], "snappy")),
        BigCase("a hundred blocks of 15 MB", *log, _avro([(1, PACK["deflate"](cell))] * 100), "accepted", 30),
        BigCase("2^62 records", *log, _avro([(2**62, PACK["deflate"](record))])),
        BigCase("minus 2^63 records", *log, _avro([(-(2**63), PACK["deflate"](record))])),
        BigCase("text of 2^62 bytes", *log, _avro([(1, zigzag(2**62) + record)], "null")),
        BigCase("text of minus 5 bytes", *log, _avro([(1, zigzag(-5) + record)], "null")),
        *(
            BigCase(f"{name} of 2^62 values", *log, _avro([(1, zigzag(2**62) + b"\0" * 64)], "null", _beside(field)))
            for name, field in huge
        ),
        *(
            BigCase(
                f"{name} of minus 2^62 values",
                *log,
                _avro([(1, zigzag(-(2**62)) + zigzag(2**62) + b"\0" * 64)], "null", _beside(field)),
            )
            for name, field in huge
        ),
        BigCase("array of 2^31 nulls", *log, _avro([(1, zigzag(2**31) + b"\0" + record)], "null", _beside(_NULLS))),
        BigCase("16 MB of tiny records", *log, _avro([(4 * MB, bytes(12 * MB))], "null"), "accepted", 30, is_long=True),
        BigCase("a record in itself", *log, _avro([(1, b"\2" * MB)], "null", _beside(_RECORD))),
        BigCase("type nested 30,000 deep", *log, _avro([], "null", _nested_type(30_000))),
        BigCase("schema nested a million deep", *log, _avro([(1, b"")], "null", b"[" * 10**6)),
        BigCase("30,000 fields", *log, _avro([(1, b"\0")], "null", wide % names)),
        BigCase("15,000 branches", *log, _avro([(1, b"\0")], "null", wide % unions.encode())),
        BigCase("header of 2 MB", *log, _avro([], "null", b" " * (2 * MB))),
        BigCase("2^60 entries of metadata", *log, _bytes(lambda: b"Obj\1" + zigzag(2**60) + b"\2a\2b" * 10**5)),
        BigCase("100,000 empty blocks", *log, _avro([(0, b"")] * 100_000, "null"), "either", 30),
        BigCase(
            "report, block of 1 GB", "report", "avro, three", ".avro", _report_avro([(1, _bomb("deflate", 1024 * MB))])
        ),
        BigCase("report, 2^60 heavy hitters", "report", "avro, three", ".avro", _report_avro([(1, _hitters(2**60))])),
        BigCase(
            "report, 250 MB of heavy hitters",
            "report",
            "avro, three",
            ".avro",
            _report_avro([(1, PACK["deflate"](_hitters(60 * MB, bytes(240 * MB))))]),
            "either",
        ),
        BigCase("schema nested a million deep", "avro-schema", "text", "", _bytes(lambda: _nested_type(10**6))),
        BigCase("30,000 fields", "avro-schema", "text", "", _bytes(lambda: wide % names)),
        BigCase(
            "record with 2^62 values",
            "avro-record",
            "beside, none",
            "",
            _bytes(lambda: zigzag(2**62) + bytes(100)),
            "accepted",
        ),
        BigCase(
            "record of 15 MB of nothing",
            "avro-record",
            "text, none",
            "",
            _bytes(lambda: bytes(15 * MB)),
            "accepted",
            30,
        ),
        BigCase(
            "record of 15 MB, nested", "json-record", "json 0", "", _bytes(lambda: b"[" * (15 * MB)), "accepted", 30
        ),
    ]


def _hitters(count: int, rest: bytes = b"") -> bytes:
    return b"\2s" + zigzag(0) + zigzag(10**9) + zigzag(count) + rest


def _report_avro(blocks: list[tuple[int, bytes]]) -> Callable[[pathlib.Path], None]:
    from dp_transforms.monitoring.window_report import WINDOW_REPORT_AVRO_SCHEMA

    metadata = {
        "avro.schema": json.dumps(WINDOW_REPORT_AVRO_SCHEMA).encode(),
        "avro.codec": b"deflate",
        "shh.header": HEADER.to_json().encode(),
    }
    return _bytes(lambda: avro_container(metadata, blocks))


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


def _report_parquet(path: pathlib.Path) -> None:
    """One window of ten million heavy hitters in a few kilobytes."""
    from dp_transforms.report_files.parquet import WINDOW_REPORT_ARROW_SCHEMA as SCHEMA

    hitters = SCHEMA.field("heavy_hitters").type.value_type
    item = pa.DictionaryArray.from_arrays(pa.nulls(10**7, pa.int32()).fill_null(0), pa.array(["i"])).dictionary_decode()
    parts = [item, pa.nulls(10**7, pa.string()), pa.nulls(10**7, pa.int64())]
    values = pa.StructArray.from_arrays(parts, fields=list(hitters))
    held = pa.ListArray.from_arrays(pa.array([0, 10**7], pa.int32()), values).cast(SCHEMA.field("heavy_hitters").type)
    plain = {
        "stream": "s",
        "window_start": 0,
        "window_end": 10**9,
        "epsilon_total": 1.0,
        "delta": 0.1,
        "epsilon_spent": 1.0,
    }
    columns = [
        held
        if field.name == "heavy_hitters"
        else pa.array([plain[field.name]], pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array([plain[field.name]], field.type)
        for field in SCHEMA
    ]
    pq.write_table(
        pa.table(columns, schema=SCHEMA.with_metadata({"shh.header": HEADER.to_json()})), path, compression="zstd"
    )


def _parquet_cases() -> list[BigCase]:
    log = ("parquet", "dictionary", ".parquet")
    return [
        BigCase(
            "5 million equal rows", *log, _parquet(lambda: _repeated("u", 5 * 10**6)), "accepted", 60, is_long=True
        ),
        BigCase("one label of 300 MB", *log, _parquet(lambda: _repeated("u" * (300 * MB), 10)), "either"),
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
            is_long=True,
        ),
        BigCase(
            "20,000 columns",
            *log,
            _parquet(lambda: {**_repeated("u", 1), **{f"c{n}": [1] for n in range(20_000)}}),
            "either",
            30,
        ),
        BigCase("footer that says 4 GB", *log, _bytes(lambda: b"PAR1" + bytes(100) + b"\xff\xff\xff\xff" + b"PAR1")),
        BigCase("report, ten million heavy hitters", "report", "parquet, three", ".parquet", _report_parquet, "either"),
    ]


# What shh writes itself


def _own_cases() -> list[BigCase]:
    report = ("report", "json, three", ".json")
    plan = small_plan().to_json().encode()
    million = b"[" * 10**6
    hitter = json.dumps(LABELS.heavy_hitters[1]._asdict()).encode()
    hitters = _WINDOW + b"[" + (hitter + b",") * (3 * MB) + hitter + b"]}\n"
    return [
        BigCase("nested a million deep", *report, _bytes(lambda: _HEADER_LINE + million)),
        BigCase("header nested a million deep", *report, _bytes(lambda: b'{"header":' + million)),
        BigCase("line of 300 MB", *report, _pieces(_times(b" " * MB, 300, _HEADER_LINE))),
        BigCase("header of 300 MB", *report, _pieces(_times(b" " * MB, 300))),
        BigCase(
            "240 MB of small lists",
            *report,
            _bytes(lambda: _HEADER_LINE + _WINDOW + b"[" + b"[]," * (80 * MB) + b"[]]}\n"),
            "refused",
            30,
        ),
        BigCase("200 MB of heavy hitters", *report, _bytes(lambda: _HEADER_LINE + hitters), "either", 60, is_long=True),
        BigCase("nested a million deep", "plan", "plan 0", ".json", _bytes(lambda: million)),
        BigCase("100 MB of blanks", "plan", "plan 0", ".json", _bytes(lambda: plan + b" " * 100 * MB), "either"),
        BigCase(
            "hits without end",
            "plan",
            "plan 0",
            ".json",
            _bytes(lambda: plan.replace(b'"hits_per_user": 3', b'"hits_per_user": 10000')),
            "refused",
            60,
        ),
        BigCase(
            "2^31 windows",
            "plan",
            "plan 0",
            ".json",
            _bytes(lambda: plan.replace(b'"end_seconds": ', b'"end_seconds": 12')),
            "refused",
        ),
        BigCase(
            "600 MB of items",
            "domain",
            "lines",
            ".txt",
            _pieces(_times(b"x" * 100 + b"\n" + b"y" * (MB - 102) + b"\n", 600)),
        ),
        BigCase("100 MB line", "domain", "lines", ".txt", _pieces(_times(b"x" * MB, 100))),
        BigCase("1 GB of zeros", "key", "32 bytes", ".key", _pieces(_times(bytes(MB), 1024))),
        BigCase("nested a million deep", "progress", "step 0", "", _bytes(lambda: million)),
        BigCase("nested a million deep", "topic-record", "json 0", "", _bytes(lambda: million)),
    ]


def big_cases() -> list[BigCase]:
    return [*_text_cases(), *_avro_cases(), *_parquet_cases(), *_own_cases()]
