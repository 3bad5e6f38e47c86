"""Tables of noise: both stages, and bounds that spare them."""

import bisect

import numpy as np
import pytest

from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.noise_table import NoiseBounds, NoiseTable, noise_table

ONE = 1 << 128
LAW = ExponentialPower(2.5, 30)
LAWS = [ExponentialPower(1.0, 12), ExponentialPower(2.0, 30), LAW, ExponentialPower(4.0, 200)]


def words(values):
    return np.array([divmod(value, 1 << 64) for value in values], dtype=np.uint64).reshape(-1, 2)


def uniforms(rows, seed=1):
    return np.random.default_rng((rows, seed)).integers(0, 2**64, (rows, 2), dtype=np.uint64)


class Oracle:
    """The same draws with Python integers, one at a time, from the definition."""

    def __init__(self, law):
        self.tails = law.upper_tail_integers()
        self.reach = len(self.tails)
        self.ascending = [self.tail(m) for m in range(self.reach, -self.reach, -1)]

    def tail(self, margin):
        if margin > self.reach:
            return 0
        if margin >= 1:
            return self.tails[margin - 1]
        return ONE - self.tail(1 - margin)

    def sample(self, uniform):
        """The largest m with uniform < tail(m)."""
        return self.reach - bisect.bisect_right(self.ascending, uniform)

    def given_pass(self, uniform, margin):
        return self.sample(uniform * self.tail(margin) // ONE)


def interesting_uniforms(oracle):
    edges = [oracle.tail(m) for m in (*range(-3, 4), oracle.reach, oracle.reach - 1, -oracle.reach, 1 - oracle.reach)]
    near = [value + step for value in edges for step in (-1, 0, 1)]
    return [value for value in (*near, 0, ONE - 1, 2**64 - 1, 2**64, 2**127) if 0 <= value < ONE]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_both_stages_are_exact(law):
    table, oracle = NoiseTable(law.upper_tail_integers()), Oracle(law)
    values = [*interesting_uniforms(oracle), *(int(high) << 64 | int(low) for high, low in uniforms(200).tolist())]
    rows = words(values)
    assert table.reach == oracle.reach
    assert table.sample(rows).tolist() == [oracle.sample(value) for value in values]
    reach = oracle.reach
    for margin in (0, 1, 2, -1, law.scale, 2 * law.scale, reach - 1, reach, -reach + 1, -reach, -reach - 1, -(10**9)):
        margins = np.full(len(values), margin)
        assert table.passes(rows, margins).tolist() == [value < oracle.tail(margin) for value in values]
        found = table.sample_given_pass(rows, margins)
        assert found.tolist() == [oracle.given_pass(value, margin) for value in values]
        assert found.min() >= min(margin, reach)
    assert not table.passes(rows, np.full(len(values), reach + 1)).any()
    assert not table.passes(rows, np.full(len(values), 10**12)).any()


def test_margins_that_never_pass_are_refused():
    table = noise_table(LAW)
    with pytest.raises(ValueError, match=f"at most {table.reach}, the largest noise, got {table.reach + 1}"):
        table.sample_given_pass(uniforms(2), np.array([0, table.reach + 1]))


# --- Draws from bounds in floats: those of the exact table, also where a uniform lies beside a tail.

LAWS_WITH_BOUNDS = [
    ExponentialPower(1.0, 12),
    ExponentialPower(2.0, 30),
    ExponentialPower(2.5, 30),
    ExponentialPower(4.0, 200),
    ExponentialPower(2.75, 10_000),
]


class Watched(NoiseBounds):
    """Counts how often the exact table is asked."""

    asked = 0

    @property
    def table(self):
        self.asked += 1
        return super().table


def beside_tails(law):
    """Uniforms at some tails and near them, from one unit to more than a float can tell apart."""
    tails = law.upper_tail_integers()
    some = sorted({0, 1, 2, *np.linspace(0, len(tails) - 1, 60).astype(int).tolist()})
    at = [tail for m in some for tail in (tails[m], ONE - tails[m])]
    steps = [0, *(sign << power for power in range(0, 128, 5) for sign in (1, -1))]
    near = [tail + step for tail in at for step in steps]
    ends = [0, 1, ONE - 1, 2**64 - 1, 2**64, 2**127]
    return words([value for value in (*near, *ends) if 0 <= value < ONE])


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


@pytest.mark.parametrize("law", LAWS_WITH_BOUNDS, ids=repr)
def test_each_draw_is_that_of_the_table(law):
    bounds = Watched(law)
    assert not differs(bounds, law, beside_tails(law))
    assert bounds.asked > 0
    assert not differs(bounds, law, uniforms(5_000))


@pytest.mark.parametrize("law", LAWS_WITH_BOUNDS, ids=repr)
def test_bounds_hold_and_are_sorted(law):
    bounds, tails = NoiseBounds(law), law.upper_tail_integers()
    last = len(bounds._low) // 2
    of_table = [*reversed(tails[:last]), *(ONE - tail for tail in tails[:last])]
    for low, tail, high in zip(bounds._low.tolist(), of_table, bounds._high.tolist(), strict=True):
        assert int(low * 2.0**128) < tail < int(high * 2.0**128)
    for low_word, tail, high_word in zip(bounds._low_words, of_table, bounds._high_words, strict=True):
        assert int(low_word) <= tail >> 64 <= int(high_word)
    for column in (bounds._low, bounds._high, bounds._low_words, bounds._high_words):
        assert (column[1:] >= column[:-1]).all()


@pytest.mark.parametrize(("name", "factor"), [("_low", 1 + 1e-9), ("_high", 1 - 1e-9)])
def test_bounds_that_do_not_hold_are_found(name, factor):
    """The twin that must fail: one bound lies on the wrong side of its tails."""
    law = LAWS_WITH_BOUNDS[2]
    bounds = NoiseBounds(law)
    wrong = getattr(bounds, name) * factor
    setattr(bounds, name, wrong)
    assert differs(bounds, law, beside_tails(law))


def test_hardly_any_draw_needs_the_table():
    """Expected are 0.05 of 10^6 draws; more than 5 have a probability below 1e-10."""
    law = LAWS_WITH_BOUNDS[-1]
    bounds = Watched(law)
    for _ in range(10):
        rows = uniforms(100_000)
        bounds.sample(rows)
        bounds.passes(rows, np.arange(-50_000, 50_000))
    assert bounds.asked <= 5


def test_far_margins_never_need_the_table():
    """Items with very many users, and with hardly any: whatever their sums, a word decides."""
    bounds = Watched(LAWS_WITH_BOUNDS[-1])
    rows = uniforms(10_000)
    assert bounds.passes(rows, np.full(len(rows), -(10**9))).all()
    assert not bounds.passes(rows, np.full(len(rows), 10**9)).any()
    assert bounds.asked == 0


def test_a_margin_beyond_the_reach_is_refused_as_by_the_table():
    bounds = NoiseBounds(LAWS_WITH_BOUNDS[1])
    reach = bounds.table.reach
    with pytest.raises(ValueError, match=f"at most {reach}, the largest noise, got {reach + 1}"):
        bounds.sample_given_pass(uniforms(2), np.array([0, reach + 1]))
