"""Which windows input may be in, when a window is closed, and that what belongs to it comes once."""

import logging

import apache_beam as beam
import pytest
from apache_beam.coders import FastPrimitivesCoder
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import FixedWindows, Sessions, SlidingWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import check_windows, closing_time, group_once, last_closed, max_timestamp
from dp_transforms.beam.release_heavy_hitters import ShiftingHeavyHitters
from dp_transforms.core.operator_counts import LATE_BATCHES
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.beam_pipelines import Collected, LocalCounter, local_pipeline
from tests.helpers.small_runs import START, small_plan

FIXED = WindowSchedule(START, START + 720, 60, 60)
SLIDING = WindowSchedule(START, START + 720, 60, 20)


@pytest.mark.parametrize(
    ("schedule", "windows"),
    [
        (FIXED, Sessions(60)),
        (FIXED, FixedWindows(61)),
        (FIXED, FixedWindows(60, offset=7)),
        (SLIDING, FixedWindows(60, offset=START % 60)),
        (SLIDING, SlidingWindows(60, 30)),
        (SLIDING, SlidingWindows(60, 20, offset=5)),
    ],
)
def test_windows_that_are_not_those_of_the_plan_are_refused(schedule, windows):
    with pytest.raises(ValueError, match=f"^the {type(windows).__name__} of the input are not those of the plan"):
        check_windows(windows, schedule)


@pytest.mark.parametrize("schedule", [FIXED, SLIDING])
def test_a_window_is_closed_at_its_last_millisecond_and_none_before(schedule):
    for window in range(schedule.horizon):
        time = closing_time(schedule, window)
        assert last_closed(schedule, time) == last_closed(schedule, max_timestamp(schedule, window)) == window
        assert last_closed(schedule, Timestamp(micros=time.micros - 1)) == window - 1


def test_a_second_pane_is_dropped_and_counted(monkeypatch):
    """DirectRunner gives one for what is late (apache/beam #19736). A user's items would be bounded in each pane."""
    counts = LocalCounter.install(monkeypatch)
    trigger = {
        "trigger": beam.trigger.Repeatedly(beam.trigger.AfterCount(1)),
        "accumulation_mode": beam.trigger.AccumulationMode.DISCARDING,
    }
    seen, pipeline = Collected(), local_pipeline(["--streaming"], "BundleBasedDirectRunner")
    stream = TestStream(coder=FastPrimitivesCoder())
    for item in "ab":
        stream = stream.add_elements([TimestampedValue(("user", item), START + 1)])
    panes = pipeline | stream.advance_watermark_to_infinity() | beam.WindowInto(FixedWindows(60), **trigger)
    _ = panes | group_once() | beam.MapTuple(lambda user, items: (user, list(items))) | seen.sink()
    pipeline.run().wait_until_finish()
    assert (seen.values, counts[LATE_BATCHES]) == ([("user", ["a"])], 1)


def test_a_group_without_a_start_is_late(monkeypatch):
    """As of a window that was closed, where an engine that went back to a checkpoint takes a late row."""
    counts, seen, pipeline = LocalCounter.install(monkeypatch), Collected(), local_pipeline()
    blobs = pipeline | beam.Create([("started", b""), ("started", b"row"), ("late", b"row")])
    _ = blobs | group_once(are_started=True) | beam.Keys() | seen.sink()
    pipeline.run().wait_until_finish()
    assert (seen.values, counts[LATE_BATCHES]) == (["started"], 1)


@pytest.mark.parametrize("has_one_inside", [False, True])
def test_a_log_with_no_event_in_the_range_is_warned_of_once(caplog, has_one_inside):
    outside = [TimestampedValue((f"user-{n}", "item"), START - 60) for n in range(1000)]
    inside = [TimestampedValue(("user", "item"), START + 1)] if has_one_inside else []
    with caplog.at_level(logging.WARNING, logger="dp_transforms"), local_pipeline() as pipeline:
        elements = pipeline | beam.Create([*outside, *inside], reshuffle=False)
        _ = elements | beam.Map(lambda pair: pair).with_output_types(object) | ShiftingHeavyHitters(small_plan())
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("dp_transforms")]
    assert len(warned) == 1 - has_one_inside
    assert all("2023-11-14T22:13:00Z .. 2023-11-14T22:25:00Z" in each for each in warned)
    assert all("that elements have timestamps" in each for each in warned)
