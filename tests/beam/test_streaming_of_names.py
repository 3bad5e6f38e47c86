"""Unbounded input with a plan of names: purses are spent in the order of windows, as the watermark closes them.

On the one local runner whose watermark drives timers, as in test_streaming.py.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from dp_transforms.beam import close_by_watermark
from dp_transforms.beam.close_by_watermark import CloseByWatermarkDoFn
from dp_transforms.monitor.counted_messages import GatheredCount
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.operator_counts import EVENTS_OUTSIDE_DOMAIN, EVENTS_READ, LATE_BATCHES, PAIRS_UNPAID
from tests.helpers.beam_pipelines import LocalCounter, Script, holders
from tests.helpers.do_fn_state import Bag, Cell, Timer
from tests.helpers.memory_stream import MemoryStream
from tests.helpers.names_plans import small_names_plan
from tests.helpers.naming_oracle import oracle_names, reports_of
from tests.helpers.pace_oracle import stream_weights
from tests.helpers.small_runs import MICROS, SECRET, START, key_file, ordered_log, settings_of
from tests.helpers.stream_runs import Ran, arrivals_of, spread

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))
HALF_DAY = 12 * 3600


def expected_of(log, plan, domain=()):
    """What the oracle names with the weights of each user's own pace."""
    settings = settings_of(plan)
    keys = settings.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_names(stream_weights(log, settings, keys), settings, keys, domain)


def reports_for(log, plan, domain=()):
    return reports_of(expected_of(log, plan, domain), settings_of(plan))


def told(plan, log, lag_seconds, size=50):
    """A stream whose watermark stays so far behind the latest event."""
    script = Script(plan)
    for low in range(0, len(log), size):
        script.events(log[low : low + size])
        script.watermark(max(time for _, _, time in log[: low + size]) // MICROS - START - lag_seconds)
    return script


@pytest.mark.parametrize(("sliding", "shards"), [(1, 2), (3, 3), (1, None)])
def test_the_transcript_is_that_of_the_oracle_and_of_monitor_stream(tmp_path, monkeypatch, sliding, shards):
    """Events come out of order, with the watermark that far behind; some lie outside the range."""
    counts = LocalCounter.install(monkeypatch)
    plan = small_names_plan(18, sliding=sliding, window_seconds=HALF_DAY * sliding, forget_after=4, most_looks=16)
    log = ordered_log(plan, 6)
    source = random.Random(3)
    mixed = sorted(log, key=lambda event: event[2] + source.randrange(25 * MICROS))
    named = expected_of(log, plan)
    assert sum(entry.was_known and not entry.nobody for entry in named) > 10
    expected = reports_of(named, settings_of(plan))
    found = told(plan, mixed, 25).run(key_file(tmp_path), **({"shards": shards} if shards else {}))
    assert found == expected
    assert counts[LATE_BATCHES] == 0
    assert counts[PAIRS_UNPAID] > 0
    assert Ran(tmp_path, {"": (MemoryStream.of(spread(arrivals_of(log), 2)), plan, {})}).reports[""] == expected


def test_a_window_is_reported_when_the_watermark_passes_its_end_and_not_before(tmp_path):
    plan = small_names_plan(8, forget_after=0)
    groups = [holders(window, range(60 * window, 60 * window + 50)) for window in (0, 1, 3, 4, 6)]
    log = [event for group in groups for event in group]
    first, second, fourth, fifth, seventh = reports_for(log, plan)
    script = Script(plan).mark("start").events(groups[1]).events(groups[0]).watermark(30).mark("half")
    script.watermark(59.998).mark("nearly").watermark(60).mark("first is due").watermark(119).mark("second is open")
    script.events(groups[2]).watermark(120).mark("second is due").events(groups[4]).events(groups[3])
    script.watermark(330).mark("a jump over four windows").watermark(480).mark("end")
    assert script.run(key_file(tmp_path)) == [
        *("start", "half", "nearly", first, "first is due", "second is open", second, "second is due"),
        *(fourth, fifth, "a jump over four windows", seventh, "end"),
    ]


def test_reports_carry_the_last_instant_of_their_window(tmp_path):
    """Also where windows come before their turn: nothing is late for whoever groups reports by window."""
    plan = small_names_plan(6, forget_after=0)
    log = [event for window in (4, 0, 2) for event in holders(window, range(60 * window, 60 * window + 50))]
    script = Script(plan).events(log)
    assert script.run(key_file(tmp_path)) == reports_for(log, plan)
    assert [stamp.micros for stamp in script.stamps] == [report.window_end - 1 for report in reports_for(log, plan)]


@pytest.mark.parametrize("closed_at", [60, 61])
def test_late_events_change_nothing_and_are_counted(tmp_path, monkeypatch, closed_at):
    """New items, more holders of a named item, a window that had no event in time; then life goes on."""
    counts = LocalCounter.install(monkeypatch)
    plan = small_names_plan(8, forget_after=0)
    in_time = [holders(0, range(50)), holders(2, range(100, 150)), holders(4, range(200, 250))]
    script = Script(plan).events(in_time[0]).watermark(closed_at).mark("closed")
    script.events(holders(0, range(50, 90), "too late")).events(holders(0, range(90, 140)))
    script.events(in_time[1]).watermark(182).mark("closed again")
    script.events(holders(1, range(300, 350))).events(holders(2, range(350, 390)))  # nobody was in window 1 in time
    script.events(in_time[2])
    found = script.run(key_file(tmp_path))
    first, second, third = reports_for([event for group in in_time for event in group], plan)
    assert found == [first, "closed", second, "closed again", third]
    assert counts[LATE_BATCHES] > 0
    assert counts[EVENTS_READ] == 3 * 50 + 40 + 50 + 50 + 40


def test_one_user_cannot_decide_whether_late_events_of_others_count(tmp_path):
    """Windows with 60 holders that come when the watermark stands at the end of the window: behind nobody, behind one
    user in time, and behind one late user. None may be named."""
    plan = small_names_plan(10, forget_after=0)
    script = Script(plan)
    for window, in_time, late in ((1, [], []), (3, [7], []), (5, [], [7])):
        script.events(holders(window, in_time, "whatever")).watermark(60 * (window + 1))
        script.events(holders(window, late, "whatever")).events(holders(window, range(100, 160)))
    in_time = holders(7, range(200, 250))
    (expected,) = reports_for(in_time, plan)
    assert script.events(in_time).run(key_file(tmp_path)) == [expected]


def test_a_batch_that_comes_again_is_not_paid_again(tmp_path, monkeypatch):
    """A source that delivers twice: into the open window, and after it has closed."""
    counts = LocalCounter.install(monkeypatch)
    plan = small_names_plan(4)
    first, second = holders(0, range(50)), holders(1, range(20, 70))
    script = Script(plan).events(first).events(first).watermark(60).mark("closed").events(first).watermark(90)
    script.events(second).watermark(120).mark("closed too").events(first).events(second)
    found = script.run(key_file(tmp_path))
    reports = reports_for(first + second, plan)
    assert [entry for entry in found if not isinstance(entry, str)] == reports
    assert found[:3] == [reports[0], "closed", reports[1]]
    assert counts[LATE_BATCHES] > 0


def test_known_items_are_looked_at_in_windows_without_events(tmp_path):
    """Twelve items are held in the first window, and nothing is held in the seventeen after it."""
    plan = small_names_plan(18, forget_after=4, known_error=0.12)
    log = [(f"u{user}", f"i{user % 12}", (START + 1) * MICROS) for user in range(120)]
    named = expected_of(log, plan)
    assert {entry.window for entry in named if not entry.nobody} == {0}
    assert len({entry.window for entry in named if entry.nobody}) > 3
    assert Script(plan).events(log).run(key_file(tmp_path)) == reports_of(named, settings_of(plan))


@pytest.mark.long
def test_a_known_domain_and_windows_without_events(tmp_path, monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    plan = small_names_plan(sliding=3, domain=DOMAIN)
    domain = ItemDomain.of_ids(DOMAIN)
    for log in (ordered_log(plan, 5), []):
        named = expected_of(log, plan, DOMAIN)
        assert sum(entry.nobody for entry in named) > 5
        script = told(plan, log, 0, 200)
        assert script.run(key_file(tmp_path), domain=domain, shards=2) == reports_of(named, settings_of(plan))
    assert counts[EVENTS_OUTSIDE_DOMAIN] > 0


@pytest.mark.parametrize("near", [64, 1, 4])
@pytest.mark.parametrize("seed", range(6))
def test_bundles_that_die_and_run_again_announce_each_window_once(seed, near, monkeypatch):
    """The step by itself: state and timer are stored together with what is sent, or nothing is. near: windows whose
    messages are counted apart from those of the windows behind them."""
    monkeypatch.setattr(close_by_watermark, "_LEAST_NEAR_WINDOWS", near)
    monkeypatch.setattr(close_by_watermark, "_FIRST", np.array([0, near], dtype="<i8").tobytes())
    schedule = small_names_plan(30).schedule
    source = random.Random(seed)
    do_fn, cell, later, alarm = CloseByWatermarkDoFn(schedule), Cell(), Bag(), Timer()
    waiting = sorted(source.randrange(30) for _ in range(120))
    in_time, groups, announced, watermark = dict.fromkeys(range(30), 0), {}, [], -1

    def keep(messages):
        for (window, shard), (number, blob) in messages:
            assert shard == 2
            count = groups.setdefault(window, GatheredCount())
            assert not count.is_complete(1), "nothing comes behind the announcement"
            count.add(number)
            if number:
                announced.append(window)
                assert blob == b""

    def bundle(run):
        before = cell.content, list(later.content), alarm.at
        while source.random() < 0.3:  # it dies when it is done, and nothing is kept
            run()
            cell.content, later.content, alarm.at = before[0], list(before[1]), before[2]
        return run()

    list(do_fn.process((2, (-1, b"")), cell, later, alarm))
    while len(announced) < 30:
        if waiting and source.random() < 0.6:
            window = waiting.pop(source.randrange(min(len(waiting), 9)))
            in_time[window] += window > watermark
            keep(bundle(lambda window=window: list(do_fn.process((2, (window, b"pairs")), cell, later, alarm))))
        else:
            watermark += source.choice([0, 1, 1, 5])
        while alarm.at is not None and alarm.at.micros < schedule.window_end_micros(watermark):

            def ring():
                alarm.at = None
                return [output.value for output in do_fn.announce_window(2, cell, later, alarm)]

            keep(bundle(ring))
    assert announced == list(range(30))
    assert {window: count.received - 1 for window, count in groups.items()} == in_time
    assert all(count.is_complete(1) for count in groups.values())


def test_what_a_message_writes_does_not_grow_with_the_windows_ahead():
    """The messages of 9,000 windows come before the first of these closes."""
    plan, written = small_names_plan(9000), []

    class Measured(Cell):
        def write(self, value):
            written.append(len(value))
            super().write(value)

    do_fn, cell, later, alarm = CloseByWatermarkDoFn(plan.schedule), Measured(), Bag(), Timer()
    list(do_fn.process((0, (-1, b"")), cell, later, alarm))
    for window in (*range(9000), *range(8999, -1, -3)):
        list(do_fn.process((0, (window, b"pairs")), cell, later, alarm))
    assert max(written) <= 16 + 16 * 64
    counts = [
        output.value[1].announced - 1 for _ in range(9000) for output in do_fn.announce_window(0, cell, later, alarm)
    ]
    assert counts == [2 if window % 3 == 2 else 1 for window in range(9000)]
    assert max(written) <= 16 + 32 * 9000**0.5
    assert later.content == []
