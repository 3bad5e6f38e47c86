"""Event times: columns of any accepted type -> microseconds since 1970 UTC, or a fault.

Accepted: timestamps and dates (they have their own unit), whole and floating numbers in a declared unit, text in ISO
8601, in a declared form (`time_formats`) or holding such numbers. What has no zone is UTC, or in the declared zone.
Times must be in the years 1 to 9999. Fractions of a microsecond are rounded down.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.core.event_batch import MAX_ID_BYTES
from dp_transforms.logs import time_formats
from dp_transforms.logs.event_ids import MISSING, WRONG_TYPE

BAD_TIME = 5  # a fault beside those of event_ids

_MIN_MICROS = -62_135_596_800_000_000  # 0001-01-01
_END_MICROS = 253_402_300_800_000_000  # 10000-01-01
MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}  # the units that can be declared
_MICROS_PER_DAY = 86_400_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

# Texts that Arrow's cast accepts, for each of its two target types. 29 February is left to Python.
_DATE = (
    r"[0-9]{4}-(?:02-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01]))"
)
_CLOCK = r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])"
_ARROW_SHAPES = (
    (f"^{_DATE}{_CLOCK}{_ZONE}$", pa.timestamp("us", "UTC")),
    (f"^{_DATE}{_CLOCK}$", pa.timestamp("us")),
)
_LOOKED_AT_ROWS = 1024
_INTEGER = "^-?[0-9]{1,18}$"
NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?$"

_Parsed = time_formats.ReadTimes


@dataclasses.dataclass(frozen=True, eq=False)
class TimeColumn:
    """n times. micros: int64[n], microseconds since 1970 UTC, 0 where there is a fault. faults: uint8[n]."""

    micros: npt.NDArray[np.int64]
    faults: npt.NDArray[np.uint8]


def is_number_type(column_type: pa.DataType) -> bool:
    """Whether times of this Arrow type need a unit."""
    return bool(pa.types.is_integer(column_type) or pa.types.is_floating(column_type))


def parse_times(
    array: pa.Array, unit: str | None, time_format: str | None = None, time_zone: str | None = None
) -> TimeColumn:
    """Times from a timestamp, date, number or text column. unit, time_format, time_zone: see `EventFields`."""
    if pa.types.is_dictionary(array.type):
        array = pc.take(array.dictionary, array.indices)  # it checks the indices, which a cast does not
    is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if is_typed(array.type):
        micros, good, is_local = _from_typed(array, unit)
    else:
        text = _ascii_text(array)
        is_empty = pc.equal(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
        is_null = is_empty if is_null is None else is_null | is_empty
        micros, good, is_local = _from_text(text, unit, time_format)
    good &= (micros >= _MIN_MICROS) & (micros < _END_MICROS)
    if time_zone is not None and np.any(is_local):
        rows = np.flatnonzero(good & is_local)
        micros = micros.copy()  # it may be the column itself
        micros[rows] = time_formats.utc_of_local(micros[rows], time_zone)
        good &= (micros >= _MIN_MICROS) & (micros < _END_MICROS)
    faults = np.where(good, np.uint8(0), np.uint8(BAD_TIME))
    if is_null is not None:
        faults[is_null] = MISSING
    return TimeColumn(micros if good.all() else np.where(good, micros, 0), faults)


def is_typed(column_type: pa.DataType) -> bool:
    """Whether times of this Arrow type are not text."""
    types = pa.types
    return bool(types.is_timestamp(column_type) or types.is_date(column_type) or is_number_type(column_type))


def _from_typed(array: pa.Array, unit: str | None) -> _Parsed:
    if pa.types.is_timestamp(array.type):
        return *_from_ticks(_int64(array), array.type.unit), array.type.tz is None
    if pa.types.is_date32(array.type):
        return *_scaled(_int64(array.cast(pa.int32())), _MICROS_PER_DAY), True
    if pa.types.is_date64(array.type):
        return *_scaled(_int64(array), 1_000), True
    return *_from_numbers(array, unit), False


def _from_text(text: pa.StringArray, unit: str | None, time_format: str | None) -> _Parsed:
    if time_format is not None:
        return time_formats.read_times(text, time_format)
    if unit in (None, "iso"):
        return _from_iso(text)
    return *_from_number_text(text, str(unit)), False


def parse_values(
    values: Sequence[Any], unit: str | None, time_format: str | None = None, time_zone: str | None = None
) -> TimeColumn:
    """Times from single values, each as a column of its type would be read.

    values: text, whole and floating numbers, datetimes and dates, numpy's datetimes, and objects that have their time
    as a whole number ``micros``, as Beam's have. unit, time_format, time_zone: as in `parse_times`.
    """
    micros = np.zeros(len(values), np.int64)
    faults = np.full(len(values), WRONG_TYPE, np.uint8)
    cells: dict[str, list[tuple[int, Any]]] = {}
    for row, value in enumerate(values):
        try:
            kind, cell = _cell(value)
        except Exception:  # a hostile object must not stop the run, and its content must not reach a log
            kind, cell = "wrong", None
        cells.setdefault(kind, []).append((row, cell))
    faults[[row for row, _ in cells.get("missing", ())]] = MISSING
    arrow_types = {
        **{"text": pa.binary(), "whole": pa.int64(), "float": pa.float64()},
        **{"moment": pa.timestamp("us", "UTC"), "local": pa.timestamp("us")},
    }
    for kind, arrow_type in arrow_types.items():
        if kind in cells:
            rows = [row for row, _ in cells[kind]]
            parsed = parse_times(pa.array([cell for _, cell in cells[kind]], arrow_type), unit, time_format, time_zone)
            micros[rows], faults[rows] = parsed.micros, parsed.faults
    return TimeColumn(micros, faults)


def _cell(value: Any) -> tuple[str, Any]:
    """The kind of a value, and what an Arrow column of this kind would hold."""
    if value is None:
        return "missing", None
    if isinstance(value, str):
        return "text", value.encode("utf-8", "surrogatepass")
    if isinstance(value, np.datetime64):
        ticks = int(value.astype("datetime64[us]").astype(np.int64))
        return ("missing", None) if np.isnat(value) else ("local", ticks)
    if isinstance(value, (bool, np.bool_)):
        return "wrong", None
    if isinstance(value, (int, np.integer)):
        return "whole", max(-(2**63), min(int(value), 2**63 - 1))  # what is cut is out of range in every unit
    if isinstance(value, (float, np.floating)):
        return "float", float(value)
    if isinstance(value, datetime.date):
        if value != value:  # pandas' NaT
            return "missing", None
        moment = value if isinstance(value, datetime.datetime) else datetime.datetime(*value.timetuple()[:3])
        kind = "local" if moment.tzinfo is None else "moment"
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
        return kind, (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    own = getattr(value, "micros", None)
    return ("moment", own) if type(own) is int and abs(own) < 2**63 else ("wrong", None)


def _int64(array: pa.Array) -> npt.NDArray[np.int64]:
    ticks = array.cast(pa.int64())
    return (ticks.fill_null(0) if ticks.null_count else ticks).to_numpy()  # type: ignore[no-any-return]


def _all_good(count: int) -> npt.NDArray[np.bool_]:
    return np.ones(count, np.bool_)


def _scaled(ticks: npt.NDArray[np.int64], factor: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """ticks * factor, and which are in the range. Others, which might wrap around, are not multiplied."""
    good = (ticks >= _MIN_MICROS // factor) & (ticks <= _END_MICROS // factor)
    return (ticks if good.all() else np.where(good, ticks, 0)) * factor, good


def _from_ticks(ticks: npt.NDArray[np.int64], unit: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    if unit == "ns":
        return ticks // 1_000, _all_good(len(ticks))
    return _scaled(ticks, MICROS_PER_UNIT[unit])


def _from_numbers(array: pa.Array, unit: str | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    factor = MICROS_PER_UNIT.get(unit or "")
    if factor is None:  # a number where ISO 8601 text was declared
        return np.zeros(len(array), np.int64), np.zeros(len(array), np.bool_)
    if pa.types.is_floating(array.type):
        return _from_floats(array.cast(pa.float64()).fill_null(0.0).to_numpy(), factor)
    if pa.types.is_uint64(array.type):
        ticks = array.fill_null(0).to_numpy()
        fits = ticks <= np.uint64(_END_MICROS)
        micros, good = _scaled(np.where(fits, ticks, 0).astype(np.int64), factor)
        return micros, good & fits
    return _scaled(_int64(array), factor)


def _from_floats(numbers: npt.NDArray[np.float64], factor: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    with np.errstate(over="ignore", invalid="ignore"):
        micros = np.floor(numbers * factor)
        good = (micros >= _MIN_MICROS) & (micros < _END_MICROS)  # False for NaN and the infinities
    return np.where(good, micros, 0.0).astype(np.int64), good


def _ascii_text(array: pa.Array) -> pa.StringArray:
    """The column as text. A cell with a byte above 127 is not a time, and is replaced by an unreadable one.

    So is a cell that is longer than an id may be: the Avro reader skips such cells in large blocks, and whether a time
    is read must not depend on its block.
    """
    text = array.cast(pa.binary()) if not pa.types.is_binary(array.type) else array
    text = text.fill_null(b"")
    is_long = pc.greater(pc.binary_length(text), MAX_ID_BYTES)
    if is_long.true_count:
        text = pc.if_else(is_long, pa.scalar(b"?", pa.binary()), text)
    try:
        return text.cast(pa.string())
    except pa.ArrowInvalid:
        cells = [value if value.isascii() else b"?" for value in text.to_pylist()]
        return pa.array(cells, pa.binary()).cast(pa.string())


def _from_number_text(text: pa.StringArray, unit: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    factor = MICROS_PER_UNIT[unit]
    is_integer = pc.match_substring_regex(text, _INTEGER)
    if is_integer.true_count == len(text):
        return _scaled(_int64(text), factor)
    micros, good = np.zeros(len(text), np.int64), np.zeros(len(text), np.bool_)
    is_number = pc.and_not(pc.match_substring_regex(text, NUMBER), is_integer)
    for mask, is_float in ((is_integer, False), (is_number, True)):
        rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if len(rows):
            cells = text.take(pa.array(rows))
            parsed = _from_floats(_floats(cells), factor) if is_float else _scaled(_int64(cells), factor)
            micros[rows], good[rows] = parsed
    return micros, good


def _floats(text: pa.StringArray) -> npt.NDArray[np.float64]:
    return np.fromiter(map(float, text.to_pylist()), np.float64, len(text))


def _from_iso(text: pa.StringArray) -> _Parsed:
    for _, target in _ARROW_SHAPES:  # nearly always, the whole column has one shape
        try:
            # The first rows alone, before all: Arrow takes a microsecond for each text that it cannot cast.
            text[:_LOOKED_AT_ROWS].cast(target)
            return _int64(text.cast(target)), _all_good(len(text)), target.tz is None
        except pa.ArrowInvalid:
            continue
    micros, good, is_local = np.zeros(len(text), np.int64), _all_good(len(text)), np.zeros(len(text), np.bool_)
    left = _all_good(len(text))
    for shape, target in _ARROW_SHAPES:
        rows = np.flatnonzero(pc.match_substring_regex(text, shape).to_numpy(zero_copy_only=False))
        if len(rows):
            cells = pc.replace_substring_regex(text.take(pa.array(rows)), r"(\.[0-9]{6})[0-9]+", r"\1")
            micros[rows], left[rows], is_local[rows] = _int64(cells.cast(target)), False, target.tz is None
    rest = np.flatnonzero(left)
    micros[rest], good[rest], is_local[rest] = time_formats.read_iso(text.take(pa.array(rest)))
    return micros, good, is_local
