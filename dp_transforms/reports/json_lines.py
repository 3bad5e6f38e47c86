"""Reports as JSON lines: ``{"header": {...}}`` first, then one object per window, times in ISO 8601 UTC."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Sequence
from typing import IO, Any

from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.window_schedule import format_utc
from dp_transforms.reports.report_records import (
    MAX_HEADER_BYTES,
    MAX_RECORD_BYTES,
    ReportFileError,
    ReportHeader,
    check_report,
    parse_json,
    plain_fields,
    report_fields,
)
from dp_transforms.reports.trends import Trend

_UTC = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")
_EPOCH = datetime.datetime(1970, 1, 1)


def encode_report(report: WindowReport, *, ascii_only: bool = False) -> str:
    """One report as one line of JSON, without the newline. Raises ReportFileError if it must not be published.

    ascii_only: escape everything except ASCII, for terminals: labels are hostile input.
    """
    return _line_of(report_fields(report), ascii_only=ascii_only)


def encode_trend(trend: Trend, run_id: str | None = None) -> str:
    """The same for programs, in ASCII: with the rank and the change of each item, and the items that are gone. run_id:
    of its run, where nothing else says it."""
    fields = report_fields(trend.report) if run_id is None else {"run_id": run_id, **report_fields(trend.report)}
    entries = [{**hitter._asdict(), "rank": rank, "change": change} for hitter, rank, change in trend.entries]
    fields |= {"heavy_hitters": entries, "gone": [hitter.item for hitter in trend.gone]}
    return _line_of(fields, ascii_only=True)


def _line_of(fields: dict[str, Any], *, ascii_only: bool = False) -> str:
    fields["window_start"] = format_utc(fields["window_start"])
    fields["window_end"] = format_utc(fields["window_end"])
    return json.dumps(fields, ensure_ascii=ascii_only, allow_nan=False)


def decode_report(line: bytes | str) -> WindowReport:
    """Inverse of `encode_report`."""
    return report_of_json(parse_json(line))


def report_of_json(fields: Any) -> WindowReport:
    """The report of a JSON object that `encode_report` wrote. Raises ReportFileError."""
    if not isinstance(fields, dict):
        raise ReportFileError("a line is not a JSON object.")
    for name in ("window_start", "window_end"):
        fields[name] = _micros(fields.get(name), name)
    return check_report(fields)


def write(handle: IO[bytes], header: ReportHeader, reports: Sequence[WindowReport]) -> None:
    """reports: of `check_report`, in order."""
    handle.write(f'{{"header": {header.to_json()}}}\n'.encode())
    for report in reports:
        handle.write(f"{_line_of(plain_fields(report))}\n".encode())


def read(handle: IO[bytes]) -> tuple[ReportHeader, Iterator[WindowReport]]:
    first = parse_json(_line(handle, MAX_HEADER_BYTES + 16))
    if not isinstance(first, dict) or list(first) != ["header"]:
        raise ReportFileError('the first line is not {"header": {...}}, so shh did not write the file.')
    return ReportHeader.from_fields(first["header"]), _records(handle)


def _records(handle: IO[bytes]) -> Iterator[WindowReport]:
    while line := _line(handle, MAX_RECORD_BYTES):
        yield decode_report(line)


def _line(handle: IO[bytes], max_bytes: int) -> bytes:
    """The next line; empty at the end of the file. Every line must end in a newline, which shows a truncated file."""
    line = handle.readline(max_bytes + 1)
    if len(line) > max_bytes:
        raise ReportFileError(f"a line has more than {max_bytes} bytes.")
    if line and not line.endswith(b"\n"):
        raise ReportFileError("the file ends in the middle of a line. It is truncated: write it again.")
    return line


def _micros(text: object, name: str) -> int:
    """Microseconds since 1970 UTC, exactly."""
    if not (isinstance(text, str) and _UTC.fullmatch(text)):
        raise ReportFileError(f"{name} of a record must be an ISO 8601 time in UTC such as 2017-10-01T03:00:00Z.")
    whole, _, fraction = text[:-1].partition(".")
    try:
        moment = datetime.datetime.fromisoformat(whole)
    except ValueError as error:
        raise ReportFileError(f"{name} of a record must be a time in the calendar.") from error
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1) + int(fraction.ljust(6, "0"))
