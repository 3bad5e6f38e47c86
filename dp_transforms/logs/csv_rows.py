"""Which lines of a CSV file are rows: each line is judged by itself.

The rules are those of RFC 4180: a quote opens where it is the first character of a cell; inside, two quotes are one;
the next single one closes it, and ends the cell. Arrow's parser lets an open quote run over line ends whatever its
options are, and takes what follows a closing one for plain text: a quote behind a backslash, as Spark writes it, would
make another label. So the lines are checked before it sees them.

A row is a line, and no cell holds a line end: a line is rejected if a quote is left open in it, if a closing one does
not end its cell, or if a carriage return is anywhere except at its end. So one user's open quote swallows no row of
another one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dp_transforms.logs.rejected_events import RejectedEvents, reject
from dp_transforms.logs.text_files import LineBlock

OPEN_QUOTE = "quote that is not closed in its line"
CARRIAGE_RETURN = "carriage return inside a line"
BEHIND_QUOTE = "text behind a closing quote (quotes in a cell are doubled; in Spark: .option('escape', '\"'))"

_QUOTE, _FEED, _RETURN = ord('"'), ord("\n"), ord("\r")
_Positions = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Some rows of a file.

    text: for the parser, without blank rows and without rejected ones. count: how many rows it has.
    numbers: returns the number of the line of each of them.
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
    if not any(map(len, odd.values())):
        return RowBlock(text, len(feeds), block.numbers, block.rejected(path))
    numbers = block.numbers
    rejected, kept = reject(path, len(feeds), odd, lambda found: numbers()[found])
    keep = np.zeros(len(feeds), np.bool_)
    keep[kept] = True
    left = np.frombuffer(text, np.uint8)[np.repeat(keep, np.diff(feeds, prepend=-1))].tobytes()
    return RowBlock(left, len(kept), lambda: numbers()[kept], (*block.rejected(path), *rejected))


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
