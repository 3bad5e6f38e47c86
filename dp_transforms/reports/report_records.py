"""What a report says: its header and its records, checked when they are written and when they are read; and both as
JSON.

As JSON lines a report is ``{"header": {...}}`` and then one object for each window, times in ISO 8601 UTC.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from dp_transforms.core.window_report import ABOVE, HeavyHitter, WindowReport
from dp_transforms.errors import UserError
from dp_transforms.plan.window_schedule import format_utc

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

HEADER_KEY = "shh.header"
HEADER_VERSION = 3
MAX_HEADER_BYTES = 1 << 20
# Of one report, in every format; a heavy hitter of 5 bytes of Avro becomes about 400 when it is decoded.
MAX_HEAVY_HITTERS = 1 << 18
# One report as JSON; every other format takes less. Checked when it is written, and before it is decoded.
MAX_RECORD_BYTES = 3 << 24
# What a line of JSON has more than the same by msgspec: blanks, and times in words.
_MORE_OF_RECORD, _MORE_OF_HEAVY_HITTER = 512, 10
# 0001-01-01 and 9999-12-31T23:59:59.999999 UTC: the range of datetime.
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_EPOCH, _MICROSECOND = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(microseconds=1)
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
    """

    run_id: str
    stream: str
    guarantee: str
    plan: dict[str, Any]

    @classmethod
    def of_plan(cls, plan: Plan, run_id: str, stream: str) -> ReportHeader:
        """The header of a run of this plan."""
        return cls(run_id, stream, plan.guarantee, json.loads(plan.to_json()))

    def unlike(self, other: ReportHeader) -> str:
        """In what it is not of the same report of the same run as another header; "" if it is."""
        for name in ("run_id", "stream"):
            if (own := getattr(self, name)) != (of_other := getattr(other, name)):
                return f"its {name} is {own!r}, and not {of_other!r}"
        if self.plan != other.plan:
            return f"it has another plan, and run {self.run_id!r} keeps its plan to the end"
        return ""

    def checked_plan(self) -> Plan | None:
        """The plan, with all of its checks; None where this version cannot read it."""
        from dp_transforms.plan.plan import Plan

        try:
            return Plan.from_json(json.dumps(self.plan))
        except (ValueError, RecursionError, OverflowError, TypeError):
            return None

    def to_json(self) -> str:
        """One line of JSON. Raises ReportFileError for fields of other types, and for what is no JSON or too long."""
        fields = {"version": HEADER_VERSION, "run_id": self.run_id, "stream": self.stream, "guarantee": self.guarantee}
        fields["plan"] = self.plan
        try:
            msgspec.convert(fields, ReportHeader)
            msgspec.json.encode(fields)  # which refuses half of a character
            text = json.dumps(fields, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ReportFileError("a report header must hold names and finite JSON values only.") from error
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
            header = msgspec.convert(fields, ReportHeader)
        except msgspec.ValidationError:
            raise ReportFileError("the header of the report file is not what shh writes.") from None
        header.to_json()  # what is read can be written into another file
        return header


class RunEnded(NamedTuple):
    """Says that a run has released everything, and nothing about why: whether a stop by the operator mattered depends
    on data that is never released (docs/guarantee.md, "What may be published").

    stream: name of the stream.
    windows: the number of windows that were closed, with and without heavy items.
    reports: the number of windows with heavy items. `RunEnded` can overtake the last of their reports; from the number
        a reader knows when all have come.
    """

    stream: str
    windows: int
    reports: int = 0


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------

_Count = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Micros = Annotated[int, msgspec.Meta(ge=_FIRST_MICROS, le=_LAST_MICROS)]
_Finite = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
_Moment = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class _HeavyHitterFields(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    item: str
    zone: Literal["above", "between"] | None
    noisy_count: _Count | None
    level: _Positive | None
    at_least_users: _NotNegative | None


class _ReportFields(msgspec.Struct, forbid_unknown_fields=True):
    """Of a report, with their types and ranges: what every format is checked by."""

    stream: str
    window_start: _Micros
    window_end: _Micros
    heavy_hitters: list[_HeavyHitterFields]
    epsilon_total: _Finite
    delta: Annotated[float, msgspec.Meta(ge=0, le=1)]
    epsilon_spent: _Finite


class EndedFields(msgspec.Struct, forbid_unknown_fields=True):
    """Of a `RunEnded`."""

    stream: str
    windows: _NotNegative
    reports: _NotNegative


def checked_report(report: Any) -> WindowReport:
    """The same report, if it may be published; any named tuple with its fields, since Beam makes types of its own.

    Raises ReportFileError, which names the field and never its content, unless every field has its type and range. This
    is also the last check before publication: a noisy count beside ``above``, or a zone beside a level, would break the
    guarantee.
    """
    entries = [each if type(each) is HeavyHitter else HeavyHitter._make(each) for each in report.heavy_hitters]
    try:
        fields = msgspec.convert(plain_fields(report), _ReportFields)
        size = len(msgspec.json.encode(fields)) + _MORE_OF_RECORD + _MORE_OF_HEAVY_HITTER * len(entries)
    except msgspec.ValidationError as error:
        raise ReportFileError(f"{_place(error)} of a report has another type, or is out of its range.") from None
    except UnicodeEncodeError:
        raise ReportFileError("stream and item of a report must be Unicode text.") from None
    if len(entries) > MAX_HEAVY_HITTERS or size > MAX_RECORD_BYTES:
        raise too_large_report()
    for _, zone, count, level, users in entries:
        if zone == ABOVE and count is not None:
            raise ReportFileError(f"noisy_count must be null where zone is {ABOVE!r}: it would break the guarantee.")
        if level is None and users is not None:
            raise ReportFileError("at_least_users of a heavy hitter must be null where level is.")
        if level is not None and zone is not None:
            raise ReportFileError("zone must be null beside a level: it would break the guarantee.")
        if level is not None and count is not None and count < 0:
            problem = "another one is not a count of contributions"
            raise ReportFileError(f"noisy_count must be at least 0 beside a level: {problem}.")
    if not fields.window_start < fields.window_end:
        raise ReportFileError("window_end of a report must lie after window_start.")
    budget = fields.epsilon_total, fields.delta, fields.epsilon_spent
    return WindowReport(fields.stream, fields.window_start, fields.window_end, entries, *budget)


def too_large_report() -> ReportFileError:
    return ReportFileError(
        f"the report of a window must have <= {MAX_HEAVY_HITTERS} heavy hitters and <= {MAX_RECORD_BYTES} bytes as"
        " JSON. Run with a higher threshold, or shorter labels."
    )


def checked_ended(ended: Any) -> RunEnded:
    """The same end of a run. Raises ReportFileError."""
    try:
        fields = msgspec.convert(dict(zip(RunEnded._fields, ended, strict=True)), EndedFields)
        msgspec.json.encode(fields)
    except ValueError:
        raise ReportFileError("the record of the end of the run must have a stream, windows and reports.") from None
    return RunEnded(*msgspec.structs.astuple(fields))


def plain_fields(report: WindowReport) -> dict[str, Any]:
    """A report as plain dicts and lists."""
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


class RecordOfJson(_ReportFields):
    """A report as a JSON object, before it is checked."""

    window_start: _Moment  # type: ignore[assignment]
    window_end: _Moment  # type: ignore[assignment]

    def report(self) -> WindowReport:
        """Raises ReportFileError."""
        times = [(time - _EPOCH) // _MICROSECOND for time in (self.window_start, self.window_end)]
        entries = [HeavyHitter._make(msgspec.structs.astuple(each)) for each in self.heavy_hitters]
        budget = self.epsilon_total, self.delta, self.epsilon_spent
        return checked_report(WindowReport(self.stream, times[0], times[1], entries, *budget))


def decode_json(data: bytes | str, kind: type[_Decoded], most_bytes: int = MAX_HEADER_BYTES) -> _Decoded:
    """Raises ReportFileError, which holds nothing of the text."""
    if len(data) > most_bytes:
        raise ReportFileError(f"the JSON has more than {most_bytes} bytes.")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ReportFileError(f"the JSON is not what shh writes: {_place(error)}.") from None
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


def _place(error: msgspec.ValidationError) -> str:
    """The field that an error is about: one of ours, since what is in a field that is not known is not looked at."""
    found = _NAMED_PLACE.search(str(error))
    return found[1] if found else "a field"
