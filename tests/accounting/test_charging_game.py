"""The charging game: against reference values, value iteration, every policy of a short game, and from below."""

import functools
import itertools
import json
import math
import pathlib

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import (
    GameAccountant,
    between_probability,
    charging_game_deltas,
)
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.accounting.kms21_accountant import calibrate_threshold_monitor
from tests.reference.charging_game import game_by_iteration, vertices

REFERENCES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "reference_values.json").read_text())


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.nightly] if row["hits"] > 50 else []) for row in REFERENCES],
    ids=lambda row: f"{row['eps_query']}-{row['hits']}-{row['delta']}",
)
def test_reference_values(row):
    each, hits, delta = row["eps_query"], int(row["hits"]), row["delta"]
    q, between = not_prior_probability(each), between_probability(each, math.ceil(2 / each))
    epsilon = GameAccountant(each, q, hits).epsilon(delta)
    assert epsilon == pytest.approx(row["game"], rel=3e-5)
    zone = GameAccountant(each, between, hits).epsilon(delta)
    assert zone == pytest.approx(row["game_between_zone_2_over_eps"], rel=3e-5)


def test_all_hits_from_one_pass():
    deltas = charging_game_deltas(0.1, 0.45, 12, 3.0)
    alone = [GameAccountant(0.1, 0.45, hits).delta(3.0) for hits in range(1, 13)]
    assert deltas == pytest.approx(alone, rel=1e-9)
    assert charging_game_deltas(0.1, 0.45, 12, 3.0, deltas[4] * 0.99) == deltas[:5], "which is enough"


@pytest.mark.parametrize(
    ("epsilon_per_query", "share", "hits", "epsilon"),
    [(0.7, 1.0, 1, 1.5), (0.7, 0.5, 2, 2.0), (0.5, 0.86, 3, 3.0), (1.2, 0.8, 2, 4.0), (3.0, 1.0, 2, 5.0)],
)
def test_against_dumb_value_iteration(epsilon_per_query, share, hits, epsilon):
    q = share / (math.exp(epsilon_per_query) + 1)
    oracle = game_by_iteration(epsilon_per_query, q, hits, epsilon, 130, vertices(epsilon_per_query, q))
    game = GameAccountant(epsilon_per_query, q, hits).delta(epsilon)
    assert oracle <= game <= oracle * (1 + 2e-5)


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_vertices_are_enough(share):
    """No (h0, h1) of a dense grid over the whole feasible polygon beats the three vertices."""
    epsilon_per_query, hits, epsilon = 0.8, 2, 1.5
    p = math.exp(epsilon_per_query) / (1 + math.exp(epsilon_per_query))
    q = share * (1 - p)
    dense = [
        (h0, h1)
        for h0, h1 in itertools.product(np.linspace(0, 1, 26).tolist(), repeat=2)
        if p * h1 + (1 - p) * h0 >= q and (1 - p) * h1 + p * h0 >= q
    ]
    # The lower left boundary itself, finely, where the best plays are.
    edge = min(1.0, q / (1 - p))
    for weight in np.linspace(0, 1, 11).tolist():
        dense.append((weight * q + (1 - weight) * edge, weight * q))
        dense.append((weight * q, weight * q + (1 - weight) * edge))
    game = functools.partial(game_by_iteration, epsilon_per_query, q, hits, epsilon, 25)
    by_vertices = game(vertices(epsilon_per_query, q))
    assert game(dense) == pytest.approx(by_vertices, rel=1e-12)
    assert game([(0.0, edge), (q, q)]) < by_vertices * 0.99, "and all three are needed"


@pytest.mark.parametrize(("hits", "epsilon"), [(1, 6.0), (3, 8.0), (40, 12.0)])
def test_tiny_deltas_keep_their_digits(hits, epsilon):
    """delta is convex in e^epsilon; rounding that is absolute instead of relative would show as noise here."""
    q = 0.8 * not_prior_probability(0.1)
    gammas = math.exp(epsilon) * (1 + 1e-7 * np.arange(5))
    deltas = [GameAccountant(0.1, q, hits).delta(math.log(gamma)) for gamma in gammas]
    assert 0 < deltas[0] < 1e-12
    falls = -np.diff(deltas)
    assert (falls > 0).all()
    assert falls == pytest.approx(np.full(4, falls.mean()), rel=1e-2)


def test_the_accountant_is_a_curve_that_falls_and_its_inverse():
    accountant = GameAccountant(0.1, 0.45, 4)
    deltas = [accountant.delta(epsilon) for epsilon in (0.0, 0.3, 1.0, 2.0, 8.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert 1 >= deltas[0] > deltas[2] > deltas[-1] >= 0
    for delta in (0.5, 1e-6, 1e-100):
        epsilon = accountant.epsilon(delta)
        assert accountant.delta(epsilon) <= delta
        assert epsilon == 0 or accountant.delta(epsilon * (1 - 1e-5)) > delta


def test_the_running_figure_begins_at_a_thousandth_and_never_exceeds_the_total():
    accountant = GameAccountant(0.2, 0.3, 4)
    total = accountant.epsilon(0.2)
    assert GameAccountant(0.2, 0.3, 1).epsilon(0.2) < total / 1000, "a generous delta covers the first hit"
    assert accountant.epsilon_after_hits(total, 0.2)[0] == pytest.approx(total / 1000, rel=1e-5)
    lower = accountant.epsilon(1e-6) * (1 - 1e-8)
    assert lower * (1 - 1e-6) < max(accountant.epsilon_after_hits(lower, 1e-6)) <= lower
    for found in (
        accountant.epsilon_after_hits(6, 1e-6),
        calibrate_threshold_monitor(2.0, 1e-6, 4).epsilon_after_hits(2, 1e-6),
    ):
        assert found[0] % 1 > 0, "an epsilon without a fraction drops none of theirs"
