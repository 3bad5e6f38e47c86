"""A look at a log that nobody has described yet: which of its fields may be user, item and time, and how time counts.

Decides by names and by a sample of rows (`event_files.samples`), and says how sure it is. What it finds is for the
operator; a person decides.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.event_files import times
from dp_transforms.event_files.samples import DATE, OTHER, TEXT, TIMESTAMP, WHOLE, FileSample, LogSample
from dp_transforms.window_schedule import MICROS_PER_SECOND

USER, ITEM, TIME = "user", "item", "time"
_EARLIEST, _LATEST = 631_152_000 * MICROS_PER_SECOND, 4_102_444_800 * MICROS_PER_SECOND  # 1990 and 2100
_WORDS = {
    USER: "user users uid userid usr visitor customer client member account reader viewer subscriber person people"
    " session device cookie patient player buyer author voter who ip nutzer benutzer kunde kunden kundin leser besucher"
    " utilisateur usuario cliente",
    ITEM: "item items itemid article story news page url uri path product sku query search title video track song movie"
    " film book error code event keyword term content doc document tag topic channel category what artikel seite"
    " produkt titel meldung suche beitrag inhalt begriff fehler",
    TIME: "time timestamp ts date datetime day at when created updated occurred seen logged epoch zeit zeitpunkt"
    " zeitstempel datum uhrzeit heure fecha hora",
}
_DAY_MICROS = 86_400 * MICROS_PER_SECOND
_ROLE_WORDS = {role: frozenset(words.split()) for role, words in _WORDS.items()}
_HAS_ZONE = r":[0-9]{2}.*(?:[zZ]|[+-][0-9]{2}(?::?[0-9]{2})?)$"  # after a clock: dates end so too
_OTHER_DATE = r"^[0-9]{1,4}([./-])[0-9]{1,2}[./-][0-9]{1,4}\b|^(?:19|20)[0-9]{6}$|[0-9]{1,2}:[0-9]{2}"
_ENOUGH_ROWS = 50
_MOSTLY = 0.9


@dataclasses.dataclass(frozen=True, eq=False)
class Times:
    """A field read as times. unit: of `EventFields`. micros: of the rows that can be read. zone: "all", "some" or
    "none" of the texts have one; "typed" for types that have their own. unread: rows whose value cannot be read."""

    unit: str | None
    micros: npt.NDArray[np.int64]
    zone: str
    unread: int


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """A field over all samples. rows, empty, different: how many rows it has, without a value, different values.
    times: None if it holds none. are_other_dates: texts that a person takes for times, but that are not ISO 8601.
    may_be_id: whether its type allows users or items."""

    name: str
    kind: str
    rows: int
    empty: int
    different: int
    times: Times | None
    has_nanoseconds: bool
    are_other_dates: bool
    may_be_id: bool


@dataclasses.dataclass(frozen=True, eq=False)
class LogLook:
    """fields: of the files that could be read. chosen: by role, the names that are given or proposed; a role that no
    field can have is missing. guessed: roles that names did not decide. differing: files with other fields than the
    first one. low, high: the times of all rows that were looked at, in microseconds; None without any. odd_times: rows
    with times outside of 1990 .. 2100, which are not between them."""

    sample: LogSample
    fields: tuple[Field, ...]
    chosen: Mapping[str, str]
    guessed: frozenset[str]
    unit: str | None
    differing: tuple[str, ...]
    low: int | None
    high: int | None
    odd_times: int

    def field(self, role: str) -> Field | None:
        return next((field for field in self.fields if field.name == self.chosen.get(role)), None)

    @property
    def has_rows(self) -> bool:
        return any(field.rows for field in self.fields)

    @property
    def are_days(self) -> bool:
        """Whether all times are the beginning of a day, so that no shorter window tells anything."""
        time = self.field(TIME)
        return time is not None and time.times is not None and not (time.times.micros % _DAY_MICROS).any()

    @property
    def is_complete(self) -> bool:
        """Whether each role has a field that can have it."""
        user, item, time = (self.field(role) for role in (USER, ITEM, TIME))
        return bool(user and item and time and user.may_be_id and item.may_be_id and time.times)


def look_at_log(sample: LogSample, given: Mapping[str, str], unit: str | None = None) -> LogLook:
    """given: names that the operator chose, by role; unit: the time unit, if it was chosen."""
    with_rows = [each for each in sample.samples if each.fields]
    names = [field.name for field in with_rows[0].fields] if with_rows else []
    differing = tuple(each.path for each in with_rows if {field.name for field in each.fields} != set(names))
    with_rows = [each for each in with_rows if each.path not in differing]
    fields = tuple(_field(name, with_rows, unit if given.get(TIME) == name else None) for name in names)
    chosen, guessed = _choose(fields, given)
    time = next((field for field in fields if field.name == chosen.get(TIME)), None)
    found = None if time is None else time.times
    low, high, odd = _range(with_rows, time, found)
    return LogLook(sample, fields, chosen, guessed, found.unit if found else unit, differing, low, high, odd)


def _field(name: str, samples: Sequence[FileSample], unit: str | None) -> Field:
    parts = [field for sample in samples for field in sample.fields if field.name == name]
    kinds = {part.kind for part in parts if part.values is None or part.values.null_count < len(part.values)}
    kind = kinds.pop() if len(kinds) == 1 else OTHER
    arrays = [part.values for part in parts if part.values is not None and part.kind == kind]
    rows = sum(len(array) for array in arrays)
    empty = sum(_empty(array) for array in arrays)
    different = pc.count_distinct(pa.chunked_array([_as_plain(array) for array in arrays])).as_py() if rows else 0
    has_nanoseconds = kind in (TEXT, WHOLE) and rows > 0 and _counts(arrays, 1000) is not None
    found = _times(kind, arrays, unit) if rows else None
    are_other_dates = found is None and kind == TEXT and _are_dates(arrays, rows - empty)
    return Field(name, kind, rows, empty, different, found, has_nanoseconds, are_other_dates, kind in (TEXT, WHOLE))


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


def _times(kind: str, arrays: Sequence[pa.Array], unit: str | None) -> Times | None:
    """None unless most values are times."""
    if kind in (TIMESTAMP, DATE):
        return _read(arrays, None, "typed")
    if kind == OTHER:
        return None
    if kind == TEXT and unit in (None, "iso"):
        texts = pa.chunked_array([_as_plain(array) for array in arrays])
        zoned = pc.sum(pc.match_substring_regex(texts, _HAS_ZONE)).as_py() or 0
        filled = len(texts) - sum(_empty(array) for array in arrays)
        zone = "none" if not zoned else "all" if zoned == filled else "some"
        read = _read(arrays, unit, zone)
        if read is not None or unit is not None:
            return read
    for factor, name in ((1_000_000, "s"), (1_000, "ms"), (1, "us")):
        if unit == name or (unit is None and _counts(arrays, 1 / factor) is not None):
            return _read(arrays, name, "typed")
    return None


def _read(arrays: Sequence[pa.Array], unit: str | None, zone: str) -> Times | None:
    columns = [times.parse_times(array, unit) for array in arrays]
    micros = np.concatenate([column.micros[column.faults == 0] for column in columns])
    unread = sum(int((column.faults == times.BAD_TIME).sum()) for column in columns)
    return Times(unit, micros, zone, unread) if len(micros) and len(micros) >= unread else None


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


def _choose(fields: Sequence[Field], given: Mapping[str, str]) -> tuple[dict[str, str], frozenset[str]]:
    chosen = dict(given)
    guessed = set()
    if TIME not in chosen:
        best = max((field for field in fields if field.times), key=_time_score, default=None)
        if best is not None and best.name not in chosen.values():
            chosen[TIME] = best.name
        elif odd := [field for field in fields if _has_word(field, TIME) or _is_odd_time(field)]:
            chosen[TIME] = max(odd, key=_is_odd_time).name  # what is wrong with it is said
    for role, other in ((USER, ITEM), (ITEM, USER)):
        if role in chosen:
            continue
        free = _free(fields, chosen)
        named = [field for field in free if _has_word(field, role) and not (_has_word(field, other) and len(free) > 1)]
        if named:
            chosen[role] = max(named, key=lambda field: _words_first(field, role)).name
    for role in (USER, ITEM):
        free = _free(fields, chosen)
        likely = [field for field in free if not _is_row_number(field)] or free
        if role not in chosen and likely:
            # Of what is left, users are what differs most: there are more users than items that many of them have.
            pick = max(likely, key=lambda field: field.different) if role == USER else likely[0]
            chosen[role] = pick.name
            guessed.add(role)
    return chosen, frozenset(guessed)


def _free(fields: Sequence[Field], chosen: Mapping[str, str]) -> list[Field]:
    """What may be a user or an item, and has no role yet."""
    return [field for field in fields if field.may_be_id and field.name not in chosen.values() and not _is_time(field)]


def _tokens(name: str) -> list[str]:
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [part.lower() for part in re.split(r"[^A-Za-zÀ-ÿ]+", parts) if part]


def _has_word(field: Field, role: str) -> bool:
    return any(token in _ROLE_WORDS[role] for token in _tokens(field.name))


def _words_first(field: Field, role: str) -> tuple[bool, bool, int]:
    """What is called exactly so comes first, then what is an id, then what differs more."""
    return (field.name.lower() in _ROLE_WORDS[role], "id" in _tokens(field.name), field.different)


def _time_score(field: Field) -> tuple[bool, bool, int]:
    assert field.times is not None
    return (_has_word(field, TIME), field.times.unit is None, len(field.times.micros))


def _is_time(field: Field) -> bool:
    """Whether it is a time rather than an id: numbers of ten digits may be both."""
    return field.times is not None and (field.times.unit is None or _has_word(field, TIME))


def _is_odd_time(field: Field) -> bool:
    return field.has_nanoseconds or field.are_other_dates


def _is_row_number(field: Field) -> bool:
    return field.rows >= _ENOUGH_ROWS and field.different >= field.rows


def _range(
    samples: Sequence[FileSample], time: Field | None, found: Times | None
) -> tuple[int | None, int | None, int]:
    if time is None or found is None:
        return None, None, 0
    is_usual = (found.micros >= _EARLIEST) & (found.micros < _LATEST)
    known = found.micros[is_usual]
    of_time = [field for sample in samples for field in sample.fields if field.name == time.name]
    bounds = [bound for field in of_time for bound in field.bounds or ()]
    column = times.parse_values(bounds, found.unit)
    stated = column.micros[column.faults == 0]
    known = np.concatenate([known, stated[(stated >= _EARLIEST) & (stated < _LATEST)]])
    odd = int((~is_usual).sum())
    return (int(known.min()), int(known.max()), odd) if len(known) else (None, None, odd)
