"""The header and the records of a report file, and the check of both when they are written and read."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.errors import UserError

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

HEADER_KEY = "shh.header"
HEADER_VERSION = 2
BOTH_REPORTS = (
    " This is the report of the blocks of windows of a run. It and the report of its windows are protected so together:"
    " both cost this once."
)
MAX_HEADER_BYTES = 1 << 20
# Of one report, in every format. A heavy hitter of 5 bytes becomes about 400 when it is decoded.
# Checked when a report is written, and when it is read before anything is decoded.
MAX_HEAVY_HITTERS = 1 << 18
# One report as JSON; every other format takes less. Files are read in pieces of about this size.
MAX_RECORD_BYTES = 3 << 24
# The most that a record, and each heavy hitter, takes as JSON without its texts.
_RECORD_FRAME_BYTES, _HEAVY_HITTER_FRAME_BYTES = 512, 120
_FIELDS = frozenset(HeavyHitter._fields)
# Smaller JSON is parsed without a count of its values: it becomes at most 50 times as large.
_UNCOUNTED_JSON_BYTES = 1 << 20
_COUNTED_BYTES = 1 << 20
_MAX_LONG = (1 << 63) - 1
# 0001-01-01 and 9999-12-31T23:59:59.999999 UTC: the range of datetime.
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999


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
        for name in ("run_id", "stream", "guarantee"):
            value = getattr(self, name)
            if not is_unicode(value):
                raise ReportFileError(f"{name} of a report header must be Unicode text, got {type(value).__name__}.")
        if not isinstance(self.plan, dict):
            raise ReportFileError(f"plan of a report header must be a dict, got {type(self.plan).__name__}.")
        if not isinstance(self.of_blocks, bool):
            raise ReportFileError(f"of_blocks of a report header must be true, got {type(self.of_blocks).__name__}.")

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
        if not isinstance(fields, dict):
            raise ReportFileError("the header of the report file is not a JSON object.")
        if fields.get("version") != HEADER_VERSION:
            raise ReportFileError(
                f"the header of the report file must have version {HEADER_VERSION}. Read it with the version of shh"
                " that wrote it."
            )
        try:
            text = json.dumps(fields, ensure_ascii=False)
        except RecursionError:
            text = None
        if not is_unicode(text):
            raise ReportFileError("the header of the report file holds text that is not Unicode, or nests too deeply.")
        try:
            of_blocks = fields.get("of_blocks", False)
            return cls(fields["run_id"], fields["stream"], fields["guarantee"], fields["plan"], of_blocks)
        except KeyError as error:
            raise ReportFileError(f"the header of the report file lacks {error}.") from error


def parse_header(data: bytes | str | None) -> ReportHeader:
    """The header from the text that a file carries under `HEADER_KEY`."""
    if data is None:
        raise ReportFileError(f"the file has no {HEADER_KEY} in its metadata, so shh did not write it.")
    if len(data) > MAX_HEADER_BYTES:
        raise ReportFileError(f"the header of a report file must have <= {MAX_HEADER_BYTES} bytes.")
    return ReportHeader.from_fields(parse_json(data))


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text in UTF-8. Raises ReportFileError also for what Python's parser accepts: NaN, duplicate
    keys, unbounded nesting, and more values than a report has."""
    try:
        text = data if isinstance(data, str) else data.decode()
        if len(text) > _UNCOUNTED_JSON_BYTES:
            _check_json_size(text.encode())
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ReportFileError("the JSON is nested too deeply.") from error
    except ReportFileError:
        raise
    except ValueError as error:  # a UnicodeDecodeError holds bytes of the text
        raise ReportFileError("the JSON is broken.") from error


def json_bytes(text: str) -> int:
    """What a text takes as JSON in UTF-8. Raises UnicodeEncodeError for a lone surrogate."""
    if text.isascii() and text.isprintable():  # twice as fast
        return len(text) + text.count('"') + text.count("\\") + 2
    return len(json.encoder.encode_basestring(text).encode())


def check_report(fields: Mapping[str, Any]) -> WindowReport:
    """The report of one record, of any format, that was read or is to be written.

    Raises ReportFileError, which names the field and never its content, unless every field has its type and range. This
    is also the last check before publication: a noisy count beside ``above``, or a zone beside a level, would break the
    guarantee.
    """
    _check_names(fields, WindowReport._fields)
    stream, stream_bytes = _text(fields["stream"], "stream")
    heavy_hitters, heavy_hitters_bytes = _heavy_hitters(fields["heavy_hitters"])
    report = WindowReport(
        stream=stream,
        window_start=_whole(fields["window_start"], "window_start", _FIRST_MICROS, _LAST_MICROS),
        window_end=_whole(fields["window_end"], "window_end", _FIRST_MICROS, _LAST_MICROS),
        heavy_hitters=heavy_hitters,
        epsilon_total=_number(fields["epsilon_total"], "epsilon_total"),
        delta=_number(fields["delta"], "delta"),
        epsilon_spent=_number(fields["epsilon_spent"], "epsilon_spent"),
    )
    if not report.window_start < report.window_end:
        raise ReportFileError("window_end of a report must lie after window_start.")
    if report.delta > 1:
        raise ReportFileError("delta of a report must be in [0, 1].")
    if _RECORD_FRAME_BYTES + stream_bytes + heavy_hitters_bytes > MAX_RECORD_BYTES:
        raise ReportFileError(
            f"the report of a window must have <= {MAX_RECORD_BYTES} bytes as JSON. Run with a higher threshold, or"
            " shorter labels."
        )
    return report


def checked_report(report: WindowReport) -> WindowReport:
    """The same report, checked by `check_report`. Accepts any object with the fields: Beam makes its own types."""
    fields = {name: getattr(report, name) for name in WindowReport._fields}
    if set(map(type, report.heavy_hitters)) != {HeavyHitter}:
        fields["heavy_hitters"] = [
            {name: getattr(heavy_hitter, name) for name in HeavyHitter._fields} for heavy_hitter in report.heavy_hitters
        ]
    return check_report(fields)


def report_fields(report: WindowReport) -> dict[str, Any]:
    """A report as plain dicts and lists, checked."""
    return plain_fields(checked_report(report))


def plain_fields(report: WindowReport) -> dict[str, Any]:
    """A report of `check_report` as plain dicts and lists."""
    return {**report._asdict(), "heavy_hitters": [entry._asdict() for entry in report.heavy_hitters]}


def in_file_order(reports: Iterable[WindowReport]) -> list[WindowReport]:
    """Sorted by stream and window, the order of every report file."""
    return sorted(reports, key=lambda report: (report.stream, report.window_start, report.window_end))


def too_many_heavy_hitters() -> ReportFileError:
    return ReportFileError(
        f"the report of a window must have <= {MAX_HEAVY_HITTERS} heavy hitters, got more. Run with a higher threshold."
    )


def _check_json_size(data: bytes) -> None:
    """Raises ReportFileError for JSON that has more bytes, lists, objects or other values than a report or a header."""
    # A header, or the run id of a record in a topic, may come in addition.
    if len(data) > MAX_RECORD_BYTES + MAX_HEADER_BYTES:
        raise ReportFileError(f"the JSON has more than {MAX_RECORD_BYTES + MAX_HEADER_BYTES} bytes.")
    # Without escaped quotes, every other quote ends a text. Pairs of backslashes go first: a quote after one is plain.
    plain = np.frombuffer(data.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    inside, values, commas = False, 0, 0
    for begin in range(0, len(plain), _COUNTED_BYTES):
        piece = plain[begin : begin + _COUNTED_BYTES]
        in_text = np.logical_xor.accumulate(piece == ord('"')) ^ inside
        inside = bool(in_text[-1])
        outside = piece[~in_text]
        values += int(np.count_nonzero((outside == ord("{")) | (outside == ord("["))))
        commas += int(np.count_nonzero(outside == ord(",")))
    # A report is an object with a list of objects of some fields; all else has fewer than 2^16 values.
    more = 1 << 16
    if values > MAX_HEAVY_HITTERS + more or commas > len(HeavyHitter._fields) * MAX_HEAVY_HITTERS + more:
        raise too_many_heavy_hitters()


def _heavy_hitters(entries: Any) -> tuple[list[HeavyHitter], int]:
    """The heavy hitters, and what they take as JSON."""
    if not isinstance(entries, (list, tuple)):
        raise ReportFileError("heavy_hitters of a report must be a list.")
    if len(entries) > MAX_HEAVY_HITTERS:
        raise too_many_heavy_hitters()
    heavy_hitters, size = [], 0
    for entry in entries:
        if type(entry) is not HeavyHitter:
            if not isinstance(entry, Mapping) or entry.keys() != _FIELDS:
                raise _wrong_names(HeavyHitter._fields)
            entry = HeavyHitter(**entry)
        item, zone, count, level, at_least_users = entry
        if not (zone is None or (isinstance(zone, str) and zone in (ABOVE, BETWEEN))):
            raise ReportFileError(f"zone of a heavy hitter must be null, {ABOVE!r} or {BETWEEN!r}.")
        if zone == ABOVE and count is not None:
            raise ReportFileError(f"noisy_count must be null where zone is {ABOVE!r}: it would break the guarantee.")
        if count is not None:
            count = _whole(count, "noisy_count", -(1 << 63), _MAX_LONG)
        level, at_least_users = _size(level, at_least_users)
        if level is not None and zone is not None:
            raise ReportFileError("zone must be null beside a level: it would break the guarantee.")
        if level is not None and count is not None and count < 0:
            raise ReportFileError(
                "noisy_count must be at least 0 beside a level: another one is not a count of contributions."
            )
        item, item_bytes = _text(item, "item")
        heavy_hitters.append(HeavyHitter(item, zone, count, level, at_least_users))
        size += _HEAVY_HITTER_FRAME_BYTES + item_bytes
    return heavy_hitters, size


def _size(level: Any, at_least_users: Any) -> tuple[int | None, int | None]:
    """Level and number of users of a heavy hitter where users pay for contributions; else both None."""
    if level is not None:
        level = _whole(level, "level", 1, _MAX_LONG)
    if at_least_users is not None:
        if level is None:
            raise ReportFileError("at_least_users of a heavy hitter must be null where level is.")
        at_least_users = _whole(at_least_users, "at_least_users", 0, _MAX_LONG)
    return level, at_least_users


def _check_names(fields: Any, names: tuple[str, ...]) -> None:
    if not isinstance(fields, Mapping) or set(fields) != set(names):
        raise _wrong_names(names)


def _wrong_names(names: tuple[str, ...]) -> ReportFileError:
    return ReportFileError(f"a record must have exactly the fields {', '.join(names)}.")


def is_unicode(text: object) -> bool:
    """Whether it is a text that can be written as UTF-8, without a lone surrogate."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: Any, name: str) -> tuple[str, int]:
    """The text, and what it takes as JSON."""
    try:
        if isinstance(value, str):
            return str(value), json_bytes(value)
    except UnicodeEncodeError:
        pass
    raise ReportFileError(f"{name} of a record must be Unicode text.")


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is int and low <= value <= high:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = high + 1
    if isinstance(value, bool) or not low <= number <= high:
        raise ReportFileError(f"{name} of a record must be a whole number in [{low}, {high}].")
    return number


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ReportFileError(f"{name} of a record must be a finite number >= 0.")
    try:
        return float(value)
    except OverflowError as error:
        raise ReportFileError(f"{name} of a record must be a finite number >= 0.") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ReportFileError("a JSON object has a field twice.")
    return fields


def _refuse_constant(name: str) -> Any:
    raise ReportFileError("the JSON holds NaN or an infinity.")
