"""Some rows of a log, whatever its fields are called: for a look at it before anybody has named them.

Of a file are read its schema and some hundred rows at its beginning and, where that needs nothing between them, at its
end: a look takes constant memory, and a few ranges of a stored file, however large it is. A sample holds cells. It is
for the operator's eyes and decides nothing of a run, so libraries read it in place of the readers of runs.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import glob
import gzip
import io
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.logs.csv_lines import delimiter_of
from dp_transforms.logs.discovery import find_log_files, format_of_log
from dp_transforms.logs.id_columns import is_text_type
from dp_transforms.logs.log_chunk import (
    EventFileError,
    damaged_error,
    log_size,
    opened_log,
)
from dp_transforms.logs.text_files import UTF8_MARK, is_packed
from dp_transforms.logs.times import parse_values
from dp_transforms.stores.remote_files import RemoteFileError, StoredFile

FORMATS = {"parquet": "Parquet", "avro": "Avro", "csv": "CSV", "json": "JSON lines"}
IP_ADDRESS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?=[^ ]*::|(?:[^ :]*:){7})(?=[^ ]*[a-fA-F0-9]:)[0-9a-fA-F:.]{2,39}"
_NOT_UTF8 = "not UTF-8 text; if it is Latin-1 (or Windows-1252): iconv -f latin1 -t utf-8 OLD > NEW"
_NO_ROW = "quote that is open, or text behind a closing one (in Spark: .option('escape', '\"'))"
_A_CELL = r"[+-]?[0-9]+(?:\.[0-9]+)?|https?://.*|/.*|[^@\s]+@[^@\s]+"  # and no name of a field
_ROWS = 1000  # at an end
_HEAD_BYTES, _TAIL_BYTES, _AHEAD_BYTES = 1 << 20, 256 << 10, 64 << 10
_MOST_FIELDS = 100  # of Parquet: of a stored file each takes requests
_FILES_AT_AN_END = 8
_CALENDAR = datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 31)


class FileSample(NamedTuple):
    """records: those that are not broken. rows: how many were looked at. broken: rows by reason. sees_end: whether some
    are at its end. separator: of CSV, None for that of its ending. stated: by the name of a column of Parquet the least
    and the largest values that its footer states."""

    path: str
    records: list[dict[str, Any]]
    rows: int
    broken: Counter[str]
    sees_end: bool
    separator: str | None = None
    stated: Mapping[str, list[Any]] = {}


class LogSample(NamedTuple):
    """The first and the last files of a log by name. faults: why some could not be looked at. files, size: of all."""

    samples: list[FileSample]
    faults: list[EventFileError]
    files: int
    size: int


def sample_log(sources: Sequence[str], separator: str | None) -> LogSample:
    """separator: of CSV; None: of each file the likely one. Raises EventFileError if there is no log."""
    try:
        files = list(find_log_files(sources))
    except EventFileError:
        for source in sources:
            if remedy := as_csv(source):
                raise EventFileError(source, remedy) from None
        raise
    samples, faults = [], []
    for path, stored in [*files[:_FILES_AT_AN_END], *files[_FILES_AT_AN_END:][-_FILES_AT_AN_END:]]:
        try:
            samples.append(sample_file(path, stored, separator, max(_ROWS // len(files), _ROWS // _FILES_AT_AN_END)))
        except EventFileError as error:
            faults.append(error)
    return LogSample(samples, faults, len(files), sum(log_size(*file) for file in files))


def sample_file(
    path: str, stored: StoredFile | None = None, separator: str | None = None, most: int = _ROWS
) -> FileSample:
    """most: rows at an end. Raises EventFileError if it cannot be read."""
    log_format = format_of_log(path)
    try:
        if log_format == "csv":
            return _csv(path, stored, most, separator)
        return {"parquet": _parquet, "avro": _avro, "json": _json}[log_format](path, stored, most)
    except EventFileError:
        raise
    except RemoteFileError as error:
        raise EventFileError(path, f"it cannot be read: {error.strerror}.") from None
    except Exception:  # a hostile file may make a library raise anything, and its words may hold a cell
        raise damaged_error(path, FORMATS[log_format]) from None


def _parquet(path: str, stored: StoredFile | None, most: int) -> FileSample:
    import pyarrow.parquet as pq

    with opened_log(path, stored, _AHEAD_BYTES) as source:
        # A buffer: else whole column chunks are fetched for their first rows.
        file = pq.ParquetFile(source, buffer_size=_AHEAD_BYTES, pre_buffer=False)
        kinds = {field.name: field.type for field in file.schema_arrow}
        unread = {name: () for name, kind in kinds.items() if pa.types.is_nested(kind) and not pa.types.is_struct(kind)}
        names = [name for name in file.schema_arrow.names if name not in unread][:_MOST_FIELDS]
        batch = next(file.iter_batches(most, columns=names), None)
        rows = [] if batch is None else pa.table([*map(_plain, batch)], batch.schema.names).to_pylist()
        stated = {name: _stated(file.metadata, name) for name in names if _may_be_times(kinds[name])}
    return FileSample(path, [row | unread for row in rows], len(rows), Counter(), True, stated=stated)


def _plain(column: pa.Array) -> pa.Array:
    """As values that Python can have: texts as bytes, which may be any, and times that are in its calendar."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        first, last = (pa.scalar(year, micros.type) for year in _CALENDAR)
        return pc.if_else(pc.and_(pc.greater(micros, first), pc.less(micros, last)), micros, None)
    return column.cast(pa.binary()) if is_text_type(column.type) else column


def _may_be_times(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _stated(footer: Any, name: str) -> list[Any]:
    """Of a column that was read: at the metadata of one that contradict its file Arrow may end the process."""
    at = next(at for at in range(footer.num_columns) if footer.schema.column(at).path == name)
    found: list[Any] = []
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(at).statistics
        if statistics and statistics.has_min_max:
            with contextlib.suppress(ValueError, OverflowError):  # a time that Python's calendar has not
                found += [statistics.min, statistics.max]
    return found


def _avro(path: str, stored: StoredFile | None, most: int) -> FileSample:
    import fastavro

    from dp_transforms.logs import avro, avro_schema

    with opened_log(path, stored, _AHEAD_BYTES) as file:
        header = avro.read_avro_header(path, file)
        # A hostile schema would end fastavro by a signal.
        fields = avro_schema.record_schema(path, header.schema).branches
        refused = {name: () for name, branches in fields.items() if "enum" in dict(branches)}  # no run reads these
        schema = fastavro.parse_schema(json.loads(header.schema))
        records: list[dict[str, Any]] = []
        for frame in avro.frames(file, header, header.end):
            stream = io.BytesIO(data := avro.unpacked(file, header, frame))
            for _ in range(min(frame.records, len(data), most + 1 - len(records))):  # without a byte it says nothing
                records.append(fastavro.schemaless_reader(stream, schema, None) | refused)
            if len(records) > most:
                break
    return FileSample(path, records[:most], min(len(records), most), Counter(), len(records) <= most)


def _json(path: str, stored: StoredFile | None, most: int) -> FileSample:
    import msgspec

    texts, broken, sees_end = _lines(path, stored, most)
    if texts and re.match(r"\s*\[\s*(?:\{|$)", texts[0]):
        raise EventFileError(path, "it is a JSON array. Write one object per line: jq -c '.[]' OLD.json > NEW.jsonl")
    records = []
    for text in texts:
        try:
            record = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            record = None
        records += [record] if isinstance(record, dict) else []
    broken["no JSON object. Write one per line"] = len(texts) - len(records)
    return FileSample(path, records, len(texts), +broken, sees_end)


def _csv(path: str, stored: StoredFile | None, most: int, separator: str | None) -> FileSample:
    """Each line is judged by itself, as a run does it: a quote that is left open swallows no row of another user."""
    texts, broken, sees_end = _lines(path, stored, most)
    usual = delimiter_of(path, None)
    used = separator or max((usual, *",;\t|"), key=lambda mark: _cells_alike(texts, mark))
    names, *rows = [_cells(text, used) for text in texts] or [[]]
    if texts and not names:
        raise EventFileError(path, "its first line has a broken quote. Let it begin with the names of its fields.")
    _check_names(path, names, rows, used)
    broken[_NO_ROW] = rows.count([])
    broken["wrong number of cells"] = sum(len(row) not in (0, len(names)) for row in rows)
    records = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
    return FileSample(path, records, len(rows), +broken, sees_end, None if used == usual else used)


def _cells_alike(texts: Sequence[str], mark: str) -> tuple[int, int]:
    """How many lines have by this mark as many cells as the header, and how many these are, if not only one."""
    widths = [len(_cells(text, mark)) for text in texts[:100]]
    return (widths.count(widths[0]), widths[0]) if widths and widths[0] > 1 else (0, 0)


def _check_names(path: str, names: Sequence[str], rows: Sequence[Sequence[str]], separator: str) -> None:
    """Raises EventFileError, with a header of as many names, where the first line has cells in the place of names: a
    time, a number, an address, or in two columns what further rows have there."""
    is_time = parse_values(names, None).faults == 0
    often = Counter((at, cell) for row in rows if row != names for at, cell in enumerate(row))
    repeated = sum(often[at, name] > max(1, len(rows) // 100) for at, name in enumerate(names) if name)
    if not is_time.any() and repeated < 2 and not any(re.fullmatch(_A_CELL, name) for name in names):
        return
    fields = [f"field{number}" for number in range(1, len(names) + 1)]
    if is_time.sum() == 1:
        fields[is_time.argmax()] = "timestamp"
    tabs = "printf '" + r"\t".join(fields) + r"\n'"
    header = tabs if separator == "\t" else f"echo {shlex.quote(separator.join(fields))}"
    raise EventFileError(
        path,
        "its first line looks like an event. Let it begin with the names of its fields, such as user and item:"
        f" ({header}; {unpacked(path)}) > named.csv",
    )


def _cells(text: str, separator: str) -> list[str]:
    """None of a line that is no row."""
    try:
        return next(csv.reader([text], delimiter=separator, strict=True), [])
    except csv.Error:
        return []


def _lines(path: str, stored: StoredFile | None, most: int) -> tuple[list[str], Counter[str], bool]:
    """Lines at the beginning and the end that are not blank, what is broken in them, and whether the end is seen. Of a
    packed file it is not: all before it would have to be unpacked."""
    with opened_log(path, stored, _HEAD_BYTES) as file:
        is_gzip, tail = is_packed(path), b""
        head = (gzip.GzipFile(fileobj=file) if is_gzip else file).read(_HEAD_BYTES)
        if is_large := len(head) == _HEAD_BYTES:
            if not is_gzip:
                file.seek(max(len(head), log_size(path, stored) - _TAIL_BYTES))
                tail = file.read(_TAIL_BYTES).partition(b"\n")[2]
            head = head[: head.rfind(b"\n") + 1]
    head = head.removeprefix(UTF8_MARK)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or 3 * head.count(0) > len(head) > 0:
        raise EventFileError(path, "it looks like UTF-16 text. Make UTF-8 of it: iconv -f utf-16 -t utf-8 OLD > NEW")
    if b"\r" in head.strip() and b"\n" not in head.strip():
        raise EventFileError(path, f"its lines end in carriage returns alone: {unpacked(path)} | tr '\\r' '\\n' > NEW")
    lines, last = ([line.rstrip(b"\r") for line in part.split(b"\n") if line.strip()] for part in (head, tail))
    if is_large or len(lines) > 2 * most:
        lines = lines[:most] + (last if is_large else lines)[-most:]
    texts = [line.decode("utf-8", "replace") for line in lines]
    bad = sum(text.encode() != line for text, line in zip(texts, lines, strict=True))
    return texts, Counter({_NOT_UTF8: bad}), not (is_large and is_gzip)


def unpacked(*paths: str) -> str:
    """The command that writes what files hold."""
    names = shlex.join(f"./{path}" if path.startswith("-") else path for path in paths)
    return f"{'gzip -cdf' if any(map(is_packed, paths)) else 'cat'} {names}"


def as_csv(source: str) -> str | None:
    """How an access log of a web server becomes CSV, for a shell of any locale, whatever bytes it has; None where that
    is not known. source: a local file, or a folder or glob of some."""
    found = [source] if os.path.isfile(source) else sorted([*glob.glob(source), *glob.glob(f"{glob.escape(source)}/*")])
    path = next(filter(os.path.isfile, found), None)
    if path is None:
        return None
    with gzip.open(path) if is_packed(path) else open(path, "rb") as file:
        lines = [line for line in file.read(_HEAD_BYTES).decode("latin1").split("\n")[:_ROWS] if line.strip()]
    if lines and re.match(r'\{\s*"', lines[0]):
        return f"it is JSON lines. Let its name say so: {unpacked(path)} > access.jsonl"
    lines = [line for line in lines if re.match(r'[^"]*"[A-Z]+ [^ "]', line)]  # the request is the first quote
    clock = _place([re.split(r"[][]", line) for line in lines], r"[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}[: ][0-9]{2}:")
    if not clock:
        return None
    user = _place([re.findall(r"[^ \t]+", line) for line in lines], rf"(?:{IP_ADDRESS})(?::[0-9]+)?$") or 1
    program = (
        rf'{{split($0, b, /[][]/); split($0, q, "\""); split(q[2], r, " "); a = ${user};'
        r" if (a ~ /^[0-9.]+:[0-9]+$/) sub(/:.*/, "
        rf'"", a)}} r[1] ~ /^[A-Z]+$/ && r[2] != "" {{print a","b[{clock}]",\""r[2]"\""}}'
    )
    read = f"gzip -cdf {shlex.quote(path)}"  # with -f also what is not packed
    return f"make CSV of it: (echo address,time,path; {read} | LC_ALL=C awk {shlex.quote(program)}) > access.csv"


def _place(lines: Sequence[Sequence[str]], shape: str) -> int:
    """The number, from 1, of the part that has this shape in most lines, and not the same value in all; 0 if there is
    none."""
    seen: dict[int, Counter[str]] = {}
    for parts in lines:
        for at, part in enumerate(parts[:30], 1):
            if re.match(shape, part):
                seen.setdefault(at, Counter())[part] += 1
    usual = [at for at, values in seen.items() if 2 * values.total() > len(lines)]
    return min(usual, key=lambda at: (len(seen[at]) < 2, -seen[at].total(), at), default=0)
