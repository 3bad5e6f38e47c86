"""The law of the noise of contributions against incomplete gamma functions of 60 digits and against quadrature."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy

from dp_transforms.accounting.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from tests.reference.prices import tail_of

LAWS = [
    ExponentialPower(1.0, 40),
    ExponentialPower(1.37, 1),
    ExponentialPower(2.0, 300),
    ExponentialPower(2.5, 1000),
    ExponentialPower(4.0, 2000),
    ExponentialPower(2.75, 12_000),  # large enough for values by differences
]
each_law = pytest.mark.parametrize("law", LAWS, ids=repr)


def margins_of(law, reach):
    return sorted({1, 2, 3, reach, *np.geomspace(1, reach, 30).astype(int).tolist(), law.scale // 8 or 1})


@each_law
def test_tables_are_exact(law):
    tails = law.upper_tail_integers()
    with mpmath.workdps(60):
        for margin in margins_of(law, len(tails)):
            exact = tail_of(law, margin) * mpmath.mpf(2) ** 128
            assert abs(tails[margin - 1] + mpmath.mpf(1) / 2 - exact) <= mpmath.mpf("0.50001")
        assert tail_of(law, len(tails) + 1) * mpmath.mpf(2) ** 128 < 1
    assert len(tails) < law.scale * 89 ** (1 / law.shape) + 2  # as the total variation says
    assert law.sampling_total_variation < 2.0**-100


@each_law
def test_logarithms_of_tails(law):
    """Far beyond the smallest float, too; and as numbers they are rounded up."""
    margins = np.array(margins_of(law, int(law.scale * 2000 ** (1 / law.shape))))
    upper, lower = law.log_upper_tail(margins), law.log_upper_tail(1 - margins)
    with mpmath.workdps(50):
        for margin, found, other in zip(margins.tolist(), upper.tolist(), lower.tolist(), strict=True):
            exact = tail_of(law, margin)
            assert abs(mpmath.log(exact) - found) <= LOG_TAIL_ERROR / 4 * max(1, abs(mpmath.log(exact)))
            assert abs(mpmath.log(1 - exact) - other) <= LOG_TAIL_ERROR / 4
            assert exact <= law.upper_tail(margin) <= exact * (1 + mpmath.mpf("1e-9")) + mpmath.mpf("1e-320")
            assert 1 - exact <= law.upper_tail(1 - margin)
    assert law.upper_tail(-(10**7)) == 1.0


def test_logarithms_of_tails_at_random_shapes_and_points():
    """Also at the ends of the ranges that are computed in different ways."""
    draws = np.random.default_rng(5)
    for shape in (1.0, 1.15, 4.0, *draws.uniform(1, 4, 6).tolist()):
        powers = [1e-300, 1e-9, *itertools.chain(*((end * (1 - 1e-15), end) for end in (1.5, 5.0, 20.0, 100.0)))]
        points = np.concatenate([powers, draws.uniform(0, 6, 15), np.exp(draws.uniform(1, 7.5, 15))]) ** (1 / shape)
        upper, lower = ExponentialPower(shape, 1).log_tails_at(points)
        with mpmath.workdps(50):
            for at, found, other in zip(points.tolist(), upper.tolist(), lower.tolist(), strict=True):
                order = 1 / mpmath.mpf(shape)
                exact = mpmath.gammainc(order, mpmath.mpf(at) ** mpmath.mpf(shape), regularized=True) / 2
                log = mpmath.log(exact)
                assert abs(log - found) <= LOG_TAIL_ERROR / 10 * max(1, abs(log))
                assert abs(mpmath.log(1 - exact) - other) <= LOG_TAIL_ERROR / 10


@each_law
def test_hazard_and_spread_against_quadrature(law):
    def density(x):
        return math.exp(-((x / law.scale) ** law.shape))

    far = law.scale * 60 ** (1 / law.shape)
    whole = 2 * scipy.integrate.quad(density, 0, far, limit=400)[0]
    for margin in (1, law.scale, 2 * law.scale):
        low, high = law.hazard_bounds(margin)
        hazard = density(margin - 0.5) * law.scale / whole / law.upper_tail(margin)
        assert low <= hazard * (1 + 1e-7)
        assert hazard <= high * (1 + 1e-7)
    second = 2 * scipy.integrate.quad(lambda x: x * x * density(x), 0, far, limit=400)[0] / whole
    assert law.standard_deviation == pytest.approx(math.sqrt(second), rel=1e-7)


@each_law
@pytest.mark.parametrize("probability", [0.4, 0.05, 1e-6, 1e-30])
def test_smallest_margin(law, probability):
    margin = law.smallest_margin(probability)
    assert law.upper_tail(margin) <= probability
    assert margin == 1 or law.upper_tail(margin - 1) > probability
