"""The choice of a purse, and what counts of named items take of it."""

import dataclasses
import functools

import mpmath
import pytest

from dp_transforms.accounting.calibration import sampling_delta
from dp_transforms.accounting.purse import purse_search
from dp_transforms.accounting.purse.open_threshold import found_from, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import (
    SHARE_OF_COUNTS,
    count_noise,
    count_units,
    order_budget,
    price_counts,
)
from dp_transforms.accounting.purse.purse_choice import choose_purse
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.plan_files import with_changes
from tests.unit.purse_oracle import delta_of_budget

BUDGET = {"epsilon": 2.0, "delta": 1e-9}


@functools.cache
def chosen(**activity):
    return choose_purse(**BUDGET, **activity)


def test_the_default_finds_as_much_as_the_reference():
    """Shape 2.5 with a T for one activity alone has 22.7, 49.2 and 131.9 users; one T for all costs some percent."""
    choice = chosen()
    at_threshold = [choice.threshold / choice.prices.replay_weight(looks) for looks in (1, 10, 100)]
    assert at_threshold[0] < 27
    assert at_threshold[1] < 49.2 * 1.1
    assert at_threshold[2] < 131.9 * 1.1
    assert choice.prices.noise.shape in (2.25, 2.5, 2.75)


def test_shape_goes_with_activity():
    """Heavier tails for users who do little; the more looks, the lighter."""
    shapes = [chosen(usual_looks=usual).prices.noise.shape for usual in ((1, 2), (1, 100), (300, 3000))]
    assert shapes == sorted(shapes)
    assert shapes[0] <= 2 < shapes[1] < shapes[2]


def test_users_who_do_one_thing_are_found_nearly_as_soon_as_by_a_selection_of_partitions():
    """PipelineDP's best one at one pair for each user, truncated geometric, names an item from 13 users on."""
    choice = chosen(usual_looks=(1, 1), most_looks=1)
    assert found_from(choice.prices, choice.threshold, 1) <= 15


@pytest.mark.parametrize("usual", [(1, 2), (1, 100), (300, 3000)])
def test_no_other_shape_finds_more(usual):
    """By the certified prices and threshold, not by those of the search; 3 % for its coarse grid."""

    def users(choice):
        product = 1.0
        for looks in {usual[0], round((usual[0] * usual[1]) ** 0.5), usual[1]}:
            product *= found_from(choice.prices, choice.threshold, looks)
        return product ** (1 / 3 if usual != (1, 2) else 1 / 2)

    best = users(chosen(usual_looks=usual))
    for shape in (2.0, 3.5):
        assert best <= users(chosen(usual_looks=usual, shapes=(shape,))) * 1.03


def test_the_scale_grows_with_the_root_of_the_looks():
    """So that the smallest weight is not rounded down to little or nothing."""
    assert chosen(usual_looks=(1, 10), most_looks=40_000, shapes=(3.0,)).prices.noise.scale == 20_000


def test_hits_pay_on_long_streams():
    """10,000 looks and 10 hits: the reference has 361 users (shape 2.5) or 369 (shape 2); looks alone some 1,000."""
    activity = {"usual_looks": (10_000, 10_000), "most_looks": 10_000, "level_spacing": 5.5}
    with_hits, alone = chosen(**activity, hits=(10,)), chosen(**activity)
    assert with_hits.hit_prices is not None
    assert with_hits.hit_prices.hits == 10
    assert 355 < with_hits.threshold / with_hits.hit_prices.replay_weight(10_000) < 375
    assert with_hits.prices.hits == 0
    assert alone.hit_prices is None
    assert alone.threshold / alone.prices.replay_weight(10_000) > 900


def test_ten_hits_and_as_many_looks_as_there_are_windows():
    """1,152 looks and 10 hits: the reference has 242 users at shape 2.5, where looks alone have 437."""
    activity = {"usual_looks": (1152, 1152), "level_spacing": 5.5, "hits": (10,)}
    at_shape, free = chosen(**activity, shapes=(2.5,)), chosen(**activity)
    users = [c.threshold / c.hit_prices.replay_weight(1152) for c in (at_shape, free) if c.hit_prices is not None]
    assert 240 < users[0] < 250
    assert 225 < users[1] < users[0]


def test_hits_are_chosen_where_few_looks_are_hits(monkeypatch):
    """And looks alone where each tenth is one, as a plan takes it: the hits are used up too early."""
    activity = {"usual_looks": (100, 200), "most_looks": 200, "level_spacing": 5.5, "hits": (0, 3, 10)}
    assert choose_purse(**BUDGET, **activity).hit_prices is None
    monkeypatch.setattr(purse_search, "HIT_SHARE", 0.01)
    with_hits = choose_purse(**BUDGET, **activity)
    assert with_hits.hit_prices is not None
    assert with_hits.hit_prices.hits == 3
    alone = choose_purse(**BUDGET, **{**activity, "hits": (0,)})
    users = [found_from(c.prices, c.threshold, 200, hit_prices=c.hit_prices) for c in (with_hits, alone)]
    assert users[0] < users[1] * 0.97


def test_what_is_chosen_adds_up_to_delta():
    choice = chosen()
    assert choice.delta_looks + choice.delta_open <= BUDGET["delta"] * (1 + 1e-12)
    assert delta_of_budget(choice.prices.order, choice.prices.budget, 2.0) <= choice.delta_looks * (1 + 1e-6)
    assert choice.threshold == smallest_open_threshold(choice.prices, choice.delta_open)
    variation = choice.prices.most_looks * choice.prices.noise.sampling_total_variation
    assert 0 < sampling_delta(2.0, variation, horizon=1, domain_size=0) < 1e-25


def test_levels_are_priced():
    """At 5.5 standard deviations they cost next to nothing, at 2 a visible part."""
    narrow = {"usual_looks": (5, 5), "most_looks": 5, "shapes": (2.5,)}
    plain, wide, close = (chosen(**narrow, level_spacing=spacing) for spacing in (0.0, 5.5, 2.0))
    assert wide.prices.spacing >= 5.5 * wide.prices.noise.standard_deviation
    assert plain.prices.weights[0] * 0.998 < wide.prices.weights[0] <= plain.prices.weights[0]
    assert close.prices.weights[0] < 0.97 * plain.prices.weights[0]


def test_a_choice_that_is_not_safe_cannot_be_built():
    choice = chosen()
    assert dataclasses.replace(choice) == choice
    assert dataclasses.replace(choice, threshold=choice.threshold + 1).threshold > choice.threshold
    for change, said in (
        ({"threshold": choice.threshold - 1}, f"threshold must be >= {choice.threshold}"),
        ({"delta_looks": choice.delta_looks * 0.99}, "budget must be at most"),
        ({"epsilon": 1.99}, "budget must be at most"),
        ({"delta_open": choice.delta_open * 0.99}, "threshold must be >="),
        ({"threshold": 0}, "threshold must be a whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(choice, **change)
    other_order = dataclasses.replace(
        choice.prices, budget=order_budget(choice.prices.order + 1, 2.0, choice.delta_looks)
    )
    with pytest.raises(ValueError, match="budget must be at most"):
        dataclasses.replace(choice, prices=other_order)


def test_known_items_need_no_share_of_delta():
    choice = chosen()
    known = dataclasses.replace(choice, delta_open=0.0, threshold=1)
    assert known.threshold == 1


# --- What a count of a named item costs, against the exact law of its noise; and plans with counts.

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-17", 3600)


def plan_of(**changes):
    arguments = {"epsilon": 2, "delta": 1e-9, "schedule": SCHEDULE, "mode": "looks", "usual_looks": (1, 100)}
    return Plan.calibrate(**{**arguments, **changes})


@pytest.fixture(scope="module")
def plan():
    return plan_of(counts_for=10)


@pytest.mark.parametrize(("scale", "order"), [(3, 2.0), (7, 5.5), (40, 17.0)])
def test_the_price_of_a_count_covers_the_divergence_of_its_law_and_is_no_waste(scale, order):
    with mpmath.workdps(50):

        def mass(value):  # of round(X), X of density exp(-(x / scale)^2)
            upper, lower = (mpmath.erf(mpmath.mpf(2 * value + sign) / 2 / scale) for sign in (1, -1))
            return (upper - lower) / 2

        masses = [mass(value) for value in range(-30 * scale, 30 * scale + 2)]
        for ps, qs in ((masses[1:], masses[:-1]), (masses[:-1], masses[1:])):
            total = mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(ps, qs, strict=True) if q)
            divergence = mpmath.log(total) / (mpmath.mpf(order) - 1)
            for budget in (0.5, 3.0):
                paid = count_units(order, budget, scale) * mpmath.mpf(budget) / PURSE_UNITS
                assert divergence <= paid
                assert paid <= divergence * (1 + mpmath.mpf(1) / scale)


@pytest.mark.parametrize("counts_per_user", [1, 10, 100])
def test_counts_cost_at_most_their_share_of_a_purse_and_no_less_noise_would_do(counts_per_user):
    units, scale = price_counts(17.0, 0.9, counts_per_user)
    assert (
        counts_per_user * units <= SHARE_OF_COUNTS * PURSE_UNITS < counts_per_user * count_units(17.0, 0.9, scale - 1)
    )
    assert count_noise(scale).standard_deviation == pytest.approx(scale / 2**0.5)


def test_a_budget_that_needs_more_noise_than_can_be_sampled_is_refused():
    with pytest.raises(ValueError, match="too small for counts"):
        price_counts(900.0, 1e-9, 100)


def test_a_plan_with_counts_is_stored_and_read_and_pays_for_them(plan):
    without = plan_of()
    assert (plan.counts.items, plan.counts.per_user) == (10, 100)
    assert without.counts is None
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.fingerprint != without.fingerprint
    kept = ("noise", "order", "budget")
    assert all(getattr(plan.looks, name) == getattr(without.looks, name) for name in kept)
    assert plan.paid_looks.prices.most_looks == plan.paid_looks.most_looks
    assert plan.threshold == smallest_open_threshold(plan.paid_looks.prices, plan.delta_open)
    assert plan.found_from(1) - without.found_from(1) <= 1
    assert without.found_from(100) < plan.found_from(100) < 1.2 * without.found_from(100)
    # The two lists round weights down at different places.
    assert abs(plan.found_from(100, without_counts=True) - without.found_from(100)) <= 2
    assert plan.found_from(10**6) > without.found_from(10**6)


def test_counts_that_leave_no_look_to_pay_for_are_refused():
    with pytest.raises(ValueError, match="counts leave less of a purse than a look costs"):
        plan_of(counts_for=1, most_looks=1, usual_looks=(1, 1))
    plan = plan_of(counts_for=1, most_looks=2, usual_looks=(1, 2))
    assert plan.found_from(1) <= plan.found_from(2)


def test_the_draws_of_counts_are_paid_from_delta_sampling(plan):
    looks = plan.paid_looks.most_looks * plan.looks.noise.sampling_total_variation
    counts = plan.counts.per_user * count_noise(plan.counts.scale).sampling_total_variation
    needed = float((1 + mpmath.exp(2)) * (looks + counts))
    assert with_changes(plan, {"shares.sampling": needed * (1 + 1e-9)})
    with pytest.raises(ValueError, match="the share sampling must be >="):
        with_changes(plan, {"shares.sampling": float((1 + mpmath.exp(2)) * looks)})


def test_counts_in_a_known_domain_and_in_a_short_run():
    known = plan_of(counts_for=3, domain=ItemDomain.of_ids(["a", "b", "c"]))
    assert known.counts.items == 3
    short = plan_of(counts_for=3, schedule=WindowSchedule.fixed("2026-01-01", "2026-01-02", 43_200))
    assert short.counts.per_user == 6
