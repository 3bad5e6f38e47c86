"""The sampler against Python integers and 150-digit decimals: nothing here is statistical."""

import bisect
import decimal
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms import discrete_laplace_law
from dp_transforms.mechanisms.noise_table import DiscreteLaplace, discrete_laplace, multiply_high

ONE = 1 << 128
DIGITS = decimal.Context(prec=150, Emin=-100_000, Emax=100_000)
SMALL = 2.5  # a table of 36 entries
EPSILONS = [1e-4, 0.02, 0.2, 1.0, SMALL, 3.7, 32.0]


def words(values):
    return np.array([divmod(value, 1 << 64) for value in values], dtype=np.uint64).reshape(-1, 2)


def integers(rows):
    return [(int(high) << 64) | int(low) for high, low in rows]


def exact_tail(epsilon, margin):
    """``2^128 Pr[Z >= margin]``, from the definition, to about 100 digits after the point."""
    a = DIGITS.exp(decimal.Decimal(-epsilon))
    power = DIGITS.exp(
        DIGITS.multiply(decimal.Decimal(-epsilon), decimal.Decimal(abs(margin) if margin > 0 else 1 - margin))
    )
    share = DIGITS.divide(power, DIGITS.add(decimal.Decimal(1), a))
    if margin < 1:
        share = DIGITS.subtract(decimal.Decimal(1), share)
    return DIGITS.multiply(share, decimal.Decimal(ONE))


class OracleTable:
    """Thresholds of all values from the list of tails, as Python integers."""

    def __init__(self, epsilon):
        tails = discrete_laplace_law.upper_tail_integers(epsilon)
        self.reach = len(tails)
        self.ascending = [*reversed(tails), *(ONE - tail for tail in tails)]

    def tail(self, margin):
        if margin > self.reach:
            return 0
        return ONE if margin <= -self.reach else self.ascending[self.reach - margin]

    def invert(self, uniform):
        return self.reach - bisect.bisect_right(self.ascending, uniform)


# --- The table


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_thresholds_are_the_floors_of_the_exact_tails(epsilon):
    tails = discrete_laplace_law.upper_tail_integers(epsilon)
    size = len(tails)
    some = (
        range(1, size + 1)
        if size < 400
        else sorted({1, 2, 3, *range(1, size, size // 300), *range(size - 20, size + 1)})
    )
    for margin in some:
        assert 0 <= exact_tail(epsilon, margin) - tails[margin - 1] < 1
    assert exact_tail(epsilon, size + 1) < 1, "the table ends where the tail is below one unit"
    assert all(high >= low > 0 for high, low in itertools.pairwise(tails))
    assert tails[0] < ONE // 2


@pytest.mark.parametrize("epsilon", [0.02, 1.0, SMALL])
def test_the_sampler_uses_this_table(epsilon):
    """Through `passes`: the bit turns exactly at the threshold of every margin."""
    noise, table = discrete_laplace(epsilon), OracleTable(epsilon)
    assert noise.reach == table.reach
    margins = [margin for margin in range(-table.reach - 2, table.reach + 3) if 0 < table.tail(margin) < ONE]
    at = words(table.tail(margin) for margin in margins)
    below = words(table.tail(margin) - 1 for margin in margins)
    assert not noise.passes(at, np.array(margins)).any()
    assert noise.passes(below, np.array(margins)).all()
    for margin, expected in ((table.reach + 1, False), (10**9, False), (-table.reach, True), (-(10**9), True)):
        ends = words([0, ONE - 1])
        assert noise.passes(ends, np.full(2, margin)).tolist() == [expected] * 2


def test_floats_of_the_distribution_agree_with_the_table():
    for epsilon in (0.01, 0.3, 2.0):
        tails = discrete_laplace_law.upper_tail_integers(epsilon)
        for margin in (1, 2, 7, 20):
            assert discrete_laplace_law.upper_tail(epsilon, margin) == pytest.approx(tails[margin - 1] / ONE, rel=1e-11)
            assert discrete_laplace_law.upper_tail(epsilon, margin) >= tails[margin - 1] / ONE, "rounded up"
            assert discrete_laplace_law.upper_tail(epsilon, 1 - margin) == pytest.approx(1 - tails[margin - 1] / ONE)
            mass = (tails[margin - 1] - tails[margin]) / ONE
            assert discrete_laplace_law.probability(epsilon, margin) == pytest.approx(mass, rel=1e-11)
            assert discrete_laplace_law.probability(epsilon, -margin) == discrete_laplace_law.probability(
                epsilon, margin
            )
        assert discrete_laplace_law.upper_tail(epsilon, -(10**6)) == 1.0
        # Every threshold is off by at most one unit, in each of the two stages; the bound counts all of them.
        assert discrete_laplace_law.sampling_total_variation(epsilon) >= 2 * (2 * len(tails) + 1) / ONE
        assert discrete_laplace_law.sampling_total_variation(epsilon) < 2.0**-100


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 33.0, 1e-5])
def test_epsilons_that_cannot_be_sampled_are_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon per query must lie in"):
        DiscreteLaplace(epsilon)


# --- Inversion


@pytest.mark.parametrize("epsilon", [0.2, SMALL, 32.0])
def test_inversion_at_and_beside_every_threshold(epsilon):
    """High words of small thresholds are all 0 and of large ones all 2^64 - 1: many ties that the low word settles."""
    noise, table = discrete_laplace(epsilon), OracleTable(epsilon)
    uniforms = sorted(
        {threshold + step for threshold in table.ascending for step in (-1, 0, 1)} | {0, 1, ONE - 2, ONE - 1}
    )
    uniforms = [uniform for uniform in uniforms if 0 <= uniform < ONE]
    assert noise.sample(words(uniforms)).tolist() == [table.invert(uniform) for uniform in uniforms]
    if epsilon < 32:
        assert len({threshold >> 64 for threshold in table.ascending}) < len(table.ascending), "there are ties"


def test_every_uniform_has_its_value_with_exactly_the_weight_of_the_table():
    """Symmetric up to one unit, monotone, and all of 2^128 is used."""
    table = OracleTable(SMALL)
    weights = {value: table.tail(value) - table.tail(value + 1) for value in range(-table.reach, table.reach + 1)}
    assert sum(weights.values()) == ONE
    assert all(weights[value] == weights[-value] for value in range(1, table.reach + 1))
    noise = discrete_laplace(SMALL)
    assert noise.sample(words([0, ONE - 1])).tolist() == [table.reach, -table.reach]
    assert noise.sample(np.empty((0, 2), dtype=np.uint64)).tolist() == []


# --- Conditioning


def _oracle_given_pass(table, uniform, margin):
    return table.invert(uniform * table.tail(margin) // ONE)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_conditioning_of_any_uniform(data):
    epsilon = data.draw(st.sampled_from([0.3, SMALL]))
    noise, table = discrete_laplace(epsilon), OracleTable(epsilon)
    uniform = data.draw(st.integers(0, ONE - 1))
    margin = data.draw(st.integers(-table.reach - 3, table.reach))
    value = noise.sample_given_pass(words([uniform]), np.array([margin]))[0]
    assert value == _oracle_given_pass(table, uniform, margin)
    assert value >= margin


@pytest.mark.parametrize("epsilon", [SMALL, 0.3])
def test_conditioning_at_every_margin_and_at_both_ends(epsilon):
    """The least uniform gives the largest noise and the greatest the margin itself: never a value below it."""
    noise, table = discrete_laplace(epsilon), OracleTable(epsilon)
    margins = np.arange(-table.reach - 2, table.reach + 1)
    lowest = noise.sample_given_pass(words([0] * len(margins)), margins)
    highest = noise.sample_given_pass(words([ONE - 1] * len(margins)), margins)
    assert lowest.tolist() == [table.reach] * len(margins)
    expected = [_oracle_given_pass(table, ONE - 1, int(margin)) for margin in margins]
    assert highest.tolist() == expected
    assert all(value >= margin for value, margin in zip(expected, margins, strict=True))


def test_two_stages_together_are_within_two_units_of_the_exact_weights():
    """``Z >= value`` has ``tail(margin)`` pass uniforms and ``ceil(2^128 tail(value) / tail(margin))`` noise uniforms:
    one unit for the table, one for the conditioning, as `sampling_total_variation` counts them."""
    noise, table = discrete_laplace(SMALL), OracleTable(SMALL)
    for margin in (-table.reach, -2, 0, 1, 3, 20, table.reach - 1):
        for value in range(margin + 1, min(margin + 6, table.reach + 1)):
            cut = -(-table.tail(value) * ONE // table.tail(margin))
            at, below = noise.sample_given_pass(words([cut, cut - 1]), np.array([margin, margin]))
            assert at < value <= below
            joint = DIGITS.divide(decimal.Decimal(table.tail(margin) * cut), decimal.Decimal(ONE))
            assert abs(joint - exact_tail(SMALL, value)) < 2


@pytest.mark.parametrize("beyond", [1, 2, 10**6])
def test_conditioning_on_the_impossible_is_refused(beyond):
    noise = discrete_laplace(SMALL)
    with pytest.raises(ValueError, match="margins must be at most"):
        noise.sample_given_pass(words([5, 5]), np.array([0, noise.reach + beyond]))
    assert noise.sample_given_pass(words([ONE - 1]), np.array([noise.reach])).tolist() == [noise.reach]


# --- 128-bit arithmetic


def test_multiply_high_of_all_edges():
    values = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, 1 << 64, (1 << 96) + 1, ONE - 2, ONE - 1]
    pairs = [*itertools.product(values, repeat=2)]
    product = multiply_high(words(first for first, _ in pairs), words(second for _, second in pairs))
    assert integers(product) == [first * second // ONE for first, second in pairs]
