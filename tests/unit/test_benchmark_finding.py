"""What the benchmarks `finding` and `dp_sqlp` count, and that they run names as a plan says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import dp_sqlp, found_names
from benchmarks.finding_logs import LogPairs
from benchmarks.finding_methods import METHODS, OURS
from benchmarks.found_pairs import FoundPairs, columns, found_cells
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MINUTE, START


def log_of_users(pairs_of_user: list[list[tuple[int, int]]], items: int, horizon: int) -> LogPairs:
    """Each user's (window, item)."""
    rows = sorted((user, *pair) for user, pairs in enumerate(pairs_of_user) for pair in pairs)
    users, windows, codes = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    labels = tuple(f"item {item}" for item in range(items))
    return LogPairs("a log", Path("nowhere"), "", START, MINUTE, horizon, users, windows, codes, labels)


def test_columns_count_what_was_held() -> None:
    users = [[(0, 0), (1, 1)]] * 60 + [[(0, 0), (0, 2)]] * 60
    log = log_of_users(users, 3, 2)
    assert log.holders.tolist() == [120, 60, 60]  # (0, 0), (0, 2), (1, 1)
    reported, of_nobody = found_cells(log, np.array([0, 1, 1]), np.array([0, 1, 2]))
    assert (reported.tolist(), of_nobody) == ([True, False, True], 1)
    runs = [FoundPairs(reported, of_nobody, np.array([10.0, 5.0, 4.0]), 10.0)]
    row = columns(log, runs)
    assert row["pairs"] == 3
    assert row["looks"] == 180 / 240
    assert row["recall_50"] == pytest.approx(2 / 3)
    assert row["recall_100"] == 1.0
    assert row["recall_200"] is None
    assert row["below_half"] == pytest.approx(2 / 3)  # the one of nobody, and 4 < 10 / 2
    assert row["of_nobody"] == 1


def test_replay_weights_are_those_of_the_price_list() -> None:
    plan = small_looks_plan()
    users = [[(window, item) for window in range(12) for item in range(3)][:looks] for looks in (1, 2, 7, 20, 36)]
    log = log_of_users(users, 3, 12)
    weights = found_names.replay_weights(log, plan)
    for user, pairs in enumerate(users):
        wanted = plan.paid_looks.prices.replay_weight(len(pairs)) * min(1.0, plan.paid_looks.most_looks / len(pairs))
        assert weights[log.users == user] == pytest.approx(wanted)


def test_stream_order_names_what_many_hold_and_pays_for_each_look() -> None:
    plan = small_looks_plan()
    crowd = [[(3, 1), (4, 1)] for _ in range(60)]
    log = log_of_users([*crowd, [(window, 0) for window in range(12)]], 2, 12)
    found = found_names.stream_order(log, plan)
    at = {int(cell): place for place, cell in enumerate(log.cells)}
    assert found.reported[[at[3 * 2 + 1], at[4 * 2 + 1]]].all()
    stream = found_names.OrderedStream(plan, log.labels, len(log.looks), windows_at_once=2)
    price_of = dict(zip((0, *plan.paid_looks.weights), (0, *plan.paid_looks.units), strict=True))
    paid = np.zeros(len(log.looks), dtype=np.int64)
    for window in range(12):
        rows = np.flatnonzero(log.windows == window)
        weights = stream.add_window(window, log.users[rows], log.items[rows])
        np.add.at(paid, log.users[rows], [price_of[weight] for weight in weights.tolist()])
    windows, items = stream.finish()
    assert paid.max() <= PURSE_UNITS
    assert paid.min() > 0
    assert {(3, 1), (4, 1)} <= set(zip(windows.tolist(), items.tolist(), strict=True))


@pytest.mark.parametrize(
    "method", [name for name in METHODS if name not in OURS and name != "PipelineDP select_partitions"]
)
def test_each_peer_finds_what_nearly_all_hold_and_not_what_one_holds(method: str) -> None:
    users = [[(0, 0), (1, 0)]] * 300 + [[(2, 1)]]
    log = log_of_users(users, 2, 3)
    found = METHODS[method](log, np.random.default_rng(3)).run()
    assert found.reported.tolist() == [True, True, False]
    assert found.pairs == 2 + found.of_nobody


@pytest.mark.parametrize(("shift", "exponent"), [(26.0, 6.738), (1000.0, 1.4)])
def test_zipf_mandelbrot_has_the_stated_shares(shift: float, exponent: float) -> None:
    shares = np.diff(dp_sqlp.zipf_mandelbrot(5000, shift, exponent), prepend=0.0)
    assert shares.sum() == pytest.approx(1)
    assert shares[9] / shares[0] == pytest.approx(((10 + shift) / (1 + shift)) ** -exponent)
    assert shares[99] / shares[98] == pytest.approx(((100 + shift) / (99 + shift)) ** -exponent)


def test_a_scaled_workload_has_as_many_users_of_each_key_and_fewer_keys() -> None:
    """Keys of at least 100 users: a fifth as many at a fifth of the scale."""
    assert dp_sqlp.scaled_shift(1) == 1000
    found = []
    for factor in (200, 1000):
        users, keys = 10_000_000 // factor, 1_000_000 // factor
        records = dp_sqlp.simulate(users, keys, dp_sqlp.scaled_shift(factor), 10, np.random.default_rng(factor))
        pairs = np.unique(records.users * 10**6 + records.keys)
        found.append(int((np.bincount(pairs % 10**6) >= 100).sum()) * factor)
    assert found[0] == pytest.approx(found[1], rel=0.07)


def test_a_workload_has_distinct_rows_by_user() -> None:
    records = dp_sqlp.simulate(2000, 300, 5.0, 4, np.random.default_rng(2))
    codes = (records.users * 300 + records.keys) * 4 + records.steps
    assert np.all(np.diff(codes) > 0)
    assert set(records.steps.tolist()) == {0, 1, 2, 3}


def test_windows_of_all_steps_so_far_hold_each_key_of_a_user_once() -> None:
    records = dp_sqlp.simulate(300, 50, 5.0, 6, np.random.default_rng(1))
    seen: set[tuple[int, int]] = set()
    for step, rows in dp_sqlp._windows(records, "so far", 6):
        pairs = list(zip(records.users[rows].tolist(), records.keys[rows].tolist(), strict=True))
        here = np.flatnonzero(records.steps == step)
        seen |= set(zip(records.users[here].tolist(), records.keys[here].tolist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == seen
    of_steps = np.concatenate([rows for _, rows in dp_sqlp._windows(records, "step", 6)])
    assert sorted(of_steps.tolist()) == list(range(len(records.users)))
