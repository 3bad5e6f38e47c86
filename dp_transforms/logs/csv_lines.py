"""CSV logs: a header, then one event per line; every cell is text, so ``007`` stays ``007``.

The rules are those of RFC 4180, but that a row is a line, and no cell holds a line end: a quote opens where it is the
first character of a cell; inside, two quotes are one; the next single one closes it, and ends the cell. A line is
rejected if a quote is left open in it or closed before its cell ends, or if a carriage return is anywhere except at its
end. So one user's open quote swallows no row of another one. Arrow's parser lets an open quote run over line ends
whatever its options are, and takes what follows a closing one for plain text: a quote behind a backslash, as Spark
writes it, would make another label. So the lines are checked before it sees them.

Positions are numbers of lines; the header is the first line that is not blank. A header that cannot be used is an
error, because the writer of the file made it. A row that cannot be used is only rejected.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dp_transforms.core.event_batch import one_chunk
from dp_transforms.logs import id_columns, text_files
from dp_transforms.logs.event_ids import is_utf8
from dp_transforms.logs.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    check_fields_present,
    damaged_error,
    log_size,
)
from dp_transforms.logs.rejected_events import Rows, reject
from dp_transforms.logs.text_files import (
    BLANKS,
    UTF8_MARK,
    Lines,
    bytes_among,
    lines_of,
)
from dp_transforms.stores.remote_files import StoredFile

WRONG_QUOTE = (
    "quote that is not closed in its line, or before its cell ends (in a cell it is doubled; in Spark:"
    " .option('escape', '\"'))"
)
CARRIAGE_RETURN = "carriage return inside a line"

_BLANK_BEGIN = re.compile(rb"(?:[ \t\r]*+\n)*+")
_HEAD_BYTES = 1 << 20


class CsvHeader(NamedTuple):
    """names: of all columns. size: bytes of the file before the first row. lines: their line ends."""

    names: list[str]
    size: int
    lines: int


def find_chunks(path: str, fields: EventFields, stored: StoredFile | None = None) -> list[LogChunk]:
    """The file as one chunk; none for a blank file. Raises EventFileError if the header cannot be used."""
    header = read_header(path, fields, stored)
    return [] if header is None else [LogChunk(path, "csv", None, None, log_size(path, stored), stored=stored)]


def read_header(path: str, fields: EventFields, stored: StoredFile | None) -> CsvHeader | None:
    """None: the file is blank. Raises EventFileError unless its first line names the fields of events."""
    delimiter = delimiter_of(path, fields.csv_separator)
    try:
        with text_files.open_text(path, stored, ahead=_HEAD_BYTES + 1) as stream:
            head: bytes = stream.read(_HEAD_BYTES)
            is_whole = len(head) < _HEAD_BYTES or not stream.read(1)
    except (pa.ArrowException, OSError):
        raise damaged_error(path, "CSV") from None
    blank = _BLANK_BEGIN.match(head, len(UTF8_MARK) if head.startswith(UTF8_MARK) else 0)
    begin = blank.end() if blank else 0
    if is_whole and not head[begin:].strip():
        return None
    end = head.find(b"\n", begin) + 1 or len(head)
    text = head[begin:end]
    try:
        if (end == len(head) and not is_whole) or rows_of(path, lines_of(text), delimiter.encode()).rejected:
            raise ValueError("no row")
        names = next(csv.reader([text.rstrip(b"\r\n").decode("utf-8", "replace")], delimiter=delimiter))
    except (ValueError, csv.Error):
        raise EventFileError(
            path,
            "its first line must name its fields, in 1 MB at most, without line ends and with quotes doubled.",
        ) from None
    if len(names) == 1 and (other := re.search(r"[,;\t|]", names[0])):
        option = "tab" if other[0] == "\t" else f"'{other[0]}'"
        raise EventFileError(
            path,
            f"no {delimiter!r} separates its cells. If {other[0]!r} does, add --csv-separator {option}.",
        )
    if b"\0" in text and not set(fields.names) <= set(names):
        raise EventFileError(path, "it is not UTF-8. Make UTF-8 of it, of UTF-16: iconv -f utf-16 -t utf-8 OLD > NEW")
    check_fields_present(path, names, fields, has_schema=False)
    return CsvHeader(names, end, head.count(b"\n", 0, end))


def delimiter_of(path: str, separator: str | None) -> str:
    """separator: the one that was declared."""
    return separator or ("\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ",")


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows, in blocks of about 4 MB of text."""
    path, delimiter = chunk.path, delimiter_of(chunk.path, fields.csv_separator).encode()
    header = read_header(path, fields, chunk.stored)
    if header is None:
        raise damaged_error(path, "CSV")  # it had a header when it was found
    names, used = header.names, [header.names.index(name) for name in fields.names]

    def read(lines: Lines) -> ReadBlock:
        rows = rows_of(path, lines, delimiter)
        arrays, invalid = _cells(path, rows, len(names), used, delimiter)
        kept, broken = np.delete(np.arange(len(rows.ends)), invalid), {id_columns.WRONG_NUMBER_OF_CELLS: invalid}
        columns = id_columns.event_columns(arrays, fields)
        return text_files.block_of_lines(path, rows, columns, kept, broken)

    blanks = BLANKS.replace(delimiter, b"")  # a line of delimiters is a row of empty cells
    return text_files.read_text(chunk, "CSV", read, header=(header.size, header.lines), blanks=blanks)


def rows_of(path: str, lines: Lines, delimiter: bytes) -> Lines:
    """The lines that are rows."""
    odd = {}
    if b'"' in lines.text:
        odd[WRONG_QUOTE] = _wrong_quotes(lines, delimiter)
    if b"\r" in lines.text:
        odd[CARRIAGE_RETURN] = np.searchsorted(lines.ends, _lone_returns(lines.text))
    if not any(map(len, odd.values())):
        return lines
    wrong, kept = reject(path, len(lines.ends), odd, lines.numbers.take)
    return lines.where(np.isin(np.arange(len(lines.ends)), kept))._replace(rejected=(*lines.rejected, *wrong))


def _lone_returns(text: bytes) -> Rows:
    """Carriage returns that are not followed by a line end. The text ends in a line feed."""
    codes = np.frombuffer(text, np.uint8)
    returns: Rows = np.flatnonzero(codes == ord("\r"))
    return returns[~bytes_among(b"\r\n")[codes[returns + 1]]]


def _wrong_quotes(lines: Lines, delimiter: bytes) -> Rows:
    """The numbers, from 0, of lines in which a quote is left open, or closes before its cell ends."""
    codes = np.frombuffer(lines.text, np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    # Nearly always each line has an even number of quotes, and the first, third, ... begins a cell or doubles the quote
    # before it. Then every second one closes, and none is left open; and nearly always a cell ends behind it.
    if not (np.searchsorted(quotes, lines.ends) % 2).any():
        opened = bytes_among(b'"\n' + delimiter)[codes[quotes[::2] - 1]]  # the last byte of all is a line feed
        closed = bytes_among(b'"\r\n' + delimiter)[codes[quotes[1::2] + 1]]
        if opened.all() and closed.all():
            return np.zeros(0, np.int64)
    begins = [match.start() for match in _before_wrong_line(delimiter).finditer(b"\n" + lines.text)]
    return np.searchsorted(lines.ends, np.array(begins, np.int64))


def _before_wrong_line(delimiter: bytes) -> re.Pattern[bytes]:
    """Matches the line feeds before lines that are not made of cells. What follows a carriage return is another fault.
    It never backtracks."""
    cell = rb'(?:"(?:[^"\n]++|"")*+"(?:\r[^D\n]*+)?+|[^"D\n][^D\n]*+|)'
    return re.compile(rb"\n(?!\Z|(?:CD)*+C\n)".replace(b"C", cell).replace(b"D", re.escape(delimiter)))


def _cells(
    path: str, rows: Lines, width: int, used: Sequence[int], delimiter: bytes
) -> tuple[list[pa.BinaryArray], Rows]:
    """Columns, as bytes, and the numbers, from 0, of the rows that are not in them: with a wrong number of cells.

    width: that number. used: the numbers of the columns, from 0.
    """
    invalid: list[int] = []

    def skip(row: Any) -> str:
        invalid.append(row.number - 1)
        return "skip"

    # Other text is read as Latin-1, in which every byte is valid, and changed back: the parser fails at a row that is
    # not UTF-8 and has a wrong number of cells.
    is_valid = is_utf8(rows.text)
    text = rows.text if is_valid else rows.text.decode("latin1").encode()
    # The parser drops a byte order mark at the beginning of its text; here it would belong to an ordinary row. It wants
    # some text.
    text = b"\n" + text if text.startswith(UTF8_MARK) or not text else text
    # Columns are numbered: names may be any text, and unused ones may occur twice.
    numbers = [str(number) for number in used]
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        # With threads the parser does not number the rows; a row must not be longer than its block.
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=len(text) + 1, column_names=[str(number) for number in range(width)]
        ),
        parse_options=pa.csv.ParseOptions(
            delimiter=delimiter.decode(), newlines_in_values=True, invalid_row_handler=skip
        ),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            strings_can_be_null=False,
            include_columns=numbers,
            column_types=dict.fromkeys(numbers, pa.binary()),
        ),
    )
    if len(table) + len(invalid) != len(rows.ends):
        raise EventFileError(path, "its rows cannot be separated. Leave the file out, and report this as a bug.")
    columns = [one_chunk(column) for column in table.columns]
    return columns if is_valid else list(map(_of_latin1, columns)), np.array(invalid, np.int64)


def _of_latin1(cells: pa.BinaryArray) -> pa.DictionaryArray:
    """Cells as they are in the file, from those of its bytes as Latin-1."""
    encoded = cells.dictionary_encode()
    values = [value.decode().encode("latin1") for value in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(values, pa.binary()), safe=False)
