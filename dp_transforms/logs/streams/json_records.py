"""Values of records -> events, under the same rules as the lines of log files.

A value is one JSON object, which may run over several lines. Every value is judged alone: no value changes how another
one is read. Rejected values are reported by position, with a reason that contains no part of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dp_transforms.logs import id_columns, json_lines
from dp_transforms.logs.id_columns import Events
from dp_transforms.logs.json_lines import JsonDecoder
from dp_transforms.logs.log_chunk import EventFields
from dp_transforms.logs.rejected_events import Reasons, Rows
from dp_transforms.logs.text_files import MAX_LINE_BYTES, LineBlock

MAX_VALUE_BYTES = MAX_LINE_BYTES

NO_VALUE = "no value"
TOO_LARGE = f"value of more than {MAX_VALUE_BYTES >> 20} MB"
BROKEN_RECORD = "broken record"

_BLANKS = b" \t\r\n"
_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))


class RecordDecoder:
    """One object per value."""

    def __init__(self, fields: EventFields) -> None:
        self._fields = fields
        self._lines = JsonDecoder(fields)

    def decode(self, source: str, values: Sequence[bytes | None], positions: Rows) -> Events:
        """The values become lines, so that the same values are accepted as in a file of lines.

        values: None for a record without a value. positions: int64[n], their places in ``source``, to report.
        """
        reasons = Reasons(len(values))
        text = _plain_text(values)
        if text is None:
            text = self._as_lines(values, reasons)
        rows = reasons.good()
        columns, kept, _ = self._lines.decode(LineBlock(text))
        reasons.add_others(BROKEN_RECORD, rows[kept])
        return id_columns.events_of(source, columns, rows[kept], reasons, positions.take)

    def _as_lines(self, values: Sequence[bytes | None], reasons: Reasons) -> bytes:
        """The text of those that have no reason against them."""
        # A value of blanks only is not a value, as a line of blanks only is not a line.
        lines = [value.strip(_BLANKS) if value is not None else b"" for value in values]
        _check_sizes(lines, 1, reasons)
        for row in [row for row in reasons.good().tolist() if b"\n" in lines[row]]:
            joined = json_lines.join_line(lines[row], self._fields)
            if joined is None:
                reasons.add(BROKEN_RECORD, np.array([row]))
            else:
                lines[row] = joined
        return b"\n".join([lines[row] for row in reasons.good().tolist()])


def _plain_text(values: Sequence[bytes | None]) -> bytes | None:
    """The values as lines, if each is a line as it stands: neither empty nor too large, without a line end, and without
    blanks around it. Else None. So that most need no look at each value."""
    try:
        text = b"\n".join([*values, b""])  # type: ignore[list-item]
    except TypeError:  # a record without a value
        return None
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    sizes = np.diff(ends, prepend=-1) - 1
    if len(sizes) != len(values) or not len(sizes) or sizes.min() < 1 or sizes.max() > MAX_VALUE_BYTES:
        return None
    return None if _IS_BLANK[codes[ends - sizes]].any() or _IS_BLANK[codes[ends - 1]].any() else text


def _check_sizes(values: Sequence[bytes | None], least: int, reasons: Reasons) -> None:
    sizes = np.fromiter((-1 if value is None else len(value) for value in values), np.int64, len(values))
    reasons.add(NO_VALUE, np.flatnonzero(sizes < least))
    reasons.add(TOO_LARGE, np.flatnonzero(sizes > MAX_VALUE_BYTES))
