"""Values of records -> events, under the same rules as the lines of log files.

A value is one JSON object, which may run over several lines. Every value is judged alone: no value changes how another
one is read. Rejected values are reported by position, with a reason that contains no part of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dp_transforms.logs import id_columns
from dp_transforms.logs.id_columns import Events
from dp_transforms.logs.json_lines import JsonDecoder
from dp_transforms.logs.log_chunk import EventFields
from dp_transforms.logs.rejected_events import Rows, reject
from dp_transforms.logs.text_files import BLANKS, MAX_LINE_BYTES

MAX_VALUE_BYTES = MAX_LINE_BYTES

NO_VALUE = "no value"
TOO_LARGE = f"value of more than {MAX_VALUE_BYTES >> 20} MB"
BROKEN_RECORD = "broken record"


class RecordDecoder:
    """One object per value."""

    def __init__(self, fields: EventFields) -> None:
        self._lines = JsonDecoder(fields)

    def decode(self, source: str, values: Sequence[bytes | None], positions: Rows) -> Events:
        """values: None for a record without a value. positions: int64[n], their places in ``source``, to report."""
        # A value of blanks only is not a value, as a line of blanks only is not a line.
        filled = [b"" if value is None else value.strip(BLANKS + b"\n") for value in values]
        sizes = np.fromiter(map(len, filled), np.int64, len(filled))
        unread = {NO_VALUE: np.flatnonzero(sizes == 0), TOO_LARGE: np.flatnonzero(sizes > MAX_VALUE_BYTES)}
        _, rows = reject(source, len(filled), unread, positions.take)
        # A line feed is a blank between the parts of an object, and breaks a text in it; so does a carriage return.
        lines = b"".join([filled[row].replace(b"\n", b"\r") + b"\n" for row in rows.tolist()])
        columns, is_kept = self._lines.decode(lines)
        broken = {**unread, BROKEN_RECORD: rows[~is_kept]}
        return id_columns.events_of(source, columns, rows[is_kept], broken, positions.take)
