"""What a histogram of activity costs, and what is made of it."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dp_transforms.accounting.activity import activity_delta, bucket_edges, split_epsilon, usual_looks_of
from dp_transforms.accounting.calibration import sampling_delta
from dp_transforms.mechanisms.discrete_laplace_law import UNIFORM_BITS, sampling_total_variation, upper_tail_integers
from dp_transforms.monitor.activity import noisy_histogram
from dp_transforms.plan.plan import Plan
from tests.helpers.calibrated_plans import HOURLY
from tests.helpers.plan_files import with_changes

ONE = 1 << UNIFORM_BITS


@pytest.mark.parametrize("share", [0.02, 0.1, 1 / 3, 0.4999999999, 0.5])
@pytest.mark.parametrize("epsilon", [0.7, 1.0, 2.0, math.pi, 10.0])
def test_the_two_parts_add_up_exactly(epsilon, share):
    left, taken = split_epsilon(epsilon, share)
    assert Fraction(left) + Fraction(taken) == Fraction(epsilon)
    assert taken == pytest.approx(share * epsilon)


@pytest.mark.parametrize(("epsilon", "share"), [(0.001, 0.02), (2.0, 0.51), (2.0, 0.0), (2.0, math.nan)])
def test_a_share_that_cannot_be_drawn_is_refused(epsilon, share):
    with pytest.raises(ValueError, match=r"activity_epsilon must lie in|share must lie in"):
        split_epsilon(epsilon, share)


def _words(uniform):
    return np.array([[uniform >> 64, uniform & (2**64 - 1)]], dtype=np.uint64)


def _exact_law(count, epsilon):
    """In units of 2^-128. All uniforms between two entries of the table draw one value: both ends are run."""
    tails = upper_tail_integers(epsilon)
    bounds = sorted({0, *tails, *(ONE - tail for tail in tails), ONE})
    law = {}
    for low, high in itertools.pairwise(bounds):
        (first,) = noisy_histogram(np.array([count]), epsilon, _words(low)).tolist()
        (last,) = noisy_histogram(np.array([count]), epsilon, _words(high - 1)).tolist()
        assert first == last
        law[first] = law.get(first, 0) + high - low
    return law


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_one_user_more_in_a_bucket_is_exactly_epsilon_away(epsilon):
    """Each outcome of the real code, with all of its 128-bit probability, in both directions."""
    without, present = _exact_law(7, epsilon), _exact_law(8, epsilon)
    assert sum(without.values()) == sum(present.values()) == ONE
    ratio = Fraction(math.exp(epsilon))
    excess = [
        sum(max(Fraction(0), mass - ratio * other.get(value, 0)) for value, mass in law.items())
        for law, other in ((without, present), (present, without))
    ]
    allowed = (1 + ratio) * Fraction(sampling_total_variation(epsilon)) * ONE
    assert max(excess) <= allowed
    lower = Fraction(math.exp(epsilon * 0.99))
    assert sum(max(Fraction(0), mass - lower * without.get(value, 0)) for value, mass in present.items()) > ONE // 500


def test_each_count_has_a_draw_of_its_own():
    uniforms = np.random.default_rng(1).integers(0, 2**64, (50_000, 2), dtype=np.uint64)
    noise = noisy_histogram(np.full(50_000, 10), 0.25, uniforms) - 10
    a = math.exp(-0.25)
    assert np.var(noise) == pytest.approx(2 * a / (1 - a) ** 2, rel=0.05)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.02
    with pytest.raises(ValueError, match="one pair of words for each of 3 counts"):
        noisy_histogram(np.zeros(3, np.int64), 0.25, uniforms[:2])


def test_buckets_double_up_to_the_most_looks():
    assert bucket_edges(1) == (1,)
    assert bucket_edges(3) == (1, 2)
    assert bucket_edges(3000) == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def test_quantiles_are_of_looks_and_not_of_users():
    """Of 5,000 users with one look and 100 with some 150, four of five looks are of the latter."""
    users = [5000, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0]
    assert usual_looks_of(users, 3000) == (1, 255)
    users[7] = 10_000
    assert usual_looks_of(users, 3000) == (128, 255)
    assert usual_looks_of([0] * 11 + [1], 3000) == (2048, 3000)
    assert usual_looks_of([3], 1) == (1, 1)
    assert usual_looks_of([0] * 12, 3000) is None


def test_a_bucket_that_noise_may_have_filled_does_not_count():
    """With epsilon 0.04 and 12 buckets: 218 users far from the others (0.1 %), 121 beside one that counts (5 %)."""
    far, near = (math.ceil(math.log(12 / false / (1 + math.exp(-0.04))) / 0.04) for false in (0.001, 0.05))
    assert (far, near) == (218, 121)
    for users, expected in ((far - 1, (1, 1)), (far, (1, 3000))):
        assert usual_looks_of([40_000, *[0] * 10, users], 3000, 0.04) == expected
    for users, expected in ((near - 1, (128, 255)), (near, (32, 511))):
        assert usual_looks_of([0, 0, 0, 0, 0, users, users, far, users, 0, 0, far - 1], 3000, 0.04) == expected
    assert usual_looks_of([-30] * 12, 3000, 0.04) is None


def _plan(**changes):
    return Plan.calibrate(
        **{"epsilon": 1.96, "delta": 1e-9, "schedule": HOURLY, "usual_looks": (1, 10), "most_looks": 20, **changes}
    )


def test_a_plan_pays_for_the_histogram_and_says_so():
    plan, without = _plan(activity_epsilon=0.04), _plan()
    assert "together (2, 1e-09)-differentially private" in plan.guarantee
    assert plan.guarantee.startswith("Everything published is (1.96, 1e-09)-differentially private")
    assert "together" not in without.guarantee
    needed = Fraction(sampling_total_variation(0.04)) + Fraction(10**8, 2**128)
    paid = Fraction(plan.shares.sampling) - Fraction(without.shares.sampling)
    assert paid >= (1 + Fraction(math.exp(2.0))) * needed * (1 - Fraction(1, 10**9))
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("activity_epsilon", [-0.04, math.inf, 1e-9, 33.0])
def test_a_plan_refuses_what_no_histogram_takes(activity_epsilon):
    with pytest.raises(ValueError, match="activity_epsilon must lie in"):
        _plan(activity_epsilon=activity_epsilon)


def test_a_stored_plan_cannot_hide_the_histogram_or_its_delta():
    plan = _plan(activity_epsilon=0.04)
    with pytest.raises(ValueError, match="fingerprint"):
        Plan.from_json(plan.to_json().replace('"activity_epsilon": 0.04', '"activity_epsilon": 0.03'))
    of_looks = sampling_delta(1.96, 20 * plan.looks.noise.sampling_total_variation, 384, 0)
    needed = of_looks + activity_delta(1.96, 0.04, 10**8)
    assert with_changes(plan, {"shares.sampling": needed * (1 + 1e-9)})
    with pytest.raises(ValueError, match="the share sampling must be >="):
        with_changes(plan, {"shares.sampling": needed * (1 - 1e-9)})


def test_the_activity_belongs_to_names_alone():
    with pytest.raises(ValueError, match="activity_epsilon cannot be used with mode 'hits'"):
        Plan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, mode="hits", activity_epsilon=0.1)
