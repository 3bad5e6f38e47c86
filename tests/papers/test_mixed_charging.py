"""Renyi target charging and calls of several kinds, each against an independent figure, to the last digits."""

import decimal
import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability
from dp_transforms.papers.mixed_charging import (
    CallKind,
    MixedChargingAccountant,
    MixedChargingFilter,
    largest_lam,
    largest_probability,
    largest_support,
    target_charge,
)

EPSILONS = (0.02, 0.3, 1.0, 3.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("portion", [1.0, 0.86, 0.2])
def test_charge_is_the_smallest_for_all_plays(epsilon, portion):
    """With it every play is a supermartingale, on a grid of the polygon and its corners; with less one is not."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    q = portion * (1 - p)
    edge = q / (1 - p)
    plays = [
        (h0, h1)
        for h0, h1 in itertools.product(np.linspace(0, 1, 41).tolist(), repeat=2)
        if p * h1 + (1 - p) * h0 >= q and (1 - p) * h1 + p * h0 >= q
    ]
    plays += [(edge, 0.0), (0.0, edge), (q, q)]
    for share in (0.02, 0.5, 0.9):
        lam = share * largest_lam(epsilon, q)

        def growth(charge, lam=lam):
            rise, fall = p * math.exp(lam * epsilon), (1 - p) * math.exp(-lam * epsilon)
            keeps = math.exp(-charge)
            return max(rise * (1 - h1 + h1 * keeps) + fall * (1 - h0 + h0 * keeps) for h0, h1 in plays)

        charge = target_charge(epsilon, q, lam)
        assert growth(charge) <= 1 + 1e-12
        assert growth(charge * 0.999) > 1


def test_the_largest_order_is_the_last_with_a_charge():
    for epsilon in EPSILONS:
        q = not_prior_probability(epsilon)
        assert largest_lam(epsilon, q) == pytest.approx(math.log1p(math.exp(-epsilon)) / epsilon, rel=1e-12)
        for portion in (1.0, 0.3):
            limit = largest_lam(epsilon, portion * q)
            assert math.isfinite(target_charge(epsilon, portion * q, limit * (1 - 1e-6)))
            assert target_charge(epsilon, portion * q, limit * (1 + 1e-12)) == math.inf


@given(st.floats(-9, 5), st.floats(-9, 2), st.floats(-12, -0.01))
@example(math.log10(48883.91973290794 - 1), math.log10(8.268020085061013e-08), math.log10(7.070889385790124e-06))
def test_conversions_are_never_below_the_exact_ones(above_one, budget, log_delta):
    """Also where terms much larger than their sum cancel, and where delta is below the smallest float."""
    accountant, delta = MixedChargingAccountant(1 + 10**above_one, 10**budget), 10**log_delta
    with decimal.localcontext(prec=60):
        order = Decimal(accountant.order)
        divergence = Decimal(accountant.budget) / (order - 1)
        loss = (order * (1 - 1 / order).ln() - (order - 1).ln()) / (order - 1)
        exact = divergence + loss - Decimal(delta).ln() / (order - 1)
        found = accountant.epsilon(delta)
        assert max(exact, 0) <= Decimal(found)
        assert found <= max(float(exact), 0) * (1 + 1e-9) + 1e-9 * (1 + 1 / (accountant.order - 1) ** 2)
        for epsilon in (found or 1.0, 1.0, 900.0):
            exact_delta = ((order - 1) * (divergence + loss - Decimal(epsilon))).exp()
            assert min(exact_delta, 1) <= Decimal(accountant.delta(epsilon))


@given(st.floats(0.05, 20), st.floats(-15, -1.5), st.floats(1.1, 50))
def test_a_calibrated_budget_never_exceeds_its_promise(epsilon, log_delta, order):
    """The conversion back rounds up. Of budgets that were not checked again about one in twelve would be over."""
    try:
        found = MixedChargingAccountant.calibrate(epsilon, 10**log_delta, order)
    except ValueError as error:
        assert "too small" in str(error)  # noqa: PT017
        return
    assert found.epsilon(10**log_delta) <= epsilon


def test_the_filter_admits_what_it_can_still_pay():
    accountant = MixedChargingAccountant(order=3.0, budget=1.0)
    cheap, dear = (0.1, not_prior_probability(0.1)), (0.2, not_prior_probability(0.2))
    small, large = accountant.charge(*cheap), accountant.charge(*dear)
    assert 2 * small < large < 1 < 10 * large
    limit = MixedChargingFilter(accountant)
    while limit.admits(*dear):
        limit.charge(*dear)
    assert 1 - large < limit.spent <= 1
    cheap_hits = math.floor((1 - limit.spent) / small)
    assert limit.admits(*cheap, hits=cheap_hits) is (cheap_hits > 0)
    assert not limit.admits(*cheap, hits=cheap_hits + 1)
    limit.charge(*cheap, hits=0)
    limit.charge(*cheap, hits=cheap_hits)
    assert not limit.admits(*cheap)
    assert accountant.budget - small < limit.spent <= accountant.budget
    with pytest.raises(ValueError, match="order 3 has no charge"):
        limit.admits(2.0, 0.1)


def test_a_mix_counts_as_its_largest_support():
    """The smaller q may belong to the smaller epsilon; a q too large for the larger one counts as its largest."""
    small, large = not_prior_probability(0.02), not_prior_probability(0.04)
    mix = [CallKind(0.02, small, 80), CallKind(0.04, large, 20)]
    assert largest_support(mix) == GameAccountant(0.04, large, 100)
    smaller = largest_support([CallKind(0.02, small / 2, 1), CallKind(0.04, large, 1)])
    assert smaller.target_probability == pytest.approx(small / 2)
    assert largest_support([CallKind(0.3, 0.9, 1)]).target_probability == not_prior_probability(0.3)


def test_a_larger_target_counts_as_the_largest_that_there_is():
    assert largest_probability(1.0, 1) == pytest.approx(1 / (math.e + 1), rel=1e-15)
    assert largest_probability(1.0, 0.2) == 0.2
    for refused in (0, -0.1, 1.0000001, True, math.nan):
        with pytest.raises(ValueError, match="target_probability must lie in"):
            largest_probability(1.0, refused)
