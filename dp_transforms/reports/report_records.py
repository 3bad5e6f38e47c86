"""What a report says: its header and its records, checked when they are written and when they are read; and both as
JSON.

As JSON lines a report is ``{"header": {...}}`` and then one object for each window, times in ISO 8601 UTC.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, RunEnded, WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import format_utc

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

HEADER_KEY = "shh.header"
HEADER_VERSION = 2
BOTH_REPORTS = (
    " This is the report of the blocks of windows of a run. It and the report of its windows are protected so together:"
    " both cost this once."
)
MAX_HEADER_BYTES = 1 << 20
# Of one report, in every format; a heavy hitter of 5 bytes of Avro becomes about 400 when it is decoded.
MAX_HEAVY_HITTERS = 1 << 18
# One report as JSON; every other format takes less. Checked when it is written, and before it is decoded.
MAX_RECORD_BYTES = 3 << 24
# The most that a record, and each heavy hitter, takes as JSON without its texts.
_RECORD_FRAME_BYTES, _HEAVY_HITTER_FRAME_BYTES = 512, 120
_MAX_LONG = (1 << 63) - 1
# 0001-01-01 and 9999-12-31T23:59:59.999999 UTC: the range of datetime.
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_UTC = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
_EPOCH = datetime.datetime(1970, 1, 1)
_NAMED_PLACE = re.compile(r" - at `\$\.?([\w.\[\]]+)`$")
_Decoded = TypeVar("_Decoded")


class ReportFileError(UserError, ValueError):
    """A report file that cannot be written, read or published. One line: what, and the remedy."""


@dataclasses.dataclass(frozen=True)
class ReportHeader:
    """What a report file says about its run: only declared values, nothing that depends on the data.

    run_id, stream: names of the run and of the stream.
    guarantee: the differential-privacy guarantee as one sentence.
    plan: the Plan as a JSON object.
    of_blocks: whether its windows are the blocks of a plan with rounds. It is then one half of what the run publishes.
    """

    run_id: str
    stream: str
    guarantee: str
    plan: dict[str, Any]
    of_blocks: bool = False

    def __post_init__(self) -> None:
        kinds = {"run_id": str, "stream": str, "guarantee": str, "plan": dict, "of_blocks": bool}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, str) and not _is_unicode(value)):
                raise ReportFileError(f"{name} of a report header must be a valid {kind.__name__}.")

    @classmethod
    def of_plan(cls, plan: Plan, run_id: str, stream: str, *, of_blocks: bool = False) -> ReportHeader:
        """The header of a run of this plan."""
        guarantee = plan.guarantee + (BOTH_REPORTS if of_blocks else "")
        return cls(run_id, stream, guarantee, json.loads(plan.to_json()), of_blocks)

    @property
    def unit(self) -> str:
        """What has items in this report, in a word."""
        return "block" if self.of_blocks else "window"

    def to_json(self) -> str:
        """One line of JSON."""
        try:
            fields = {"version": HEADER_VERSION, **dataclasses.asdict(self)}
            if not self.of_blocks:
                del fields["of_blocks"]
            text = json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ReportFileError("plan of a report header must hold finite JSON values only.") from error
        if len(text) > MAX_HEADER_BYTES:
            raise ReportFileError(f"the header of a report file must have <= {MAX_HEADER_BYTES} bytes of JSON.")
        return text

    @classmethod
    def from_fields(cls, fields: Any) -> ReportHeader:
        """From the JSON object that `to_json` wrote. Raises ReportFileError for anything else."""
        if not isinstance(fields, dict) or fields.get("version") != HEADER_VERSION:
            raise ReportFileError(
                f"the header of the report file must have version {HEADER_VERSION}. Read it with the version of shh"
                " that wrote it."
            )
        try:
            known = {name: fields[name] for name in ("run_id", "stream", "guarantee", "plan")}
        except KeyError as error:
            raise ReportFileError(f"the header of the report file lacks {error}.") from None
        header = cls(**known, of_blocks=fields.get("of_blocks", False))
        header.to_json()  # what is read can be written into another file
        return header


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------


def checked_report(report: Any) -> WindowReport:
    """The same report, if it may be published; any object with its fields, since Beam makes types of its own.

    Raises ReportFileError, which names the field and never its content, unless every field has its type and range. This
    is also the last check before publication: a noisy count beside ``above``, or a zone beside a level, would break the
    guarantee.
    """
    stream, start, end, found, *budget = (getattr(report, name) for name in WindowReport._fields)
    entries = [each if type(each) is HeavyHitter else _heavy_hitter(each) for each in found]
    if len(entries) > MAX_HEAVY_HITTERS:
        raise too_many_heavy_hitters()
    items, zones, counts, levels, users = zip(*entries, strict=True) if entries else ((),) * 5
    size = _RECORD_FRAME_BYTES + _text_bytes("stream", [stream])
    size += _HEAVY_HITTER_FRAME_BYTES * len(entries) + _text_bytes("item", items)
    _check_whole("noisy_count", counts, -_MAX_LONG - 1)
    _check_whole("level", levels, 1)
    _check_whole("at_least_users", users, 0)
    _check_together(zones, counts, levels, users)
    _check_whole("window_start", [start], _FIRST_MICROS, _LAST_MICROS)
    _check_whole("window_end", [end], _FIRST_MICROS, _LAST_MICROS)
    if start is None or end is None or not start < end:
        raise ReportFileError("window_end of a report must lie after window_start.")
    for name, value in zip(WindowReport._fields[4:], budget, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ReportFileError(f"{name} of a record must be a finite number >= 0.")
    if budget[1] > 1:
        raise ReportFileError("delta of a report must be in [0, 1].")
    if size > MAX_RECORD_BYTES:
        raise ReportFileError(
            f"the report of a window must have <= {MAX_RECORD_BYTES} bytes as JSON. Run with a higher threshold, or"
            " shorter labels."
        )
    return WindowReport(stream, start, end, entries, *map(float, budget))


def _check_together(zones: Sequence[Any], counts: Sequence[Any], levels: Sequence[Any], users: Sequence[Any]) -> None:
    """Zones, and what must not stand beside what: looked at once for each kind of heavy hitter."""
    are_there = [map(operator.is_not, column, itertools.repeat(None)) for column in (counts, levels, users)]
    for zone, has_count, has_level, has_users in set(zip(map(_zone, zones), *are_there, strict=True)):
        if zone == ABOVE and has_count:
            raise ReportFileError(f"noisy_count must be null where zone is {ABOVE!r}: it would break the guarantee.")
        if has_level and zone is not None:
            raise ReportFileError("zone must be null beside a level: it would break the guarantee.")
        if has_users and not has_level:
            raise ReportFileError("at_least_users of a heavy hitter must be null where level is.")
        if has_level and has_count:
            below = (count < 0 for count, level in zip(counts, levels, strict=True) if count is not None and level)
            if any(below):
                problem = "another one is not a count of contributions"
                raise ReportFileError(f"noisy_count must be at least 0 beside a level: {problem}.")


def _zone(zone: Any) -> str | None:
    if zone is None or (isinstance(zone, str) and zone in (ABOVE, BETWEEN)):
        return zone
    raise ReportFileError(f"zone of a heavy hitter must be null, {ABOVE!r} or {BETWEEN!r}.")


def _heavy_hitter(entry: Any) -> HeavyHitter:
    return HeavyHitter(*(getattr(entry, name) for name in HeavyHitter._fields))


def _text_bytes(name: str, texts: Sequence[Any]) -> int:
    """What they take as JSON in UTF-8."""
    try:
        return len(json.encoder.encode_basestring("".join(texts)).encode()) + 2 * len(texts)
    except (TypeError, UnicodeEncodeError):
        raise ReportFileError(f"{name} of a record must be Unicode text.") from None


def _check_whole(name: str, values: Sequence[Any], low: int, high: int = _MAX_LONG) -> None:
    numbers = [value for value in values if value is not None]
    if set(map(type, numbers)) - {int} or not all(low <= number <= high for number in numbers):
        raise ReportFileError(f"{name} of a record must be a whole number in [{low}, {high}].")


def _is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8, without a lone surrogate."""
    return text.encode(errors="replace").decode() == text


def too_many_heavy_hitters() -> ReportFileError:
    return ReportFileError(
        f"the report of a window must have <= {MAX_HEAVY_HITTERS} heavy hitters, got more. Run with a higher threshold."
    )


def checked_ended(ended: Any) -> RunEnded:
    """The same end of a run, of plain values. Raises ReportFileError."""
    try:
        stream, windows, reports = str(ended.stream), int(ended.windows), int(ended.reports)
        if _is_unicode(stream) and 0 <= windows <= _MAX_LONG and 0 <= reports <= _MAX_LONG:
            return RunEnded(stream, windows, reports)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ReportFileError("the record of the end of the run must have a stream, windows and reports.")


def plain_fields(report: WindowReport) -> dict[str, Any]:
    """A checked report as plain dicts and lists."""
    entries = [  # spelled out, which takes half the time of _asdict
        {"item": item, "zone": zone, "noisy_count": count, "level": level, "at_least_users": users}
        for item, zone, count, level, users in report.heavy_hitters
    ]
    return {**report._asdict(), "heavy_hitters": entries}


def in_file_order(reports: Iterable[WindowReport]) -> list[WindowReport]:
    """Sorted by stream and window, the order of every report file."""
    return sorted(reports, key=lambda report: (report.stream, report.window_start, report.window_end))


# ---------------------------------------------------------------------------------------------------------------------
# JSON
# ---------------------------------------------------------------------------------------------------------------------


class _HeavyHitterOfJson(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    item: str
    zone: str | None
    noisy_count: int | None
    level: int | None
    at_least_users: int | None


class RecordOfJson(msgspec.Struct, forbid_unknown_fields=True):
    """A report as a JSON object, before it is checked."""

    stream: str
    window_start: str
    window_end: str
    heavy_hitters: Annotated[list[_HeavyHitterOfJson], msgspec.Meta(max_length=MAX_HEAVY_HITTERS)]
    epsilon_total: float
    delta: float
    epsilon_spent: float

    def report(self) -> WindowReport:
        budget = self.epsilon_total, self.delta, self.epsilon_spent
        start, end = _micros(self.window_start, "window_start"), _micros(self.window_end, "window_end")
        return checked_report(WindowReport(self.stream, start, end, self.heavy_hitters, *budget))  # type: ignore[arg-type]


class EndedOfJson(msgspec.Struct, forbid_unknown_fields=True):
    """A `RunEnded` as a JSON object, before it is checked."""

    stream: str
    windows: int
    reports: int


def decode_json(data: bytes | str, kind: type[_Decoded], most_bytes: int = MAX_HEADER_BYTES) -> _Decoded:
    """Raises ReportFileError, which holds nothing of the text."""
    if len(data) > most_bytes:
        raise ReportFileError(f"the JSON has more than {most_bytes} bytes.")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        place = _NAMED_PLACE.search(str(error))  # of our own fields: one that is not known has none
        named = f": {place[1]}" if place else ""
        raise ReportFileError(f"the JSON is not what shh writes{named}.") from None
    except (ValueError, RecursionError):
        raise ReportFileError("the JSON is broken, or nested too deeply.") from None


def encode_report(report: WindowReport, *, ascii_only: bool = False) -> str:
    """One report as one line of JSON, without the newline. Raises ReportFileError if it must not be published.

    ascii_only: escape everything except ASCII, for terminals: labels are hostile input.
    """
    return json_line(plain_fields(checked_report(report)), ascii_only=ascii_only)


def json_line(fields: dict[str, Any], *, ascii_only: bool = False) -> str:
    """fields: of `plain_fields`."""
    times = {name: format_utc(fields[name]) for name in ("window_start", "window_end")}
    return json.dumps(fields | times, ensure_ascii=ascii_only, allow_nan=False)


def decode_report(line: bytes | str) -> WindowReport:
    """Inverse of `encode_report`. Raises ReportFileError."""
    return decode_json(line, RecordOfJson, MAX_RECORD_BYTES).report()


def write_json_lines(handle: IO[bytes], header: ReportHeader, reports: Iterable[WindowReport]) -> None:
    """reports: of `checked_report`, in order."""
    handle.write(f'{{"header": {header.to_json()}}}\n'.encode())
    for report in reports:
        handle.write(f"{json_line(plain_fields(report))}\n".encode())


def read_json_lines(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    first = decode_json(_line(handle, MAX_HEADER_BYTES + 16), dict[str, Any], MAX_HEADER_BYTES + 16)
    if list(first) != ["header"]:
        raise ReportFileError('the first line is not {"header": {...}}, so shh did not write the file.')
    records = iter(lambda: _line(handle, MAX_RECORD_BYTES), b"")
    return ReportHeader.from_fields(first["header"]), map(decode_report, records)


def _line(handle: IO[bytes], max_bytes: int) -> bytes:
    """The next line; empty at the end of the file. Every line must end in a newline, which shows a truncated file."""
    line = handle.readline(max_bytes + 1)
    if len(line) > max_bytes:
        raise ReportFileError(f"a line has more than {max_bytes} bytes.")
    if line and not line.endswith(b"\n"):
        raise ReportFileError("the file ends in the middle of a line. It is truncated: write it again.")
    return line


def _micros(text: str, name: str) -> int:
    """Microseconds since 1970 UTC, exactly."""
    whole, _, fraction = text[:-1].partition(".")
    try:
        if _UTC.fullmatch(text):
            moment = datetime.datetime.fromisoformat(whole)
            return (moment - _EPOCH) // datetime.timedelta(microseconds=1) + int(fraction.ljust(6, "0"))
    except ValueError:  # not in the calendar
        pass
    raise ReportFileError(f"{name} of a record must be an ISO 8601 time in UTC such as 2017-10-01T03:00:00Z.")
