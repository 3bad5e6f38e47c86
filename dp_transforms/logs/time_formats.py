"""Times in a declared form, such as ``%d.%m.%Y %H:%M``, and local times of a declared zone; both by whole columns.

The directives are those of Python's strptime, in English whatever the machine's language is. Arrow's own strptime is
not used: it takes 31.02.2026 for 3 March, and what it reads depends on the system's library and language. Nor are
Arrow's zones: after 2037 they know no summer time.
"""

from __future__ import annotations

import datetime
import functools
import re
import zoneinfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.errors import InputError

_Int64s = npt.NDArray[np.int64]
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_SHORT = "|".join(name[:3] for name in _LONG_MONTHS.split("|"))
_TEXTS = {  # directive -> (what it is, its pattern); the others are whole numbers
    "b": ("month_name", _SHORT),
    "B": ("month_name", _LONG_MONTHS),
    "a": ("day_name", "|".join(name[:3] for name in _DAYS.split("|"))),
    "A": ("day_name", _DAYS),
    "p": ("half", r"[ap]\.?m\.?"),
    "z": ("zone", r"z|utc|gmt|[+-][0-9]{2}(?::?[0-9]{2})?"),
    "f": ("fraction", "[0-9]{1,9}"),
}
_NUMBERS = {"d": "day", "m": "month", "Y": "year", "y": "short_year", "H": "hour", "I": "hour12", "M": "minute"}
_NUMBERS["S"] = "second"
_MICROS_PER_DAY = 86_400_000_000
# ISO 8601. Beside the usual texts: parts of a clock may be missing, and colons, and a comma may stand for a point.
_ISO = (
    r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"(?:[ Tt](?P<hour>[0-9]{2})(?::?(?P<minute>[0-9]{2})(?::?(?P<second>[0-9]{2})(?:[.,](?P<fraction>[0-9]+))?)?)?)?"
    r"(?P<zone>[zZ]|[+-][0-9]{2}(?::?[0-9]{2})?)?$",
    frozenset({"year", "month", "day", "hour", "minute", "second", "fraction", "zone"}),
)
_HINT = "Write it like %d.%m.%Y %H:%M"


@functools.lru_cache(maxsize=64)
def pattern_of(time_format: str) -> tuple[str, frozenset[str]]:
    """A regular expression with a named group for each directive, and the names. Raises InputError.

    A blank stands for one or more. Numbers may lack a leading zero, unless two of them touch.
    """
    if not time_format.isascii() or not time_format.isprintable():
        raise InputError("time_format", f"must be printable ASCII text, got {time_format!r}. {_HINT}.")
    parts, names = [], []
    pieces = re.findall(r"%.?| +|[^% ]", time_format)
    for at, piece in enumerate(pieces):
        if piece[0] != "%" or piece == "%%":
            parts.append(" +" if piece[0] == " " else re.escape(piece[-1]))
            continue
        name, pattern = _TEXTS.get(piece[1:], (_NUMBERS.get(piece[1:], ""), ""))
        if not name:
            known = " ".join(f"%{letter}" for letter in (*_NUMBERS, *_TEXTS))
            raise InputError("time_format", f"must use only {known} and %%, got {piece} in {time_format!r}.")
        if not pattern:
            touches = any(_is_number(other) for other in (*pieces[max(0, at - 1) : at], *pieces[at + 1 : at + 2]))
            pattern = "[0-9]{4}" if name == "year" else "[0-9]{2}" if touches or name == "short_year" else "[0-9]{1,2}"
        parts.append(f"(?P<{name}>{pattern})")
        names.append(name)
    found = frozenset(names)
    is_date = "day" in found and len(found & {"year", "short_year"}) == 1 and len(found & {"month", "month_name"}) == 1
    is_clock = len(found & {"hour", "hour12"}) <= 1 and ("hour12" in found) == ("half" in found)
    is_clock = is_clock and ("minute" not in found or bool(found & {"hour", "hour12"})) and found >= _below(found)
    if not is_date or not is_clock or len(found) < len(names):
        raise InputError(
            "time_format",
            "must have a day, a month and a year, each once, and clocks from the hour down, %I with %p, got"
            f" {time_format!r}. {_HINT}.",
        )
    return f"(?i)^{''.join(parts)}$", found


def _is_number(piece: str) -> bool:
    return piece[0] == "%" and (piece[1:] in _NUMBERS or piece == "%f")


def _below(found: frozenset[str]) -> set[str]:
    """What a second or a fraction needs beside it."""
    needs = {"second": {"minute"}, "fraction": {"second"}}
    return {name for part, names in needs.items() if part in found for name in names}


def has_zone(time_format: str) -> bool:
    """Whether times of this form say their offset from UTC."""
    return "zone" in pattern_of(time_format)[1]


# Microseconds since 1970 UTC (as if a time without a zone were UTC), NOT_A_TIME where it is none; which are local: all,
# none, or by row.
ReadTimes = tuple[_Int64s, "bool | npt.NDArray[np.bool_]"]
NOT_A_TIME = 253_402_300_800_000_000  # the first microsecond of the year 10000


def read_times(text: pa.StringArray, time_format: str) -> ReadTimes:
    """Times of a declared form."""
    return _read(text, *pattern_of(time_format))


def read_iso(text: pa.StringArray) -> ReadTimes:
    """Times in ISO 8601."""
    return _read(text, *_ISO)


def _read(text: pa.StringArray, pattern: str, names: frozenset[str]) -> ReadTimes:
    found = pc.extract_regex(text, pattern)
    # Where case does not matter, other letters than those of ASCII match too: a long s for an s.
    good = pc.and_(found.is_valid(), pc.string_is_ascii(text)).to_numpy(zero_copy_only=False)

    def part(name: str) -> pa.StringArray:
        return pc.struct_field(found, name).fill_null("")

    def number(name: str) -> _Int64s:
        return _whole(part(name)) if name in names else np.zeros(len(text), np.int64)

    year = number("year") if "year" in names else _full_year(number("short_year"))
    month = _month_of_name(part("month_name")) if "month_name" in names else number("month")
    day, hour, minute, second = number("day"), number("hour"), number("minute"), number("second")
    if "half" in names:
        hour = number("hour12")
        good &= (hour >= 1) & (hour <= 12)
        is_late = pc.starts_with(part("half"), "p", ignore_case=True)
        hour = hour % 12 + 12 * is_late.to_numpy(zero_copy_only=False)
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    months = (np.where(good, year - 1970, 0) * 12 + np.where(good, month - 1, 0)).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (np.where(good, day, 1) - 1)
    good &= days.astype("datetime64[M]") == months  # else the month has no such day
    micros = days.astype(np.int64) * _MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000
    if "fraction" in names:
        micros += _whole(pc.utf8_rpad(pc.utf8_slice_codeunits(part("fraction"), 0, 6), 6, "0"))
    is_local: bool | npt.NDArray[np.bool_] = True
    if "zone" in names:
        offset, is_offset = _offsets(part("zone"))
        micros, good = micros - offset, good & is_offset
        is_local = pc.equal(part("zone"), "").to_numpy(zero_copy_only=False)
    return np.where(good, micros, NOT_A_TIME), is_local


def _whole(digits: pa.StringArray) -> _Int64s:
    """An empty text, or none, is 0."""
    return pc.utf8_lpad(digits.fill_null(""), 1, "0").cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def _full_year(short: _Int64s) -> _Int64s:
    """As POSIX has it: 69 to 99 are of the last century."""
    return short + np.where(short < 69, 2000, 1900)


def _month_of_name(names: pa.StringArray) -> _Int64s:
    numbers = pc.index_in(pc.utf8_slice_codeunits(pc.ascii_lower(names), 0, 3), pa.array(_MONTHS))
    return numbers.fill_null(0).cast(pa.int64()).to_numpy() + 1  # type: ignore[no-any-return]


def _offsets(zones: pa.StringArray) -> tuple[_Int64s, npt.NDArray[np.bool_]]:
    """Microseconds east of UTC."""
    parts = pc.extract_regex(zones, r"^(?P<sign>[+-])(?P<hours>[0-9]{2}):?(?P<minutes>[0-9]{2})?$")
    hours, minutes = (_whole(pc.struct_field(parts, name)) for name in ("hours", "minutes"))
    is_west = pc.equal(pc.struct_field(parts, "sign"), "-").fill_null(False).to_numpy(zero_copy_only=False)
    micros = (hours * 60 + minutes) * 60_000_000
    return np.where(is_west, -micros, micros), (hours < 24) & (minutes < 60)


def utc_of_local(micros: _Int64s, zone: str) -> _Int64s:
    """Times that a clock on the wall showed -> microseconds since 1970 UTC. They must be in the years 1 to 9999.

    A time that occurred twice is the first of the two. One that was skipped is read with the offset before, as by a
    clock that was put forward too late. (So does Python where nothing else is said: PEP 495, fold=0.)
    """
    days, of_days = np.unique(micros // _MICROS_PER_DAY, return_inverse=True)
    offsets = [_offset_of_day(zone, day) for day in days.tolist()]
    shifts = np.array([offset or 0 for offset in offsets], np.int64)[of_days]
    changing = np.flatnonzero(np.array([offset is None for offset in offsets], np.bool_)[of_days])
    seconds, of_seconds = np.unique(micros[changing] // 1_000_000, return_inverse=True)
    clock = zoneinfo.ZoneInfo(zone)
    shifts[changing] = np.array([_offset(clock, second) for second in seconds.tolist()], np.int64)[of_seconds]
    return micros - shifts


@functools.lru_cache(maxsize=20_000)
def _offset_of_day(zone: str, day: int) -> int | None:
    """None if it changes on that day, by local time."""
    clock = zoneinfo.ZoneInfo(zone)
    first, last = (_offset(clock, 86_400 * day + second) for second in (0, 86_399))
    return first if first == last else None


def _offset(clock: zoneinfo.ZoneInfo, second: int) -> int:
    """Microseconds east of UTC, at a local time in seconds since 1970."""
    offset = clock.utcoffset(datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=second))
    return 0 if offset is None else offset // datetime.timedelta(microseconds=1)
