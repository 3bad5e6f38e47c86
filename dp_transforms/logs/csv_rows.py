"""Which lines of a CSV file are rows: the quoting rules, and two ways to cut a text into rows.

The rules are those of RFC 4180: a quote opens where it is the first character of a cell; inside, two quotes are one;
the next single one closes it, and ends the cell. Arrow's parser lets an open quote run over line ends whatever its
options are, and takes what follows a closing one for plain text: a quote behind a backslash, as Spark writes it, would
make another label. So the lines are checked before it sees them.

By default (`row_of_each_line`) a row is a line and a cell holds no line end: a line is rejected if a quote is left open
in it, if a closing one does not end its cell, or if a carriage return is anywhere except at its end. This depends on
the line alone.

If cells are declared to hold line ends (`rows_over_lines`), where a row begins depends on all that comes before it. So
the whole file must be quoted correctly: a quote only around a cell, or doubled inside one. Anything else is an error
that names the line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dp_transforms.logs.log_chunk import EventFileError
from dp_transforms.logs.rejected_events import Reasons, RejectedEvents
from dp_transforms.logs.text_files import BLANKS, MAX_LINE_BYTES, LineBlock

OPEN_QUOTE = "quote that is not closed in its line"
CARRIAGE_RETURN = "carriage return inside a line"
BEHIND_QUOTE = "text behind a closing quote (quotes in a cell are doubled; in Spark: .option('escape', '\"'))"

_QUOTE, _FEED, _RETURN = ord('"'), ord("\n"), ord("\r")
_Positions = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows of a file.

    text: for the parser, without blank rows and without rejected ones. count: how many rows it has.
    numbers: returns the number of the line in which each of them begins.
    """

    text: bytes
    count: int
    numbers: Callable[[], _Positions]
    rejected: tuple[RejectedEvents, ...] = ()


def row_of_each_line(path: str, block: LineBlock, delimiter: bytes) -> RowBlock:
    """The rows of a block of lines: each line is a row."""
    text = block.filled_text()
    codes = np.frombuffer(text, np.uint8)
    feeds = np.flatnonzero(codes == _FEED)
    odd, behind = {}, np.zeros(0, np.int64)
    if b'"' in text:
        odd[OPEN_QUOTE], behind = _wrong_lines(text, codes, feeds, delimiter)
    if b"\r" in text:
        odd[CARRIAGE_RETURN] = np.searchsorted(feeds, _lone_returns(codes))
    odd[BEHIND_QUOTE] = behind
    rows = _kept(path, text, np.concatenate([[0], feeds + 1]), block.numbers, odd)
    return dataclasses.replace(rows, rejected=(*block.rejected(path), *rows.rejected)) if block.too_long else rows


def rows_over_lines(path: str, stream: Any, block_bytes: int, delimiter: bytes, first_line: int) -> Iterator[RowBlock]:
    """The rows of a stream, from its current position on; a row may run over line ends inside quotes.

    Raises EventFileError for a quote that is not closed or is at a wrong place, and for a row of more than
    MAX_LINE_BYTES.
    """
    line, text = first_line, b""
    at_end = False
    while not at_end:
        data = stream.read(block_bytes)
        at_end = not data
        text += data if data or not text or text.endswith(b"\n") else b"\n"
        codes = np.frombuffer(text, np.uint8)
        quotes, feeds = np.flatnonzero(codes == _QUOTE), np.flatnonzero(codes == _FEED)
        wrong = _first_wrong_quote(codes, quotes, delimiter)
        ends = feeds[np.searchsorted(quotes, feeds) % 2 == 0] + 1
        end = int(ends[-1]) if len(ends) else 0
        begins = np.concatenate([[0], ends])
        is_long = np.diff(begins, append=len(text) + 1) - 1 > MAX_LINE_BYTES
        if wrong is None and len(quotes) % 2 and (is_long[-1] or at_end):
            wrong = len(quotes) // 2
        if wrong is not None:
            raise _quote_error(path, line + int(np.searchsorted(feeds, _opening_of_cell(quotes, wrong))))
        if is_long.any():
            where = line + int(np.searchsorted(feeds, begins[is_long.argmax()]))
            raise EventFileError(
                path,
                f"a row of more than {MAX_LINE_BYTES >> 20} MB begins in line {where}. Remove it; or, if no cell"
                " contains line ends, read the file without --csv-line-ends-in-cells, which rejects only such rows.",
            )
        yield _rows_up_to(path, text[:end], codes[:end], quotes, feeds, ends, line, delimiter)
        line += int(np.searchsorted(feeds, end))
        text = text[end:]


def _rows_up_to(
    path: str,
    text: bytes,
    codes: npt.NDArray[np.uint8],
    quotes: _Positions,
    feeds: _Positions,
    ends: _Positions,
    line: int,
    delimiter: bytes,
) -> RowBlock:
    if b'"' not in text:
        return row_of_each_line(path, LineBlock(text, line), delimiter)
    bounds = np.concatenate([[0], ends])
    odd = {}
    if b"\r" in text:
        returns = _lone_returns(codes)
        odd[CARRIAGE_RETURN] = np.searchsorted(ends, returns[np.searchsorted(quotes, returns) % 2 == 0], side="right")
    is_blank = np.zeros(len(ends), np.bool_)
    begins_blank = np.flatnonzero(np.isin(codes[bounds[:-1]], list(BLANKS + b"\n")))
    for row in begins_blank.tolist():
        is_blank[row] = not text[bounds[row] : bounds[row + 1]].strip()
    return _kept(path, text, bounds, lambda: np.searchsorted(feeds, bounds[:-1]) + line, odd, is_blank)


def _kept(
    path: str,
    text: bytes,
    bounds: _Positions,
    numbers: Callable[[], _Positions],
    odd: dict[str, _Positions],
    is_blank: npt.NDArray[np.bool_] | None = None,
) -> RowBlock:
    """A text without its blank and odd rows. bounds: where rows begin, and where the last one ends."""
    if not any(map(len, odd.values())) and (is_blank is None or not is_blank.any()):
        return RowBlock(text, len(bounds) - 1, numbers)
    reasons = Reasons(len(bounds) - 1)
    for reason, rows in odd.items():
        reasons.add(reason, rows if is_blank is None else rows[~is_blank[rows]])
    rejected, kept = reasons.report(path, lambda found: numbers()[found]), reasons.good()
    if is_blank is not None:
        kept = kept[~is_blank[kept]]
    keep = np.zeros(len(bounds) - 1, np.bool_)
    keep[kept] = True
    left = np.frombuffer(text, np.uint8)[np.repeat(keep, np.diff(bounds))].tobytes()
    return RowBlock(left, len(kept), lambda: numbers()[kept], rejected)


def _lone_returns(codes: npt.NDArray[np.uint8]) -> _Positions:
    """Carriage returns that are not followed by a line end. The text ends in a line feed."""
    returns: _Positions = np.flatnonzero(codes == _RETURN)
    behind = codes[returns + 1]
    return returns[(behind != _RETURN) & (behind != _FEED)]  # type: ignore[no-any-return]


def _wrong_lines(
    text: bytes, codes: npt.NDArray[np.uint8], feeds: _Positions, delimiter: bytes
) -> tuple[_Positions, _Positions]:
    """The numbers of the lines in which a quote is left open, and of those in which one closes before its cell ends."""
    quotes = np.flatnonzero(codes == _QUOTE)
    # Nearly always each line has an even number of quotes, and the first, third, ... begins a cell or doubles the quote
    # before it. Then every second one closes, and none is left open; and nearly always a cell ends behind it.
    is_even = not (np.searchsorted(quotes, feeds) % 2).any()
    if (
        is_even
        and _begin_cells(codes, quotes[::2], delimiter).all()
        and _end_cells(codes, quotes[1::2], delimiter).all()
    ):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lines, patterns = b"\n" + text, (_open_line(delimiter), _line_behind_quote(delimiter))
    # Each match ends in its line, or at the line feed behind it.
    found = [np.array([match.end() - 1 for match in pattern.finditer(lines)], np.int64) for pattern in patterns]
    left_open, behind = (np.searchsorted(feeds, ends - back) for ends, back in zip(found, (0, 1), strict=True))
    return left_open.astype(np.int64), behind.astype(np.int64)


def _begin_cells(codes: npt.NDArray[np.uint8], quotes: _Positions, delimiter: bytes) -> npt.NDArray[np.bool_]:
    """For each quote whether a delimiter, a line feed, a quote or nothing is before it."""
    before = codes[np.maximum(quotes - 1, 0)]
    return (before == delimiter[0]) | (before == _FEED) | (before == _QUOTE) | (quotes == 0)  # type: ignore[no-any-return]


def _end_cells(codes: npt.NDArray[np.uint8], quotes: _Positions, delimiter: bytes) -> npt.NDArray[np.bool_]:
    """For each quote whether a delimiter, a line end, a quote or nothing is behind it."""
    behind = codes[np.minimum(quotes + 1, len(codes) - 1)]
    ends: npt.NDArray[np.bool_] = np.isin(behind, (delimiter[0], _RETURN, _FEED, _QUOTE)) | (quotes + 1 == len(codes))
    return ends


def _open_line(delimiter: bytes) -> re.Pattern[bytes]:
    """Matches only lines in which a quote is left open, up to their ends. It never backtracks."""
    cell = rb'"(?:[^"\n]++|"")*+"[^D\n]*+|[^"D\n][^D\n]*+|'
    return re.compile(rb'\n(?:(?:C)D)*+"(?:[^"\n]++|"")*+(?=\n)'.replace(b"C", cell).replace(b"D", delimiter))


def _line_behind_quote(delimiter: bytes) -> re.Pattern[bytes]:
    """Matches only lines in which a closing quote is followed by text of its cell, up to the first such text. It never
    backtracks."""
    quoted = rb'"(?:[^"\n]++|"")*+"'
    line = rb'\n(?:(?:Q\r*+|[^"D\n][^D\n]*+|)D)*+Q[^D\r\n]'
    return re.compile(line.replace(b"Q", quoted).replace(b"D", delimiter))


def _first_wrong_quote(codes: npt.NDArray[np.uint8], quotes: _Positions, delimiter: bytes) -> int | None:
    """The number, from 0, of the first pair of quotes that does not open at the beginning of a cell or close at the end
    of one; None: all do. The text begins with a row."""
    wrong = ~_begin_cells(codes, quotes[::2], delimiter)
    closing = quotes[1::2]
    wrong[: len(closing)] |= ~_end_cells(codes, closing, delimiter)
    return int(wrong.argmax()) if wrong.any() else None


def _opening_of_cell(quotes: _Positions, pair: int) -> int:
    """Where the quoted cell of a pair of quotes opens. The pairs of one cell touch."""
    while pair and quotes[2 * pair] == quotes[2 * pair - 1] + 1:
        pair -= 1
    return int(quotes[2 * pair])


def _quote_error(path: str, line: int) -> EventFileError:
    return EventFileError(
        path,
        f"the quote that opens in line {line} is not closed correctly: quotes must enclose a cell, and be doubled"
        " inside it. Repair it; or, if no cell contains line ends, read the file without --csv-line-ends-in-cells,"
        " which rejects only such lines.",
    )
