"""The law of one query, against sums over the noise written out here, and against the real monitor."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dp_transforms.audit.query_law import CappedSumLaw, Result, ThresholdLaw, laplace_mass
from dp_transforms.mechanisms.discrete_laplace_law import probability
from dp_transforms.mechanisms.release_rule import BetweenThresholds, CountsAboveThreshold
from tests.helpers.adversary import Action, extract_kernel
from tests.helpers.exact_monitor import settings_for

REACH = 80  # of the noise in the sums below; at scale 2 nothing is left beyond
EPSILON = 0.5


def _by_rule(rule: Callable, threshold: int, distance: int) -> list[Result]:
    """Every published result on its own, by the real release rule."""
    count = threshold + distance
    masses: dict[object, list[float]] = {}
    for noisy in range(count - REACH, count + REACH + 2):
        masses.setdefault(rule(noisy), [0.0, 0.0])
        masses[rule(noisy)][0] += probability(EPSILON, noisy - count - 1)
        masses[rule(noisy)][1] += probability(EPSILON, noisy - count)
    return [
        Result(with_user, without_user, math.log(with_user / without_user), bool(release and release.charged))
        for release, (with_user, without_user) in masses.items()
        if with_user > 0 and without_user > 0
    ]


def _merged(results: list[Result]) -> dict[tuple[float, bool], tuple[float, float]]:
    found: dict[tuple[float, bool], tuple[float, float]] = {}
    for result in results:
        key = (round(result.log_ratio, 6), result.charged)
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + result.with_user, before[1] + result.without_user)
    return {key: masses for key, masses in found.items() if max(masses) > 1e-14}


@pytest.mark.parametrize("zone_width", [0, 1, 4])
@pytest.mark.parametrize("distance", [-9, -2, -1, 0, 1, 3, 4, 8])
def test_results_are_those_of_the_release_rule(zone_width: int, distance: int) -> None:
    rule = BetweenThresholds(20, zone_width) if zone_width else CountsAboveThreshold(20)
    results = ThresholdLaw(EPSILON, zone_width).results(distance)
    expected, found = _merged(_by_rule(rule, 20, distance)), _merged(list(results))
    assert found.keys() == expected.keys()
    for key, masses in found.items():
        assert masses == pytest.approx(expected[key], rel=1e-9)
    for world in (0, 1):
        assert math.fsum(result[world] for result in results) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_results_are_those_of_the_real_monitor(mode: str) -> None:
    """Every outcome of its 128-bit uniforms, from `tests/privacy`."""
    settings = settings_for(mode, EPSILON, 1, 12, 4)
    distances = range(-4, 8)
    kernel = extract_kernel(settings, [Action(settings.threshold + distance) for distance in distances])
    for distance, entries in zip(distances, kernel[0], strict=True):
        expected = _merged(list(entries))
        found = _merged(list(ThresholdLaw(EPSILON, settings.hits.zone_width).results(distance)))
        assert found.keys() == expected.keys()
        for key, masses in found.items():
            assert masses == pytest.approx(expected[key], rel=1e-9)


@pytest.mark.parametrize("zone_width", [0, 3])
def test_published_values_and_lone_items(zone_width: int) -> None:
    law = ThresholdLaw(EPSILON, zone_width)
    for distance in (-1, 2):
        for with_user in (False, True):
            masses = law.value_masses(distance, 10, with_user)
            expected = np.zeros(21)
            for noise in range(-REACH, REACH):
                offset = noise + with_user  # relative to the count without the user
                above_threshold = distance + offset
                if above_threshold >= 0 and (not zone_width or above_threshold < zone_width):
                    expected[min(max(offset, -10), 10) + 10] += probability(EPSILON, noise)
            assert masses == pytest.approx(expected, abs=1e-14)
    alone = math.fsum(probability(EPSILON, noise) for noise in range(11, REACH))
    assert law.alone(12) == pytest.approx(alone, rel=1e-12)


def test_masses_far_out_keep_their_digits() -> None:
    """Where a difference of two tails would be 0."""
    assert laplace_mass(0.5, 200, 201, 0) == pytest.approx(probability(0.5, 200) + probability(0.5, 201), rel=1e-12)
    assert laplace_mass(0.5, None, -300, 0) == pytest.approx(math.exp(-150) / (1 + math.exp(-0.5)), rel=1e-12)
    assert laplace_mass(0.5, 3, 2, 0) == 0


@pytest.mark.parametrize("distance", [-12, -1, 0, 5])
def test_the_two_noises_of_kms21(distance: int) -> None:
    law = CappedSumLaw(wide_epsilon=0.1, narrow_epsilon=0.4, cap=6)
    sums: dict[int, float] = {}
    for wide in range(-600, 600):
        for narrow in range(-90, 90):
            total = wide + min(narrow, 6)
            sums[total] = sums.get(total, 0.0) + probability(0.1, wide) * probability(0.4, narrow)
    top = [math.fsum(p for total, p in sums.items() if distance + held + total >= 0) for held in (1, 0)]
    published, silent = law.results(distance)
    assert (published.charged, silent.charged) == (True, False)
    assert published[:2] == pytest.approx(top, rel=1e-9)
    assert silent[:2] == pytest.approx([1 - mass for mass in top], rel=1e-9)
    assert published.log_ratio == pytest.approx(math.log(top[0] / top[1]), rel=1e-6)
    assert silent.log_ratio == pytest.approx(math.log((1 - top[0]) / (1 - top[1])), rel=1e-6)


def test_ratios_of_very_wide_noise() -> None:
    """Losses of 1e-6 with six digits, where probabilities alone would leave none beyond."""
    published, silent = CappedSumLaw(wide_epsilon=1e-6, narrow_epsilon=1e-4, cap=10**5).results(-1)
    assert 0 < published.log_ratio <= 1e-6
    # sum over results of P = sum of Q = 1.
    balance = published.without_user * math.expm1(published.log_ratio) + silent.without_user * math.expm1(
        silent.log_ratio
    )
    assert abs(balance) < 1e-6 * 1e-6
