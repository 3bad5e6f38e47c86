"""Event times: columns of any accepted type -> microseconds since 1970 UTC, or a fault.

Accepted: timestamps and dates (they have their own unit), whole and floating numbers in a declared unit, text in ISO
8601, in a declared form (`time_formats`) or holding such numbers. What has no zone is UTC, or in the declared zone.
Times must be in the years 1 to 9999. Fractions of a microsecond are rounded down.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.logs import time_formats
from dp_transforms.logs.event_ids import BAD_TIME, EMPTY, MISSING, WRONG_TYPE, ids_of_values, is_text_type
from dp_transforms.logs.time_formats import ISO_8601, NOT_A_TIME

_MIN_MICROS = -62_135_596_800_000_000  # 0001-01-01
_END_MICROS = 253_402_300_800_000_000  # 10000-01-01
MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}  # the units that can be declared
_MICROS_PER_DAY = 86_400_000_000

# Texts that Arrow casts to these types; others, such as the last days of months, are read by `time_formats`.
_USUAL = (
    r"^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"[ T](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
)
_ARROW_SHAPES = (
    (_USUAL + r"(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])$", pa.timestamp("us", "UTC")),
    (_USUAL + "$", pa.timestamp("us")),
)
_LOOKED_AT_ROWS = 1024
_INTEGER = "^-?[0-9]{1,18}$"
NUMBER = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?$"

_Int64s = npt.NDArray[np.int64]


class TimeColumn(NamedTuple):
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
    if is_typed(array.type):
        is_missing = array.is_null().to_numpy(zero_copy_only=False)
        micros, is_local = _from_typed(array, unit)
    else:
        text, text_faults = ids_of_values(array)  # what is too long for an id, or not UTF-8, is no time either
        is_missing = (text_faults == MISSING) | (text_faults == EMPTY)
        micros, is_local = _from_text(text, unit, time_format)
    good = _are_times(micros)
    if time_zone is not None and np.any(is_local):
        rows = np.flatnonzero(good & is_local)
        micros = micros.copy()  # it may be the column itself
        micros[rows] = time_formats.utc_of_local(micros[rows], time_zone)
        good = _are_times(micros)
    faults = np.where(good, np.uint8(0), np.uint8(BAD_TIME))
    faults[is_missing] = MISSING
    return TimeColumn(micros if good.all() else np.where(good, micros, 0), faults)


def _are_times(micros: _Int64s) -> npt.NDArray[np.bool_]:
    return (micros >= _MIN_MICROS) & (micros < _END_MICROS)


def is_typed(column_type: pa.DataType) -> bool:
    """Whether times of this Arrow type are not text."""
    types = pa.types
    return bool(types.is_timestamp(column_type) or types.is_date(column_type) or is_number_type(column_type))


def _from_typed(array: pa.Array, unit: str | None) -> time_formats.ReadTimes:
    if pa.types.is_date32(array.type):
        return _scaled(_int64(array.cast(pa.int32())), _MICROS_PER_DAY), True
    if pa.types.is_date64(array.type):
        return _scaled(_int64(array), 1_000), True
    if pa.types.is_timestamp(array.type):
        ticks, is_local = _int64(array), array.type.tz is None
        return ticks // 1_000 if array.type.unit == "ns" else _scaled(ticks, MICROS_PER_UNIT[array.type.unit]), is_local
    if unit not in MICROS_PER_UNIT:  # numbers where ISO 8601 text was declared
        return np.full(len(array), NOT_A_TIME), False
    if pa.types.is_floating(array.type):
        return _from_floats(array.cast(pa.float64()).fill_null(0.0).to_numpy(), MICROS_PER_UNIT[unit]), False
    if pa.types.is_uint64(array.type):
        array = pc.min_element_wise(array, pa.scalar(NOT_A_TIME, pa.uint64()))
    return _scaled(_int64(array), MICROS_PER_UNIT[unit]), False


def _from_text(text: pa.StringArray, unit: str | None, time_format: str | None) -> time_formats.ReadTimes:
    if time_format is not None:
        return time_formats.read_times(text, *time_formats.pattern_of(time_format))
    return (_from_number_text(text, MICROS_PER_UNIT[unit]), False) if unit in MICROS_PER_UNIT else _from_iso(text)


def parse_values(
    values: Sequence[Any], unit: str | None, time_format: str | None = None, time_zone: str | None = None
) -> TimeColumn:
    """Times from single values, each as a column of its type would be read.

    values: what Arrow knows, such as texts, numbers, datetimes and dates, also numpy's, and objects that have their
    time as a whole number ``micros``, as Beam's have. unit, time_format, time_zone: as in `parse_times`.
    """
    micros, faults = np.zeros(len(values), np.int64), np.full(len(values), WRONG_TYPE, np.uint8)
    texts = [row for row, value in enumerate(values) if type(value) is str]
    alike: dict[pa.DataType, list[tuple[list[int], pa.Array]]] = {}
    if texts:  # most often all of them: in one column at once
        column = pa.array([values[row].encode("utf-8", "surrogatepass") for row in texts], pa.binary())
        alike[column.type] = [(texts, column)]
    for row, value in enumerate(values):
        # A hostile object must not stop the run, and its content must not reach a log.
        with contextlib.suppress(Exception):
            if type(value) is not str:
                cell = _cell(value)
                known = cell.type in alike or is_typed(cell.type)
                if known or is_text_type(cell.type) or pa.types.is_null(cell.type):
                    alike.setdefault(cell.type, []).append(([row], cell))
    for cells in alike.values():
        rows, arrays = zip(*cells, strict=True)
        parsed = parse_times(pa.concat_arrays(arrays), unit, time_format, time_zone)
        places = [*itertools.chain(*rows)]
        micros[places], faults[places] = parsed
    return TimeColumn(micros, faults)


def _cell(value: Any) -> pa.Array:
    """A column of this value. Raises anything for what no column can hold."""
    if isinstance(value, str):
        return pa.array([value.encode("utf-8", "surrogatepass")])
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return pa.array([max(-(2**63), min(int(value), 2**63 - 1))])  # what is cut is out of range in every unit
    if isinstance(value, np.datetime64):
        return pa.array(np.array([value], "datetime64[us]"))
    if type(micros := getattr(value, "micros", None)) is int:
        return pa.array([micros], pa.timestamp("us", "UTC"))
    return pa.array([value], from_pandas=not isinstance(value, (float, np.floating)))  # NaT is missing, and NaN is bad


def _int64(array: pa.Array) -> _Int64s:
    ticks = array.cast(pa.int64())
    return (ticks.fill_null(0) if ticks.null_count else ticks).to_numpy()  # type: ignore[no-any-return]


def _scaled(ticks: _Int64s, factor: int) -> _Int64s:
    """Ticks in microseconds. Those out of the range, which might wrap around, become others out of it."""
    first, end = _MIN_MICROS // factor, _END_MICROS // factor
    if len(ticks) and not first <= ticks.min() <= ticks.max() <= end:
        ticks = np.clip(ticks, first - 1, end)
    return ticks * factor if factor > 1 else ticks


def _from_floats(numbers: npt.NDArray[np.float64], factor: int) -> _Int64s:
    with np.errstate(over="ignore"):
        micros = np.nan_to_num(np.floor(numbers * factor), nan=NOT_A_TIME)
    return np.clip(micros, 2.0 * _MIN_MICROS, 2.0 * _END_MICROS).astype(np.int64)  # type: ignore[no-any-return]


def _from_number_text(text: pa.StringArray, factor: int) -> _Int64s:
    are_whole = pc.match_substring_regex(text, _INTEGER)
    micros = np.full(len(text), NOT_A_TIME)
    micros[are_whole.to_numpy(zero_copy_only=False)] = _scaled(_int64(text.filter(are_whole)), factor)
    are_others = pc.and_not(pc.match_substring_regex(text, NUMBER), are_whole)
    others = np.array(list(map(float, text.filter(are_others).to_pylist())), np.float64)
    micros[are_others.to_numpy(zero_copy_only=False)] = _from_floats(others, factor)
    return micros


def _from_iso(text: pa.StringArray) -> time_formats.ReadTimes:
    for _, target in _ARROW_SHAPES:  # nearly always, the whole column has one shape
        try:
            # The first rows alone, before all: Arrow takes a microsecond for each text that it cannot cast.
            text[:_LOOKED_AT_ROWS].cast(target)
            return _int64(text.cast(target)), target.tz is None
        except pa.ArrowInvalid:
            continue
    micros, is_local, left = np.zeros(len(text), np.int64), np.zeros(len(text), np.bool_), np.ones(len(text), np.bool_)
    for shape, target in _ARROW_SHAPES:
        are_alike = pc.match_substring_regex(text, shape)
        rows = are_alike.to_numpy(zero_copy_only=False)
        micros[rows], is_local[rows] = _int64(text.filter(are_alike).cast(target)), target.tz is None
        left &= ~rows
    micros[left], is_local[left] = time_formats.read_times(text.filter(pa.array(left)), *ISO_8601)
    return micros, is_local
