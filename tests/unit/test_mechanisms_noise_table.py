"""Noise tables: against Python integers, and against the exact law by chi-square at a million draws of fixed seeds."""

from __future__ import annotations

import bisect

import numpy as np
import pytest

from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.noise_table import NoiseTable, noise_table

ONE = 1 << 128
LAW = ExponentialPower(2.5, 30)
LAWS = [ExponentialPower(1.0, 12), ExponentialPower(2.0, 30), LAW, ExponentialPower(4.0, 200)]


def words(values: list[int]) -> np.ndarray:
    return np.array([divmod(value, 1 << 64) for value in values], dtype=np.uint64).reshape(-1, 2)


def uniforms(rows: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng((rows, seed)).integers(0, 2**64, (rows, 2), dtype=np.uint64)


class Oracle:
    """The same draws with Python integers, one at a time, from the definition."""

    def __init__(self, law: ExponentialPower) -> None:
        self.tails = law.upper_tail_integers()
        self.reach = len(self.tails)
        self.ascending = [self.tail(m) for m in range(self.reach, -self.reach, -1)]

    def tail(self, margin: int) -> int:
        if margin > self.reach:
            return 0
        if margin >= 1:
            return self.tails[margin - 1]
        return ONE - self.tail(1 - margin)

    def sample(self, uniform: int) -> int:
        """The largest m with uniform < tail(m)."""
        return self.reach - bisect.bisect_right(self.ascending, uniform)

    def given_pass(self, uniform: int, margin: int) -> int:
        return self.sample(uniform * self.tail(margin) // ONE)


def interesting_uniforms(oracle: Oracle) -> list[int]:
    edges = [oracle.tail(m) for m in (*range(-3, 4), oracle.reach, oracle.reach - 1, -oracle.reach, 1 - oracle.reach)]
    near = [value + step for value in edges for step in (-1, 0, 1)]
    return [value for value in (*near, 0, ONE - 1, 2**64 - 1, 2**64, 2**127) if 0 <= value < ONE]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_both_stages_are_exact(law: ExponentialPower) -> None:
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


def test_margins_that_never_pass_are_refused() -> None:
    table = noise_table(LAW)
    with pytest.raises(ValueError, match=f"at most {table.reach}, the largest noise, got {table.reach + 1}"):
        table.sample_given_pass(uniforms(2), np.array([0, table.reach + 1]))
