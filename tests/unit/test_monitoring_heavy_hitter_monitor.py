"""The sequential stage: order, pruning, charges and what a report says. Keys are fixed; nothing here is statistical."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.user_budgets import UserBudgets
from dp_transforms.monitor.window_report import ABOVE, BETWEEN, HeavyHitter, release_order
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trials import changed, hits_trial

SCHEDULE = WindowSchedule(100, 180, 20, 10)


def monitor_settings(mode="hits-with-counts", **changes):
    chosen = hits_trial(
        stream="news",
        run_id="run 1",
        fingerprint="plan 1",
        schedule=SCHEDULE,
        mode=mode,
        threshold=4,
        zone_width=2 if mode == "hits" else 0,
        epsilon_per_query=0.8,
        hits_per_user=2,
        max_items_per_user=3,
        epsilon=3.0,
        delta=1e-6,
        epsilon_after_hits=(1.5, 3.0),
    )
    return changed(chosen, **changes)


def keys_of(chosen, key=0):
    return chosen.stream_keys(bytes([key]) * 32)


def cells_of(log, keys):
    labels = sorted({item for held in log.values() for item in held})
    table, positions = ItemTable.of_labels(pa.array(labels, pa.string()), keys.hash_items)
    at = {label: int(position) for label, position in zip(labels, positions, strict=True)}
    rows = sorted((window, at[item], user) for window, held in log.items() for item in held for user in held[item])
    groups = [(cell, [user for *_, user in part]) for cell, part in itertools.groupby(rows, key=lambda row: row[:2])]
    return ItemHolders(
        np.array([window for (window, _), _ in groups], dtype=np.int64),
        np.array([item for (_, item), _ in groups], dtype=np.int64),
        np.cumsum([0, *(len(holders) for _, holders in groups)]),
        np.array([user for _, holders in groups for user in holders], dtype=np.uint64),
        table,
    )


_BUSY = {window: {item: set(range(10)) for item in "abcd"} for window in range(6)}


# --- Order of windows


def _close(window, state, holders=40, chosen=None):
    """One item held by so many users, far above the threshold at noise of scale 1/8."""
    chosen = chosen or monitor_settings(epsilon_per_query=8.0)
    keys = keys_of(chosen)
    cells = cells_of({window: {"a": set(range(1000 * abs(window), 1000 * abs(window) + holders))}}, keys)
    return HeavyHitterMonitor(chosen, keys).close_window(window, cells, state)


def test_windows_close_once_and_in_order():
    state = MonitorState()
    for window in (0, 1, 5):
        assert _close(window, state)[0] is not None
        assert state.next_window == window + 1
    before = state.budgets.to_blobs()
    for window in (5, 4, 0, -1):
        with pytest.raises(
            ValueError, match=rf"window {window} cannot be closed: the open windows are 6 \.\. {SCHEDULE.horizon - 1}"
        ):
            _close(window, state)
    assert state.next_window == 6
    assert state.budgets.to_blobs() == before, "a refused window costs nothing"


def test_windows_beyond_the_horizon_are_refused():
    state = MonitorState()
    for window in (SCHEDULE.horizon, SCHEDULE.horizon + 7, 2**40):
        with pytest.raises(ValueError, match="cannot be closed"):
            _close(window, state)
    assert _close(SCHEDULE.horizon - 1, state)[0] is not None
    with pytest.raises(ValueError, match="cannot be closed"):
        _close(SCHEDULE.horizon, state)


def test_a_window_without_candidates_reports_nothing_and_costs_nothing():
    chosen = monitor_settings()
    keys = keys_of(chosen)
    state = MonitorState()
    cells = cells_of({0: {"a": {1}}}, keys).select(np.zeros(0, dtype=np.int64))
    report, charges = HeavyHitterMonitor(chosen, keys).close_window(0, cells, state)
    assert report is None
    assert len(charges.users) == len(charges.hits) == len(state.budgets) == state.hit_bound == 0
    assert state.next_window == 1
    assert len(find_candidates(cells, chosen, keys)) == 0


# --- What a report says


def test_fields_of_a_report():
    report, charges = _close(2, MonitorState())
    [hitter] = report.heavy_hitters
    assert hitter.item == "a"
    assert hitter.zone is None
    assert abs(hitter.noisy_count - 40) <= 4
    assert (report.stream, report.epsilon_total, report.delta) == ("news", 3.0, 1e-6)
    assert (report.window_start, report.window_end) == (110_000_000, 130_000_000)
    assert charges.users.tolist() == [*range(2000, 2040)]
    assert charges.hits.tolist() == [1] * 40


def test_the_running_figure_is_a_function_of_what_was_charged_in_public():
    """Entry h of the table after at most h hits: the "+ 1" of docs/guarantee.md, "Claim (running figure)"."""
    chosen = monitor_settings(epsilon_per_query=8.0, hits_per_user=4, epsilon_after_hits=(1.0, 1.7, 2.3, 3.0))
    state = MonitorState()
    assert [_close(window, state, chosen=chosen)[0].epsilon_spent for window in range(5)] == [1.7, 2.3, 3.0, 3.0, 3.0]
    assert state.hit_bound == 5
    # A window adds at most max_items_per_user, however many of its results are charged.
    keys = keys_of(chosen)
    log = {5: {item: set(range(40)) for item in "abcdefgh"}}
    state = MonitorState()
    one_item = changed(chosen, max_items_per_user=2)
    report, _ = HeavyHitterMonitor(one_item, keys).close_window(5, cells_of(log, keys), state)
    assert len(report.heavy_hitters) == 4, "then all holders have paid"
    assert state.hit_bound == 2
    assert report.epsilon_spent == 2.3


def test_above_is_free_and_has_no_count():
    chosen = monitor_settings("hits", epsilon_per_query=8.0)
    state = MonitorState()
    for window in range(3):
        report, charges = _close(window, state, chosen=chosen)
        assert list(report.heavy_hitters) == [HeavyHitter("a", ABOVE, None)]
        assert report.epsilon_spent == chosen.epsilon_after_hits[0]
        assert len(charges.users) == 0
    assert len(state.budgets) == state.hit_bound == 0
    report, charges = _close(3, state, holders=5, chosen=chosen)
    assert list(report.heavy_hitters) == [HeavyHitter("a", BETWEEN, 5)]
    assert charges.hits.tolist() == [1] * 5


hitter_strategy = st.one_of(
    st.builds(HeavyHitter, st.text(max_size=3), st.just(ABOVE), *[st.none()] * 3),
    st.builds(HeavyHitter, st.text(max_size=3), st.sampled_from([BETWEEN, None]), st.integers(0, 5), *[st.none()] * 2),
)
named_strategy = st.builds(
    HeavyHitter, st.text(max_size=3), st.none(), st.none(), st.integers(1, 3), st.integers(0, 3) | st.none()
)


@given(st.lists(hitter_strategy, max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_a_report_is_a_function_of_what_it_says(hitters, order):
    """Above first, then by falling count, then by label."""
    expected = sorted(hitters, key=release_order)
    order.shuffle(hitters)
    by_value = sorted(hitters, key=release_order)
    assert [release_order(hitter) for hitter in by_value] == [release_order(hitter) for hitter in expected]
    zones = [hitter.zone == ABOVE for hitter in by_value]
    assert zones == sorted(zones, reverse=True)
    counts = [hitter.noisy_count for hitter in by_value if hitter.zone != ABOVE]
    assert counts == sorted(counts, reverse=True)
    for first, second in itertools.pairwise(by_value):
        sizes = [(each.zone == ABOVE, each.noisy_count) for each in (first, second)]
        assert sizes[0] != sizes[1] or first.item <= second.item


@given(st.lists(named_strategy, max_size=8), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_report_of_names_has_the_highest_level_first_then_the_most_users_then_the_label(hitters, order):
    expected = sorted(hitters, key=release_order)
    order.shuffle(hitters)
    assert [release_order(hitter) for hitter in sorted(hitters, key=release_order)] == list(
        map(release_order, expected)
    )
    for first, second in itertools.pairwise(expected):
        assert (first.level or 0) >= (second.level or 0)
        if first.level == second.level:
            assert (first.at_least_users or 0) >= (second.at_least_users or 0)
            if (first.at_least_users or 0) == (second.at_least_users or 0):
                assert first.item <= second.item


def test_a_monitor_holds_no_state_of_its_own():
    """The same window twice from equal states gives the same: what a retry of a bundle relies on."""
    chosen = monitor_settings("hits")
    keys = keys_of(chosen, 3)
    monitor = HeavyHitterMonitor(chosen, keys)
    candidates = find_candidates(cells_of(_BUSY, keys), chosen, keys)
    results = []
    for _ in range(2):
        state = MonitorState(budgets=UserBudgets())
        results.append(
            [
                monitor.close_window(window, candidates.select_range(part), state)[0]
                for window, part in candidates.by_window()
            ]
        )
    assert results[0] == results[1]
