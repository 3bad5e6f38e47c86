"""What a count of a named item costs, against the exact law of its noise; and plans with counts."""

from __future__ import annotations

from typing import Any

import mpmath
import pytest

from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import SHARE_OF_COUNTS, count_noise, count_units, price_counts
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.plan_files import with_changes

SCHEDULE = WindowSchedule.fixed("2026-01-01", "2026-01-17", 3600)


def plan_of(**changes: Any) -> Plan:
    arguments = {"epsilon": 2, "delta": 1e-9, "schedule": SCHEDULE, "mode": "looks", "usual_looks": (1, 100)}
    return Plan.calibrate(**{**arguments, **changes})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(counts_for=10)


@pytest.mark.parametrize(("scale", "order"), [(3, 2.0), (7, 5.5), (40, 17.0)])
def test_the_price_of_a_count_covers_the_divergence_of_its_law_and_is_no_waste(scale: int, order: float) -> None:
    with mpmath.workdps(50):

        def mass(value: int) -> Any:  # of round(X), X of density exp(-(x / scale)^2)
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
def test_counts_cost_at_most_their_share_of_a_purse_and_no_less_noise_would_do(counts_per_user: int) -> None:
    units, scale = price_counts(17.0, 0.9, counts_per_user)
    assert (
        counts_per_user * units <= SHARE_OF_COUNTS * PURSE_UNITS < counts_per_user * count_units(17.0, 0.9, scale - 1)
    )
    assert count_noise(scale).standard_deviation == pytest.approx(scale / 2**0.5)


def test_a_budget_that_needs_more_noise_than_can_be_sampled_is_refused() -> None:
    with pytest.raises(ValueError, match="too small for counts"):
        price_counts(900.0, 1e-9, 100)


def test_a_plan_with_counts_is_stored_and_read_and_pays_for_them(plan: Plan) -> None:
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


def test_counts_that_leave_no_look_to_pay_for_are_refused() -> None:
    with pytest.raises(ValueError, match="counts leave less of a purse than a look costs"):
        plan_of(counts_for=1, most_looks=1, usual_looks=(1, 1))
    plan = plan_of(counts_for=1, most_looks=2, usual_looks=(1, 2))
    assert plan.found_from(1) <= plan.found_from(2)


def test_the_draws_of_counts_are_paid_from_delta_sampling(plan: Plan) -> None:
    looks = plan.paid_looks.most_looks * plan.looks.noise.sampling_total_variation
    counts = plan.counts.per_user * count_noise(plan.counts.scale).sampling_total_variation
    needed = float((1 + mpmath.exp(2)) * (looks + counts))
    assert with_changes(plan, {"shares.sampling": needed * (1 + 1e-9)})
    with pytest.raises(ValueError, match="the share sampling must be >="):
        with_changes(plan, {"shares.sampling": float((1 + mpmath.exp(2)) * looks)})


def test_counts_in_a_known_domain_and_in_a_short_run() -> None:
    known = plan_of(counts_for=3, domain=ItemDomain.of_ids(["a", "b", "c"]))
    assert known.counts.items == 3
    short = plan_of(counts_for=3, schedule=WindowSchedule.fixed("2026-01-01", "2026-01-02", 43_200))
    assert short.counts.per_user == 6
