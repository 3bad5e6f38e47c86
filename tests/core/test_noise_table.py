"""Tables of noise against Python integers and 150-digit decimals: both stages, and bounds that spare them.

Nothing here is statistical.
"""

import bisect
import decimal
import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting import discrete_laplace_law
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.core.noise_table import (
    NoiseBounds,
    NoiseTable,
    WideDiscreteLaplace,
    discrete_laplace,
    multiply_high,
    noise_table,
)
from tests.reference.log import ONE, integer_of, words_of

DIGITS = decimal.Context(prec=150, Emin=-100_000, Emax=100_000)
SMALL = 2.5  # of discrete Laplace noise whose table has 36 entries
EPSILONS = [1e-4, 0.02, 0.2, 1.0, SMALL, 3.7, 32.0]
LAWS = [ExponentialPower(*law) for law in ((1.0, 12), (2.0, 30), (2.5, 30), (4.0, 200), (2.75, 10_000))]
ENDS = {0, 1, ONE - 1, 2**64 - 1, 2**64, 2**127}


def uniforms(rows, seed=1):
    return np.random.default_rng((rows, seed)).integers(0, 2**64, (rows, 2), dtype=np.uint64)


class Oracle:
    """The same draws with Python integers, one at a time, from the definition. law: or epsilon of discrete Laplace."""

    def __init__(self, law):
        is_laplace = isinstance(law, float)
        tails = discrete_laplace_law.upper_tail_integers(law) if is_laplace else law.upper_tail_integers()
        self.table = discrete_laplace(law) if is_laplace else NoiseTable(tails)
        self.reach = len(tails)
        self.ascending = [*reversed(tails), *(ONE - tail for tail in tails)]  # of reach, ..., 1, 0, ..., 1 - reach

    def tail(self, margin):
        if margin > self.reach:
            return 0
        return ONE if margin <= -self.reach else self.ascending[self.reach - margin]

    def sample(self, uniform):
        """The largest m with uniform < tail(m)."""
        return self.reach - bisect.bisect_right(self.ascending, uniform)

    def given_pass(self, uniform, margin):
        return self.sample(uniform * self.tail(margin) // ONE)


@pytest.mark.parametrize("law", [*LAWS[:-1], 0.02, 0.2, 1.0, SMALL, 32.0], ids=repr)
def test_both_stages_are_exact(law):
    """At and beside every threshold: high words of small ones are all 0, ties that the low word settles."""
    oracle = Oracle(law)
    table, reach = oracle.table, oracle.reach
    near = {tail + step for tail in oracle.ascending for step in (-1, 0, 1)}
    values = sorted(value for value in near | ENDS if 0 <= value < ONE)
    assert table.reach == reach
    assert table.sample(words_of(*values)).tolist() == [oracle.sample(value) for value in values]
    margins = np.arange(reach, -reach, -1)
    assert not table.passes(words_of(*oracle.ascending), margins).any()
    assert table.passes(words_of(*(tail - 1 for tail in oracle.ascending)), margins).all()
    some = {*ENDS, *values[:: 1 + len(values) // 200], *map(integer_of, uniforms(200))}
    for margin in {*range(-reach - 1, reach + 1, 1 + reach // 20), 0, 1, -reach, 1 - reach, reach - 1, reach, -(10**9)}:
        beside = {value for value in (oracle.tail(margin) - 1, oracle.tail(margin)) if 0 <= value < ONE}
        values = sorted(some | beside)
        rows, margins = words_of(*values), np.full(len(values), margin)
        assert table.passes(rows, margins).tolist() == [value < oracle.tail(margin) for value in values]
        found = table.sample_given_pass(rows, margins)
        assert found.tolist() == [oracle.given_pass(value, margin) for value in values]
        assert found.min() >= margin
    for beyond in (1, 10**6):
        assert not table.passes(rows, np.full(len(values), reach + beyond)).any()
        with pytest.raises(ValueError, match=f"at most {reach}, the largest noise, got {reach + beyond}"):
            table.sample_given_pass(uniforms(2), np.array([0, reach + beyond]))


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


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_thresholds_are_the_floors_of_the_exact_tails(epsilon):
    tails = discrete_laplace_law.upper_tail_integers(epsilon)
    size = len(tails)
    for margin in {*range(1, size + 1, 1 + size // 300), *range(max(1, size - 20), size + 1)}:
        assert 0 <= exact_tail(epsilon, margin) - tails[margin - 1] < 1
    assert exact_tail(epsilon, size + 1) < 1, "the table ends where the tail is below one unit"
    assert all(high >= low > 0 for high, low in itertools.pairwise(tails))
    assert tails[0] < ONE // 2


@pytest.mark.parametrize("epsilon", [0.001, 0.2, 3.0])
def test_a_wide_draw_is_a_sign_and_two_digits_of_a_geometric_magnitude(epsilon):
    """Three uniforms, each beside every threshold: which are the floors of the exact probabilities."""
    stride = math.ceil(math.sqrt(89 / epsilon))
    base = DIGITS.exp(decimal.Decimal(-epsilon))

    def floor(share, of):
        return int(DIGITS.multiply(DIGITS.divide(share, of), decimal.Decimal(ONE)))

    def geometric(step, most):
        """Thresholds of one digit: 2^128 Pr[digit >= n], n = 1, 2, ..., and from ``most`` on 0."""
        power, end = DIGITS.power(base, step), DIGITS.power(base, step * most) if most else decimal.Decimal(0)
        tails = []
        for number in range(1, most or 10**6):
            share = DIGITS.subtract(DIGITS.power(power, number), end)
            tails.append(floor(share, DIGITS.subtract(decimal.Decimal(1), end)))
            if not tails[-1]:
                break
        return tails

    nonzero = floor(base, DIGITS.add(decimal.Decimal(1), base))
    coarse, fine = geometric(stride, 0), geometric(1, stride)

    def digit(uniform, tails):
        return sum(uniform < tail for tail in tails)

    def drawn(sign, first, second):
        magnitude = 1 + stride * digit(first, coarse) + digit(second, fine)
        return magnitude if sign < nonzero else -magnitude if sign >= ONE - nonzero else 0

    beside = [[0, ONE - 1, nonzero - 1, nonzero, ONE - nonzero - 1, ONE - nonzero], *([0, ONE - 1] for _ in range(2))]
    for values, tails in zip(beside[1:], (coarse, fine), strict=True):
        values += [tail + step for tail in tails[:: max(1, len(tails) // 20)] for step in (-1, 0) if tail]
    rows = [*itertools.product(beside[0], beside[1], beside[2][:3]), *itertools.product([0], [0, ONE - 1], beside[2])]
    uniforms = np.stack([words_of(*column) for column in zip(*rows, strict=True)], axis=1)
    assert WideDiscreteLaplace(epsilon).sample(uniforms).tolist() == [drawn(*row) for row in rows]


def test_multiply_high_of_all_edges():
    values = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, 1 << 64, (1 << 96) + 1, ONE - 2, ONE - 1]
    pairs = [*itertools.product(values, repeat=2)]
    product = multiply_high(*(words_of(*column) for column in zip(*pairs, strict=True)))
    assert [*map(integer_of, product)] == [first * second // ONE for first, second in pairs]


def beside_tails(law):
    """Uniforms at some tails and near them, from one unit to more than a float can tell apart."""
    tails = law.upper_tail_integers()
    some = sorted({0, 1, 2, *np.linspace(0, len(tails) - 1, 60).astype(int).tolist()})
    at = [tail for m in some for tail in (tails[m], ONE - tails[m])]
    steps = [0, *(sign << power for power in range(0, 128, 5) for sign in (1, -1))]
    near = [tail + step for tail in at for step in steps]
    return words_of(*(value for value in (*near, *ENDS) if 0 <= value < ONE))


def margins_of(law):
    reach = noise_table(law).reach
    edge = law.smallest_margin(2.0**-80)
    inside = [0, 1, 2, -1, law.scale // 3, law.scale, 2 * law.scale, edge - 1, edge, edge + 1, reach - 1, reach]
    return [*inside, *(1 - margin for margin in inside), -reach - 1, -(10**9)]


def differs(bounds, law, rows):
    """Whether any draw of these uniforms is not that of the exact table."""
    table = noise_table(law)
    if not np.array_equal(bounds.sample(rows), table.sample(rows)):
        return True
    for margin in margins_of(law):
        margins = np.full(len(rows), margin)
        if not np.array_equal(bounds.passes(rows, margins), table.passes(rows, margins)):
            return True
        if not np.array_equal(bounds.sample_given_pass(rows, margins), table.sample_given_pass(rows, margins)):
            return True
    return False


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_each_draw_is_that_of_the_table(law):
    for rows in (beside_tails(law), uniforms(5_000)):
        assert not differs(NoiseBounds(law), law, rows)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_tables_are_log_concave_but_for_rounding(law):
    """What the prices of contributions need of a law; each mass is off by at most two units."""
    tails = [*law.upper_tail_integers(), 0]
    masses = [ONE - 2 * tails[0], *(high - low for high, low in itertools.pairwise(tails))]
    assert min(masses) >= 0
    for before, mass, after in zip([masses[1], *masses], masses, masses[1:], strict=False):
        assert (mass + 2) ** 2 >= max(0, before - 2) * max(0, after - 2)


@pytest.mark.parametrize(("name", "factor"), [("_low", 1 + 1e-9), ("_high", 1 - 1e-9)])
def test_bounds_that_do_not_hold_are_found(name, factor):
    """The twin that must fail: one bound lies on the wrong side of its tails."""
    law = LAWS[2]
    bounds = NoiseBounds(law)
    setattr(bounds, name, getattr(bounds, name) * factor)
    assert differs(bounds, law, beside_tails(law))
