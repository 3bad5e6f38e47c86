"""UserBudgets and pace against an oracle in plain integers: weights, what is left, and what is stored."""

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.user_budgets import MOST_TESTS, BudgetEntries, BudgetPacing, UserBudgets
from dp_transforms.plan.records import Rounds
from dp_transforms.plan.window_schedule import MOST_WINDOWS, WindowSchedule
from tests.helpers.core_runs import MICROS, START, naming_settings
from tests.helpers.small_runs import SECRET, batch_of
from tests.helpers.trials import changed
from tests.reference.budgets import Wallet, stream_weights

HOUR, DAY = 3600, 24 * 3600


def settings_for(windows, slide_seconds=HOUR, most_tests=8, sliding=1, **numbers):
    schedule = WindowSchedule(START, START + windows * slide_seconds, sliding * slide_seconds, slide_seconds)
    return changed(naming_settings(most_tests=most_tests), schedule=schedule, **numbers)


def event(user, item, window, chosen):
    return user, item, (START + window * chosen.schedule.slide_seconds) * MICROS + 7


def pairs_by_window(log, chosen, keys):
    return {
        window: pairs
        for window, _, pairs in contributions_of_events(
            batch_of(log), chosen.schedule, keys, windows_per_range=1, shards=1
        )
    }


def restored(chosen, keys, chunks):
    return UserBudgets(chosen, keys, [BudgetEntries.from_bytes(chunk) for chunk in chunks])


class Store:
    """Cells as an engine keeps them: in no particular order, and rewritten now and then."""

    def __init__(self, chosen, keys, source):
        self.chosen, self.keys, self.source = chosen, keys, source
        self.cells = []

    def spend(self, pairs, window):
        """One window by a worker that has just started."""
        budgets = restored(self.chosen, self.keys, self.cells)
        weights = budgets.spend(pairs, window)
        if self.source.random() < 0.2:
            self.cells = budgets.chunks()
        else:
            self.cells = [*self.cells, *budgets.delta()]
        self.source.shuffle(self.cells)
        return weights

    def left(self, users):
        entries = BudgetEntries.of_messages(self.cells)
        stored = dict(zip(entries.users.tolist(), entries.left.tolist(), strict=True))
        return [stored.get(user, BUDGET_UNITS) for user in users]


def weights_of(log, chosen, source=None):
    """``{(window, item label, user hash): weight > 0}``, with the state written and read between any two windows."""
    keys = chosen.stream_keys(SECRET)
    store = Store(chosen, keys, source or random.Random(1))
    found = {}
    for window, pairs in sorted(pairs_by_window(log, chosen, keys).items()):
        users, items = pairs.users[pairs.codes].tolist(), pairs.table.labels.take(pairs.items).to_pylist()
        for user, item, weight in zip(users, items, store.spend(pairs, window).tolist(), strict=True):
            if weight:
                found[window, item, user] = weight
    return found, store


def hashes_of(users, keys):
    log = [(user, "item", START * MICROS) for user in users]
    hashed = keys.hash_users(batch_of(log).user.dictionary)[:, 0].tolist()
    return dict(zip(users, hashed, strict=True))


def expected_weights(log, chosen, wallets=None):
    keys = chosen.stream_keys(SECRET)
    of_cells = stream_weights(log, chosen, keys, wallets)
    hashed = hashes_of(sorted({user for user, _, _ in log}), keys) if log else {}
    return {
        (window, item, hashed[user]): weight
        for (window, item), of_cell in of_cells.items()
        for user, weight in of_cell.items()
    }


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.integers(-1, 12)), max_size=90),
    slide=st.sampled_from([10, HOUR, 7 * HOUR, DAY, 10 * DAY]),
    sliding=st.sampled_from([1, 3]),
    most_tests=st.sampled_from([1, 2, 8, 40]),
    source=st.randoms(use_true_random=False),
)
def test_weights_and_what_is_left_are_those_of_the_oracle(rows, slide, sliding, most_tests, source):
    chosen = settings_for(12, slide, most_tests, sliding)
    log = [event(user, f"item {item}", window, chosen) for user, item, window in rows]
    wallets = {}
    found, store = weights_of(log, chosen, source)
    assert found == expected_weights(log, chosen, wallets)
    hashed = hashes_of(sorted(wallets), chosen.stream_keys(SECRET)) if wallets else {}
    assert store.left(hashed.values()) == [wallets[user].left for user in hashed]


wide = st.one_of(st.integers(0, 40), st.integers(0, MOST_TESTS), st.just(MOST_TESTS))


@given(
    tests=st.one_of(st.integers(1, 50), st.integers(1, 2**40)),
    left=st.one_of(st.integers(0, 10**12), st.integers(0, 50), st.sampled_from([0, 10**12])),
    tests_before=wide,
    horizon=st.one_of(st.integers(1, 5), st.integers(1, MOST_WINDOWS), st.just(MOST_WINDOWS)),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    second=st.one_of(st.integers(0, 50), st.integers(1, 2**40)),
    units=st.integers(10**11, 8 * 10**11),
)
@example(tests=3, left=10**12, tests_before=1, horizon=100, shares=(0.1, 0.0), second=2, units=8 * 10**11)  # in parts
def test_the_pace_is_exact_up_to_the_largest_numbers(tests, left, tests_before, horizon, shares, second, units):
    """The oracle's integers have no limit. Tests beyond what 32 bits hold change nothing: the share is 0 either way."""
    chosen = changed(naming_settings(most_tests=40), schedule=WindowSchedule.fixed(0, horizon * 60, 60))
    window = min(horizon - 1, int(shares[0] * horizon))
    first = int(shares[1] * window)
    numbers = [np.array([value], dtype=np.int64) for value in (left, tests_before, first)]
    got = BudgetPacing(chosen).choose(np.array([[tests]]), *numbers, window)
    wallet = Wallet(left, first, tests_before)
    assert tuple(int(column[0, 0]) for column in got) == wallet.afford(tests, window, chosen)
    assert int(got[2][0, 0]) * int(got[1][0, 0]) <= left
    chosen = changed(chosen, rounds=Rounds(block_seconds=60, units=(10**11, units), false_names=0.5))
    weights, costs, payable = BudgetPacing(chosen).choose(np.array([[tests, second]]), *numbers, window)
    expected = Wallet(left, first, tests_before).choose_with_sizing(tests, second, window, chosen)
    assert tuple(zip(weights[0].tolist(), payable[0].tolist(), strict=True)) == expected
    assert sum(paid * cost for paid, cost in zip(payable[0].tolist(), costs[0].tolist(), strict=True)) <= left


def entries(left, first_window, users=(3, 4)):
    ones = np.ones(len(users), dtype=np.uint32)
    return BudgetEntries(np.array(users, dtype=np.uint64), left * ones.astype(np.int64), ones, first_window * ones)


def test_what_cannot_be_paid_is_an_error():
    chosen = settings_for(5, HOUR)
    keys = chosen.stream_keys(SECRET)
    (pairs,) = pairs_by_window([event("u", "i", 3, chosen)], chosen, keys).values()
    budgets = UserBudgets(chosen, keys)
    with pytest.raises(ValueError, match="must lie in the windows 2"):
        budgets.spend(pairs, 2)
    budgets.spend(pairs, 3)
    with pytest.raises(ValueError, match="a later window was paid before"):
        budgets.spend(dataclasses.replace(pairs, windows=np.array([1])), 1)
    with pytest.raises(ValueError, match="at most 4,294,967,295 contributions"):
        UserBudgets(changed(chosen, weights=(1,), units=(1,)), keys)


def test_budgets_that_no_run_of_this_plan_can_have_made_are_refused():
    """With too much left, users would pay twice; nor were they paid in the window that is to come."""
    chosen = settings_for(9)
    keys = chosen.stream_keys(SECRET)
    assert UserBudgets(chosen, keys, [entries(BUDGET_UNITS, 2)], 3) is not None
    for damaged in (entries(BUDGET_UNITS + 1, 2), entries(BUDGET_UNITS, 3)):
        with pytest.raises(ValueError, match="are damaged"):
            UserBudgets(chosen, keys, [damaged], 3)
    for damaged in (entries(-1, 1), entries(5, 1, users=(4, 3))):
        with pytest.raises(ValueError, match="are damaged"):
            restored(chosen, keys, damaged.to_chunks())
