"""CSV logs: a header, then one event per row; every cell is text, so ``007`` stays ``007``.

A row is a line (`csv_rows`). Positions are numbers of lines; the header is the first line that is not blank. A header
that cannot be used is an error, because the writer of the file made it. A row that cannot be used is only rejected.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dp_transforms.core.event_batch import one_chunk
from dp_transforms.logs import id_columns, text_files, times
from dp_transforms.logs.csv_rows import BEHIND_QUOTE, RowBlock, row_of_each_line
from dp_transforms.logs.estimate import MOST_FIELDS, SAMPLE_ROWS, TEXT, FieldSample, FileSample
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    check_fields_present,
    damaged_error,
    log_size,
)
from dp_transforms.logs.rejected_events import Reasons, Rows
from dp_transforms.logs.text_files import (
    BLANKS,
    HEAD_BYTES,
    NOT_UTF8_TEXT,
    UTF8_MARK,
    UTF16_TEXT,
    LineBlock,
    count_not_utf8,
    is_utf8,
    line_blocks,
    read_head,
    read_tail,
)
from dp_transforms.stores.remote_files import StoredFile

_LOOKED_AT_ROWS = 100
_SEPARATOR_WORDS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

_BLANK_BEGIN = re.compile(rb"(?:[ \t\r]*+\n)*+")
_LINE = re.compile(rb"[^\n]*+(?:\n|\Z)")


class CsvHeader(NamedTuple):
    """names: of all columns. size: bytes of the file before the first row. lines: their line ends."""

    names: list[str]
    size: int
    lines: int
    is_utf8: bool

    def names_all(self, fields: EventFields) -> bool:
        return set(fields.names) <= set(self.names)


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk; none for a blank file. Raises EventFileError if the header cannot be used."""
    try:
        header = read_header(path, fields, stored)
    except (pa.ArrowException, OSError):
        raise damaged_error(path, "CSV") from None
    return [] if header is None else [LogChunk(path, "csv", None, None, log_size(path, stored), stored=stored)]


def cut_chunk(chunk: LogChunk, fields: EventFields, parts: int) -> list[LogChunk]:
    """At ends of lines, unless the file is packed."""
    del fields
    return text_files.cut_chunk(chunk, parts)


def read_header(path: str, fields: EventFields, stored: StoredFile | None) -> CsvHeader | None:
    """None: the file is blank. Raises EventFileError unless it names the three fields."""
    delimiter = delimiter_of(path, fields.csv_separator)
    header = read_names(path, *read_head(path, stored), delimiter)
    if header is not None:
        if not header.is_utf8 and not header.names_all(fields):
            raise EventFileError(path, f"its header does not name the fields, and {NOT_UTF8_TEXT}")
        check_fields_present(path, header.names, fields, has_schema=False)
    return header


def read_names(path: str, head: bytes, is_whole: bool, delimiter: str) -> CsvHeader | None:
    """From `read_head`. None: the file is blank. Raises EventFileError if its first line cannot be a header."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise EventFileError(path, f"it is {UTF16_TEXT}")
    mark = len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0
    blank = _BLANK_BEGIN.match(head, mark)
    begin = blank.end() if blank else mark
    if not head[begin:].strip():
        if is_whole:
            return None
        raise EventFileError(path, "it begins with blank lines. Let it begin with the names of its fields.")
    found = _LINE.match(head, begin)
    if found is None or (found.end() == len(head) and not is_whole):
        problem = f"its header is too long (it may have {HEAD_BYTES >> 20} MB)"
        raise EventFileError(path, f"{problem}. Write it with a shorter header.")
    text = found.group()
    _check_header_line(path, text, delimiter)
    try:
        names = next(csv.reader(io.StringIO(_text(text.rstrip(b"\r\n")), newline=""), delimiter=delimiter))
    except csv.Error:
        raise EventFileError(path, "its header cannot be read. Write it with shorter names.") from None
    if len(names) == 1 and (other := re.search(r"[,;\t|]", names[0])):
        option = "tab" if other[0] == "\t" else f"'{other[0]}'"
        raise EventFileError(
            path,
            f"its cells are not separated by {_SEPARATOR_WORDS.get(delimiter, repr(delimiter))}. If"
            f" {_SEPARATOR_WORDS[other[0]]} separate them, add --csv-separator {option}.",
        )
    return CsvHeader(names, found.end(), head.count(b"\n", 0, found.end()), is_utf8(text))


def likely_separator(path: str, head: bytes) -> str | None:
    """The one by which most of the first lines have as many cells as the header, and not only one; None: the usual one
    of its ending is as good. For the operator."""
    lines = [line for line in _text(head).splitlines() if line.strip()][: 1 + _LOOKED_AT_ROWS]
    usual = delimiter_of(path, None)

    def score(separator: str) -> tuple[int, int]:
        try:
            widths = [len(row) for row in csv.reader(lines, delimiter=separator)]
        except csv.Error:
            widths = []
        return (widths.count(widths[0]), widths[0]) if widths and widths[0] > 1 else (0, 0)

    best = max((usual, *_SEPARATOR_WORDS), key=score)  # of equal ones the first
    return None if best == usual else best


def _check_header_line(path: str, line: bytes, delimiter: str) -> None:
    for rejected in row_of_each_line(path, LineBlock(line), delimiter.encode()).rejected:
        if rejected.reason == BEHIND_QUOTE:
            raise EventFileError(path, f"its header has {rejected.reason}.")
        raise EventFileError(
            path,
            f"its header has a {rejected.reason}. Write one row per line, and names and cells without line ends.",
        )


def _text(data: bytes) -> str:
    """For Python's reader, which is used for names and hints only."""
    return data.decode("utf-8", "replace").replace("\0", "?")


def delimiter_of(path: str, separator: str | None) -> str:
    """separator: the one that was declared."""
    if separator is not None:
        return separator
    return "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows, in blocks of about 4 MB of text."""
    path, delimiter = chunk.path, delimiter_of(chunk.path, fields.csv_separator)
    try:
        header = read_header(path, fields, chunk.stored)
    except (pa.ArrowException, OSError):
        header = None
    if header is None:
        raise damaged_error(path, "CSV")  # it had a header when it was found
    used = [header.names.index(name) for name in fields.names]
    parser = RowParser(path, len(header.names), used, delimiter)
    skipped = header if chunk.span is None or not chunk.span[0] else None
    yield from text_files.read_text(
        chunk,
        "CSV",
        lambda stream: _row_blocks(path, stream, skipped, delimiter.encode()),
        lambda rows, byte_share: _read_block(path, rows, parser, fields, byte_share),
    )


def _row_blocks(path: str, stream: Any, header: CsvHeader | None, delimiter: bytes) -> Iterator[RowBlock]:
    """header: None: the stream begins behind it."""
    first_line = 1
    if header is not None:
        stream.read(header.size)
        first_line += header.lines
    for block in line_blocks(stream, first_line, _blanks(delimiter)):
        yield row_of_each_line(path, block, delimiter)


def _blanks(delimiter: bytes) -> bytes:
    """Of what a blank line may consist: a line of delimiters is a row of empty cells."""
    return BLANKS.replace(delimiter, b"")


def _read_block(path: str, rows: RowBlock, parser: RowParser, fields: EventFields, byte_share: int) -> ReadBlock:
    arrays, kept = parser.read(rows)
    reasons = Reasons(rows.count)
    reasons.add_others(id_columns.WRONG_NUMBER_OF_CELLS, kept)
    columns = id_columns.event_columns(arrays, fields)
    return id_columns.block_of(
        path, columns, kept, reasons, lambda found: rows.numbers()[found], byte_share, rows.rejected
    )


class RowParser:
    """Arrow's parser, for blocks of whole rows.

    width: of a row, in cells. used: the numbers of the columns to read, from 0.
    """

    def __init__(self, path: str, width: int, used: Sequence[int], delimiter: str) -> None:
        self._path, self._delimiter = path, delimiter
        # Columns are numbered: names may be any text, and unused ones may occur twice.
        self._columns, self._used = [str(number) for number in range(width)], [str(number) for number in used]

    def read(self, rows: RowBlock) -> tuple[list[pa.Array], Rows]:
        """The columns, as bytes, and the numbers, from 0, of the rows that have the right number of cells."""
        # Other text is read as Latin-1, in which every byte is valid, and changed back: the parser fails at a row that
        # is not UTF-8 and has a wrong number of cells.
        is_valid = is_utf8(rows.text)
        columns, invalid = self._parse(rows.text if is_valid else rows.text.decode("latin1").encode())
        if len(columns[0]) + len(invalid) != rows.count:
            raise EventFileError(
                self._path, "its rows cannot be separated. Leave the file out, and report this as a bug."
            )
        kept = np.arange(rows.count)
        kept = np.delete(kept, invalid) if invalid else kept
        return columns if is_valid else [_of_latin1(column) for column in columns], kept

    def _parse(self, text: bytes) -> tuple[list[pa.BinaryArray], list[int]]:
        """The columns, and the numbers, from 0, of the rows with a wrong number of cells."""
        if not text:
            return [pa.array([], pa.binary()) for _ in self._used], []
        invalid: list[int] = []

        def skip(row: Any) -> str:
            invalid.append(row.number - 1)
            return "skip"

        # The parser drops a byte order mark at the beginning of its text; here it would belong to an ordinary row.
        text = b"\n" + text if text.startswith(UTF8_MARK) else text
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            # With threads the parser does not number the rows; a row must not be longer than its block.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=self._columns),
            parse_options=pa.csv.ParseOptions(
                delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pa.csv.ConvertOptions(
                check_utf8=False,
                strings_can_be_null=False,
                include_columns=self._used,
                column_types=dict.fromkeys(self._used, pa.binary()),
            ),
        )
        return [one_chunk(column) for column in table.columns], invalid


def _of_latin1(cells: pa.BinaryArray) -> pa.DictionaryArray:
    """Cells as they are in the file, from those of its bytes as Latin-1."""
    encoded = cells.dictionary_encode()
    values = [value.decode().encode("latin1") for value in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(values, pa.binary()), safe=False)


def sample(path: str, fields: EventFields, stored: StoredFile | None) -> FileSample:
    """See `logs.estimate`."""
    head, is_whole = read_head(path, stored)
    separator = fields.csv_separator or likely_separator(path, head)
    delimiter = delimiter_of(path, separator)
    header = read_names(path, head, is_whole, delimiter)
    if header is None:
        return FileSample(path, "csv", (), 0, 0, Counter(), True)
    is_time = times.parse_values(header.names, None).faults == 0
    if is_time.any() or any(re.fullmatch(times.NUMBER, name) for name in header.names):
        raise EventFileError(
            path,
            "its first line looks like an event. Let it begin with the names of its fields:"
            " (echo user,item,timestamp; cat OLD) > NEW",
        )
    names, broken = header.names[:MOST_FIELDS], Counter[str]()
    parser = RowParser(path, len(header.names), range(len(names)), delimiter)

    def read(text: bytes) -> pa.Table:
        """Whole rows. Counts what is broken."""
        rows = row_of_each_line(path, LineBlock(text, blanks=_blanks(delimiter.encode())), delimiter.encode())
        columns, kept = parser.read(rows)
        for rejected in rows.rejected:
            broken[rejected.reason] += len(rejected.positions)
        broken[id_columns.WRONG_NUMBER_OF_CELLS] += rows.count - len(kept)
        return pa.Table.from_arrays([column.cast(pa.binary()) for column in columns], names)

    body = LineBlock(head[header.size :]).raw if is_whole else head[header.size : head.rfind(b"\n") + 1]
    rows = read(body)
    is_all, tail = is_whole and len(rows) <= 2 * SAMPLE_ROWS, b""
    if not is_all:
        last = rows
        if not is_whole:
            tail = read_tail(path, stored)
            last = read(tail)
        rows = pa.concat_tables([rows[:SAMPLE_ROWS], last[-SAMPLE_ROWS:]])
    found = [FieldSample(name, TEXT, one_chunk(rows.column(at))) for at, name in enumerate(names)]
    looked_at, not_utf8 = (
        len(rows) + broken.total(),
        count_not_utf8(body.split(b"\n")) + count_not_utf8(tail.split(b"\n")),
    )
    known, sees_end = looked_at if is_all else None, is_whole or bool(tail)
    return FileSample(path, "csv", tuple(found), known, looked_at, +broken, is_all, separator, not_utf8, sees_end)
