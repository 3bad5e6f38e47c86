"""Plans of mode `contributions`, without and with hits: calibration, and what each field promises."""

import dataclasses
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dp_transforms.accounting.price_list import smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, stated_users
from dp_transforms.core.public_items import PublicItems
from dp_transforms.plan import rounds
from dp_transforms.plan.plan import Plan, plan_for
from dp_transforms.plan.rounds import SECOND_TEST
from tests.helpers.calibrated_plans import (
    COUNTS,
    HOURLY,
    KMS21,
    LABELS,
    PUBLIC,
    contributions_plan,
    short_contributions_plan,
    with_changes,
)
from tests.reference.prices import tail_of

BESIDE = {"public_items": PUBLIC, "also_open": True}


@pytest.mark.parametrize(
    "changes",
    [{}, {"epsilon": 0.5, "delta": 1e-7}, {"public_items": PUBLIC}, {"forget_after": 0}, BESIDE],
)
def test_the_shares_add_up_and_nothing_is_wasted(changes):
    plan = short_contributions_plan(**changes)
    shares = (plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash)
    assert plan.delta * (1 - 1e-9) <= math.fsum(shares) <= plan.delta
    with mpmath.workdps(40):  # Canonne, Kamath, Steinke (2020), Proposition 12
        lam = mpmath.mpf(plan.contributions.order) - 1
        factor = (1 - 1 / mpmath.mpf(plan.contributions.order)) ** plan.contributions.order / lam
        proved = mpmath.exp(lam * (mpmath.mpf(plan.contributions.budget) - plan.epsilon)) * factor
    assert plan.shares.paid * (1 - 1e-6) < proved <= plan.shares.paid
    if not plan.takes_open_items:
        assert plan.delta_open == 0
    else:
        assert plan.threshold == smallest_open_threshold(plan.contributions.prices, plan.delta_open)


def test_the_hash_share_lets_all_items_of_the_run_have_different_hashes():
    """docs/guarantee.md, "How delta is split for contributions": every pair of items, and not those of one user's looks
    alone."""
    needed = Fraction(10**8, 2**64) + Fraction(10**9 * 10**9, 2**128)
    assert float(needed) == pytest.approx(short_contributions_plan().shares.hash, rel=1e-12)
    many = 10**13
    pairs = Fraction(many * many, 2**128)
    assert short_contributions_plan(max_items=many, delta=1e-6).shares.hash == pytest.approx(
        float(pairs + Fraction(10**8, 2**64))
    )
    with pytest.raises(ValueError, match="declare fewer users and items"):
        short_contributions_plan(max_items=10**15)


def test_the_sampling_share_pays_for_each_look_of_a_purse_and_for_the_items_that_nobody_holds():
    for public, windows in ((None, 0), (PUBLIC, 384)):
        plan = short_contributions_plan(public_items=public)
        reach = math.ceil(plan.contributions.scale * 89.0 ** (1 / plan.contributions.shape)) + 2
        units = 20 * (8 * reach + 4) + windows * (3 * 1000 + 2)
        needed = float((1 + mpmath.exp(2)) * units / mpmath.mpf(2) ** 128)
        assert with_changes(plan, {"shares.sampling": needed * (1 + 1e-9)})
        with pytest.raises(ValueError, match="the share sampling must be >="):
            with_changes(plan, {"shares.sampling": needed * (1 - 1e-9)})
        assert needed <= plan.shares.sampling < 1e-25


def test_followed_items_have_a_threshold_that_noise_alone_rarely_reaches():
    plan = short_contributions_plan()
    assert plan.false_name_error == pytest.approx(float(tail_of(plan.contributions.noise, plan.followed_threshold)))
    assert plan.followed_threshold < plan.threshold
    for error, found in ((1e-5, plan), (1e-9, short_contributions_plan(false_name_error=1e-9))):
        noise, threshold = found.contributions.noise, found.followed_threshold
        assert tail_of(noise, threshold) <= error < tail_of(noise, threshold - 1)
    never_above = short_contributions_plan(false_name_error=1e-25)
    assert never_above.followed_threshold == never_above.threshold


def test_of_public_items_the_run_names_few_that_nobody_holds():
    plan, usual, tests = short_contributions_plan(public_items=PUBLIC), short_contributions_plan(), 1000 * 384
    assert (plan.public_item_count, plan.public_items.fingerprint) == (1000, PUBLIC.fingerprint)
    assert (plan.followed_threshold, plan.followed_for) == (plan.threshold, 0)
    false, with_less = (tests * tail_of(plan.contributions.noise, plan.threshold - less) for less in (0, 1))
    assert false <= 0.05 < with_less
    assert (plan.expected_false_reports, usual.expected_false_reports) == (pytest.approx(float(false)), 0)
    assert plan.found_from(5) < usual.found_from(5), "nothing of delta goes to items with one holder"
    assert plan.shares.paid > usual.shares.paid


def test_public_items_beside_open_ones_leave_budget_and_thresholds_as_they_are():
    """But for the threshold of followed items, at which noise alone may name at most .75 public items in a run."""
    plan, usual = short_contributions_plan(**BESIDE), short_contributions_plan()
    assert (plan.shares.open, plan.threshold) == (usual.shares.open, usual.threshold)
    assert plan.contributions == usual.contributions
    assert (plan.followed_for, plan.delta_open > 0) == (168, True)
    tests, noise = 1000 * 384, plan.contributions.noise
    assert tests * tail_of(noise, plan.followed_threshold) <= 0.75 < tests * tail_of(noise, plan.followed_threshold - 1)
    few = short_contributions_plan(public_items=PublicItems.of_ids(["one"]), also_open=True)
    assert few.followed == usual.followed, "noise names an item as rarely as one that was named"


@pytest.mark.parametrize(
    "changes",
    [{}, {"size_error": 0.2}, {"size_error": 1e-6, "max_users": 10}, {"public_items": PUBLIC}, BESIDE],
)
def test_sizes_allow_for_no_more_noise_than_their_error_needs(changes):
    """How many sizes are wrong where each user spends its budget in the worst way, and each sum that nobody is in."""
    plan = short_contributions_plan(**changes)
    paid, noise = plan.contributions, plan.contributions.noise
    most_unheld = 384 * plan.public_item_count + 2 * plan.followed_for * plan.max_users * paid.most_tests

    def wrong(allowed):
        least = allowed + 1 + 4 * paid.weights[-1]
        of_user = (
            tail_of(noise, least - 4 * weight) * BUDGET_UNITS / units
            for weight, units in zip(paid.weights, paid.units, strict=True)
        )
        return plan.max_users * max(of_user) + most_unheld * tail_of(noise, least)

    assert wrong(plan.likely_noise) <= paid.size_error < wrong(plan.likely_noise - 1) * (1 + 1e-8)


@pytest.mark.parametrize("changes", [{}, {"public_items": PUBLIC}, {"forget_after": 0}, {"max_users": 1000}, BESIDE])
def test_each_name_states_least_users_and_from_so_many_on_an_item_is_named(changes):
    """In one round, exactly by the law of the noise: found with 95 %, and with one user fewer it is not."""
    plan, usual = short_contributions_plan(least_users=100, **changes), short_contributions_plan(**changes)
    assert usual.contributions.least_users is None
    for is_followed in (False, True):
        threshold = plan.followed_threshold if is_followed else plan.threshold
        around = stated_users(np.array([threshold, threshold - 1]), plan.likely_noise, plan.contributions.weights[-1])
        assert around.tolist() == [100, 99], "no threshold is higher than least users need"
        users, weight = plan.found_from(7, followed=is_followed), plan.contributions.prices.replay_weight(7)
        found = [plan.contributions.noise.upper_tail(threshold - number * weight) for number in (users - 1, users)]
        assert found[0] < 0.95 <= found[1]
    with pytest.raises(ValueError, match=r"thresholds must be >= \d+ for least_users = 101"):
        with_changes(plan, {"contributions.least_users": 101})


def test_a_large_epsilon_pays_for_no_weight_that_passes_two_boundaries_at_once():
    """A weight has to be less than the spacing of levels: a search over weights tries larger ones."""
    plan = contributions_plan(epsilon=40.0, delta=0.5)
    assert plan.contributions.spacing / 3 < plan.contributions.weights[-1] <= plan.contributions.spacing
    assert plan.found_from(1) <= 3
    with pytest.raises(ValueError, match="weight 32593 costs more than its"):
        with_changes(
            plan, {"contributions.weights": [*plan.contributions.weights[:-1], plan.contributions.spacing + 1]}
        )
    assert Plan.from_json(plan.to_json()) == plan


def test_users_pay_for_contributions_by_default():
    small = {"usual_contributions": (1, 10), "most_contributions": 20}
    assert Plan.for_contributions(epsilon=2, delta=1e-9, schedule=HOURLY, **small) == short_contributions_plan(
        use="replay"
    )
    twice = plan_for(epsilon=2, delta=1e-9, schedule=HOURLY, charge=None, use="stream", **small)
    assert (twice == short_contributions_plan(use="stream"), twice.units_of_rounds) == (True, (3 * 10**11, 7 * 10**11))
    plans = (LABELS, COUNTS, KMS21, short_contributions_plan())
    assert [(plan.charge, plan.counts, plan.charge_in_words) for plan in plans] == [
        ("hits", False, "hits"),
        ("hits", True, "hits with counts"),
        ("hits", False, "hits, noise as printed"),
        ("contributions", False, "contributions"),
    ]
    with pytest.raises(ValueError, match="in a plan of hits no contribution is paid"):
        _ = LABELS.paid_contributions
    with pytest.raises(ValueError, match="a plan of contributions charges no hits"):
        _ = short_contributions_plan().charged_hits
    with pytest.raises(TypeError, match=r"has no argument 'surprise'\. Do you mean use\?"):
        plan_for(epsilon=2, delta=1e-9, schedule=HOURLY, surprise=1)


def test_two_tests_of_a_stream_need_the_threshold_of_a_full_budget():
    """Both test items that are not named yet (docs/proofs.md, "Two tests in a stream")."""
    plan = short_contributions_plan(use="stream")
    prices, (first, _) = plan.contributions.prices, plan.second_test.units
    safe, of_first = (smallest_open_threshold(prices, plan.delta_open, open_units=each) for each in (10**12, first))
    assert plan.threshold == safe > of_first
    with pytest.raises(ValueError, match=f"threshold must be >= {safe} for the share open"):
        dataclasses.replace(plan, threshold=of_first)


@pytest.mark.parametrize(
    ("choices", "is_twice"),
    [
        ({}, True),
        ({"forget_after": 0}, True),
        ({"least_users": 5}, False),
        ({"public_items": PUBLIC}, False),
        ({"public_items": PUBLIC, "also_open": True}, False),
        ({"use": "parts", "forget_after": 3}, False),
    ],
)
def test_a_stream_tests_twice_but_for_public_items_least_users_and_too_many_contributions(choices, is_twice):
    plan = short_contributions_plan(**{"use": "stream", **choices})
    assert (plan.second_test is not None) == is_twice
    if is_twice and plan.followed is not None:
        assert 0.9e-5 < plan.false_name_error <= 1e-5  # of both draws of a window together
    if choices.keys() & {"public_items", "least_users"}:
        with pytest.raises(ValueError, match="a second test is of contributions, without"):
            dataclasses.replace(plan, second_test=SECOND_TEST)


def test_two_tests_are_of_no_more_contributions_than_a_plan_may_have():
    for most, is_twice in ((25_000, True), (25_001, False)):
        assert rounds.tests_twice(most, "stream", has_public_items=False, least_users=None) == is_twice


def test_sizes_of_two_tests_hold_by_their_own_sum():
    """U max g(w) B_r/units(w) + D Pr[Z > z + k w_r] <= size_error/2, and z is the least such."""
    plan = short_contributions_plan(use="stream")
    paid, noise, units = plan.contributions, plan.contributions.noise, plan.second_test.units
    unheld = 2 * plan.followed_for * plan.max_users * (units[0] // paid.units[0])
    for terms, budget in zip(plan.terms_of_tests, units, strict=True):
        payable = [(w, cost) for w, cost in zip(paid.weights, paid.units, strict=True) if cost <= budget]
        largest = max(w for w, _ in payable)
        assert terms.largest_weight == largest

        def false_sizes(z, payable=payable, largest=largest, budget=budget):
            held = max(noise.upper_tail(z + 4 * (largest - w) + 1) * budget / cost for w, cost in payable)
            return plan.max_users * held + unheld * noise.upper_tail(z + 4 * largest + 1)

        assert false_sizes(terms.likely_noise) <= paid.size_error / 2 < false_sizes(terms.likely_noise - 2)
