"""Targets: which results are charged, what of them is published, and for which computation they hold."""

from __future__ import annotations

import math

import pytest

from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from dp_transforms.mechanisms.papers.private_computation import NoisyZoneTest, NotPrior, OwnTarget
from dp_transforms.mechanisms.papers.query import LinearQuery
from dp_transforms.mechanisms.papers.target_charging import HitLimit, TargetCharging

QUERY = LinearQuery([1, 0])
ZONE = NoisyZoneTest(QUERY, threshold=500, zone_width=4, epsilon=1.0)


class Fixed:
    """A private computation whose result is known: 0-DP."""

    epsilon, delta = 0.5, 0.0

    def __init__(self, result: object) -> None:
        self._result = result

    def run(self, data: object, noise: object) -> object:
        return self._result


@pytest.mark.parametrize(("result", "is_hit"), [(1, True), (1.0, True), (True, True), (0, False), ("1", False)])
def test_its_own_target_is_hit_by_its_outcome_and_not_prior_by_all_others(result: object, is_hit: bool) -> None:
    """What equals the outcome is published as the outcome; nothing else may tell them apart."""
    own, not_prior = OwnTarget(Fixed(1), 1, 0.3), NotPrior(1)
    assert own.hit(result) is is_hit
    assert not_prior.hit(result) is not is_hit
    for target in (own, not_prior):
        published = target.published(result)
        assert published is (1 if is_hit else result)


def test_a_hit_of_its_own_target_is_charged_and_a_miss_is_not() -> None:
    """A target that is never hit would let a user be seen any number of times."""
    for result, hits in (("between", 1), ("below", 0), ("above", 0)):
        computation = Fixed(result)
        limit = HitLimit(2, epsilon=0.5, target_probability=0.25)
        assert TargetCharging([], limit).ask(computation, OwnTarget(computation, "between", 0.25)) == result
        assert limit.used == hits


def test_the_target_of_one_computation_is_not_that_of_another() -> None:
    target = ZONE.target
    wanted = -math.expm1(-4.0) / (math.e + 1)
    assert wanted * (1 - 1e-11) < target.probability(ZONE) < wanted, "rounded down"
    assert target.hit("between")
    assert not target.hit("above")
    other = NoisyZoneTest(QUERY, threshold=501, zone_width=4, epsilon=1.0)
    with pytest.raises(ValueError, match="'between' is the target of another computation"):
        target.probability(other)


def test_a_zone_test_names_the_zone_of_the_noisy_answer() -> None:
    """An answer so far off that the noise, below 200 in all but e^-200 of the cases, cannot bring it back."""
    for count, said in ((0, "below"), (299, "below"), (704, "above"), (1000, "above")):
        assert ZONE.run([count, 7], SecretNoise()) == said
    wide = NoisyZoneTest(QUERY, threshold=500, zone_width=1000, epsilon=1.0)
    assert wide.run([1000, 7], SecretNoise()) == "between"
    with pytest.raises(ValueError, match="zone_width must be > 0, got 0"):
        NoisyZoneTest(QUERY, threshold=500, zone_width=0, epsilon=1.0)
