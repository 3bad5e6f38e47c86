"""Times of every accepted type against Python's own datetime."""

import datetime
import itertools
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.logs import times
from dp_transforms.logs.event_ids import BAD_TIME, MISSING, WRONG_TYPE
from dp_transforms.logs.times import parse_times
from tests.helpers.event_files_oracle import oracle_micros

SECONDS = 1_506_826_800  # 2017-10-01T03:00:00Z
MICROS = SECONDS * 10**6


def _parsed(array, unit=None):
    """Microseconds, None for a fault."""
    column = parse_times(array, unit)
    assert column.micros.dtype == np.int64
    return [None if fault else micros for micros, fault in zip(column.micros.tolist(), column.faults, strict=True)]


_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ Tt](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?)?(?:[zZ]|([+-])(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)


def iso_micros(text):
    """By Python's datetime."""
    match = _ISO.fullmatch(text)
    if match is None or int(match[9] or 0) > 23 or int(match[10] or 0) > 59:
        return None
    try:
        moment = datetime.datetime(*(int(part or 0) for part in match.groups()[:6]), tzinfo=datetime.UTC)
    except ValueError:
        return None
    east = datetime.timedelta(hours=int(match[9] or 0), minutes=int(match[10] or 0)) * (-1 if match[8] == "-" else 1)
    try:
        return oracle_micros(moment - east + datetime.timedelta(microseconds=int(f"{match[7] or 0:0<6}"[:6])), None)
    except OverflowError:
        return None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_tell_their_own_unit_and_have_their_zone_applied_already(unit, zone):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    array = pa.array([SECONDS * per_second, -per_second, None], pa.timestamp(unit, zone))
    assert _parsed(array, "s") == [MICROS, -1_000_000, None]
    assert parse_times(array, None).faults.tolist() == [0, 0, MISSING]


def test_dates_are_midnight_and_what_is_finer_than_a_microsecond_is_rounded_down():
    dates = [datetime.date(2017, 10, 1), datetime.date(1969, 12, 31), None]
    for kind in (pa.date32(), pa.date64()):
        assert _parsed(pa.array(dates, kind)) == [1_506_816_000_000_000, -86_400_000_000, None]
    assert _parsed(pa.array([1_999, -1, 0], pa.timestamp("ns"))) == [1, -1, 0]
    floats = [0.0000019, -0.0000001, math.nan, math.inf, -math.inf, 1e300, None]
    assert _parsed(pa.array(floats), "s") == [1, -1, None, None, None, None, None]
    assert parse_times(pa.array(floats), "s").faults.tolist() == [0, 0, *[BAD_TIME] * 4, MISSING]


@pytest.mark.parametrize("looked_at", [1, 2, 1024])
def test_texts_of_several_shapes_in_any_order(monkeypatch, looked_at):
    """The first texts decide which shape is tried on all of them, and never what a text means."""
    monkeypatch.setattr(times, "_LOOKED_AT_ROWS", looked_at)
    texts = ["2017-10-01T03:00:00Z", "2017-10-01T03:00:00", "2017-10-01", "2016-02-29T00:00:00.1234567Z", "x"]
    for order in itertools.permutations(texts):
        assert _parsed(pa.array(order)) == list(map(iso_micros, order))


@pytest.mark.parametrize("arrow_type", [pa.int64(), pa.int32(), pa.uint32(), pa.uint64(), pa.float64()])
def test_numbers_count_in_the_declared_unit(arrow_type):
    assert _parsed(pa.array([SECONDS, 0, None], arrow_type), "s") == [MICROS, 0, None]
    for unit, micros in (("ms", SECONDS * 1000), ("us", SECONDS), ("iso", None)):
        assert _parsed(pa.array([SECONDS], arrow_type), unit) == [micros]


def test_times_that_would_wrap_around_or_leave_the_years_1_to_9999_are_bad():
    extremes = [2**63 - 1, -(2**63), 253_402_300_800, 253_402_300_799, -62_135_596_800, -62_135_596_801]
    allowed = [None, None, None, 253_402_300_799_000_000, -62_135_596_800_000_000, None]
    for array in (pa.array(extremes), pa.array(extremes, pa.timestamp("s")), pa.array(map(float, extremes))):
        assert _parsed(array, "s") == allowed
    assert _parsed(pa.array(map(str, extremes)), "s") == allowed
    assert _parsed(pa.array([2**64 - 1, 2**63, 253_402_300_800_000_000, 1], pa.uint64()), "us") == [None] * 3 + [1]
    assert _parsed(pa.array([2**31 - 1], pa.int32()).view(pa.date32())) == [None]
    # 2**64 / 10**6 and its neighbours would wrap around to small numbers.
    assert _parsed(pa.array([18_446_744_073_709, 18_446_744_073_710]), "s") == [None, None]


TEXTS = [
    *("2017-10-01T03:00:00Z", "2017-10-01T03:00:00", "2017-10-01 03:00:00.5", "2017-10-01T03:00:00.1234567899Z"),
    *("2017-10-01T05:00:00+02:00", "2017-09-30T22:30:00.25-0430", "2017-10-01T05+02", "2016-02-29t00:00:00z"),
    *("1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2017-10-31T00:00:00Z"),
]
NO_TIMES = [
    *("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "0000-01-01", "10000-01-01", "2017-02-29"),
    *("2017-02-30T00:00:00Z", "2017-13-01T00:00:00Z", "2017-10-01T24:00:00Z", "2017-10-01T23:59:60Z"),
    *("2017-10-01T03:00:00+24:00", "2017-10-01T03:00:00+01:60", " 2017-10-01", "2017-10-01T03:00:00Z\n"),
    *("٢٠١٧-10-01", "1506826800", "", "yesterday"),
]


def test_a_text_that_is_longer_than_an_id_may_be_is_not_a_time_whatever_stands_beside_it():
    fits, long = (f"2017-10-01T03:00:00.{'0' * (length - 21)}Z" for length in (16_384, 16_385))
    assert _parsed(pa.array([fits])) == [MICROS]
    assert _parsed(pa.array([long, fits, None, long])) == [None, MICROS, None, None]
    assert _parsed(pa.array(["0" * 16_384, "0" * 16_385]), "s") == [0, None]


_EDITS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*"0129:-+Z .Tt,", ""]), st.integers(0, 1)), max_size=3)


@given(st.lists(st.tuples(st.sampled_from([*TEXTS, "2017-10-01T0304-12"]), _EDITS), min_size=1, max_size=5))
@example([(text, []) for text in [*TEXTS, *NO_TIMES]])
def test_a_column_of_iso_texts_means_what_each_of_them_means(cases):
    texts = []
    for text, edits in cases:
        for at, put, cut in edits:
            text = text[:at] + put + text[at + cut :]
        texts.append(text)
    assert _parsed(pa.array(texts)) == [iso_micros(text) for text in texts]
    for text in texts:
        assert _parsed(pa.array([text.encode(), b"\xff"], pa.binary())) == [iso_micros(text), None]


_NUMBERS = st.integers(-(10**20), 10**20).map(str) | st.floats().map(repr) | st.text("0123456789.eE+-", max_size=9)


@given(st.lists(_NUMBERS))
def test_number_texts_mean_what_python_says(texts):
    for unit in ("s", "us"):
        wanted = [oracle_micros(text, unit) if text else None for text in texts]
        assert _parsed(pa.array(texts, pa.string()), unit) == wanted
    assert _parsed(pa.array(["1_0", "0x10", "١", " 1", "1 ", "nan", "inf", "1e400", "1" * 400]), "s") == [None] * 9


SINGLE = st.one_of(
    st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30)),
    st.text("0123456789-:.TZ+ e", max_size=24),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.none(),
    st.booleans(),
)


@given(st.lists(SINGLE, max_size=12), st.sampled_from([None, "s", "ms", "us", "iso"]))
def test_single_values_are_read_as_columns_of_their_type_are(values, unit):
    column = times.parse_values(values, unit)
    for value, micros, fault in zip(values, column.micros.tolist(), column.faults.tolist(), strict=True):
        if value is None or isinstance(value, bool):
            assert fault == (WRONG_TYPE if isinstance(value, bool) else MISSING)
        elif isinstance(value, int) and abs(value) >= 2**63:
            assert fault == BAD_TIME
        else:
            alone = parse_times(pa.array([value]), unit)
            assert (micros, fault) == (alone.micros[0], alone.faults[0]), value
