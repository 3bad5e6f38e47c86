"""The theorem of keys (docs/guarantee.md, "Keys"), exactly: a user under two keys, each with a monitor of the real
code, is within the claim of `most_keys` = 2, and not within that of one key. Nothing here is random."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.audit.hits import HitsClaim, Mechanism, audit_hits
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trial_plan import TrialPlan
from tests.privacy.adversary import Action, Kernel, best_adversary, extract_kernel
from tests.privacy.exact_game import Outcome, law_of, worst_ratio
from tests.privacy.exact_hits import (
    TARGET_USER,
    HitsGame,
    Round,
    Stored,
    Transcript,
    claim_of,
    fresh_users,
    settings_for,
)
from tests.reference.charging_game import game_by_iteration, vertices
from tests.reference.exact_law import Law

THRESHOLD, ZONE, WINDOWS = 4, 2, 5
EPSILONS = [0.1 * index for index in range(31)]
# Of each window so far: its key, and what was published.
Past = tuple[tuple[int, Transcript], ...]
# From the past to the key whose next window closes, and how many others hold the item of x' there.
Strategy = Callable[[Past], tuple[int, int]]
each_mode = pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])


def _hits_under(past: Past, key: int) -> int:
    """Charged results: each window has one item, which x' holds."""
    return sum(hitter.zone != "above" for played, report in past if played == key and report for hitter in report[3])


def _one_after_the_other(hits: int, others: int) -> Strategy:
    """Under the second key once x' is excluded under the first."""
    return lambda past: (int(_hits_under(past, 0) >= hits), others)


def _by_the_last_report(past: Past) -> tuple[int, int]:
    """The key and the count depend on what any key published."""
    return sum(bool(report) for _, report in past) % 2, 3 if past and past[-1][1] else 5


STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "one after the other, below the threshold": lambda hits: _one_after_the_other(hits, 3),
    "one after the other, below the upper edge": lambda hits: _one_after_the_other(hits, 5),
    "in turn, with the same rows": lambda hits: lambda past: (len(past) % 2, 3),
    "by the last report": lambda hits: _by_the_last_report,
}


def _law(settings: TrialPlan, strategy: Strategy, with_target: bool) -> Law:
    """Every transcript of two monitors, in the order in which the adversary closes their windows. The state of a key is
    its next window, and the hits of x': the others of a window are in no other."""
    game = HitsGame(settings)

    @functools.cache
    def of_key(window: int, hits: int, others: int) -> dict[Any, Outcome]:
        holders = Round.single(fresh_users(window, others)).holders(with_target)
        state = Stored.of_hits({TARGET_USER: hits}, next_window=window)
        return game.outcomes(window, holders, state, max(THRESHOLD + ZONE, others + 1))

    def outcomes(_: int, before: tuple[Past, tuple[tuple[int, int], ...]]) -> dict[Any, Outcome]:
        past, states = before
        key, others = strategy(past)
        window, hits = states[key]
        found = {}
        for report, outcome in of_key(window, hits, others).items():
            after = [*states]
            after[key] = window + 1, outcome.state.hits()
            found[key, report] = Outcome(outcome.share, ((*past, (key, report)), tuple(after)))
        return found

    return law_of(WINDOWS, ((), ((0, 0), (0, 0))), outcomes)


@functools.cache
def _laws(mode: str, hits: int, name: str) -> tuple[TrialPlan, Law, Law]:
    """With x' and without."""
    settings = settings_for(mode, 0.5, hits, THRESHOLD, ZONE)
    with_target, without = (_law(settings, STRATEGIES[name](hits), present) for present in (True, False))
    return settings, with_target, without


@each_mode
def test_every_transcript_of_two_keys_is_within_the_claim_of_two_and_not_of_one(mode: str) -> None:
    def ratio(name: str, keys: int) -> float:
        settings, *laws = _laws(mode, 1, name)
        return worst_ratio(*laws, lambda epsilon: claim_of(settings, epsilon, keys), EPSILONS)

    ratios = {name: ratio(name, 2) for name in STRATEGIES}
    assert 0.7 < max(ratios.values()) <= 1, "five windows attain a good part of the claim"
    assert ratio(max(ratios, key=ratios.__getitem__), 1) > 1.04, "what one key promises does not hold under two"


@each_mode
def test_the_running_figure_of_one_key_counts_what_may_have_been_paid_under_the_other(mode: str) -> None:
    """x' goes on under key 1 when it is excluded under key 0. Where key 1 published h charged results, everything
    published is within the claim of an exclusion after min(h + 1, tau) + tau hits, but not after h + 1."""
    hits = 2
    settings, *laws = _laws(mode, hits, "one after the other, below the threshold")
    found = {True: 0.0, False: 0.0}
    for bound, counts_the_other in itertools.product(range(hits), found):
        cut = [{past: share for past, share in law.items() if _hits_under(past, 1) <= bound} for law in laws]
        claimed = bound + 1 + (hits if counts_the_other else 0)
        ratio = worst_ratio(*cut, lambda epsilon, claimed=claimed: claim_of(settings, epsilon, claimed), EPSILONS)
        found[counts_the_other] = max(found[counts_the_other], ratio)
    assert found[True] <= 1
    assert found[False] > 1.1


def _of_keys(kernel: Kernel, hits: int, keys: int) -> Kernel:
    """In each window the adversary chooses the key, too. What x' has paid under each: digits of one number."""
    states = itertools.product(range(hits + 1), repeat=keys)
    return {
        sum(paid * (hits + 1) ** key for key, paid in enumerate(state)): [
            [result._replace(charged=result.charged * (hits + 1) ** key) for result in results]
            for key, paid in enumerate(state)
            for results in kernel[paid]
        ]
        for state in states
    }


@pytest.mark.parametrize(("mode", "hits"), [("hits", 1), ("hits-with-counts", 2)])
def test_no_adversary_that_chooses_keys_as_it_goes_exceeds_the_claim(mode: str, hits: int) -> None:
    """Of all adaptive ones: each window of the real monitor, at all counts that matter, under either key."""
    settings = settings_for(mode, 0.25, hits, 48, 8)
    kernel = extract_kernel(settings, [Action(48 + distance) for distance in (-8, -2, -1, 0, 1, 6, 7, 8, 16)])
    epsilons = [0.125 * index for index in range(33)]
    ratios = []
    for adds_target in (True, False):
        curve = best_adversary(
            _of_keys(kernel, hits, 2), step=0.0125, rounds=60, epsilons=epsilons, adds_target=adds_target
        )
        claims = np.array([[claim_of(settings, at, of * hits) for at in curve.epsilons] for of in (1, 2)])
        assert (curve.deltas <= claims[1] * (1 + 1e-12)).all()
        ratios += [tuple((curve.deltas / claims).max(axis=1))]
    assert max(of_one for of_one, _ in ratios) > 1.5
    assert max(of_two for _, of_two in ratios) > (0.9 if mode == "hits" else 0.7)


def test_a_game_with_limits_of_its_own_under_each_key_is_the_game_of_their_sum() -> None:
    """By plain iteration: in each call the adversary picks the key, and the corner."""
    epsilon_per_query, q, calls = 0.5, 0.3, 9
    p = math.exp(epsilon_per_query) / (1 + math.exp(epsilon_per_query))

    @functools.cache
    def value(epsilon: float, left: tuple[int, ...], step: int, calls: int) -> float:
        best = max(0.0, 1 - math.exp(epsilon - step * epsilon_per_query))
        if not calls:
            return best
        for key, hits in enumerate(left):
            hit = (*left[:key], hits - 1, *left[key + 1 :])
            for h0, h1 in vertices(epsilon_per_query, q) if hits else ():
                up, down = (
                    h * value(epsilon, hit, step + move, calls - 1)
                    + (1 - h) * value(epsilon, left, step + move, calls - 1)
                    for h, move in ((h1, 1), (h0, -1))
                )
                best = max(best, p * up + (1 - p) * down)
        return best

    for epsilon in (0.2, 1.0):
        corners = vertices(epsilon_per_query, q)
        for left in ((2, 2), (1, 2), (1, 1, 1)):
            game = game_by_iteration(epsilon_per_query, q, sum(left), epsilon, calls, corners)
            assert value(epsilon, left, 0, calls) == pytest.approx(game, rel=1e-12)
            assert game < GameAccountant(epsilon_per_query, q, sum(left)).delta(epsilon)


def test_the_audit_of_a_plan_for_two_keys() -> None:
    """It attains most of what is claimed, and with the noise of a plan for one key more."""
    one, two = (
        Plan.for_hits(
            epsilon=1.0,
            delta=1e-6,
            schedule=WindowSchedule.fixed(0, 300 * 60, 60),
            hits_per_user=1,
            max_items_per_user=2,
            max_users=10_000,
            most_keys=keys,
        )
        for keys in (1, 2)
    )
    audit = audit_hits(Mechanism.of_plan(two), HitsClaim.of_plan(two))
    assert audit.violations == ()
    assert 0.95 < audit.worst.attained / two.shares.paid <= 1
    assert 0.95 < audit.lone_delta / two.delta_open <= 1
    assert {figure.hits for figure in audit.running} == {1, 2}
    mechanism = dataclasses.replace(Mechanism.of_plan(one), hits_per_user=2, keys=2)
    violations = " ".join(audit_hits(mechanism, HitsClaim.of_plan(one)).violations)
    assert "one user attains delta" in violations
    assert "items that one user holds alone" in violations
