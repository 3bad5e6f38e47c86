"""`ThresholdMonitorEvolvingDoFn` on state that the test holds: what it does with each pane, firing and retry."""

from __future__ import annotations

import copy
import itertools

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming

from dp_transforms.beam import close_windows
from dp_transforms.beam.assign_windows import PackPairsDoFn
from dp_transforms.beam.bound_contributions import BoundContributionsDoFn
from dp_transforms.beam.find_candidates import FindCandidatesDoFn
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.user_budgets import UserBudgets
from dp_transforms.workers.pack_pairs import PackPairs
from tests.helpers.beam_pipelines import LocalCounter
from tests.helpers.do_fn_state import ON_TIME, SHARDS, HeldSecret, Monitor, candidates_of, grouped_by_key
from tests.helpers.oracle import oracle_reports
from tests.helpers.small_runs import MICROS, SECRET, START, batch_of, settings_of, small_plan

SECOND = PaneInfo(False, False, PaneInfoTiming.LATE, 1, 1)


def window_log(window, users, items=("news",)):
    return [(f"u{user}", item, (START + 60 * window + 1) * MICROS) for user in users for item in items]


ITEMS = ("a", "sport", "music", "film")  # under this key they lie in both shards


@pytest.fixture
def counts(monkeypatch):
    return LocalCounter.install(monkeypatch)


@pytest.fixture
def plan():
    return small_plan(200, hits_per_user=5, max_items_per_user=4)


def log_of(*windows):
    return [event for window in windows for event in window_log(window, range(30 * window, 30 * window + 30), ITEMS)]


def test_both_item_shards_matter_here(plan):
    assert [(slab, shard) for slab, shard, _ in candidates_of(plan, log_of(3))] == [(3, 0), (3, 1)]


def test_the_timer_is_set_to_the_end_of_the_earliest_window_in_whole_milliseconds(plan):
    late, early = candidates_of(plan, log_of(7)), candidates_of(plan, log_of(3))
    monitor = Monitor(plan).take(*late)
    assert monitor.state["close"].at == Timestamp(micros=(START + 8 * 60) * MICROS - 1000)
    monitor.take(*early)
    assert monitor.state["close"].at == Timestamp(micros=(START + 4 * 60) * MICROS - 1000)
    monitor.take(*candidates_of(plan, log_of(5)))
    assert monitor.state["close"].at == Timestamp(micros=(START + 4 * 60) * MICROS - 1000)


def test_one_firing_closes_one_window_and_sets_the_timer_for_the_next(plan, counts):
    monitor = Monitor(plan).take(*reversed(candidates_of(plan, log_of(3, 5, 7))))
    expected = oracle_reports(log_of(3, 5, 7), settings_of(plan), SECRET)
    assert len(expected) == 3
    for report, following in zip(expected, (5, 7, None), strict=True):
        assert monitor.fire() == [(report, Timestamp(micros=report.window_end - 1))]
        at = None if following is None else Timestamp(micros=(START + 60 * (following + 1)) * MICROS - 1000)
        assert monitor.state["close"].at == at
    assert monitor.fire() == []
    assert monitor.state["pending"].content == []
    assert counts[LATE_BATCHES] == 0


def test_bounded_input_waits_for_the_end_of_time_and_drains_at_once(plan):
    monitor = Monitor(plan, is_bounded=True).take(*reversed(candidates_of(plan, log_of(3, 5, 7))))
    assert monitor.state["close"].at == GlobalWindow().max_timestamp()
    assert [report for report, _ in monitor.fire()] == oracle_reports(log_of(3, 5, 7), settings_of(plan), SECRET)
    assert monitor.state["close"].at is None
    assert monitor.fire() == []


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_second_pane_of_a_group_of_items_is_not_tested(plan, counts, is_bounded):
    """The items of a shard would be tested twice in one window, which nobody has paid for."""
    log = log_of(3)
    candidates = candidates_of(plan, log)
    more = candidates_of(plan, log + window_log(3, range(500, 560), ITEMS))
    monitor = Monitor(plan, is_bounded=is_bounded).take(*candidates, *candidates, *more)
    assert monitor.drain() == oracle_reports(log, settings_of(plan), SECRET)
    assert counts[LATE_BATCHES] == 4


def test_what_comes_for_a_closed_window_is_dropped_and_counted(plan, counts):
    log = log_of(3)
    monitor = Monitor(plan).take(*candidates_of(plan, log))
    assert monitor.drain() == oracle_reports(log, settings_of(plan), SECRET)
    monitor.take(*candidates_of(plan, log), *candidates_of(plan, log_of(1)), *candidates_of(plan, log_of(2)))
    assert counts[LATE_BATCHES] == 6
    assert monitor.state["close"].at is None
    assert monitor.state["pending"].content == []
    assert monitor.fire() == []


def test_a_window_that_is_closed_without_candidates_of_one_shard_stays_closed_for_it(plan, counts):
    """A shard that comes after the timer has fired: its items were not tested in time, and are not tested now."""
    first, second = candidates_of(plan, log_of(3))
    monitor = Monitor(plan).take(first)
    assert len(monitor.drain()) == 1
    monitor.take(second)
    assert monitor.drain() == []
    assert counts[LATE_BATCHES] == 1


def test_a_firing_that_runs_twice_publishes_one_answer(plan):
    """The runner throws away an attempt and its state, and begins again from the state before it."""
    monitor = Monitor(plan).take(*candidates_of(plan, log_of(3, 5)))
    monitor.fire()
    before = copy.deepcopy(monitor.state)
    first = monitor.fire()
    monitor.state = before
    assert first
    assert monitor.fire() == first


def test_budgets_are_compacted_and_lose_nothing(plan):
    """150 windows, each with charges of its own: blobs pile up to the limit, are merged, and pile up again."""
    windows = range(150)
    log = [event for window in windows for event in window_log(window, range(5 * window, 5 * window + 30), ("a", "b"))]
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert len(expected) > 140
    monitor = Monitor(plan).take(*candidates_of(plan, log))
    found, blobs = [], []
    while monitor.state["close"].at is not None:
        found += [report for report, _ in monitor.fire()]
        blobs.append(len(monitor.state["budgets"].content))
        assert max(UserBudgets(monitor.state["budgets"].content)._hits) <= plan.hits_per_user
    assert found == expected
    assert 60 < max(blobs) <= close_windows._BLOBS_BEFORE_COMPACTION + 3
    assert sum(after < before for before, after in itertools.pairwise(blobs)) == 2


@pytest.mark.parametrize("do_fn_type", [BoundContributionsDoFn, FindCandidatesDoFn])
def test_only_the_first_pane_of_a_grouping_counts(plan, counts, do_fn_type):
    """A second pane would be a second contribution of its users, or a second test of its items."""
    packed = PackPairsDoFn(settings_of(plan), PackPairs(plan.schedule, Sharding(1, SHARDS)), HeldSecret(), stamp=False)
    bound = BoundContributionsDoFn(settings_of(plan), HeldSecret(), Sharding(1, SHARDS))
    packed.setup()
    bound.setup()
    groups = grouped_by_key(packed.process(batch_of(log_of(3))))
    if do_fn_type is FindCandidatesDoFn:
        groups = grouped_by_key(out for group in groups for out in bound.process(group, ON_TIME))
        do_fn = FindCandidatesDoFn(settings_of(plan), HeldSecret())
        do_fn.setup()
    else:
        do_fn = bound
    key, blobs = groups[0]
    assert list(do_fn.process((key, blobs), ON_TIME))
    assert counts[LATE_BATCHES] == 0
    assert list(do_fn.process((key, blobs), SECOND)) == []
    assert counts[LATE_BATCHES] == len(blobs) > 0
