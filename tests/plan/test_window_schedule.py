"""A plan from plain values is the one that `Plan.for_hits` makes; which windows are declared, who counts in them."""

import dataclasses
import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.beam.release_rows import HeavyHitterRows
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc, parse_duration, parse_utc

BUDGET = {"epsilon": 2, "delta": 1e-9, "start": "2026-01-01", "end": "2026-01-03T00:00:00Z", "window": "1h"}
SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-03", 3600)
PLAN = Plan.for_hits(epsilon=2, delta=1e-9, schedule=SCHEDULE)


def declared_plan(plan=None, **budget):
    return HeavyHitterRows(plan, **budget).plan


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": "2", "delta": "1e-9"},
        {"start": datetime.date(2026, 1, 1), "end": datetime.datetime(2026, 1, 3)},
        {"end": datetime.datetime(2026, 1, 3, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))},
        {"window": 3600, "slide": "60m"},
        {"start": SCHEDULE.start_seconds, "end": SCHEDULE.end_seconds},
    ],
)
def test_all_ways_to_write_a_budget_make_one_plan(changes):
    assert declared_plan(**BUDGET | {"charge": "hits"} | changes).fingerprint == PLAN.fingerprint


def test_durations_have_a_number_and_a_unit():
    assert [parse_duration(text) for text in ("90s", "15m", " 1h", "1d ", "2 w")] == [90, 900, 3600, 86_400, 1_209_600]
    for text in ("", "1", "h", "-1h", "1.5h", "1y", "1h30m"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)


@given(
    start=st.integers(-(10**6), 10**6),
    length=st.integers(1, 5000),
    slide=st.integers(1, 60),
    repeats=st.integers(1, 5),
    second=st.integers(-(10**6) - 100, 10**6 + 6000),
)
def test_an_event_counts_in_every_window_that_holds_it(start, length, slide, repeats, second):
    schedule = WindowSchedule.sliding(start, start + length, slide * repeats, slide)
    micros = second * 1_000_000 + 999_999
    first = int(schedule.first_window(np.array([micros]))[0])
    starts, ends = schedule.window_start_micros, schedule.window_end_micros
    holding = [window for window in range(schedule.horizon) if starts(window) <= micros < ends(window)]
    is_declared = start <= second < start + length
    assert (holding if is_declared else first) == (list(range(first, first + repeats)) if is_declared else -1)


def test_the_horizon_holds_exactly_the_windows_that_can_have_an_event():
    assert WindowSchedule.fixed("2017-10-01T03:00:00Z", "2017-10-17T03:00:00Z", 3600).horizon == 384
    assert WindowSchedule.fixed(0, 3601, 3600).horizon == 2
    sliding = WindowSchedule.sliding(0, 7200, 3600, 900)
    assert sliding.horizon == 8 + 3
    assert sliding.window_start_micros(0) == -2700 * 10**6
    assert sliding.window_end_micros(sliding.horizon - 1) == (7200 - 900 + 3600) * 10**6


def test_declared_times_may_be_dates_and_times_of_python_and_pandas():
    """UTC unless they have a zone, as texts are."""
    pandas = pytest.importorskip("pandas")
    zone = datetime.timezone(datetime.timedelta(hours=1))
    day = datetime.date(2017, 10, 1)
    starts = [day, datetime.datetime(2017, 10, 1, 1, tzinfo=zone), pandas.Timestamp("2017-10-01")]
    schedules = {WindowSchedule.fixed(start, "2017-10-02", length) for start in starts for length in ("1h", 3600)}
    assert schedules == {WindowSchedule.fixed("2017-10-01", "2017-10-02", "1h")}
    assert {type(value) for each in schedules for value in dataclasses.astuple(each)} == {int}
    for start, length in ((pandas.NaT, 60), (day, datetime.timedelta(hours=1)), (day, 0.5)):
        with pytest.raises(ValueError, match=r"not an ISO 8601 time|must be a whole number of seconds"):
            WindowSchedule.fixed(start, "2017-10-02", length)


FIRST, LAST = -62_135_596_800 + 86_400, 253_402_300_799 - 86_400  # with windows of a day


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 0, 60, 60), "after its start"),
        ((0, 60, 0, 60), "window_seconds must be >= 1"),
        ((0, 60, 60, 0), "slide_seconds must be >= 1"),
        ((0, 60, 60, 7), "divide"),
        ((0, 60, True, 1), "whole number"),
        ((0, 2**32, 1, 1), "at most"),
        ((0, LAST + 1, 86_400, 86_400), "years 1 to 9999"),
        ((FIRST - 1, 0, 86_400, 86_400), "years 1 to 9999"),
    ],
)
def test_what_is_no_schedule_is_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        WindowSchedule(*arguments)


def test_a_range_may_begin_a_window_after_year_1_and_end_a_window_before_the_end_of_9999():
    assert WindowSchedule(FIRST, LAST, 86_400, 86_400).horizon == 3_652_057


def test_times_are_read_as_utc_and_written_back():
    assert parse_utc("2017-10-01T03:00:00Z") == parse_utc("2017-10-01 03:00") == parse_utc("2017-10-01T00:00-03:00")
    assert format_utc(parse_utc("2017-10-01T03:00:00z") * 10**6) == "2017-10-01T03:00:00Z"
    for wrong in ("yesterday", "2017-10-01T03:00:00.5", ""):
        with pytest.raises(ValueError, match=r"ISO 8601|whole second"):
            parse_utc(wrong)
