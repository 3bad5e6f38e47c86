"""The sequential stage: order, charges, what a report says, windows that are closed together. Keys are fixed."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import close_window, monitor_settings
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import changed, hits_trial

SCHEDULE = WindowSchedule(100, 180, 20, 10)


def news_settings(mode="hits-with-counts", **changes):
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
        np.array([len(holders) for _, holders in groups], dtype=np.int64),
        np.array([user for _, holders in groups for user in holders], dtype=np.uint64),
        table,
    )


def _close(window, state, holders=40, chosen=None):
    """One item held by so many users, far above the threshold at noise of scale 1/8."""
    chosen = chosen or news_settings(epsilon_per_query=8.0)
    keys = keys_of(chosen)
    cells = cells_of({window: {"a": set(range(1000 * abs(window), 1000 * abs(window) + holders))}}, keys)
    return close_window(HeavyHitterMonitor(chosen, keys), window, cells, state)


def test_windows_close_once_and_in_order():
    state = MonitorState()
    for window in (0, 1, 5):
        assert _close(window, state) is not None
        assert state.next_window == window + 1
    before = state.budgets.chunks()
    for window in (5, 4, 0, -1):
        with pytest.raises(
            ValueError, match=rf"window {window} cannot be closed: the open windows are 6 \.\. {SCHEDULE.horizon - 1}"
        ):
            _close(window, state)
    assert state.next_window == 6
    assert state.budgets.chunks() == before, "a refused window costs nothing"


def test_the_running_figure_is_a_function_of_what_was_charged_in_public():
    """Entry h of the table after at most h hits: the "+ 1" of docs/guarantee.md, "Claim (running figure)"."""
    chosen = news_settings(epsilon_per_query=8.0, hits_per_user=4, epsilon_after_hits=(1.0, 1.7, 2.3, 3.0))
    state = MonitorState()
    assert [_close(window, state, chosen=chosen).epsilon_spent for window in range(5)] == [1.7, 2.3, 3.0, 3.0, 3.0]
    assert state.hit_bound == 5
    # A window adds at most max_items_per_user, however many of its results are charged.
    keys = keys_of(chosen)
    log = {5: {item: set(range(40)) for item in "abcdefgh"}}
    state = MonitorState()
    one_item = changed(chosen, max_items_per_user=2)
    report = close_window(HeavyHitterMonitor(one_item, keys), 5, cells_of(log, keys), state)
    assert len(report.heavy_hitters) == 4, "then all holders have paid"
    assert state.hit_bound == 2
    assert report.epsilon_spent == 2.3


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
    assert len(restored(budgets.chunks())) == len(expected), "only users that were ever charged"
    assert budgets.hits(np.zeros(0, dtype=np.uint64)).tolist() == []


def restored(chunks):
    return ContributionCounters(map(HitEntries.from_bytes, chunks))


def charge_users(budgets, users, hits):
    budgets.add(HitEntries(users, budgets.hits(users) + hits))


@given(charges_strategy)
def test_what_each_window_charges_is_appended_and_counts_once(charges):
    """Without rewriting what is there, in any order, and also where a blob is there twice."""
    blobs = []
    for charge in charges:
        budgets = restored(blobs)
        charge_users(budgets, *arrays(charge))
        appended = budgets.delta()
        assert len(appended) == bool(charge)
        blobs += appended
    assert_paid(restored(blobs), total(charges))
    assert restored([*reversed(blobs), *blobs]).chunks() == restored(blobs).chunks()


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
        np.array([*map(len, held)], dtype=np.int64),
        np.array([user for users in held for user in users], dtype=np.uint64),
        table,
    )


def charged(users, hits):
    budgets = ContributionCounters()
    order = np.argsort(np.array(users, dtype=np.uint64))
    charge_users(budgets, np.array(users, dtype=np.uint64)[order], np.array(hits, dtype=np.uint32)[order])
    return budgets


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
    return reports, state.budgets.chunks(), state.hit_bound, state.next_window


def one_by_one(chosen, keys, parts):
    """Each window on counters that were found for it alone."""
    monitor, state, reports = HeavyHitterMonitor(chosen, keys), MonitorState(), []
    for part in parts:
        for window, cells in part.by_window():
            report = close_window(monitor, window, part.select_range(cells), state)
            reports += [] if report is None else [(window, report)]
    return outcome(reports, state)


def test_what_is_yielded_is_in_the_state():
    """Whoever stops in between has a state that says at least what was published."""
    chosen = settings_with("hits-with-counts")
    keys = chosen.stream_keys(SECRET)
    parts = parts_of(3, keys)
    state = MonitorState()
    closed = HeavyHitterMonitor(chosen, keys).close_windows(iter(parts), state)
    window, _ = next(closed)
    rest = [*one_by_one(chosen, keys, parts)[0]]
    assert rest[0][0] == window < state.next_window < WINDOWS
    before = restored(state.budgets.chunks())
    assert len(before) > 0
    after = MonitorState(state.next_window, state.hit_bound, before)
    left = [part for part in parts if part.windows[0] >= state.next_window]
    again = list(HeavyHitterMonitor(chosen, keys).close_windows(left, after))
    assert again == [found for found in rest if found[0] >= state.next_window]
    assert again
