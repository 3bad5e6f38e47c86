"""The counters of hits: what is charged, and windows that are closed together."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor import heavy_hitter_monitor
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.user_budgets import HolderCounters, UserBudgets
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import monitor_settings
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import changed

users = st.sampled_from([0, 1, 2, 3, 5, 8, 2**63, 2**64 - 2, 2**64 - 1])
charges_strategy = st.lists(st.dictionaries(users, st.integers(1, 5), max_size=6), max_size=8)


def arrays(charges):
    ordered = sorted(charges)
    return np.array(ordered, dtype=np.uint64), np.array([charges[user] for user in ordered], dtype=np.uint32)


def total(charges):
    paid = {}
    for charge in charges:
        for user, hits in charge.items():
            paid[user] = paid.get(user, 0) + hits
    return paid


def assert_paid(budgets, expected):
    everybody = [0, 1, 2, 3, 4, 5, 8, 9, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    hits = budgets.hits(np.array(everybody, dtype=np.uint64))
    assert hits.tolist() == [expected.get(user, 0) for user in everybody]
    assert hits.dtype == np.uint32
    assert len(budgets) == len(expected), "only users that were ever charged"
    assert budgets.hits(np.array([5, 0, 5], dtype=np.uint64)).tolist() == [
        expected.get(5, 0),
        expected.get(0, 0),
        expected.get(5, 0),
    ]
    assert budgets.hits(np.zeros(0, dtype=np.uint64)).tolist() == []


@given(charges_strategy)
@settings(deadline=None)
def test_charges_add_up(charges):
    budgets = UserBudgets()
    for index, charge in enumerate(charges):
        budgets.charge(*arrays(charge))
        assert_paid(budgets, total(charges[: index + 1]))
    again = UserBudgets(budgets.to_blobs())
    assert_paid(again, total(charges))
    assert again.to_blobs() == budgets.to_blobs()
    again.charge(*arrays({3: 2}))
    assert_paid(again, total([*charges, {3: 2}]))


@given(charges_strategy)
@settings(deadline=None)
def test_places_that_were_found_before_the_charge_change_nothing(charges):
    """Also where only some of those that were looked for are charged."""
    everybody = np.array([0, 1, 2, 3, 4, 5, 8, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    searching, knowing = UserBudgets(), UserBudgets()
    for charge in charges:
        places = knowing.places(everybody)
        assert knowing.hits(everybody, places).tolist() == searching.hits(everybody).tolist()
        users, hits = arrays(charge)
        searching.charge(users, hits)
        knowing.charge(users, hits, places[np.isin(everybody, users)])
        assert knowing.to_blobs() == searching.to_blobs()


@given(charges_strategy)
@settings(deadline=None)
def test_what_each_window_charges_is_appended_and_counts_once(charges):
    """Without rewriting what is there, in any order, and also where a blob is there twice."""
    blobs = []
    for charge in charges:
        budgets = UserBudgets(blobs, are_noted=True)
        budgets.charge(*arrays(charge))
        appended = budgets.charged_blobs()
        assert len(appended) == bool(charge)
        blobs += appended
    assert_paid(UserBudgets(blobs), total(charges))
    assert UserBudgets([*reversed(blobs), *blobs]).to_blobs() == UserBudgets(blobs).to_blobs()


def test_two_million_users_in_small_blobs():
    """At most 16 bytes a user, in blobs under 10 MB."""
    count = 2_000_000
    everybody = np.arange(count, dtype=np.uint64) * np.uint64(9_223_372_036_854) + np.uint64(1)
    hits = (np.arange(count) % 7 + 1).astype(np.uint32)
    budgets = UserBudgets()
    budgets.charge(everybody, hits)
    blobs = budgets.to_blobs()
    assert max(map(len, blobs)) < 10_000_000
    assert sum(map(len, blobs)) <= 16 * count
    again = UserBudgets(blobs)
    assert len(again) == count
    assert np.array_equal(again.hits(everybody), hits)
    assert not again.hits(everybody + np.uint64(1)).any()


# --- The counters of many windows at once: the same as window by window, whatever is closed together.

ITEMS = ("a", "b", "c", "d")
USERS = [1, 2, 3, 5, 8, 2**32, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, *range(100, 130)]


def part_of(windows, source, keys, most=12):
    """Each item in each window, with up to so many holders; some cells have none."""
    table, positions = ItemTable.of_labels(pa.array(ITEMS), keys.hash_items)
    cells = [(window, item) for window in windows for item in sorted(positions.tolist())]
    held = [source.sample(USERS, source.randint(0, most)) for _ in cells]
    return ItemHolders(
        np.array([window for window, _ in cells], dtype=np.int64),
        np.array([item for _, item in cells], dtype=np.int64),
        np.cumsum([0, *map(len, held)]),
        np.array([user for users in held for user in users], dtype=np.uint64),
        table,
    )


def charged(users, hits):
    budgets = UserBudgets()
    ordered = sorted(zip(users, hits, strict=True))
    budgets.charge(
        np.array([user for user, _ in ordered], dtype=np.uint64), np.array([h for _, h in ordered], dtype=np.uint32)
    )
    return budgets


def test_each_row_has_the_counter_of_its_user_and_charges_go_back_to_it():
    keys = monitor_settings().stream_keys(SECRET)
    for seed in range(20):
        source = random.Random(seed)
        before = {user: source.randint(1, 4) for user in source.sample(USERS, source.choice([0, 15, len(USERS)]))}
        budgets = charged([*before], [*before.values()])
        parts = [part_of([window], source, keys) for window in range(source.randint(1, 4))]
        rows = [int(user) for part in parts for user in part.holders]
        counters = HolderCounters.of(parts, budgets)
        assert counters.users.tolist() == sorted(set(rows))
        assert counters.users[counters.user_of_row].tolist() == rows
        assert counters.hits.tolist() == [before.get(user, 0) for user in sorted(set(rows))]
        low, high = len(rows) // 3, len(rows) // 2
        some = counters.of_rows(low, high)
        assert some.users[some.user_of_row].tolist() == rows[low:high]
        now = {user: source.randint(1, 3) for user in source.sample(sorted(set(rows)), len(set(rows)) // 2)}
        for user, hits in now.items():
            some.hits[counters.users.tolist().index(user)] += np.uint32(hits)  # the same counters
        charges = counters.charge(budgets)
        assert dict(zip(charges.users.tolist(), charges.hits.tolist(), strict=True)) == now
        assert charges.users.tolist() == sorted(now)
        assert budgets.hits(np.array(USERS, dtype=np.uint64)).tolist() == [
            before.get(user, 0) + now.get(user, 0) for user in USERS
        ]
        assert len(budgets) == len({*before, *now})


# --- Many windows at once

WINDOWS = 30


def parts_of(seed, keys):
    """Of 30 windows of which some have no candidates, in parts of up to four windows."""
    source = random.Random(seed)
    left = [window for window in range(WINDOWS) if source.random() < 0.8]
    parts = []
    while left:
        size = source.randint(1, 4)
        parts.append(part_of(left[:size], source, keys, source.choice([3, 30])))
        left = left[size:]
    return parts


def settings_with(mode):
    schedule = WindowSchedule.fixed(0, WINDOWS, 1)
    return changed(monitor_settings(mode, threshold=6, hits=4), schedule=schedule)


def outcome(reports, state):
    return reports, state.budgets.to_blobs(), state.hit_bound, state.next_window


def one_by_one(chosen, keys, parts):
    """Each window on counters that were found for it alone."""
    monitor, state, reports = HeavyHitterMonitor(chosen, keys), MonitorState(), []
    for part in parts:
        for window, cells in part.by_window():
            report, _ = monitor.close_window(window, part.select_range(cells), state)
            reports += [] if report is None else [(window, report)]
    return outcome(reports, state)


def all_at_once(chosen, keys, parts):
    state = MonitorState()
    return outcome(list(HeavyHitterMonitor(chosen, keys).close_windows(iter(parts), state)), state)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
def test_windows_that_are_closed_together_say_and_charge_the_same(mode, monkeypatch):
    chosen = settings_with(mode)
    keys = chosen.stream_keys(SECRET)
    reported = excluded = 0
    for seed in range(10):
        parts = parts_of(seed, keys)
        expected = one_by_one(chosen, keys, parts)
        for rows in (0, 40, 150, 10**6):
            monkeypatch.setattr(heavy_hitter_monitor, "_ROWS_AT_ONCE", rows)
            assert all_at_once(chosen, keys, parts) == expected
        reported += len(expected[0])
        hits = UserBudgets(expected[1]).hits(np.array(USERS, dtype=np.uint64))
        assert hits.max() <= chosen.hits_per_user
        excluded += int((hits == chosen.hits_per_user).sum())
    assert reported > 50
    assert excluded > 50


def test_what_is_yielded_is_in_the_state(monkeypatch):
    """Whoever stops in between has a state that says at least what was published."""
    chosen = settings_with("hits-with-counts")
    keys = chosen.stream_keys(SECRET)
    parts = parts_of(3, keys)
    monkeypatch.setattr(heavy_hitter_monitor, "_ROWS_AT_ONCE", 100)
    state = MonitorState()
    closed = HeavyHitterMonitor(chosen, keys).close_windows(iter(parts), state)
    window, _ = next(closed)
    rest = [*one_by_one(chosen, keys, parts)[0]]
    assert rest[0][0] == window < state.next_window < WINDOWS
    before = UserBudgets(state.budgets.to_blobs())
    assert len(before) > 0
    after = MonitorState(state.next_window, state.hit_bound, before)
    left = [part for part in parts if part.windows[0] >= state.next_window]
    again = list(HeavyHitterMonitor(chosen, keys).close_windows(left, after))
    assert again == [found for found in rest if found[0] >= state.next_window]
    assert again


@pytest.mark.parametrize("windows", [[[4], [4]], [[4], [3]], [[3, 4], [WINDOWS]], [[2]], [[5, 4]]])
def test_windows_out_of_order_are_refused_before_anything_is_charged(windows):
    chosen = settings_with("hits-with-counts")
    keys = chosen.stream_keys(SECRET)
    source = random.Random(0)
    state = MonitorState(next_window=3)
    parts = [part_of(of_part, source, keys, 30) for of_part in windows]
    with pytest.raises(ValueError, match=r"cannot be closed: the open windows are \d+ \.\. 29"):
        list(HeavyHitterMonitor(chosen, keys).close_windows(parts, state))
    assert outcome([], state) == ([], [], 0, 3)


def test_no_candidates_close_nothing():
    chosen = settings_with("hits")
    state = MonitorState()
    monitor = HeavyHitterMonitor(chosen, chosen.stream_keys(SECRET))
    assert list(monitor.close_windows([], state)) == []
    assert list(monitor.close_windows([ItemHolders.none(), ItemHolders.none()], state)) == []
    assert outcome([], state) == ([], [], 0, 0)


def test_the_more_counters_there_are_the_more_windows_are_closed_together(monkeypatch):
    """All counters are gone through once for each group, so a run does not take a square of its users."""
    chosen = settings_with("hits-with-counts")
    keys = chosen.stream_keys(SECRET)
    parts = parts_of(5, keys)
    monkeypatch.setattr(heavy_hitter_monitor, "_ROWS_AT_ONCE", 1)
    seen = []
    original = HolderCounters.of

    def of(parts, budgets):
        seen.append(sum(len(part.holders) for part in parts))
        return original(parts, budgets)

    monkeypatch.setattr(HolderCounters, "of", of)
    everybody = np.arange(8 * 500, dtype=np.uint64) << np.uint64(40)
    budgets = UserBudgets()
    budgets.charge(everybody, np.ones(len(everybody), dtype=np.uint32))
    largest = max(len(part.holders) for part in parts)
    for state, least in ((MonitorState(), 0), (MonitorState(budgets=budgets), 500 - largest)):
        seen.clear()
        list(HeavyHitterMonitor(chosen, keys).close_windows(parts, state))
        assert min(seen[:-1]) > least
        assert max(seen) <= max(largest, 500 if least else 0)
        assert sum(seen) == sum(len(part.holders) for part in parts)
