"""A glance at a log that nobody has described yet: which of its fields may be user, item and time, and how time counts.

Decides by names and by a sample of rows (`logs.estimate`), and says how sure it is. What it finds is for the
operator; a person decides.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
import zoneinfo
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.cli.field_roles import ITEM, TIME, USER, Field, Times, choose_fields, what_it_holds
from dp_transforms.logs import time_formats, times
from dp_transforms.logs.estimate import DATE, OTHER, TEXT, TIMESTAMP, WHOLE, FileSample, LogSample
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.views.report_words import local

_EARLIEST, _LATEST = 631_152_000 * MICROS_PER_SECOND, 4_102_444_800 * MICROS_PER_SECOND  # 1990 and 2100
_DAY_MICROS = 86_400 * MICROS_PER_SECOND
_HAS_ZONE = r":[0-9]{2}.*(?:[zZ]|[+-][0-9]{2}(?::?[0-9]{2})?)$"  # after a clock: dates end so too
_OTHER_DATE = r"^[0-9]{1,4}([./-])[0-9]{1,2}[./-][0-9]{1,4}\b|^(?:19|20)[0-9]{6}$|[0-9]{1,2}:[0-9]{2}"
_MOSTLY = 0.9
_NO_TIME = datetime.timedelta()
_DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d/%b/%Y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
    "%a, %d %b %Y",
)
_JOINTS = (" ", ", ", "T", ":", "")
_CLOCKS = ("", "%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p", "%H%M%S")
_ZONES = ("", " %z", "%z")

TimeReading = tuple[str | None, str | None, str | None]  # unit, form and zone, of `EventFields`


@dataclasses.dataclass(frozen=True, eq=False)
class LogGlance:
    """fields: of the files that could be read. chosen: by role, the names that are given or proposed; a role that no
    field can have is missing. guessed: roles that names did not decide. time_zone: the one that was given. separator:
    of CSV files, None for the usual one. differing: files with other fields, or another separator, than the first one.
    low, high: the times of all rows that were looked at, in microseconds; None without any. odd_times: rows
    with times outside of 1990 .. 2100, which are not between them. shared: how many different values both the user and
    the item have."""

    sample: LogSample
    fields: tuple[Field, ...]
    chosen: Mapping[str, str]
    guessed: frozenset[str]
    unit: str | None
    time_format: str | None
    time_zone: str | None
    separator: str | None
    differing: tuple[str, ...]
    low: int | None
    high: int | None
    odd_times: int
    shared: int

    def field(self, role: str) -> Field | None:
        return next((field for field in self.fields if field.name == self.chosen.get(role)), None)

    @property
    def has_rows(self) -> bool:
        return any(field.rows for field in self.fields)

    @property
    def are_days(self) -> bool:
        """Whether all times are the beginning of a day, so that no shorter window tells anything."""
        time = self.field(TIME)
        if time is None or time.times is None:
            return False
        return not ((time.times.micros + self.offset_seconds * MICROS_PER_SECOND) % _DAY_MICROS).any()

    @property
    def zone(self) -> datetime.tzinfo:
        """Of the days of people: the zone that was given."""
        return datetime.UTC if self.time_zone is None else zoneinfo.ZoneInfo(self.time_zone)

    @property
    def offset_seconds(self) -> int:
        """Of that zone, when the first event was; one for all, so that days have 24 hours."""
        if self.low is None:
            return 0
        return round((self.zone.utcoffset(local(self.low, self.zone)) or _NO_TIME).total_seconds())

    @property
    def is_complete(self) -> bool:
        """Whether each role has a field that can have it."""
        user, item, time = (self.field(role) for role in (USER, ITEM, TIME))
        return bool(user and item and time and user.may_be_id and item.may_be_id and time.times)


def glance_at(sample: LogSample, given: Mapping[str, str], reading: TimeReading) -> LogGlance:
    """given: names that the operator chose, by role; reading: how times are read, as far as it was chosen."""
    with_rows = [each for each in sample.samples if each.fields]
    names = [field.name for field in with_rows[0].fields] if with_rows else []
    separator = with_rows[0].separator if with_rows else None
    alike = [each.separator == separator and {field.name for field in each.fields} == set(names) for each in with_rows]
    differing = tuple(each.path for each, is_like in zip(with_rows, alike, strict=True) if not is_like)
    with_rows = [each for each in with_rows if each.path not in differing]
    guess = (None, None, reading[2])
    fields = tuple(_field(name, with_rows, reading if name == given.get(TIME, name) else guess) for name in names)
    chosen, guessed = choose_fields(fields, given)
    time = next((field for field in fields if field.name == chosen.get(TIME)), None)
    found = None if time is None else time.times
    low, high, odd = _range(with_rows, time, reading[2])
    unit, time_format = (found.unit, found.time_format) if found else reading[:2]
    shared = _shared(with_rows, chosen)
    reads = (unit, time_format, reading[2], separator)
    return LogGlance(sample, fields, chosen, guessed, *reads, differing, low, high, odd, shared)


def _shared(samples: Sequence[FileSample], chosen: Mapping[str, str]) -> int:
    found: dict[str, set[bytes]] = {chosen.get(role, ""): set() for role in (USER, ITEM)}
    for field in (field for sample in samples for field in sample.fields if field.name in found):
        if field.values is not None and field.kind in (TEXT, WHOLE):
            values = _as_plain(field.values).cast(pa.binary()).unique().drop_null().to_pylist()
            found[field.name].update(value for value in values if value)
    return len(set.intersection(*found.values())) if len(found) == 2 else 0


def _field(name: str, samples: Sequence[FileSample], reading: TimeReading) -> Field:
    parts = [field for sample in samples for field in sample.fields if field.name == name]
    kinds = {part.kind for part in parts if part.values is None or part.values.null_count < len(part.values)}
    kind = kinds.pop() if len(kinds) == 1 else OTHER
    arrays = [part.values for part in parts if part.values is not None and part.kind == kind]
    rows = sum(len(array) for array in arrays)
    empty = sum(_empty(array) for array in arrays)
    plain = pa.chunked_array([_as_plain(array) for array in arrays]) if rows else None
    counts = plain.drop_null().value_counts() if plain is not None else None
    has_nanoseconds = kind in (TEXT, WHOLE) and rows > 0 and _counts(arrays, 1000) is not None
    found = _times(kind, arrays, reading) if rows else None
    return Field(
        name=name,
        kind=kind,
        rows=rows,
        empty=empty,
        different=pc.count_distinct(plain).as_py() if plain is not None else 0,
        most_common=pc.max(counts.field("counts")).as_py() or 0 if counts is not None else 0,
        times=found,
        has_nanoseconds=has_nanoseconds,
        are_other_dates=found is None and kind == TEXT and _are_dates(arrays, rows - empty),
        may_be_id=kind in (TEXT, WHOLE),
        holds=what_it_holds(plain, len(counts)) if kind == TEXT and plain is not None and counts is not None else None,
    )


def _are_dates(arrays: Sequence[pa.Array], filled: int) -> bool:
    """Whether nearly all texts look like 02.11.2026 18:03, 11/02/2026, 20261102 or 2026-11-02 18:03 UTC."""
    texts = pa.chunked_array([_as_plain(array) for array in arrays])
    alike = pc.sum(pc.match_substring_regex(texts, _OTHER_DATE)).as_py() or 0
    return filled > 0 and bool(alike >= _MOSTLY * filled)


def _as_plain(array: pa.Array) -> pa.Array:
    """One type for all files: some may have dictionaries, other widths or another unit."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if pa.types.is_integer(array.type):
        return array.cast(pa.string())
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return pa.array(times.parse_times(array, None).micros)
    return array.cast(pa.float64() if pa.types.is_floating(array.type) else pa.binary())


def _empty(array: pa.Array) -> int:
    plain = _as_plain(array)
    blank = pc.equal(pc.binary_length(plain), 0).true_count if pa.types.is_binary(plain.type) else 0
    return int(array.null_count + blank)


def _times(kind: str, arrays: Sequence[pa.Array], reading: TimeReading) -> Times | None:
    """None unless most values are times."""
    unit, time_format, zone = reading
    if kind in (TIMESTAMP, DATE):
        return _read(arrays, (None, None, zone), "typed")
    if kind == OTHER:
        return None
    if kind == TEXT and time_format is None and unit in (None, "iso"):
        texts = pa.chunked_array([_as_plain(array) for array in arrays])
        zoned = pc.sum(pc.match_substring_regex(texts, _HAS_ZONE)).as_py() or 0
        filled = len(texts) - sum(_empty(array) for array in arrays)
        read = _read(arrays, (unit, None, zone), "none" if not zoned else "all" if zoned == filled else "some")
        if read is not None or unit is not None:
            return read
    for factor, name in ((1_000_000, "s"), (1_000, "ms"), (1, "us")) if time_format is None else ():
        if unit == name or (unit is None and _counts(arrays, 1 / factor) is not None):
            return _read(arrays, (name, None, zone), "typed")
    return _of_format(arrays, time_format, zone) if kind == TEXT and unit is None else None


def _of_format(arrays: Sequence[pa.Array], time_format: str | None, zone: str | None) -> Times | None:
    """By the given form; else by the likely one. Of two, with day and month exchanged, the one whose times lie nearer
    together: a log is seldom of all months and only of their first days."""
    if time_format is not None:
        return _read(arrays, (None, time_format, zone), "all" if time_formats.has_zone(time_format) else "none")
    texts = pa.chunked_array([_as_plain(array) for array in arrays]).drop_null()
    first = next((cell.decode("utf-8", "replace") for cell in texts.to_pylist() if cell), "")
    every = [_of_format(arrays, form, zone) for form in likely_formats(first)]
    rows = sum(len(array) - _empty(array) for array in arrays)
    found = [times for times in every if times is not None and len(times.micros) >= _MOSTLY * rows]
    if not found:
        return None
    best = min(found, key=lambda times: int(np.ptp(times.micros)))
    other = next((times.time_format for times in found if (times.micros != best.micros).any()), None)
    return dataclasses.replace(best, other_format=other)


def likely_formats(text: str) -> list[str]:
    """The forms that one time may have; several if day and month can be exchanged."""
    begin, end = ("[", "]") if text.startswith("[") else ("", "")
    dates = [date for date in _DATES if re.match(time_formats.pattern_of(begin + date)[0].removesuffix("$"), text)]
    forms = (
        f"{begin}{date}{joint if clock else ''}{clock}{zone}{end}"
        for date, joint, clock, zone in itertools.product(dates, _JOINTS, _CLOCKS, _ZONES)
    )
    return list(dict.fromkeys(form for form in forms if re.match(time_formats.pattern_of(form)[0], text)))


def _read(arrays: Sequence[pa.Array], reading: TimeReading, zone: str) -> Times | None:
    columns = [times.parse_times(array, *reading) for array in arrays]
    micros = np.concatenate([column.micros[column.faults == 0] for column in columns])
    unread = sum(int((column.faults == times.BAD_TIME).sum()) for column in columns)
    is_mostly = len(micros) and len(micros) >= unread
    return Times(reading[0], micros, zone, unread, reading[1]) if is_mostly else None


def _counts(arrays: Sequence[pa.Array], per_micro: float) -> npt.NDArray[np.float64] | None:
    """The values as numbers that count so many units in a microsecond, if nearly all lie in 1990 .. 2100."""
    values = []
    for array in arrays:
        plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        if pa.types.is_integer(plain.type) or pa.types.is_floating(plain.type):
            values.append(plain.drop_null().cast(pa.float64(), safe=False).to_numpy())
            continue
        texts = plain.drop_null().cast(pa.binary())
        is_number = pc.match_substring_regex(texts, times.NUMBER)
        if is_number.true_count < _MOSTLY * len(texts):
            return None
        values.append(np.array([float(text) for text in texts.filter(is_number).to_pylist()], np.float64))
    numbers = np.concatenate(values) / per_micro if values else np.zeros(0)
    is_inside = (numbers >= _EARLIEST) & (numbers < _LATEST)
    return numbers if len(numbers) and is_inside.mean() >= _MOSTLY else None


def _range(samples: Sequence[FileSample], time: Field | None, zone: str | None) -> tuple[int | None, int | None, int]:
    if time is None or time.times is None:
        return None, None, 0
    found = time.times
    is_usual = (found.micros >= _EARLIEST) & (found.micros < _LATEST)
    known = found.micros[is_usual]
    of_time = [field for sample in samples for field in sample.fields if field.name == time.name]
    bounds = [bound for field in of_time for bound in field.bounds or ()]
    column = times.parse_values(bounds, found.unit, found.time_format, zone)
    stated = column.micros[column.faults == 0]
    known = np.concatenate([known, stated[(stated >= _EARLIEST) & (stated < _LATEST)]])
    odd = int((~is_usual).sum())
    return (int(known.min()), int(known.max()), odd) if len(known) else (None, None, odd)
