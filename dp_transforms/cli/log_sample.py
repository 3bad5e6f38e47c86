"""The first rows of a log, whatever its fields are called: for a look at it before anybody has named them.

A sample holds cells: it is for the operator's eyes and decides nothing of a run. What no run could read is refused with
the command that mends it.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dp_transforms.logs.csv_lines import delimiter_of
from dp_transforms.logs.discovery import ending_of_log, find_log_files, format_of_log
from dp_transforms.logs.log_chunk import EventFileError, damaged_error, opened_log
from dp_transforms.logs.text_files import UTF8_MARK, is_packed
from dp_transforms.stores.remote_files import StoredFile

ADDRESS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?=[^ ]*::|(?:[^ :]*:){7})(?=[^ ]*[a-fA-F0-9]:)[0-9a-fA-F:.]{2,39}"
_A_CELL = r"[+-]?\d[\dT.,:/ +-]*Z?"  # a number or a time, and no name of a field
_NO_ROW = (
    "no row of it can be read. Text is UTF-8 (else: iconv -f utf-16 -t utf-8 OLD > NEW), its lines end in line feeds"
    r" (else: tr '\r' '\n' < OLD > NEW), CSV begins with names of fields, JSON has an object a line (of an array:"
    " jq -c '.[]' OLD > NEW)."
)
_FILES, _ROWS, _HEAD_BYTES = 8, 2000, 1 << 20
_DEPTH = 3  # of fields inside of objects


def sample_log(sources: Sequence[str], separator: str | None) -> tuple[list[str], list[dict[str, Any]], str | None]:
    """The paths of all files, rows of the first ones, and the separator of CSV; None: that of its ending. separator: if
    it is declared. Raises EventFileError, with the remedy, for what no run could read."""
    if logs := [source for source in sources if re.search(r"\.log(\.gz)?$", source) and os.path.isfile(source)]:
        _refuse_access_log(logs)
    files, rows = list(find_log_files(sources)), list[dict[str, Any]]()
    readers = {"json": _json, "parquet": _parquet, "avro": _avro}
    for path, stored in files[:_FILES]:
        log_format = format_of_log(path)
        try:
            if log_format == "csv":
                separator, found = _csv(path, stored, separator)
            else:
                found = readers[log_format](path, stored)
            rows += (dict(_leaves(row)) for row in itertools.islice(found, _ROWS // len(files[:_FILES])))
        except EventFileError:
            raise
        except Exception:  # a hostile file may make a library raise anything, and its words may hold a cell
            raise damaged_error(path, ending_of_log(path)) from None
    if not any(rows):
        raise EventFileError(files[0][0], _NO_ROW)
    return [path for path, _ in files], rows, separator


def _leaves(row: Mapping[str, Any], above: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    """Fields inside of objects have a path for a name, such as .actor.login."""
    for name, value in row.items():
        if isinstance(value, dict) and value and depth < _DEPTH:
            yield from _leaves(value, f"{above or '.'}{name}.", depth + 1)
        else:
            yield above + name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _csv(path: str, stored: StoredFile | None, separator: str | None) -> tuple[str | None, Iterator[Mapping[str, Any]]]:
    """Each line is read by itself: a quote that is left open swallows no other row."""
    lines, usual = _lines(path, stored) or [""], delimiter_of(path, None)
    mark = separator or max((usual, *",;\t|"), key=lines[0].count)
    names, *rows = (_cells(line, mark) for line in lines)
    if any(re.fullmatch(_A_CELL, name) for name in names):
        fields = mark.join(f"field{number}" for number in range(1, len(names) + 1)).replace("\t", r"\t")
        problem = "its first line looks like an event. Let it begin with the names of its fields, such as user and item"
        raise EventFileError(path, rf"{problem}: (printf '{fields}\n'; {unpacked(path)}) > named.csv")
    return None if mark == usual else mark, (dict(zip(names, row, strict=False)) for row in rows)


def _cells(line: str, mark: str) -> list[str]:
    with contextlib.suppress(csv.Error):  # of a carriage return inside, or a huge cell
        return next(csv.reader([line], delimiter=mark), [])
    return []


def _json(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    for line in _lines(path, stored):
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield record


def _lines(path: str, stored: StoredFile | None) -> list[str]:
    """Some at the beginning that are not blank."""
    with opened_log(path, stored, _HEAD_BYTES) as file:
        head = (gzip.GzipFile(fileobj=file) if is_packed(path) else file).read(_HEAD_BYTES)
    if b"\0" in head[:4]:  # UTF-16
        return []
    head = head if len(head) < _HEAD_BYTES else head[: head.rfind(b"\n")]
    lines = head.removeprefix(UTF8_MARK).decode("utf-8", "replace").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()][: _ROWS + 1]


def _parquet(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    with opened_log(path, stored, _HEAD_BYTES) as source:
        # A buffer: else whole column chunks are fetched for their first rows.
        file = pq.ParquetFile(source, buffer_size=1 << 16, pre_buffer=False)
        for batch in itertools.islice(file.iter_batches(_ROWS), 1):
            # Python has not all times, such as nanoseconds and years after 9999.
            columns = [each.cast(pa.string()) if pa.types.is_timestamp(each.type) else each for each in batch.columns]
            yield from pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()


def _avro(path: str, stored: StoredFile | None) -> Iterator[Mapping[str, Any]]:
    import fastavro

    from dp_transforms.logs import avro, avro_schema

    with opened_log(path, stored, _HEAD_BYTES) as file:
        header = avro.read_header(path, file)
        avro_schema.record_schema(path, header.schema)  # a hostile one would end fastavro by a signal
        schema = fastavro.parse_schema(json.loads(header.schema))
        for count, data in avro.blocks(file, header):
            stream = io.BytesIO(data)
            for _ in range(min(count, len(data))):  # a record without a byte says nothing
                yield fastavro.schemaless_reader(stream, schema, None)


def unpacked(*paths: str) -> str:
    """The command that writes what files hold."""
    return f"{'gzip -cdf' if any(map(is_packed, paths)) else 'cat'} {shlex.join(paths)}"


def _refuse_access_log(paths: Sequence[str]) -> None:
    """Raises EventFileError with the command that makes CSV of access logs of a web server, for a shell of any locale,
    whatever bytes they have; where they are such."""
    lines = _lines(paths[0], None)
    request = r'\[([^]]+)\][^"]*"[A-Z]+ ([^ "]+)'
    words = [line.split(" ") for line in lines if re.search(request, line)]
    if 2 * len(words) <= len(lines):
        return
    # The address is the first word that is one in most lines, and not the same in all: a virtual host may be before it.
    places = [[row[at] for row in words if re.fullmatch(ADDRESS, row[at])] for at in range(min(map(len, words)))]
    before = next((at for at, found in enumerate(places) if 2 * len(found) > len(words) and len({*found}) > 1), 0)
    program = rf's/^([^ ]+ ){{{before}}}([^ ]+) [^[]*{request}.*/\2,\3,"\4"/p'
    to_csv = f"(echo address,time,path; {unpacked(*paths)} | LC_ALL=C sed -nE {shlex.quote(program)}) > access.csv"
    raise EventFileError(paths[0], f"make CSV of it: {to_csv}")
