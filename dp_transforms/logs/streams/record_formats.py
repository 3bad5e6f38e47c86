"""Values of records -> events, under the same rules as the lines and records of log files.

A JSON value is one object, which may run over several lines. An Avro value is one record in its writer's schema, which
is checked against the allow-list of `logs.avro_schema`; a header may come before it (see `AVRO_FRAMINGS`). Every
value is judged alone: no value changes how another one is read. Rejected values are reported by position, with a reason
that contains no part of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from dp_transforms.logs import avro, id_columns, json_lines
from dp_transforms.logs.avro import decode_one_by_one
from dp_transforms.logs.avro_schema import EventSchema, check_schema
from dp_transforms.logs.id_columns import Events
from dp_transforms.logs.json_lines import JsonDecoder
from dp_transforms.logs.log_chunk import EventFields
from dp_transforms.logs.record_spans import RecordSpans
from dp_transforms.logs.rejected_events import Reasons, Rows
from dp_transforms.logs.text_files import MAX_LINE_BYTES, LineBlock

RECORD_FORMATS = ("json", "avro")
# none: the record alone. confluent: a zero byte and the schema's number in the registry, 4 bytes, before it.
AVRO_FRAMINGS = ("none", "confluent")
_MAGIC, _HEADER_BYTES = b"\0", 5

MAX_VALUE_BYTES = MAX_LINE_BYTES
_PIECE_BYTES = 1 << 16

NO_VALUE = "no value"
TOO_LARGE = f"value of more than {MAX_VALUE_BYTES >> 20} MB"
BROKEN_RECORD = "broken record"
NO_HEADER = "no header of the declared Avro framing"
OTHER_SCHEMA = "header names another Avro schema"

_BLANKS = b" \t\r\n"
_IS_BLANK = np.isin(np.arange(256), list(_BLANKS))
_END_MARK_BYTES = 16
_ALONE_BELOW = 16  # if a value is broken, up to so many values are decoded one by one


def record_decoder(
    record_format: str,
    fields: EventFields,
    avro_schema: str | None = None,
    avro_framing: str = "none",
    avro_schema_id: int | None = None,
) -> RecordDecoder:
    """The decoder of a format. avro_schema, avro_framing, avro_schema_id: see `KafkaTopic`.

    Raises ValueError for unknown formats and for schemas in which no events can be read.
    """
    if record_format not in RECORD_FORMATS:
        raise ValueError(f"--record-format must be one of {', '.join(RECORD_FORMATS)}, got {record_format!r}.")
    if avro_framing not in AVRO_FRAMINGS:
        raise ValueError(f"--avro-framing must be one of {', '.join(AVRO_FRAMINGS)}, got {avro_framing!r}.")
    if avro_schema_id is not None and (avro_framing != "confluent" or not 0 <= avro_schema_id < 2**31):
        raise ValueError("an Avro schema id must be 0 to 2147483647 and needs --avro-framing confluent.")
    if record_format == "json":
        if avro_schema is not None or avro_framing != "none":
            raise ValueError("an Avro schema or framing was given for JSON records. Use --record-format avro.")
        return JsonRecordDecoder(fields)
    if avro_schema is None:
        raise ValueError("Avro records need the schema they were written in. Give it with --avro-schema.")
    return AvroRecordDecoder(fields, avro_schema, avro_framing, avro_schema_id)


class JsonRecordDecoder:
    """One JSON object per value."""

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


class AvroRecordDecoder:
    """One Avro record per value, behind a header where the framing has one."""

    def __init__(self, fields: EventFields, schema: str, framing: str, schema_id: int | None) -> None:
        self._fields, self._schema = fields, _check_avro_schema(schema, fields)
        self._header_bytes = _HEADER_BYTES if framing == "confluent" else 0
        self._known = _MAGIC + (b"" if schema_id is None else schema_id.to_bytes(4, "big"))
        # New in each process, so that no writer of records can know it.
        self._end_mark = os.urandom(_END_MARK_BYTES)
        self._many = avro.BlockDecoder(self._schema.records, self._end_mark)
        self._one = avro.BlockDecoder(self._schema.records)
        self._whole_bytes = avro.whole_block_bytes(self._schema.records)

    def decode(self, source: str, values: Sequence[bytes | None], positions: Rows) -> Events:
        """See `JsonRecordDecoder.decode`."""
        reasons = Reasons(len(values))
        _check_sizes(values, 0, reasons)
        if self._header_bytes:
            is_short = [value is not None and len(value) < self._header_bytes for value in values]
            reasons.add(NO_HEADER, np.flatnonzero(is_short))
            reasons.add(NO_HEADER, _without(values, _MAGIC))
            reasons.add(OTHER_SCHEMA, _without(values, self._known))
        rows = reasons.good()
        bodies = [value[self._header_bytes :] for row in rows.tolist() if (value := values[row]) is not None]
        spans = RecordSpans(few=1, smallest=_ALONE_BELOW)
        parts = list(spans.decode(bodies, self._decode_together, self._decode_one_by_one))
        kept = rows[np.concatenate([found for found, _ in parts] or [np.zeros(0, np.int64)])]
        reasons.add_others(BROKEN_RECORD, kept)
        columns = avro.to_columns([part for _, part in parts] or [avro.to_arrow([], self._schema)], self._fields)
        return id_columns.events_of(source, columns, kept, reasons, positions.take)

    def _decode_together(self, bodies: list[bytes]) -> avro.ArrowColumns | None:
        if sum(map(len, bodies)) > self._whole_bytes:
            return None
        try:
            records = self._many.decode(len(bodies), self._end_mark.join([*bodies, b""]))
            return avro.to_arrow(records, self._schema)
        except Exception:  # the decoder may raise anything on hostile bytes, and its words may contain them
            return None

    def _decode_one_by_one(self, bodies: list[bytes]) -> Iterator[tuple[Rows, avro.ArrowColumns]]:
        for row, body in enumerate(bodies):
            try:
                part = self._decode_alone(body)
            except Exception:  # as above: this record is the broken one
                continue
            yield np.array([row]), part

    def _decode_alone(self, body: bytes) -> avro.ArrowColumns:
        """Raises some exception, of any type, unless the value is one record."""
        if len(body) <= self._whole_bytes:
            return avro.to_arrow(self._one.decode(1, body), self._schema)
        pieces = (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))
        (records,) = decode_one_by_one(pieces, 1, self._schema.records, self._schema.keys, self._whole_bytes)
        return avro.to_arrow(records, self._schema)


RecordDecoder = JsonRecordDecoder | AvroRecordDecoder


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


def _check_avro_schema(schema: str, fields: EventFields) -> EventSchema:
    return check_schema("the Avro schema", schema.encode("utf-8", "surrogatepass"), fields)


def _without(values: Sequence[bytes | None], prefix: bytes) -> Rows:
    lacks = (value is not None and not value.startswith(prefix) for value in values)
    return np.flatnonzero(np.fromiter(lacks, np.bool_, len(values)))
