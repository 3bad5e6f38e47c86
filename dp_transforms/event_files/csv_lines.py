"""CSV logs: a header, then one event per row; every cell is text, so ``007`` stays ``007``.

Cells may be quoted and hold line ends. Positions count the rows after the header, without blank lines.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dp_transforms.event_files import columns, times
from dp_transforms.event_files.log_chunk import (
    EventFields,
    EventFileError,
    LogChunk,
    ReadBlock,
    check_fields_present,
    damaged_error,
    time_unit_error,
)
from dp_transforms.event_files.text_files import UTF8_MARK, ByteShares, TextStream, file_size, read_head
from dp_transforms.rejected_events import RejectedEvents

# The parser reads many blocks ahead: larger ones cost memory and win nothing. It is also the limit of a row: a longer
# one, such as all the rest of a file behind a quote that is never closed, is an error.
_BLOCK_BYTES = 4 << 20
_LOOKED_AT_ROWS = 100


def find_chunks(path: str, fields: EventFields) -> list[LogChunk]:
    """The file as one chunk, if it has rows. Raises EventFileError where the header cannot serve."""
    try:
        head, is_whole = read_head(path)
    except (pa.ArrowException, OSError):
        raise damaged_error(path, "CSV") from None
    if not head.strip():
        if is_whole:
            return []
        raise EventFileError(path, "it begins with blank lines. Let it begin with the names of its fields.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise EventFileError(path, "it is UTF-16 text. Convert it to UTF-8.")
    rows = _rows(path, head)
    header = next(rows, [])
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise EventFileError(path, "its cells are not parted by commas. Write it again, or call it .tsv if by tabs.")
    check_fields_present(path, header, fields, has_schema=False)
    cells = [
        row[header.index(fields.time)] for row in itertools.islice(rows, _LOOKED_AT_ROWS) if len(row) == len(header)
    ]
    if is_whole and not cells and not any(True for _ in _rows(path, head, skip=1)):
        return []
    is_number = [re.match(times.NUMBER, cell) is not None for cell in cells if cell]
    if fields.time_unit not in times.MICROS_PER_UNIT and is_number and all(is_number):
        raise time_unit_error(path, fields.time)
    return [LogChunk(path, "csv", None, None, file_size(path))]


def _rows(path: str, head: bytes, skip: int = 0) -> Iterator[list[str]]:
    """The rows of the head of a file, of which the last may be cut off."""
    reader = csv.reader(
        io.StringIO(head.decode("utf-8", "replace").replace("\0", "?"), newline=""), delimiter=_delimiter(path)
    )
    try:
        yield from itertools.islice((row for row in reader if row), skip, None)
    except csv.Error:  # a cell of more than 131,072 characters: enough was seen, unless it is the header
        return


def _delimiter(path: str) -> str:
    return "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","


class _InvalidRows:
    """Collects the rows with a wrong number of cells, as the parser meets them."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._reported = 0
        self.open_quote = False

    def __call__(self, row: Any) -> str:
        self._numbers.append(row.number - 1)  # the parser counts the header
        # A row that runs over line ends and never closes its quote has swallowed the rest of the file.
        self.open_quote |= row.text.count('"') % 2 == 1 and ("\n" in row.text or "\r" in row.text)
        return "skip"

    def positions(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of good rows of the file, from 0 -> their positions among all rows, from 1."""
        numbers = np.array(self._numbers, np.int64)
        return rows + 1 + np.searchsorted(numbers - np.arange(len(numbers)), rows + 1, side="right")

    def report(self, path: str) -> tuple[RejectedEvents, ...]:
        """Those that were not reported yet."""
        new = tuple(self._numbers[self._reported :])
        self._reported += len(new)
        return (RejectedEvents(path, new, columns.WRONG_NUMBER_OF_CELLS),) if new else ()


class _QuoteCounter(io.RawIOBase):
    """Passes a text on, without a byte order mark, and counts its quotes."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream, self._at_begin, self.quotes = stream, True, 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        if self._at_begin and data:
            data, self._at_begin = data.removeprefix(UTF8_MARK), False
            data = data or self._stream.read(size)
        self.quotes += data.count(b'"')
        return data


def read_chunk(chunk: LogChunk, fields: EventFields) -> Iterator[ReadBlock]:
    """The rows, in blocks of about 4 MB of text."""
    path = chunk.path
    invalid = _InvalidRows()
    shares = ByteShares(chunk.bytes)
    rows_read, ends_in_line_end = 0, False
    try:
        header = next(_rows(path, read_head(path)[0]), [])
        with TextStream(path) as text:
            counter = _QuoteCounter(text.stream)
            for batch in _batches(counter, path, fields, header[-1:], invalid):
                if invalid.open_quote:
                    break
                first_row = rows_read
                rows_read += len(batch)
                if len(batch):
                    ends_in_line_end = any(column[-1].as_py().endswith((b"\n", b"\r")) for column in batch.columns)
                user, item, time = (batch.column(_as_latin1(name)) for name in fields.names)
                yield columns.assemble_block(
                    path,
                    (_encode_ids(user), _encode_ids(item), times.parse_times(time, fields.time_unit)),
                    lambda rows, first_row=first_row: invalid.positions(rows + first_row),  # type: ignore[misc]
                    shares.up_to(text.bytes_read()),
                    invalid.report(path),
                )
            # A last cell that is never closed holds the rest of the file, its line end included.
            if invalid.open_quote or (counter.quotes % 2 and ends_in_line_end):
                raise ValueError("open quote")
    except (pa.ArrowException, OSError, ValueError, KeyError):
        raise _broken(path, rows_read) from None
    rejected = invalid.report(path)
    yield ReadBlock(columns.empty_batch(), rejected, sum(len(events.positions) for events in rejected), shares.rest())


def _batches(
    text: _QuoteCounter, path: str, fields: EventFields, last_column: list[str], invalid: _InvalidRows
) -> Iterator[pa.RecordBatch]:
    # The parser fails at a row with a wrong number of cells that is no UTF-8. As Latin-1 every row is some text, and
    # the way back is exact.
    names = [_as_latin1(name) for name in dict.fromkeys([*fields.names, *last_column])]
    return pa.csv.open_csv(  # type: ignore[no-any-return]
        pa.transcoding_input_stream(pa.PythonFile(text, mode="r"), "latin1", "utf8"),
        # With threads the parser does not number the rows.
        read_options=pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
        parse_options=pa.csv.ParseOptions(
            delimiter=_delimiter(path), newlines_in_values=True, invalid_row_handler=invalid
        ),
        convert_options=pa.csv.ConvertOptions(
            check_utf8=False,
            strings_can_be_null=False,
            include_columns=names,
            column_types={name: pa.binary() for name in names},
        ),
    )


def _as_latin1(name: str) -> str:
    return name.encode().decode("latin1")


def _encode_ids(cells: pa.BinaryArray) -> columns.IdColumn:
    """Ids from cells that were read as Latin-1."""
    encoded = cells.dictionary_encode()
    values = encoded.dictionary
    text = values.view(pa.string())
    if not pc.all(pc.string_is_ascii(text)).as_py():
        values = pa.array([value.encode("latin1") for value in text.to_pylist()], pa.binary())
    return columns.encode_ids(pa.DictionaryArray.from_arrays(encoded.indices, values, safe=False))


def _broken(path: str, rows_read: int) -> EventFileError:
    return EventFileError(
        path,
        f"it cannot be read after row {rows_read}: a quote that is never closed, a row over {_BLOCK_BYTES >> 20} MB or"
        " other damage. Repair it, or leave it out of the sources.",
    )
