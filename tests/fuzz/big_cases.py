"""Inputs made to take memory or time: bombs, huge counts, deep nesting, giant schemas, long lines.

Each is written to a file and read in a process of its own, with a limit of CPU and of memory.
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Callable, Iterable, Iterator

from dp_transforms.core.window_report import HeavyHitter
from dp_transforms.reports.files import report_file_bytes
from tests.fuzz.big_binary_cases import MB, BigCase, as_file, avro_cases, parquet_cases
from tests.fuzz.format_mutators import sealed
from tests.fuzz.log_samples import csv_samples, json_samples
from tests.helpers.report_samples import HEADER, report
from tests.helpers.small_runs import small_plan

_BEGIN = json_samples()[0].data
_CSV = csv_samples()[0].data
_HEADER_LINE = f'{{"header": {HEADER.to_json()}}}\n'.encode()


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
        BigCase("header of a million names", *csv_file, as_file(lambda: b"c," * 10**6 + _CSV), "either"),
        BigCase("nested a million deep, lists", *json_file, as_file(lambda: _BEGIN + b"[" * 10**6), "accepted"),
        BigCase(
            "nested a million deep, closed",
            *json_file,
            as_file(lambda: _BEGIN + b"[" * 10**6 + b"]" * 10**6 + b"\n" + _BEGIN),
            "accepted",
        ),
        BigCase(
            "nested a million deep, objects",
            *json_file,
            as_file(lambda: _BEGIN + b'{"a":' * 10**6 + b"1" + b"}" * 10**6),
            "accepted",
        ),
        BigCase(
            "nested 199 deep, 5,000 times",
            *json_file,
            as_file(lambda: _BEGIN + (b'{"a":' + b"[" * 198 + b"]" * 198 + b"}\n") * 5000),
            "accepted",
        ),
        BigCase(
            "10 MB of names in one object",
            *json_file,
            as_file(lambda: _BEGIN + b"{" + b",".join(b'"%d":0' % n for n in range(10**6)) + b"}\n"),
            "accepted",
        ),
        BigCase(
            "a number of 10 MB",
            *json_file,
            as_file(lambda: _BEGIN + b'{"user":"u","item":"i","timestamp":' + b"9" * 10**7 + b"}\n"),
            "accepted",
        ),
        BigCase(
            "10 MB of backslashes",
            *json_file,
            as_file(lambda: _BEGIN + b'{"user":"' + b"\\" * 10**7 + b'"}\n'),
            "accepted",
        ),
        BigCase("256 MB of blank lines", *in_json, _pieces(_times(b"\n" * MB, 256, _BEGIN), packed=True), "accepted"),
        BigCase(
            "2 GB of blank lines", *in_json, _pieces(_times(b"\n" * MB, 2048, _BEGIN), packed=True), "accepted", 60
        ),
        BigCase(
            "2 GB of blanks and line ends",
            *in_json,
            _pieces(_times(b" \r\n\t\n" * (MB // 5), 2048), packed=True),
            "either",
            120,
        ),
        BigCase("256 MB of blank lines", *in_csv, _pieces(_times(b"\n" * MB, 256, _CSV), packed=True), "either", 30),
        BigCase("1 GB in one line", *in_json, _pieces(_times(line, 1024, good, end), packed=True), "accepted", 30),
        BigCase("1 GB in one line", *in_csv, _pieces(_times(line, 1024, _CSV), packed=True), "either", 30),
        BigCase("4 GB in one line", *in_csv, _pieces(_times(line, 4096, _CSV), packed=True), "either", 120),
        BigCase("4 GB in one line", *in_json, _pieces(_times(line, 4096, good), packed=True), "accepted", 120),
        BigCase(
            "8 MB of broken lines", *in_json, _pieces(_times(b"{\n" * (MB // 2), 8, _BEGIN), packed=True), "accepted"
        ),
        BigCase(
            "8 MB of broken lines", *in_csv, _pieces(_times(b'"\n' * (MB // 2), 8, _CSV), packed=True), "accepted", 30
        ),
        BigCase("10,000 members", *in_json, as_file(lambda: gzip.compress(_BEGIN[:100]) * 10_000), "either"),
        BigCase(
            "100,000 empty members",
            *in_csv,
            as_file(lambda: gzip.compress(_CSV) + gzip.compress(b"") * 100_000),
            "either",
        ),
    ]


# What shh writes itself


def _many_names() -> bytes:
    """The largest report of names: each label is another one."""
    hitters = [HeavyHitter(f"{number:060}", None, None, 2**63 - 1, 2**63 - 1) for number in range(2**18)]
    return report_file_bytes(HEADER, [report(0, *hitters)], "json")


def _own_cases() -> list[BigCase]:
    of_report = ("report", "json, four", ".json")
    plan = small_plan().to_json().encode()
    million = b"[" * 10**6
    return [
        BigCase("nested a million deep", *of_report, as_file(lambda: _HEADER_LINE + million + b"\n")),
        BigCase("header nested a million deep", *of_report, as_file(lambda: b'{"header":' + million + b"\n")),
        BigCase("line of 300 MB", *of_report, _pieces(_times(b" " * MB, 300, _HEADER_LINE))),
        *(
            BigCase(
                f"47 MB of {name}",
                *of_report,
                as_file(lambda values=values: _HEADER_LINE + b"[" + values * (MB * 47 // len(values)) + b"0]\n"),
            )
            for name, values in (
                ("objects", b'{"":0},'),
                ("nested lists", b"[" * 500 + b"]" * 500 + b","),
                ("numbers", b"999,"),
                ("texts", b'"ab",'),
            )
        ),
        *(
            BigCase(
                f"47 MB of {name}",
                "topic-record",
                "json 0",
                "",
                as_file(lambda values=values: b"[" + values * (MB * 47 // len(values)) + b"0]"),
            )
            for name, values in (("objects", b'{"":0},'), ("lists", b"[[]],"))
        ),
        BigCase("2^18 heavy hitters of names", *of_report, as_file(_many_names), "accepted", 30),
        BigCase("header of 300 MB", *of_report, _pieces(_times(b" " * MB, 300))),
        BigCase("nested a million deep", "plan", "plan 0", ".json", as_file(lambda: million)),
        BigCase("100 MB of blanks", "plan", "plan 0", ".json", as_file(lambda: plan + b" " * 100 * MB), "either"),
        BigCase(
            "hits without end",
            "plan",
            "plan 0",
            ".json",
            as_file(lambda: sealed(plan.replace(b'"per_user": 3', b'"per_user": 10000'))),
            "refused",
            60,
        ),
        BigCase(
            "2^31 windows",
            "plan",
            "plan 0",
            ".json",
            as_file(lambda: sealed(plan.replace(b'"end_seconds": ', b'"end_seconds": 12'))),
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
        BigCase("nested a million deep", "progress", "step 0", "", as_file(lambda: million)),
        BigCase("nested a million deep", "topic-record", "json 0", "", as_file(lambda: million)),
    ]


def big_cases() -> list[BigCase]:
    return [*_text_cases(), *avro_cases(), *parquet_cases(), *_own_cases()]
