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
from dp_transforms.papers.private_computation import NotPrior
from dp_transforms.papers.target_charging import TargetCharging
from tests.papers.scripted import Scripted

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


DELTA = 1e-6
ROUNDS = 80
STEP = 0.1  # the losses of all kinds below are multiples of it


class _MixedAdversary:
    """The best adversary against the filter in ROUNDS calls, which chooses kind, hits and when to stop: exact.

    The state is the number of hits of each kind so far and the loss; ``P[loss - i]`` is followed in units of STEP.
    """

    def __init__(self, accountant, kinds):
        self.kinds = kinds
        charges = [accountant.charge(*kind[:2]) for kind in kinds]
        self.steps = [round(kind.epsilon_per_query / STEP) for kind in kinds]
        reach = [range(math.floor(accountant.budget / charge) + 1) for charge in charges]
        self.states = [
            (i, j)
            for i in reach[0]
            for j in reach[1]
            if i * charges[0] + j * charges[1] <= accountant.budget  # what can have been paid
        ]

    def deltas(self, epsilons):
        """delta at each of these epsilons."""
        size = ROUNDS * max(self.steps)
        loss = STEP * np.arange(-size, size + 1)
        stop = -np.expm1(np.minimum(np.array(epsilons)[:, None] - loss, 0.0))
        value = dict.fromkeys(self.states, stop)
        for _ in range(ROUNDS):
            value = {state: self._round(state, value, stop) for state in self.states}
        return [float(delta) for delta in value[0, 0][:, size]]

    def _round(self, state, value, stop):
        best = np.maximum(stop, value[state])
        for number, (kind, step) in enumerate(zip(self.kinds, self.steps, strict=True)):
            after = (state[0] + (number == 0), state[1] + (number == 1))
            if after not in value:
                continue  # one more hit could not be paid
            p = 1 / (1 + math.exp(-kind.epsilon_per_query))
            q, edge = kind.target_probability, min(1.0, kind.target_probability / (1 - p))
            up, up_hit = _shift(value[state], step), _shift(value[after], step)
            down, down_hit = _shift(value[state], -step), _shift(value[after], -step)
            for h0, h1 in ((edge, 0.0), (0.0, edge), (q, q), (1.0, 1.0)):
                risen, fallen = h1 * up_hit + (1 - h1) * up, h0 * down_hit + (1 - h0) * down
                best = np.maximum(best, p * risen + (1 - p) * fallen)
        return best


def _shift(values, steps):
    """values at loss + steps; beyond the ends, which no run of ROUNDS calls reaches, the value of the end."""
    ends = np.pad(values, [(0, 0), (abs(steps), abs(steps))], mode="edge")
    return ends[:, abs(steps) + steps :][:, : values.shape[1]]


def _kind(epsilon, hits, share=1.0):
    return CallKind(epsilon, share * not_prior_probability(epsilon), hits)


MIXES = [
    (5.5, [_kind(STEP, 2, share=0.6), _kind(2 * STEP, 2)]),
    (9.5, [_kind(STEP, 1), _kind(3 * STEP, 2, share=0.8)]),
]


@pytest.mark.parametrize(("epsilon", "mix"), MIXES)
def test_no_mixed_adversary_exceeds_the_filter(epsilon, mix):
    accountant = MixedChargingAccountant.for_mix(epsilon, DELTA, mix)
    adversary = _MixedAdversary(accountant, mix)
    assert len(adversary.states) > 4
    totals = [share * epsilon for share in (0.2, 0.5, 0.8, 1.0)]
    attained = adversary.deltas(totals)
    assert all(delta <= accountant.delta(total) for delta, total in zip(attained, totals, strict=True))
    assert attained[1] > DELTA, "more than half of the epsilon is attained"


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


def test_target_charging_pays_each_call_at_its_own_price():
    accountant = MixedChargingAccountant(order=3.0, budget=5.0)
    limit = MixedChargingFilter(accountant)
    charging = TargetCharging(None, limit)
    for epsilon, result in ((0.2, 1), (0.25, 0), (0.1, 1)):
        charging.ask(Scripted([result], epsilon=epsilon), NotPrior(0))
    paid = [accountant.charge(epsilon, not_prior_probability(epsilon)) for epsilon in (0.2, 0.1)]
    assert limit.spent == pytest.approx(math.fsum(paid), rel=1e-12)


def test_a_mix_counts_as_its_largest_support():
    """The smaller q may belong to the smaller epsilon; a q too large for the larger one counts as its largest."""
    mix = [_kind(0.02, 80), _kind(0.04, 20)]
    assert largest_support(mix) == GameAccountant(0.04, not_prior_probability(0.04), 100)
    smaller = largest_support([_kind(0.02, 1, share=0.5), _kind(0.04, 1)])
    assert smaller.target_probability == pytest.approx(0.5 * not_prior_probability(0.02))
    assert largest_support([CallKind(0.3, 0.9, 1)]).target_probability == not_prior_probability(0.3)


def test_a_larger_target_counts_as_the_largest_that_there_is():
    assert largest_probability(1.0, 1) == pytest.approx(1 / (math.e + 1), rel=1e-15)
    assert largest_probability(1.0, 0.2) == 0.2
    for refused in (0, -0.1, 1.0000001, True, math.nan):
        with pytest.raises(ValueError, match="target_probability must lie in"):
            largest_probability(1.0, refused)
