"""The first rows of a log, before anybody has named its fields, and what they say of each.

They hold cells: for the operator's eyes, and they decide nothing of a run. What no run could read is refused with the
command that mends it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dp_transforms.errors import InputError
from dp_transforms.logs import avro, avro_schema, text_files
from dp_transforms.logs.csv_lines import delimiter_of
from dp_transforms.logs.discovery import ending_of_log, find_log_files, format_of_log
from dp_transforms.logs.log_chunk import TIME_UNITS, EventFileError, damaged_error, opened_log
from dp_transforms.logs.time_formats import DIRECTIVES
from dp_transforms.logs.times import parse_values
from dp_transforms.stores import avro_container
from dp_transforms.stores.remote_files import StoredFile

_NO_ROW = (
    "no row of it can be read. Text is UTF-8 (else: iconv -f utf-16 -t utf-8 OLD > NEW), its lines end in line feeds"
    r" (else: tr '\r' '\n' < OLD > NEW), CSV begins with names of fields, JSON has an object a line (of an array:"
    " jq -c '.[]' OLD > NEW)."
)
_NUMBER_OR_TIME = r"[+-]?\d[\dT.,:/ +-]*Z?"  # in the first line of CSV: it names no fields
_REQUEST = r'\[([^]]+)\][^"]*"[A-Z]+ ([^ "]+)'  # of an access log: the time and the path
_ROWS, _DEPTH = 2000, 3  # of objects in objects
TEXT, WHOLE, NUMBERS, TIMES, CLOCKS = "text", "whole numbers", "numbers", "times", "clock times"
ADDRESSES, WITH_PORTS, EMAILS = "addresses", "addresses with ports", "e-mail addresses"
ITEMS = (TEXT, WHOLE)  # what they may hold
USERS = (*ITEMS, ADDRESSES, WITH_PORTS, EMAILS)
_SHAPES = {  # of nearly all values of a field, as text
    CLOCKS: r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp]\.?[Mm]\.?)?",
    WITH_PORTS: r"\d{1,3}(\.\d{1,3}){3}:\d{1,5}|\[[\dA-Fa-f:.]+\]:\d{1,5}",
    ADDRESSES: r"\d{1,3}(\.\d{1,3}){3}|(?=.*::|(.*:){7})[\dA-Fa-f:.]{2,39}",
    EMAILS: r"[^@\s]+@[^@\s]+\.[^@\s]+",
    WHOLE: r"[+-]?\d+",
    NUMBERS: r"[+-]?\d*\.?\d+([Ee][+-]?\d+)?",
}
_LONG = 200  # characters: no time or address has so many, and a hostile cell may have a million
USUAL = range(631_152_000_000_000, 4_102_444_800_000_000)  # 1990 to 2100: so a number has one unit


def look(paths: Sequence[str], separator: str | None, form: str | None) -> tuple[list[str], list[Field], str | None]:
    """All files, the fields of the first one that has rows, and the separator of CSV, if it must be declared.
    separator, form: of times, if they are. Raises EventFileError, with the remedy, for what no run could read."""
    if logs := [path for path in paths if re.search(r"\.log(\.gz)?$", path) and os.path.isfile(path)]:
        _refuse_access_log(logs)
    files, readers = find_log_files(paths), {"json": _json, "parquet": _parquet, "avro": _avro}
    for path, stored in files:
        try:
            if (log_format := format_of_log(path)) == "csv":
                separator, found = _csv(path, _lines(path, stored), separator)
            else:
                found = readers[log_format](path, stored)
            rows = [dict(_leaves(row)) for row in itertools.islice(found, _ROWS)]
        except EventFileError:
            raise
        except Exception:  # a hostile file may make a library raise anything, and its words may hold a cell
            raise damaged_error(path, ending_of_log(path)) from None
        if any(rows):
            return [path for path, _ in files], [*_fields(rows, form)], separator
    raise EventFileError(files[0][0], _NO_ROW)


def _leaves(row: Mapping[str, Any], above: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Fields inside of objects have a path for a name, such as .actor.login."""
    for name, value in row.items():
        if isinstance(value, dict) and value and depth < _DEPTH:
            yield from _leaves(value, f"{above or '.'}{name}.", depth + 1)
        else:
            yield above + name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _lines(path: str, stored: StoredFile | None = None) -> list[str]:
    """The first ones, but those of UTF-16, with a carriage return inside, or too long for Python's reader of CSV."""
    with text_files.open_text(path, stored) as stream:
        block = next(text_files.blocks_of_lines(stream, path))
    text = block.text.replace(b"\r\n", b"\n").decode("utf-8", "replace").removeprefix("\ufeff")
    return [line for line in text.split("\n")[: _ROWS + 1] if re.fullmatch(r"[^\0\r]{1,100000}", line)]


def _csv(path: str, lines: list[str], separator: str | None) -> tuple[str | None, Iterator[Mapping[str, Any]]]:
    """Each line is read by itself: a quote that is left open swallows no other row."""
    usual = delimiter_of(path, None)
    mark = separator or max((usual, *",;\t|"), key="".join(lines[:1]).count)
    names, *rows = (next(csv.reader([line], delimiter=mark)) for line in lines or [""])
    if any(re.fullmatch(_NUMBER_OR_TIME, name) for name in names):
        fields = mark.join(f"field{number}" for number in range(1, len(names) + 1)).replace("\t", r"\t")
        problem = "its first line looks like an event. Let it begin with the names of its fields, such as user and item"
        raise EventFileError(path, rf"{problem}: (printf '{fields}\n'; gzip -cdf {shlex.quote(path)}) > named.csv")
    return {usual: None, "\t": "tab"}.get(mark, mark), (dict(zip(names, row, strict=False)) for row in rows)


def _json(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    for line in _lines(path, stored):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield record


def _parquet(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    with opened_log(path, stored) as source:
        # A buffer: else whole column chunks are fetched for their first rows.
        for batch in pq.ParquetFile(source, buffer_size=1 << 16, pre_buffer=False).iter_batches(_ROWS):
            columns = [_values(each) for each in batch.columns]
            yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    """Python has not all times, such as nanoseconds and years after 9999: a time is its text, and of another column
    that Python cannot have nothing is said."""
    try:
        values: list[Any] = (column.cast(pa.string()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        return values
    except (ValueError, OverflowError, pa.ArrowException):
        return [None] * len(column)


def _avro(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    with opened_log(path, stored) as file:
        header = avro.read_header(path, file)
        avro_schema.record_schema(path, header.schema)  # a hostile one would end fastavro by a signal
        schema = fastavro.parse_schema(json.loads(header.schema))
        for count, data in avro_container.blocks(file, header):
            stream = io.BytesIO(data)
            for _ in range(min(count, len(data))):  # a record without a byte says nothing
                yield fastavro.schemaless_reader(stream, schema, None)


def _refuse_access_log(paths: Sequence[str]) -> None:
    """Raises EventFileError with the command that makes CSV of access logs of a web server, where they are such: for a
    shell of any locale, whatever bytes they have."""
    lines = _lines(paths[0])
    # The address is before the first hyphen that stands alone, and a virtual host may be before it.
    blanks = [line.partition(" - ")[0].count(" ") for line in lines if re.search(_REQUEST, line)]
    if 2 * len(blanks) > len(lines):
        program = rf's/^([^ ]+ ){{{statistics.mode(blanks)}}}([^ ]+) [^[]*{_REQUEST}.*/\2,\3,"\4"/p'
        to_csv = f"gzip -cdf {shlex.join(paths)} | LC_ALL=C sed -nE {shlex.quote(program)}"
        raise EventFileError(paths[0], f"make CSV of it: (echo address,time,path; {to_csv}) > access.csv")


def flat_command(paths: Sequence[str]) -> str:
    """Makes a log whose fields are not inside of objects, and looks at it."""
    if format_of_log(paths[0]) == "parquet":
        program = f'pq.write_table(pq.read_table({json.dumps(paths)}).flatten().flatten(), "flat.parquet")'
        return f"python -c {shlex.quote(f'import pyarrow.parquet as pq; {program}')} && shh doctor flat.parquet"
    program = '[paths(scalars) as $path | {($path | join(".")): getpath($path)}] | add'
    return f"gzip -cdf {shlex.join(paths)} | jq -c {shlex.quote(program)} > flat.jsonl && shh doctor flat.jsonl"


class Field(NamedTuple):
    """holds: the shape of its values. counts: of these. forms: what --time-format may say, "" for nothing; several if
    only the order of day, month and year tells them apart; none unless most values are times. fineness: of these times,
    0 for days, 1 for minutes, 2 for seconds, 3 for less."""

    name: str
    holds: str
    counts: Counter[Any]
    forms: list[str]
    fineness: int


def _fields(rows: Sequence[Mapping[str, Any]], form: str | None) -> Iterator[Field]:
    """Those that half of the rows have: other names may be cells, of objects that are keyed by user."""
    for name in [name for name, count in Counter(itertools.chain(*rows)).items() if 2 * count >= len(rows)]:
        values = [row[name] for row in rows if row.get(name) not in (None, "")]
        if not values or any(isinstance(value, (bool, list, dict)) for value in values):
            yield Field(name, "other values", Counter(), [], 0)
            continue
        texts = [str(value)[:_LONG] for value in values]
        alike = {shape: sum(bool(re.fullmatch(each, text)) for text in texts) for shape, each in _SHAPES.items()}
        holds = next((shape for shape, count in alike.items() if count >= 0.9 * len(texts)), TEXT)
        forms, fineness = _times(values, form) if holds in (TEXT, WHOLE, NUMBERS) else ([], 0)
        holds = TIMES if forms and forms[0] not in TIME_UNITS else holds
        yield Field(name, holds, Counter(values), forms, fineness)


def _times(values: Sequence[Any], declared: str | None) -> tuple[list[str], int]:
    """Forms and fineness of a field: by the parser of runs, in the declared form or those that fit best."""
    likely = [declared] if declared else ["", "s", "ms", "us", "%Y%m%d", *_likely_forms(str(values[0])[:_LONG])]
    found: dict[bytes, tuple[float, str]] = {}  # what is read -> which part of it is times, and by which form
    for form in likely:
        with contextlib.suppress(InputError):
            micros = parse_values(values, *((form, None) if form in TIME_UNITS else (None, form or None))).micros
            found.setdefault(micros.tobytes(), (((micros >= USUAL.start) & (micros < USUAL.stop)).mean(), form))
    most = max(part for part, _ in found.values())
    best = {data: form for data, (part, form) in found.items() if part == most > 0.5}
    micros = np.frombuffer(next(iter(best), b""), np.int64)
    return [*best.values()], sum(bool((micros % size).any()) for size in (86_400_000_000, 60_000_000, 1_000_000))


def _likely_forms(text: str) -> Iterator[str]:
    """A date and perhaps a clock, in each usual order of day, month and year. Some are no forms of times."""
    text = re.sub(r"(:.*\d ?)(z|utc|gmt|[+-]\d\d:?\d\d)(?=\]?$)", r"\1%z", text, flags=re.IGNORECASE)
    for letter in "pabAB":
        text = re.sub(rf"(?<![a-z%])(?:{DIRECTIVES[letter][1]})(?![a-z])", f"%{letter}", text, flags=re.IGNORECASE)
    begin, *rest = re.split(r"\d+", text)
    for order in ("dmY", "mdY", "Ymd", "dmy", "mdy", "ymd"):
        letters = order.replace("m", "") if "%b" in text.lower() else order
        letters += "IMS" if "%p" in text else "HMSf"
        yield begin + "".join(f"%{letter}{part}" for letter, part in zip(letters, rest, strict=False))
