"""Roundings toward more noise, margins of plans, and what the searches find and pass on."""

import dataclasses
import decimal
import functools
import math
from fractions import Fraction

import pytest

from dp_transforms.accounting.charged_hits import (
    NoiseParameters,
    smallest_safe_threshold,
)
from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.composition import hash_delta, optimal_composition_delta
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import plan_of_mode
from tests.helpers.plan_files import with_changes

# The digits that are at stake are the last ones: without them no other test would notice.
DIGITS = decimal.Context(prec=60, Emin=-(10**8), Emax=10**8)


def composition_delta(epsilon_per_query, calls, epsilon):
    """``E[(1 - exp(epsilon - loss))_+]`` with 60 digits: each mass of the binomial from the one beside it.

    Masses below e^-400 of the largest are left out; so what is found is at most the truth.
    """
    e = DIGITS.exp(decimal.Decimal(epsilon_per_query))
    mode = round(calls * float(e / (1 + e)))
    reach = math.ceil(30 * math.sqrt(calls) / 2)
    masses = {mode: decimal.Decimal(1)}
    with decimal.localcontext(DIGITS):
        for k in range(mode, min(calls, mode + reach)):
            masses[k + 1] = masses[k] * (calls - k) / (k + 1) * e
        for k in range(mode, max(0, mode - reach), -1):
            masses[k - 1] = masses[k] * k / (calls - k + 1) / e
        total = sum(masses.values())
        gained = decimal.Decimal(0)
        for k, mass in masses.items():
            exponent = decimal.Decimal(epsilon) - decimal.Decimal(epsilon_per_query) * (2 * k - calls)
            if exponent < 0:
                gained += mass * (1 - exponent.exp())
        return gained / total


@pytest.mark.parametrize(
    ("epsilon_per_query", "calls", "share"),
    [
        *[(0.0001 * number, 1_000_000, 0.3 * number) for number in range(1, 12, 2)],
        *[(0.01, calls, share) for calls in (3, 1000, 30_000) for share in (0.5, 2.0)],
    ],
)
def test_composition_of_many_calls_is_never_below_the_truth(epsilon_per_query, calls, share):
    """The logarithms of a million calls are large, and their rounding with them."""
    epsilon = share * epsilon_per_query * math.sqrt(calls)
    found, truth = (
        optimal_composition_delta(epsilon_per_query, calls, epsilon),
        composition_delta(epsilon_per_query, calls, epsilon),
    )
    assert truth <= decimal.Decimal(found) <= truth * decimal.Decimal(1 + 1e-7)


@pytest.mark.parametrize(("max_users", "max_items"), [(1, 1), (10**6, 10**9), (3, 2**40), (7, 10**12), (2**40, 2**60)])
def test_the_share_of_hash_collisions_counts_users_and_items(max_users, max_items):
    """One other user of so many has the same 64 bits; any two of so many items have the same 128, each pair twice."""
    truth = Fraction(max_users, 2**64) + Fraction(max_items**2, 2**128)
    assert hash_delta(max_users, max_items) == pytest.approx(float(truth), rel=1e-15, abs=0)


OPTIONS = {"hits": {}, "hits-with-counts": {"hits_per_user": 2}, "kms21": {"hits_per_user": 2}}


@functools.cache
def plan_of(mode):
    schedule = WindowSchedule(0, 24 * 3600, 3600, 3600)
    return plan_of_mode(mode, epsilon=1.0, delta=1e-8, schedule=schedule, **OPTIONS[mode])


@pytest.mark.parametrize("mode", OPTIONS)
def test_a_plan_with_one_digit_too_little_for_its_noise_is_refused(mode):
    plan = plan_of(mode)
    proved = plan.hits.proof.delta(plan.epsilon)
    assert 0 < proved <= plan.shares.paid
    assert with_changes(plan, {"shares.paid": proved}).shares.paid == proved
    with pytest.raises(ValueError, match="is too little noise"):
        with_changes(plan, {"shares.paid": math.nextafter(proved, 0)})


@pytest.mark.parametrize("mode", OPTIONS)
def test_a_plan_whose_shares_exceed_delta_by_one_digit_is_refused(mode):
    plan = plan_of(mode)
    total = math.fsum((plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash))
    assert dataclasses.replace(plan, delta=total).delta == total
    with pytest.raises(ValueError, match="must add up to at most"):
        dataclasses.replace(plan, delta=math.nextafter(total, 0))


@pytest.mark.parametrize("share", ["hash", "sampling"])
def test_a_plan_with_one_digit_too_little_for_a_small_share_is_refused(share):
    plan = plan_of("hits")
    with_changes(plan, {f"shares.{share}": getattr(plan.shares, share)})
    low, high = 0.0, getattr(plan.shares, share)
    while math.nextafter(low, 1) < high:  # the least that is accepted
        middle = (low + high) / 2
        try:
            with_changes(plan, {f"shares.{share}": middle})
            high = middle
        except ValueError:
            low = middle
    wanted = {
        "hash": Fraction(plan.max_users, 2**64) + Fraction(plan.max_items**2, 2**128),
        "sampling": Fraction(1 + math.exp(plan.epsilon))
        * 2
        * plan.queries_per_user
        * Fraction(plan.hits.noise.total_variation),
    }[share]
    assert high == pytest.approx(float(wanted), rel=1e-14, abs=0)


MARGIN = 1e-9
DELTA = 1e-7


@pytest.mark.parametrize("share", [1.0, 1 + 1e-12, 1 - 1e-12])
def test_the_smallest_safe_threshold_is_safe_and_the_smallest(share):
    """At the exact tail of a margin, and one digit beside it."""
    noise, queries = NoiseParameters(0.3), 240
    for margin in (1, 2, 17, 90):
        delta_open = queries * noise.upper_tail(margin) * share
        found = smallest_safe_threshold(noise, queries, delta_open)
        assert queries * noise.upper_tail(found - 1) <= delta_open
        assert queries * noise.upper_tail(found - 2) > delta_open
    assert smallest_safe_threshold(noise, queries, queries * 0.6) == 1
    assert smallest_safe_threshold(noise, 1, noise.upper_tail(0)) == 1


EACH, Q, HITS, DELTA_OF_HITS = 0.2, 0.3, 4, 1e-6


def test_the_running_figure_begins_at_a_thousandth_and_never_exceeds_the_total():
    total = GameAccountant(EACH, Q, HITS).epsilon(0.2)
    assert GameAccountant(EACH, Q, 1).epsilon(0.2) < total / 1000, "a generous delta covers the first hit"
    assert GameAccountant(EACH, Q, HITS).epsilon_after_hits(total, 0.2)[0] == pytest.approx(total / 1000, rel=1e-12)
    lower = GameAccountant(EACH, Q, HITS).epsilon(DELTA_OF_HITS) * (1 - 1e-8)
    assert lower * (1 - 1e-6) < max(GameAccountant(EACH, Q, HITS).epsilon_after_hits(lower, DELTA_OF_HITS)) <= lower
