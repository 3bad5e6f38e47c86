"""The framing that CSV and JSON lines share: text in blocks of whole lines, so that each line is judged by itself.

A line ends in a line feed; carriage returns before it belong to the line end. A line of only spaces, tabs and carriage
returns is blank, and is not an event. A line of more than MAX_LINE_BYTES is left out and reported; the lines after it
are read. None of this depends on the position of a line or on any other line. Memory is a few blocks, whatever a file
holds. Many blank lines in a row cost little more than to unpack them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_LINE_BYTES = 16 << 20
UTF8_MARK = b"\xef\xbb\xbf"
BLANKS = b" \t\r"

_LINE_FEED = ord("\n")
_BLANK_LINES = re.compile(rb"\n[ \t\r\n]*\n")
_IS_FILLED = np.ones(256, np.uint8)
_IS_FILLED[list(BLANKS + b"\n")] = 0


class LineBlock:
    """Some lines of a file.

    raw: whole lines, each with its line feed. first_line: the number of the first one in the file.
    too_long: numbers of lines that were left out; `raw` has a blank line in their place.
    """

    def __init__(self, raw: bytes, first_line: int = 1, too_long: tuple[int, ...] = ()) -> None:
        self.raw = raw if not raw or raw.endswith(b"\n") else raw + b"\n"
        self.first_line = first_line
        self.too_long = too_long

    def filled_text(self) -> bytes:
        """The lines without blank ones."""
        codes = np.frombuffer(self.raw, np.uint8)
        begins_blank = _IS_FILLED[codes[1:][codes[:-1] == _LINE_FEED]] == 0
        if not len(codes) or (_IS_FILLED[codes[0]] and not begins_blank.any()):
            return self.raw
        text = _BLANK_LINES.sub(b"\n", b"\n" + self.raw)
        return text[1:]

    def numbers(self) -> npt.NDArray[np.int64]:
        """For each line of `filled_text` its number in the file."""
        codes = np.frombuffer(self.raw, np.uint8)
        starts = np.concatenate([[0], np.flatnonzero(codes == _LINE_FEED) + 1])[:-1]
        if not len(starts):
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.maximum.reduceat(_IS_FILLED[codes], starts)) + self.first_line


def line_blocks(stream: Any, block_bytes: int, first_line: int = 1) -> Iterator[LineBlock]:
    """The lines of a stream from its position on, in blocks of about ``block_bytes``; a block of blank lines is empty.

    first_line: the number of the line at that position.
    """
    line_number = first_line
    pending: list[bytes] = []  # the beginning of a line; dropped when it is too long
    pending_bytes = 0
    at_end = False
    while not at_end:
        data = stream.read(block_bytes)
        at_end = not data
        end = len(data) if at_end else data.rfind(b"\n") + 1
        if not end and not at_end:
            pending_bytes += len(data)
            if pending_bytes <= MAX_LINE_BYTES:
                pending.append(data)
            else:
                pending.clear()
            continue
        first_end = data.find(b"\n") if end else 0
        too_long: tuple[int, ...] = ()
        if pending_bytes + first_end > MAX_LINE_BYTES:
            too_long = (line_number,)
            lines = data[first_end:end]
        else:
            lines = b"".join([*pending, data[:end]])
        if lines or too_long:
            yield LineBlock(b"" if _is_blank(lines) else lines, line_number, too_long)
            line_number += int(np.count_nonzero(np.frombuffer(lines, np.uint8) == _LINE_FEED))
        pending = [data[end:]]
        pending_bytes = len(data) - end


def _is_blank(lines: bytes) -> bool:
    blanks = BLANKS + b"\n"
    return not lines[:4096].translate(None, blanks) and not lines.translate(None, blanks)
