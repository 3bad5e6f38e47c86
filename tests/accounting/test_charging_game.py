"""The charging game; and what all accountants have in common."""

import itertools
import json
import math
import pathlib

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import (
    GameAccountant,
    between_probability,
    charging_game_delta,
    charging_game_deltas,
)
from dp_transforms.accounting.composition import optimal_composition_delta
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from tests.helpers.charging_bounds import (
    ClosedFormAccountant,
    ExactTailAccountant,
    OptimalComposition,
    RenyiAccountant,
    static_adversary_delta,
    static_adversary_epsilon,
)
from tests.reference.charging_game import capped_game_delta, game_by_iteration, vertices

REFERENCES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "reference_values.json").read_text())


def _reference_id(row):
    return f"{row['eps_query']}-{row['hits']}-{row['delta']}"


@pytest.mark.parametrize("row", REFERENCES, ids=_reference_id)
def test_reference_values(row):
    epsilon_per_query, hits, delta = row["eps_query"], int(row["hits"]), row["delta"]
    q = not_prior_probability(epsilon_per_query)
    between = between_probability(epsilon_per_query, math.ceil(2 / epsilon_per_query))
    exact_tail = ExactTailAccountant(epsilon_per_query, q, hits)
    closed_form = ClosedFormAccountant(epsilon_per_query, q, hits)
    assert GameAccountant(epsilon_per_query, q, hits).epsilon(delta) == pytest.approx(row["game"], rel=3e-5)
    assert GameAccountant(epsilon_per_query, between, hits).epsilon(delta) == pytest.approx(
        row["game_between_zone_2_over_eps"], rel=3e-5
    )
    assert exact_tail.epsilon(delta) == pytest.approx(row["exact_tail"], rel=3e-5)
    assert exact_tail.delta_and_calls(exact_tail.epsilon(delta))[1] == row["exact_tail_calls"]
    assert closed_form.epsilon(delta) == pytest.approx(row["closed_form"], rel=3e-5)
    assert static_adversary_epsilon(epsilon_per_query, q, hits, delta) == pytest.approx(
        row["static_lower_bound"], rel=3e-5
    )
    # The reference used another grid of orders.
    assert RenyiAccountant(epsilon_per_query, q, hits).epsilon(delta) == pytest.approx(row["renyi"], rel=1e-3)


def test_misprint_of_theorem_b4():
    """As printed, without the factor 2 of its own Lemma A.4, the bound lies below what an adversary attains."""
    epsilon_per_query, hits, delta = 0.02, 300, 1e-8
    q = not_prior_probability(epsilon_per_query)

    def printed(alpha):
        failure = math.exp(-(alpha**2) * hits / (2 * (1 + alpha)))
        calls = (1 + alpha) * hits / q
        left = delta - failure
        return calls * epsilon_per_query**2 / 2 + epsilon_per_query * math.sqrt(calls * math.log(1 / left))

    alphas = np.linspace(0.415, 0.6, 500)
    as_printed = min(printed(alpha) for alpha in alphas if math.exp(-(alpha**2) * hits / (2 * (1 + alpha))) < delta)
    attained = static_adversary_epsilon(epsilon_per_query, q, hits, delta)
    assert as_printed == pytest.approx(2.72, abs=0.005)
    assert attained == pytest.approx(2.97, abs=0.005)
    assert static_adversary_delta(epsilon_per_query, q, hits, as_printed) > 5 * delta
    assert ClosedFormAccountant(epsilon_per_query, q, hits).epsilon(delta) == pytest.approx(3.78, abs=0.005)


def test_all_hits_from_one_pass():
    deltas = charging_game_deltas(0.1, 0.45, 12, 3.0)
    assert len(deltas) == 12
    for hits in (1, 2, 7, 12):
        assert deltas[hits - 1] == pytest.approx(charging_game_delta(0.1, 0.45, hits, 3.0), rel=1e-9)
    enough = deltas[4] * 0.99
    cut = charging_game_deltas(0.1, 0.45, 12, 3.0, enough)
    assert len(cut) == 5
    assert cut == deltas[:5]


@pytest.mark.parametrize(
    ("epsilon_per_query", "share", "hits", "epsilon"),
    [(0.7, 1.0, 1, 1.5), (0.7, 0.5, 2, 2.0), (0.5, 0.86, 3, 3.0), (1.2, 0.8, 2, 4.0), (3.0, 1.0, 2, 5.0)],
)
def test_against_dumb_value_iteration(epsilon_per_query, share, hits, epsilon):
    q = share / (math.exp(epsilon_per_query) + 1)
    oracle = game_by_iteration(epsilon_per_query, q, hits, epsilon, 130, vertices(epsilon_per_query, q))
    game = charging_game_delta(epsilon_per_query, q, hits, epsilon)
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
    by_grid = game_by_iteration(epsilon_per_query, q, hits, epsilon, 25, dense)
    by_vertices = game_by_iteration(epsilon_per_query, q, hits, epsilon, 25, vertices(epsilon_per_query, q))
    assert by_grid == pytest.approx(by_vertices, rel=1e-12)
    without_a_vertex = game_by_iteration(epsilon_per_query, q, hits, epsilon, 25, [(0.0, edge), (q, q)])
    assert without_a_vertex < by_vertices * 0.99


@pytest.mark.parametrize(("hits", "epsilon"), [(1, 6.0), (3, 8.0), (40, 12.0)])
def test_tiny_deltas_keep_their_digits(hits, epsilon):
    """delta is convex in e^epsilon; rounding that is absolute instead of relative would show as noise here."""
    q = 0.8 * not_prior_probability(0.1)
    gammas = math.exp(epsilon) * (1 + 1e-7 * np.arange(5))
    deltas = [charging_game_delta(0.1, q, hits, math.log(gamma)) for gamma in gammas]
    assert 0 < deltas[0] < 1e-12
    falls = -np.diff(deltas)
    assert (falls > 0).all()
    assert falls == pytest.approx(np.full(4, falls.mean()), rel=1e-2)


def _histories(participations, hits):
    """All states of the adversary in which there is a call left to make, the empty one first."""
    found = []
    for length in range(participations):
        for history in itertools.product(itertools.product((0, 1), repeat=2), repeat=length):
            if sum(hit for _, hit in history) < hits:
                found.append(history)
    return found


def _attained(epsilon_per_query, hits, epsilon, participations, plays):
    """delta of one policy: the sum of ``(P - e^epsilon Q)_+`` over all transcripts; a state without a play stops."""
    p = math.exp(epsilon_per_query) / (1 + math.exp(epsilon_per_query))

    def ends(history, first, second):
        over = len(history) == participations or sum(hit for _, hit in history) == hits
        if over or history not in plays:
            yield max(0.0, first - math.exp(epsilon) * second)
            return
        for up, hit in itertools.product((0, 1), repeat=2):
            share = plays[history][up] if hit else 1 - plays[history][up]
            if share > 0:
                rises, falls = (p, 1 - p) if up else (1 - p, p)
                yield from ends((*history, (up, hit)), first * rises * share, second * falls * share)

    return math.fsum(ends((), 1.0, 1.0))


@pytest.mark.parametrize(
    ("epsilon_per_query", "share", "hits", "participations", "epsilon"),
    [(0.7, 1.0, 1, 2, 0.5), (0.7, 0.6, 1, 2, 0.3), (0.5, 0.6, 2, 2, 0.2), (1.5, 0.4, 1, 2, 0.9)],
)
def test_against_every_policy(epsilon_per_query, share, hits, participations, epsilon):
    """Policies that remember everything, may stop anywhere, and play one of the corners elsewhere: 1024 and more."""
    q = share / (math.exp(epsilon_per_query) + 1)
    choices = [None, *vertices(epsilon_per_query, q)]
    states = _histories(participations, hits)
    best = 0.0
    for chosen in itertools.product(choices, repeat=len(states)):
        plays = {state: play for state, play in zip(states, chosen, strict=True) if play is not None}
        best = max(best, _attained(epsilon_per_query, hits, epsilon, participations, plays))
    assert best > 0
    value = capped_game_delta(epsilon_per_query, q, hits, participations, epsilon)
    assert value == pytest.approx(best, rel=1e-9)


def test_the_oracle_is_optimal_composition_where_the_hits_suffice():
    q = not_prior_probability(0.3)
    for calls in (1, 2, 10, 40):
        for epsilon in (0.0, 0.1, 0.7 * calls * 0.3, calls * 0.3):
            composed = optimal_composition_delta(0.3, calls, epsilon)
            assert capped_game_delta(0.3, q, calls, calls, epsilon) == pytest.approx(composed, rel=1e-9)


TARGET_CHARGING = (GameAccountant, ExactTailAccountant, ClosedFormAccountant, RenyiAccountant)


@pytest.mark.parametrize(
    "accountant",
    [GameAccountant(0.1, 0.45, 4), OptimalComposition(0.1, 25)],
    ids=["game", "composition"],
)
def test_a_curve_that_falls_and_its_inverse(accountant):
    deltas = [accountant.delta(epsilon) for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0, 8.0)]
    assert all(1 >= a >= b >= 0 for a, b in itertools.pairwise(deltas))
    assert deltas[0] > deltas[3] > deltas[5]
    epsilons = []
    for delta in (0.5, 1e-2, 1e-6, 1e-12, 1e-100):
        epsilon = accountant.epsilon(delta)
        epsilons.append(epsilon)
        assert 0 <= epsilon < math.inf
        assert accountant.delta(epsilon) <= delta
        if epsilon > 0:
            assert accountant.delta(epsilon * (1 - 1e-5)) > delta
    assert epsilons == sorted(epsilons)


@pytest.mark.parametrize(
    ("epsilon_per_query", "hits", "share"), [(0.01, 1, 1.0), (0.01, 40, 0.3), (0.3, 40, 1.0), (1.5, 1, 0.3)]
)
def test_the_order_of_the_bounds(epsilon_per_query, hits, share):
    """static adversary <= game <= exact tail <= closed form, and game <= Renyi."""
    q = share * not_prior_probability(epsilon_per_query)
    game = GameAccountant(epsilon_per_query, q, hits)
    for delta in (1e-3, 1e-9):
        epsilon = game.epsilon(delta)
        deltas = [make(epsilon_per_query, q, hits).delta(epsilon) for make in TARGET_CHARGING]
        attained = static_adversary_delta(epsilon_per_query, q, hits, epsilon)
        assert 0 < attained <= deltas[0] <= delta
        assert deltas[0] <= deltas[1] <= deltas[2] * (1 + 1e-9)
        assert deltas[0] <= deltas[3]
        epsilons = [epsilon, *(make(epsilon_per_query, q, hits).epsilon(delta) for make in TARGET_CHARGING[1:])]
        assert epsilons[0] <= epsilons[1] <= epsilons[2]
        assert epsilons[0] <= epsilons[3]


def test_extreme_numbers_neither_hang_nor_overflow():
    assert 0 <= GameAccountant(1e-9, 0.4, 1).delta(1.0) < 1e-100
    assert GameAccountant(1e-3, 0.4, 2).delta(1e6) < 1e-100
    assert 0.9 < GameAccountant(30.0, not_prior_probability(30.0), 1).delta(0.5) <= 1.0
    assert optimal_composition_delta(700.0, 3, 1.0) == pytest.approx(1.0)
    assert OptimalComposition(1e-6, 10**6).delta(0.01) < 1e-15
