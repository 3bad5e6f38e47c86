"""The benchmark `finding`: what it counts, and its peers by the formulas of their papers."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks import found_names, peers_histograms, peers_set_union
from benchmarks.finding_logs import LogPairs
from benchmarks.finding_methods import METHODS, OURS
from benchmarks.found_pairs import FoundPairs, columns, found_cells
from benchmarks.other_methods import gaussian_sigma, weighted_gaussian_threshold
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MINUTE, START


def log_of_users(pairs_of_user, items, horizon):
    """Each user's (window, item)."""
    rows = sorted((user, *pair) for user, pairs in enumerate(pairs_of_user) for pair in pairs)
    users, windows, codes = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    labels = tuple(f"item {item}" for item in range(items))
    return LogPairs("a log", Path("nowhere"), "", START, MINUTE, horizon, users, windows, codes, labels)


def test_columns_count_what_was_held():
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


def test_replay_weights_are_those_of_the_price_list():
    plan = small_looks_plan()
    users = [[(window, item) for window in range(12) for item in range(3)][:looks] for looks in (1, 2, 7, 20, 36)]
    log = log_of_users(users, 3, 12)
    weights = found_names.replay_weights(log, plan)
    for user, pairs in enumerate(users):
        wanted = plan.paid_looks.prices.replay_weight(len(pairs)) * min(1.0, plan.paid_looks.most_looks / len(pairs))
        assert weights[log.users == user] == pytest.approx(wanted)


def test_stream_order_names_what_many_hold_and_pays_for_each_look():
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
def test_each_peer_finds_what_nearly_all_hold_and_not_what_one_holds(method):
    users = [[(0, 0), (1, 0)]] * 300 + [[(2, 1)]]
    log = log_of_users(users, 2, 3)
    found = METHODS[method](log, np.random.default_rng(3)).run()
    assert found.reported.tolist() == [True, True, False]
    assert found.pairs == 2 + found.of_nobody


# --- The peers of the benchmark `finding`, each against the formula of its paper.

EPSILON, DELTA = 2.0, 1e-9


def log_of(rows, items, horizon):
    """rows: (user, window, item), distinct."""
    users, windows, codes = (np.array(column, dtype=np.int64) for column in zip(*sorted(rows), strict=True))
    labels = tuple(str(item) for item in range(items))
    return LogPairs("a log", Path("nowhere"), "", 0, 3600, horizon, users, windows, codes, labels)


def random_log(users, seed):
    random = np.random.default_rng(seed)
    rows = {(user, int(random.integers(3)), int(random.integers(5))) for user in range(users) for _ in range(user % 9)}
    rows |= {(users - 1, 0, 0)}
    codes = {user: code for code, user in enumerate(sorted({user for user, _, _ in rows}))}
    return log_of([(codes[user], window, item) for user, window, item in rows], 5, 3)


# --- Set union


def test_the_weights_of_each_user_have_a_norm_of_one():
    log = random_log(40, 1)
    for most in (1, 3, 100):
        weights, sums = peers_set_union.weighted_sums(log, most, np.random.default_rng(2))
        norms = np.bincount(log.users, weights**2)
        assert norms == pytest.approx(np.ones(len(log.looks)))
        assert np.all(np.bincount(log.users, weights > 0) == np.minimum(log.looks, most))
        assert sums == pytest.approx(np.bincount(log.cell_of_row, weights))


def policy_by_definition(users, size, goal):
    """[GGK20] Algorithm 8, user by user, pair by pair."""
    sums = [0.0] * size
    for cells in users:
        gaps = {cell: goal - sums[cell] for cell in cells if sums[cell] < goal}
        norm = math.sqrt(math.fsum(gap * gap for gap in gaps.values()))
        for cell, gap in gaps.items():
            sums[cell] += gap if norm <= 1 else gap / norm
    return np.array(sums)


def test_the_policy_histogram_is_that_of_its_algorithm():
    random = np.random.default_rng(3)
    users = [sorted(random.choice(12, random.integers(1, 6), replace=False).tolist()) for _ in range(60)]
    splits = np.cumsum([0, *map(len, users)])
    order = random.permutation(60)
    for goal in (2.0, 3.7, 50.0):
        sums = peers_set_union.policy_histogram(np.concatenate(users), splits, 12, goal, order)
        assert sums == pytest.approx(policy_by_definition([users[user] for user in order], 12, goal))
        assert sums.max() <= goal + 1e-12


def test_a_user_moves_the_policy_histogram_by_a_norm_of_at_most_one():
    """What its privacy rests on ([GGK20], Theorem 4.3): also where the user comes first and others follow."""
    random = np.random.default_rng(4)
    most = 0.0
    for _ in range(200):
        users = [random.choice(6, random.integers(1, 6), replace=False).tolist() for _ in range(12)]
        splits = np.cumsum([0, *map(len, users)])
        order = np.arange(12)
        rows = np.concatenate(users)
        with_all = peers_set_union.policy_histogram(rows, splits, 6, 2.5, order)
        for left_out in range(12):
            without = peers_set_union.policy_histogram(rows, splits, 6, 2.5, np.delete(order, left_out))
            most = max(most, float(np.linalg.norm(with_all - without)))
    assert 0.9 < most <= 1 + 1e-9


def test_known_items_are_followed_to_the_lower_threshold_and_forgotten():
    """Hardly any noise: 40 users name item 0 in window 0; 3 of them name it later, as long as it is known."""
    windows_of_three = (1, 2, 3, 9)
    rows = [(user, 0, 0) for user in range(40)]
    rows += [(100 + 10 * window + user, window, 0) for window in windows_of_three for user in range(3)]
    codes = {user: code for code, user in enumerate(sorted({row[0] for row in rows}))}
    log = log_of([(codes[user], window, item) for user, window, item in rows], 2, 12)
    sigma = gaussian_sigma(3.0, 5e-4)
    threshold = weighted_gaussian_threshold(3.0, 1e-3, 1)
    assert 3 + 4 * sigma > threshold > 3  # three users alone pass it seldom

    def named(forget_after):
        runs = [
            peers_set_union.weighted_gaussian_known(
                log, 3.0, 1e-3, 1, np.random.default_rng(seed), known_error=0.1, forget_after=forget_after
            )
            for seed in range(300)
        ]
        return np.mean([run.reported for run in runs], axis=0)

    assert log.cells.tolist() == [2 * window for window in (0, *windows_of_three)]
    known_threshold = -sigma * stats.norm.ppf(0.1)
    wanted = stats.norm.sf((known_threshold - 3) / sigma)
    alone = stats.norm.sf((threshold - 3) / sigma)
    followed = named(3)
    assert followed[0] == 1
    assert followed[1] == pytest.approx(wanted, abs=0.06)
    assert followed[4] < wanted - 0.1  # forgotten, unless noise alone named it again
    assert named(0)[1] == pytest.approx(alone, abs=0.06)


def test_known_items_that_nobody_holds_are_named_as_often_as_declared():
    rows = [(user, 0, item) for item in range(50) for user in range(50 * item, 50 * item + 40)]
    codes = {user: code for code, user in enumerate(sorted({row[0] for row in rows}))}
    log = log_of([(codes[user], window, item) for user, window, item in rows], 50, 40)
    found = peers_set_union.weighted_gaussian_known(
        log, 3.0, 1e-3, 1, np.random.default_rng(5), known_error=0.05, forget_after=40
    )
    assert found.reported.all()
    expected = 50 * 39 * 0.05
    assert abs(found.of_nobody - expected) < 5 * math.sqrt(expected)


# --- Histograms


def excess(p, q, shift):
    """The integral of the positive part of ``p phi(x) - q phi(x + shift)``; it begins at one point and goes on."""
    begins = (math.log(q / p) - shift**2 / 2) / shift
    density = integrate.quad(
        lambda at: p * stats.norm.pdf(at) - q * stats.norm.pdf(at + shift), begins, max(begins, 0) + 12, limit=200
    )
    return float(density[0])


@pytest.mark.parametrize(("cap", "sigma", "margin"), [(1, 1.0, 3.0), (2, 1.5, 4.0), (2, 3.0, 5.0), (3, 1.2, 6.0)])
def test_exact_delta_is_that_of_the_worst_pair(cap, sigma, margin):
    """By quadrature: j of the counts that the user changes are new, the others move along the line of their sum."""
    epsilon = 1.0
    worst = 0.0
    for new in range(cap + 1):
        hidden = stats.norm.cdf(margin / sigma) ** new
        if new == cap:
            worst = max(worst, 1 - hidden)  # nothing else differs; without the user nothing is new
            continue
        shift = math.sqrt(cap - new) / sigma

        added = excess(hidden, math.exp(epsilon), shift)
        removed = excess(1.0, math.exp(epsilon) * hidden, shift)
        worst = max(worst, 1 - hidden + added, removed)
    assert peers_histograms.exact_delta(epsilon, cap, sigma, margin) == pytest.approx(worst, rel=1e-4)


@pytest.mark.parametrize(("cap", "wider"), [(1, 1.01), (4, 1.002), (60, 1.05)])
def test_the_exact_threshold_is_the_smallest_one(cap, wider):
    sigma, threshold = peers_histograms.exact_threshold(EPSILON, DELTA, cap, wider)
    assert peers_histograms.exact_delta(EPSILON, cap, sigma, threshold - 1) <= DELTA * (1 + 1e-6)
    assert peers_histograms.exact_delta(EPSILON, cap, sigma, (threshold - 1) * 0.999) > DELTA


@pytest.mark.parametrize(("cap", "cells"), [(1, 3), (2, 6), (3, 40), (6, 6)])
def test_common_noise_lowers_sigma_by_no_more_than_stated(cap, cells):
    """The largest ``v' Sigma^-1 v`` over what one user may add, for many strengths of the common noise."""
    bound = peers_histograms.correlated_gain(cap, cells)
    gains = []
    for strength in np.geomspace(1e-3, 1e6, 60):
        inverse = np.linalg.inv(np.eye(cells) + strength * np.ones((cells, cells)))
        added = [np.repeat([1.0, 0.0], [ones, cells - ones]) for ones in range(1, cap + 1)]
        gains.append(math.sqrt(max(float(v @ inverse @ v) for v in added) / cap))
    assert min(gains) >= bound * (1 - 1e-6)
    if 2 * cap <= cells:
        assert min(gains) == pytest.approx(bound, rel=1e-3)


@pytest.mark.parametrize("cap", [1, 5, 100])
def test_the_laplace_threshold_hides_items_of_one_user(cap):
    threshold = peers_histograms.laplace_threshold(EPSILON, DELTA, cap)
    shown = stats.laplace.sf((threshold - 1) * EPSILON / cap)
    assert -math.expm1(cap * math.log1p(-shown)) == pytest.approx(DELTA, rel=1e-6)


def test_caps_keep_so_many_pairs_of_a_user_or_of_a_window():
    log = random_log(50, 7)
    random = np.random.default_rng(8)
    by_user, by_window = log.rank_in_user(random), log.rank_in_window(random)
    for cap in (1, 2, 4):
        kept = log.users[by_user < cap]
        assert np.all(np.bincount(kept, minlength=len(log.looks)) == np.minimum(log.looks, cap))
        codes = log.users * log.horizon + log.windows
        wanted = np.minimum(np.bincount(codes), cap)
        assert np.all(np.bincount(codes[by_window < cap], minlength=len(wanted)) == wanted)
        assert peers_histograms.counts_under_cap(log, by_user, cap).sum() == len(kept)
    assert peers_histograms.counts_under_cap(log, by_user, 100) == pytest.approx(log.holders)


def test_a_cap_keeps_each_pair_of_a_user_equally_often():
    log = log_of([(0, 0, item) for item in range(5)], 5, 1)
    random = np.random.default_rng(9)
    first = np.mean([log.rank_in_user(random) == 0 for _ in range(4000)], axis=0)
    assert first == pytest.approx(np.full(5, 0.2), abs=0.03)


def test_expected_findings_are_those_of_the_simulation():
    counts = np.array([0, 3, 20, 24, 26, 40])
    random = np.random.default_rng(10)
    log = random_log(5, 1)
    gaussian = [peers_histograms.gaussian_histogram(log, counts, 5.0, 25.0, random).pairs for _ in range(3000)]
    assert np.mean(gaussian) == pytest.approx(peers_histograms.expected_gaussian(counts, 5.0, 25.0), abs=0.1)
    laplace = [peers_histograms.laplace_histogram(log, counts, 5.0, 25.0, random).pairs for _ in range(3000)]
    assert np.mean(laplace) == pytest.approx(peers_histograms.expected_laplace(counts, 5.0, 25.0), abs=0.1)
