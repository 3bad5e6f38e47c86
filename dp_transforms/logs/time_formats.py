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
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_SHORT_MONTHS, _SHORT_DAYS = ("|".join(name[:3] for name in names.split("|")) for names in (_MONTHS, _DAYS))
_NUMBER = "[0-9]{1,2}"
DIRECTIVES = {  # letter -> (what it says, its pattern)
    "d": ("day", _NUMBER),
    "m": ("month", _NUMBER),
    "b": ("month", _SHORT_MONTHS),
    "B": ("month", _MONTHS),
    "Y": ("year", "[0-9]{4}"),
    "y": ("year", "[0-9]{2}"),
    "H": ("hour", _NUMBER),
    "I": ("hour", _NUMBER),
    "M": ("minute", _NUMBER),
    "S": ("second", _NUMBER),
    "f": ("fraction", "[0-9]{1,9}"),
    "p": ("half", r"[ap]\.?m\.?"),
    "z": ("zone", r"z|utc|gmt|[+-][0-9]{2}(?::?[0-9]{2})?"),
    "a": ("weekday", _SHORT_DAYS),
    "A": ("weekday", _DAYS),
}
_CLOCK = ["hour", "minute", "second", "fraction"]
_NUMBERS = frozenset(f"%{letter}" for letter in "dmYyHIMSf")
_MICROS_PER_DAY = 86_400_000_000
# Beside the usual texts: parts of a clock may be missing, and colons, and a comma may stand for a point.
ISO_8601 = (
    r"^(?P<Y>[0-9]{4})-(?P<m>[0-9]{2})-(?P<d>[0-9]{2})"
    r"(?:[ Tt](?P<H>[0-9]{2})(?::?(?P<M>[0-9]{2})(?::?(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]+))?)?)?)?"
    r"(?P<z>[zZ]|[+-][0-9]{2}(?::?[0-9]{2})?)?$",
    "YmdHMSfz",
)
NOT_A_TIME = 253_402_300_800_000_000  # the first microsecond of the year 10000

# Microseconds since 1970 UTC (as if a time without a zone were UTC), NOT_A_TIME where it is none; which are local: all,
# none, or by row.
ReadTimes = tuple[_Int64s, "bool | npt.NDArray[np.bool_]"]


@functools.lru_cache(maxsize=64)
def pattern_of(time_format: str) -> tuple[str, str]:
    """A regular expression with a named group for the letter of each directive, and these letters. Raises InputError.

    A blank stands for one or more. A number may lack a leading zero, unless it touches another.
    """
    if not time_format.isascii() or not time_format.isprintable():
        raise InputError("time_format", f"must be printable ASCII text such as %d.%m.%Y %H:%M, got {time_format!r}.")
    pattern, letters = "", ""
    pieces = re.findall(r"%.?| +|[^% ]", time_format)
    for before, piece, after in zip(["", *pieces], pieces, [*pieces[1:], ""], strict=False):
        if piece[0] != "%" or piece == "%%":
            pattern += " +" if piece[0] == " " else re.escape(piece[-1])
        elif piece[1:] in DIRECTIVES:
            part = DIRECTIVES[piece[1]][1]
            if part == _NUMBER and not _NUMBERS.isdisjoint((before, after)):
                part = "[0-9]{2}"
            pattern += f"(?P<{piece[1]}>{part})"
            letters += piece[1]
        else:
            known = " ".join(f"%{letter}" for letter in DIRECTIVES)
            raise InputError("time_format", f"must use only {known} and %%, got {piece} in {time_format!r}.")
    parts = [DIRECTIVES[letter][0] for letter in letters]
    clock = [part for part in _CLOCK if part in parts]
    is_moment = {"day", "month", "year"} <= set(parts) and len(set(parts)) == len(parts)
    if not is_moment or clock != _CLOCK[: len(clock)] or ("I" in letters) != ("p" in letters):
        raise InputError(
            "time_format",
            "must have a day, a month and a year, each once, and clocks from the hour down, %I with %p, such as"
            f" %d.%m.%Y %H:%M, got {time_format!r}.",
        )
    return f"(?i)^{pattern}$", letters


def read_times(text: pa.StringArray, pattern: str, letters: str) -> ReadTimes:
    """Times of a form. pattern, letters: ISO_8601, or of `pattern_of`."""
    found = pc.extract_regex(text, pattern)
    # Where case does not matter, other letters than those of ASCII match too: a long s for an s.
    good = pc.and_(found.is_valid(), pc.string_is_ascii(text)).to_numpy(zero_copy_only=False)

    def part(letter: str) -> pa.StringArray:
        return pc.struct_field(found, letter).fill_null("")

    def number(letter: str) -> _Int64s:
        return _whole(part(letter)) if letter in letters else np.zeros(len(text), np.int64)

    year = number("Y") if "Y" in letters else number("y") + np.where(number("y") < 69, 2000, 1900)  # as POSIX has it
    named = next((letter for letter in "bB" if letter in letters), None)
    month = number("m") if named is None else _month_of_name(part(named))
    day, hour, minute, second = number("d"), number("H"), number("M"), number("S")
    if "I" in letters:
        hour = number("I")
        good &= (hour >= 1) & (hour <= 12)
        hour = hour % 12 + 12 * pc.starts_with(part("p"), "p", ignore_case=True).to_numpy(zero_copy_only=False)
    good &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24) & (minute < 60) & (second < 60)
    months = (np.where(good, year - 1970, 0) * 12 + np.where(good, month - 1, 0)).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + (np.where(good, day, 1) - 1)
    good &= days.astype("datetime64[M]") == months  # else the month has no such day
    micros = days.astype(np.int64) * _MICROS_PER_DAY + ((hour * 60 + minute) * 60 + second) * 1_000_000
    if "f" in letters:
        micros += _whole(pc.utf8_rpad(pc.utf8_slice_codeunits(part("f"), 0, 6), 6, "0"))
    is_local: bool | npt.NDArray[np.bool_] = True
    if "z" in letters:
        offset, is_offset = _offsets(part("z"))
        micros, good = micros - offset, good & is_offset
        is_local = pc.equal(part("z"), "").to_numpy(zero_copy_only=False)
    return np.where(good, micros, NOT_A_TIME), is_local


def _whole(digits: pa.StringArray) -> _Int64s:
    """An empty text, or none, is 0."""
    return pc.utf8_lpad(digits.fill_null(""), 1, "0").cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def _month_of_name(names: pa.StringArray) -> _Int64s:
    known = pa.array(_SHORT_MONTHS.lower().split("|"))
    numbers = pc.index_in(pc.utf8_slice_codeunits(pc.ascii_lower(names), 0, 3), known)
    return numbers.fill_null(0).cast(pa.int64()).to_numpy() + 1  # type: ignore[no-any-return]


def _offsets(zones: pa.StringArray) -> tuple[_Int64s, npt.NDArray[np.bool_]]:
    """Microseconds east of UTC, and which of them are offsets."""
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
