"""Unbounded input: windows close when the watermark passes them, once, in order, and whoever is late changes nothing.

On the one local runner whose watermark drives timers: `TestStream` runs on `BundleBasedDirectRunner` alone. It reports
the counters of one bundle only, so that `LocalCounter` counts here. Of hits also: test_threshold_monitor.py. Whole
logs, sliding windows and known domains: tests/conformance.
"""

import itertools

import apache_beam as beam
import pytest
from apache_beam.transforms.window import SlidingWindows

from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.operator_counts import EVENTS_READ
from tests.helpers.beam_pipelines import LocalCounter, Script, holders
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MICROS, START, batch_of, key_file, ordered_log, small_plan
from tests.reference.run import reference


def paying_for_hits(windows):
    return small_plan(windows, hits_per_user=2)


def paying_for_looks(windows):
    return small_looks_plan(windows, forget_after=0)


def expected(plan, *groups):
    return reference(list(itertools.chain(*groups)), plan, (), in_order=True)


def as_batches(pairs):
    return pairs | beam.Map(
        lambda pair, time=beam.DoFn.TimestampParam: batch_of([(*pair, time.micros)])
    ).with_output_types(EventBatch)


def in_sliding_windows(pairs):
    return pairs | beam.WindowInto(SlidingWindows(60, 20))


@pytest.mark.parametrize(("prepare", "sliding"), [(as_batches, 1), (in_sliding_windows, 3)])
def test_every_kind_of_stream_is_the_same_log(tmp_path, prepare, sliding):
    plan = small_plan(sliding=sliding, hits_per_user=2)
    log = [event for event in ordered_log(plan, seed=6, events=300) if event[2] >= START * MICROS]
    script = Script(plan)
    for low in range(0, len(log), 60):
        script.events(log[low : low + 60]).watermark(log[low : low + 60][-1][2] // MICROS - START)
    assert script.run(key_file(tmp_path), prepare) == expected(plan, log) != []


def test_a_window_is_reported_when_the_watermark_passes_its_end_and_not_before(tmp_path):
    plan = paying_for_looks(8)
    groups = [holders(window, range(60 * window, 60 * window + 50)) for window in (0, 1, 3, 4, 6)]
    first, second, fourth, fifth, seventh = expected(plan, *groups)
    script = Script(plan).mark("start").events(groups[1]).events(groups[0]).watermark(30).mark("half")
    script.watermark(59.998).mark("nearly").watermark(60).mark("first is due").watermark(119).mark("second is open")
    script.events(groups[2]).watermark(120).mark("second is due").events(groups[4]).events(groups[3])
    script.watermark(330).mark("a jump over four windows").watermark(480).mark("end")
    assert script.run(key_file(tmp_path)) == [
        *("start", "half", "nearly", first, "first is due", "second is open", second, "second is due"),
        *(fourth, fifth, "a jump over four windows", seventh, "end"),
    ]


def test_late_events_change_nothing(tmp_path, monkeypatch):
    """New items, more holders of a published item, a window that had no event in time; then life goes on."""
    counts = LocalCounter.install(monkeypatch)
    plan = paying_for_looks(8)
    in_time = [holders(0, range(50)), holders(2, range(100, 150)), holders(4, range(200, 250))]
    script = Script(plan).events(in_time[0]).watermark(61).mark("closed")
    script.events(holders(0, range(50, 90), "too late")).events(holders(0, range(90, 140)))
    script.events(in_time[1]).watermark(182).mark("closed again")
    script.events(holders(1, range(300, 350))).events(holders(2, range(350, 390)))  # nobody was in window 1 in time
    script.events(in_time[2])
    first, second, third = expected(plan, *in_time)
    assert script.run(key_file(tmp_path)) == [first, "closed", second, "closed again", third]
    assert counts[EVENTS_READ] == 3 * 50 + 40 + 50 + 50 + 40


@pytest.mark.parametrize("plan_of", [paying_for_hits, paying_for_looks])
def test_one_user_cannot_decide_whether_late_events_of_others_count(tmp_path, plan_of):
    """Three windows with 60 holders that come when the watermark stands at the very end of the window: behind nobody,
    behind one user in time, and behind one late user. None may be reported."""
    plan = plan_of(10)
    script = Script(plan)
    for window, in_time, late in ((1, [], []), (3, [7], []), (5, [], [7])):
        script.events(holders(window, in_time, "whatever")).watermark(60 * (window + 1))
        script.events(holders(window, late, "whatever")).events(holders(window, range(100, 160)))
    in_time = holders(7, range(200, 250))
    assert script.events(in_time).run(key_file(tmp_path)) == expected(plan, in_time) != []
