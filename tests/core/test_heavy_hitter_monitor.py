"""The sequential stage: order, charges, and what a report says of them. Keys are fixed."""

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
from tests.helpers.trials import changed

WINDOWS = 30
TRIAL = changed(
    monitor_settings(hits=4, epsilon=8.0),
    schedule=WindowSchedule.fixed(0, WINDOWS, 1),
    epsilon_after_hits=(1.0, 1.7, 2.3, 3.0),
)
KEYS = TRIAL.stream_keys(SECRET)
MONITOR = HeavyHitterMonitor(TRIAL, KEYS)


def candidates(log):
    """log: window -> item -> users."""
    labels = sorted({item for held in log.values() for item in held})
    table, places = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
    at = dict(zip(labels, places.tolist(), strict=True))
    held = sorted((window, at[item], sorted(users)) for window, items in log.items() for item, users in items.items())
    windows, items, users = zip(*held, strict=True)
    everybody = np.array([*itertools.chain(*users)], dtype=np.uint64)
    return ItemHolders(np.array(windows), np.array(items), np.array([*map(len, users)]), everybody, table)


def close(window, state, monitor=MONITOR, items="a"):
    """Items of 40 users who are there in no other window: far above the threshold at noise of scale 1/8."""
    users = range(1000 * abs(window), 1000 * abs(window) + 40)
    return close_window(monitor, window, candidates({window: dict.fromkeys(items, users)}), state)


def test_windows_close_once_and_in_order():
    state = MonitorState()
    for window in (0, 1, 5):
        assert close(window, state) is not None
        assert state.next_window == window + 1
    before = state.budgets.chunks()
    for window in (5, 4, 0, -1, WINDOWS):
        with pytest.raises(ValueError, match=rf"window {window} cannot be closed: the open windows are 6 \.\. 29"):
            close(window, state)
    assert state.next_window == 6
    assert state.budgets.chunks() == before, "a refused window costs nothing"


def test_the_running_figure_is_a_function_of_what_was_charged_in_public():
    """Entry h of the table after at most h hits: the "+ 1" of docs/guarantee.md, "Claim (running figure)"."""
    state = MonitorState()
    assert [close(window, state).epsilon_spent for window in range(5)] == [1.7, 2.3, 3.0, 3.0, 3.0]
    assert state.hit_bound == 5
    # A window adds at most max_items_per_user, however many of its results are charged.
    state, monitor = MonitorState(), HeavyHitterMonitor(changed(TRIAL, max_items_per_user=2), KEYS)
    report = close(5, state, monitor, "abcdefgh")
    assert len(report.heavy_hitters) == 4, "then all holders have paid"
    assert (state.hit_bound, report.epsilon_spent) == (2, 2.3)


def test_whoever_stops_in_between_has_a_state_that_says_what_was_published():
    draws = random.Random(3)
    log = {window: {item: draws.sample(range(40), draws.randrange(1, 9)) for item in "abcd"} for window in range(30)}
    parts = [candidates({window: log[window] for window in range(first, first + 3)}) for first in range(0, 30, 3)]
    whole = [*MONITOR.close_windows(parts, MonitorState())]
    assert len(whole) > 10
    for stop in range(1, len(whole)):
        state = MonitorState()
        published = [*itertools.islice(MONITOR.close_windows(parts, state), stop)]
        assert published == whole[:stop]
        assert published[-1][0] < state.next_window
        after = MonitorState(state.next_window, state.hit_bound, restored(state.budgets.chunks()))
        left = [part for part in parts if part.windows[0] >= state.next_window]
        again = [*MONITOR.close_windows(left, after)]
        assert again == [found for found in whole if found[0] >= state.next_window]


USERS = [0, 1, 2, 3, 5, 8, 2**63, 2**64 - 2, 2**64 - 1]


def restored(chunks):
    return ContributionCounters(map(HitEntries.from_bytes, chunks))


@given(st.lists(st.dictionaries(st.sampled_from(USERS), st.integers(1, 5), max_size=6), max_size=8))
def test_what_each_window_charges_is_appended_and_counts_once(charges):
    """Without rewriting what is there, in any order, and also where a chunk is there twice."""
    chunks, paid = [], {}
    for charge in charges:
        counters = restored(chunks)
        users = np.array(sorted(charge), dtype=np.uint64)
        hits = np.array([charge[user] for user in sorted(charge)], dtype=np.uint32)
        counters.add(HitEntries(users, counters.hits(users) + hits))
        chunks += counters.delta()
        paid |= {user: paid.get(user, 0) + hits for user, hits in charge.items()}
    assert len(chunks) == sum(map(bool, charges))
    found = restored(chunks)
    everybody = sorted([*USERS, 4, 2**63 - 1])
    assert found.hits(np.array(everybody, dtype=np.uint64)).tolist() == [paid.get(user, 0) for user in everybody]
    assert len(restored(found.chunks())) == len(paid), "only users that were ever charged"
    assert restored([*reversed(chunks), *chunks]).chunks() == found.chunks()
