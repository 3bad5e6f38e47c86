"""Unbounded input, on the one local runner whose watermark drives timers: windows close when the watermark passes
them, once, in order, and with budgets that last.

`TestStream` runs on `BundleBasedDirectRunner` alone. It reports the counters of one bundle only, so that
`LocalCounter` counts here.
"""

from __future__ import annotations

import itertools
import random

import apache_beam as beam
import pytest
from apache_beam.transforms.window import SlidingWindows

from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_RANGE, EVENTS_READ, LATE_BATCHES
from tests.helpers.beam_pipelines import LocalCounter, Script, holders
from tests.helpers.oracle import oracle_reports, oracle_transcript
from tests.helpers.small_runs import (
    MICROS,
    SECRET,
    START,
    batch_of,
    key_file,
    random_log,
    settings_of,
    small_plan,
    thousand_windows,
)


def windows_of(reports):
    return [(report.window_start // MICROS - START) // 60 for report in reports]


def as_batches(pairs):
    return pairs | beam.Map(
        lambda pair, time=beam.DoFn.TimestampParam: batch_of([(*pair, time.micros)])
    ).with_output_types(EventBatch)


def in_sliding_windows(pairs):
    return pairs | beam.WindowInto(SlidingWindows(60, 20))


@pytest.mark.parametrize(("prepare", "sliding"), [(as_batches, 1), (in_sliding_windows, 3)])
def test_every_kind_of_stream_is_the_same_log(tmp_path, prepare, sliding):
    plan = small_plan(sliding=sliding, hits_per_user=2)
    declared = range(START * MICROS, plan.schedule.end_seconds * MICROS)
    log = sorted((event for event in random_log(plan, seed=6, events=500) if event[2] in declared), key=time_of)
    script = Script(plan)
    for low in range(0, len(log), 50):
        script.events(log[low : low + 50]).watermark(log[low : low + 50][-1][2] // MICROS - START)
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    assert script.run(key_file(tmp_path), prepare) == expected


def time_of(event):
    return event[2]


@pytest.mark.parametrize(
    ("release", "sliding", "limit"), [("counts", 1, 3), ("counts", 3, 1), ("labels", 3, 3), ("labels", 1, 1)]
)
def test_the_transcript_of_a_stream_equals_the_oracle(tmp_path, release, sliding, limit):
    """Events come up to 25 seconds out of order, with the watermark that far behind; some lie outside the range."""
    plan = small_plan(release=release, sliding=sliding, max_items_per_user=limit, hits_per_user=2)
    source = random.Random(3)
    end = plan.schedule.end_seconds * MICROS
    log = [event for event in random_log(plan, seed=8, events=1000) if 0 < event[2] <= end]
    log.sort(key=lambda event: event[2] + source.randrange(25 * MICROS))
    script = Script(plan)
    for low in range(0, len(log), 40):
        script.events(log[low : low + 40])
        latest = max(time for _, _, time in log[: low + 40])
        script.watermark(latest // MICROS - START - 25)
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert expected.reports
    assert expected.bounded
    assert expected.kept_out > 0
    assert script.run(key_file(tmp_path)) == expected.reports


def test_a_window_is_reported_when_the_watermark_passes_its_end_and_not_before(tmp_path):
    plan = small_plan(8, hits_per_user=2)
    groups = [holders(window, range(40 * window, 40 * window + 25)) for window in (0, 1, 3, 4, 6)]
    first, second, fourth, fifth, seventh = oracle_reports(itertools.chain(*groups), settings_of(plan), SECRET)
    script = Script(plan).mark("start").events(groups[1]).events(groups[0]).watermark(30).mark("half")
    script.watermark(59.998).mark("nearly").watermark(60).mark("first is due").watermark(119).mark("second is open")
    script.events(groups[2]).watermark(120).mark("second is due").events(groups[4]).events(groups[3])
    script.watermark(330).mark("a jump over four windows").watermark(480).mark("end")
    assert script.run(key_file(tmp_path)) == [
        *("start", "half", "nearly", first, "first is due", "second is open", second, "second is due"),
        *(fourth, fifth, "a jump over four windows", seventh, "end"),
    ]


def test_a_sliding_window_is_reported_when_its_own_end_passes(tmp_path):
    plan = small_plan(6, sliding=3, release="labels", hits_per_user=2)
    log = holders(1, range(40), slide=20)  # lies in the three windows that end 40, 60 and 80 seconds after the start
    reports = oracle_reports(log, settings_of(plan), SECRET)
    assert [report.window_end // MICROS - START for report in reports] == [40, 60, 80]
    script = Script(plan).events(log).watermark(39).mark("39").watermark(40).mark("40").watermark(60).mark("60")
    script.watermark(79).mark("79")
    assert script.run(key_file(tmp_path)) == ["39", reports[0], "40", reports[1], "60", "79", reports[2]]


@pytest.mark.parametrize(("closed_at", "reaches_us"), [(60, True), (61, False)])
def test_late_events_change_nothing_and_are_counted(tmp_path, monkeypatch, closed_at, reaches_us):
    """New items, more holders of a published item, a window that had no event in time; then life goes on.

    What is later than the very end of its window the runner drops by itself, and tells nobody; what it lets through as
    a second pane we drop and count.
    """
    counts = LocalCounter.install(monkeypatch)
    plan = small_plan(8, hits_per_user=2)
    in_time = [holders(0, range(30)), holders(2, range(100, 130)), holders(4, range(200, 230))]
    script = Script(plan).events(in_time[0]).watermark(closed_at).mark("closed")
    script.events(holders(0, range(30, 60), "too late")).events(holders(0, range(60, 99)))
    script.events(in_time[1]).watermark(182).mark("closed again")
    script.events(holders(1, range(300, 340))).events(holders(2, range(340, 380)))  # nobody was in window 1 in time
    script.events(in_time[2])
    found = script.run(key_file(tmp_path))
    first, second, third = oracle_reports(itertools.chain(*in_time), settings_of(plan), SECRET)
    assert found == [first, "closed", second, "closed again", third]
    assert (counts[LATE_BATCHES] > 0) == reaches_us
    assert counts[EVENTS_READ] == 90 + 30 + 39 + 40 + 40


def test_one_user_cannot_decide_whether_late_events_of_others_count(tmp_path):
    """Three windows with 60 holders that come at the very end of the window, which this runner does not drop: behind
    nobody, behind one user in time, and behind one late user. None may be reported; a first pane can be late too.
    """
    plan = small_plan(10, hits_per_user=2)
    script = Script(plan)
    for window, in_time, late in ((1, [], []), (3, [7], []), (5, [], [7])):
        script.events(holders(window, in_time, "whatever")).watermark(60 * (window + 1))
        script.events(holders(window, late, "whatever")).events(holders(window, range(100, 160)))
    in_time = holders(7, range(200, 240))
    assert script.events(in_time).run(key_file(tmp_path)) == oracle_reports(in_time, settings_of(plan), SECRET)


def test_a_batch_that_comes_again_changes_nothing(tmp_path, monkeypatch):
    """A source that delivers twice: into the open window, and after it has closed."""
    counts = LocalCounter.install(monkeypatch)
    plan = small_plan(4, hits_per_user=2)
    first, second = holders(0, range(30)), holders(1, range(20, 50))
    script = Script(plan).events(first).events(first).watermark(60).mark("closed").events(first).watermark(90)
    script.events(second).watermark(120).mark("closed too").events(first).events(second)
    reports = oracle_reports(first + second, settings_of(plan), SECRET)
    assert script.run(key_file(tmp_path)) == [reports[0], "closed", reports[1], "closed too"]
    assert counts[LATE_BATCHES] > 0


def test_users_who_have_paid_stay_out_of_later_windows(tmp_path):
    plan = small_plan(8, hits_per_user=2)
    old, new = range(30), range(30, 60)
    log = holders(0, old) + holders(1, old) + holders(5, old, "only old") + holders(5, [*old, *new], "both")
    script = Script(plan)
    for window in range(8):
        script.events([event for event in log if (event[2] // MICROS - START) // 60 == window]).watermark(
            60 * (window + 1)
        )
    found = script.run(key_file(tmp_path))
    assert found == oracle_reports(log, settings_of(plan), SECRET)
    assert windows_of(found) == [0, 1, 5]
    (both,) = found[-1].heavy_hitters
    assert both.item == "both"
    assert abs(both.noisy_count - len(new)) < 15  # far from the 60 that hold it


@pytest.mark.long
def test_a_thousand_windows_in_no_order_close_in_order(tmp_path, monkeypatch):
    """All that is there before the watermark moves; over 200 charge users, so budgets are compacted."""
    counts = LocalCounter.install(monkeypatch)
    plan = small_plan(1000, hits_per_user=3, max_items_per_user=3)
    log = thousand_windows()
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert len(expected.reports) > 200
    assert expected.kept_out > 1000
    script = Script(plan)
    for low in range(0, len(log), 3000):
        script.events(log[low : low + 3000])
    script.events([("u1", "outside", (START - 1) * MICROS), ("u1", "outside", (START + 60_000) * MICROS)])
    found = script.run(key_file(tmp_path))
    assert found == expected.reports
    assert counts[EVENTS_OUTSIDE_RANGE] == 2
    assert counts[LATE_BATCHES] == 0
