"""What private computations make of their noise; and every q that they claim, against the definition of a q-target."""

import dataclasses
import decimal
import math

import numpy as np
import pytest

from dp_transforms.accounting.charging_game import between_probability
from dp_transforms.accounting.charging_game import not_prior_probability as accounted_not_prior
from dp_transforms.papers.private_computation import (
    BOUNDARY,
    BoundaryWrapper,
    FiniteMechanism,
    NoisyAnswer,
    NoisyTest,
    NoisyZoneTest,
    NotPrior,
    TwoRuns,
)
from dp_transforms.papers.query import LinearQuery, epsilon_per_unit
from tests.papers.largest_target import largest_q
from tests.papers.scripted import Given, Scripted
from tests.reference.exact_law import exact_law


def pairs(epsilon, count, seed):
    """epsilon-indistinguishable pairs of 2 to 6 outcomes, many with one likely outcome, many at the extremes.

    Each such pair is ``Z1 = c C + (1-c) (p K1 + (1-p) K0)``, ``Z0 = c C + (1-c) ((1-p) K1 + p K0)``.
    """
    random = np.random.default_rng(seed)
    p = 1 / (1 + math.exp(-epsilon))
    for _ in range(count):
        n = int(random.integers(2, 7))
        k0, k1, common = random.dirichlet(np.full(n, 10 ** random.uniform(-1.5, 0.5)), size=3)
        if random.random() < 0.7:
            common = np.eye(n)[random.integers(n)]
        if random.random() < 0.7:
            separate = random.random(n) < 0.5
            k0, k1 = (np.where(side, k0 + 1e-9, 0.0) for side in (separate, ~separate))
            if not (k0.any() and k1.any()):
                continue
            k0, k1 = k0 / k0.sum(), k1 / k1.sum()
        share = 1 - 10 ** random.uniform(-3, 0) if random.random() < 0.7 else 0.0
        yield (
            share * common + (1 - share) * ((1 - p) * k1 + p * k0),
            share * common + (1 - share) * (p * k1 + (1 - p) * k0),
        )


DATA = [100, 7]


@pytest.mark.parametrize("grid", [1, 4])
def test_an_answer_is_what_is_true_and_its_noise(grid):
    noise = Given(-9, 5)
    answer = NoisyAnswer(LinearQuery([grid, 0], grid=grid), epsilon=0.3)
    assert [answer.run(DATA, noise) for _ in range(2)] == [100 * grid - 9, 100 * grid + 5]
    assert noise.epsilons == [epsilon_per_unit(0.3, grid)] * 2


@pytest.mark.parametrize(("draw", "is_reached"), [(4, False), (5, True), (6, True)])
def test_a_noisy_answer_at_the_threshold_reaches_it(draw, is_reached):
    noise = Given(draw)
    assert NoisyTest(LinearQuery([1, 0]), threshold=104.5, epsilon=0.3).run(DATA, noise) is is_reached
    assert noise.epsilons == [epsilon_per_unit(0.3, 1)]


EPSILONS = (0.05, 0.4, 1.0, 2.5)


@dataclasses.dataclass(frozen=True)
class _Units:
    """A query whose data are its answer in units."""

    grid: int
    sensitivity: int

    def answer(self, data):
        return data


def _finite(epsilon, outcomes):
    """A mechanism whose data are its probabilities, as whole weights."""
    names = tuple(f"outcome {i}" for i in range(outcomes))
    return FiniteMechanism(names, lambda shares: [int(share * 2**60) for share in shares], epsilon)


def _law(computation, data):
    return exact_law(lambda noise: computation.run(data, noise))


def _vectors(computation, *worlds):
    laws = [_law(computation, data) for data in worlds]
    outcomes = sorted({**laws[0], **laws[1]}, key=str)
    return outcomes, [np.array([law.get(outcome, 0.0) for outcome in outcomes]) for law in laws]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_not_prior(epsilon):
    claimed = NotPrior("any").probability(_finite(epsilon, 2))
    assert claimed == pytest.approx(accounted_not_prior(epsilon), rel=1e-15)
    worst = 1.0
    for z0, z1 in pairs(epsilon, 300, seed=2):
        for prior in range(len(z0)):
            worst = min(worst, largest_q(z0, z1, np.arange(len(z0)) != prior, epsilon))
    assert claimed * (1 - 1e-9) <= worst < claimed * (1 + 1e-6)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_boundary_of_the_wrapper(epsilon):
    """Its epsilon and its q, both exact: attained in the limit of rare outcomes, and exceeded by none."""
    wrapped = {n: BoundaryWrapper(_finite(epsilon, n)) for n in range(2, 8)}
    claimed, t = wrapped[2].target.q, wrapped[2].epsilon
    rare = 1e-7
    certain = np.array([1 - rare, rare]), np.array([1 - math.exp(epsilon) * rare, math.exp(epsilon) * rare])
    # One outcome falls, although the boundary takes more: epsilon of the wrapper.
    half, tiny = math.exp(-epsilon) / 2, 1e-7
    falling = np.array([tiny, 1 - half, half - tiny])
    fallen = np.array([tiny * math.exp(-epsilon), 0.0, (half - tiny) * math.exp(epsilon)])
    fallen[1] = 1 - fallen.sum()
    worst_q, worst_ratio = 1.0, 0.0
    for z0, z1 in [certain, (falling, fallen), *pairs(epsilon, 400, seed=3)]:
        outcomes, (w0, w1) = _vectors(wrapped[len(z0)], z0, z1)
        both = (w0 > 1e-12) & (w1 > 1e-12)
        worst_ratio = max(worst_ratio, float(np.abs(np.log(w0[both] / w1[both])).max()))
        worst_q = min(worst_q, largest_q(w0, w1, np.array([o == BOUNDARY for o in outcomes]), t))
    assert t * (1 - 1e-5) < worst_ratio <= t * (1 + 1e-6)
    assert claimed * (1 - 1e-6) <= worst_q < claimed * (1 + 1e-5)
    # Not below [CL23] Lemma 2.9 (without its misprint), not above what accountants can use, and Lemma 2.8.
    assert t <= 4 * epsilon / 3 + 1e-12
    assert math.expm1(t) / (2 * math.expm1(epsilon + t)) < claimed <= accounted_not_prior(t)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_two_runs_that_differ(epsilon):
    """Better than [CL23] Lemma F.1; what its proof leaves out is in docs/proofs.md, "Errata of the papers"."""
    twice = TwoRuns(_finite(epsilon, 2))
    claimed = twice.target.probability(twice)
    worst = 1.0
    for z0, z1 in pairs(epsilon, 600, seed=4):
        differ = ~np.eye(len(z0), dtype=bool).ravel()
        worst = min(worst, largest_q(np.outer(z0, z0).ravel(), np.outer(z1, z1).ravel(), differ, 2 * epsilon))
    proved = (math.exp(epsilon) + 1) / (math.exp(epsilon) + 1 + 2 * math.exp(2 * epsilon))
    assert 1 - math.sqrt(1 / (1 + math.exp(-2 * epsilon))) < claimed <= proved <= worst
    assert worst < 2.5 * proved


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("grid", "sensitivity", "width"), [(1, 1, 1), (1, 1, 7), (4, 5, 1), (4, 5, 7)])
def test_between_two_thresholds(epsilon, grid, sensitivity, width):
    """For every position of the zone, and for users who move the answer by 1 .. sensitivity units."""
    query = _Units(grid, sensitivity)
    test = NoisyZoneTest(query, threshold=0.0, zone_width=width / grid, epsilon=epsilon)
    claimed = test.target.probability(test)
    if grid == 1:
        assert claimed == pytest.approx(between_probability(epsilon, width), rel=1e-11)
    worst = 1.0
    for units in range(1, query.sensitivity + 1):
        for answer in range(-units - 6, width + 6):
            outcomes, (z0, z1) = _vectors(test, answer, answer + units)
            worst = min(worst, largest_q(z0, z1, np.array([o == "between" for o in outcomes]), epsilon))
    assert claimed * (1 - 1e-9) <= worst < claimed * (1 + 1e-6)


def test_the_numbers_of_the_wrapper_are_on_the_safe_side():
    """Against 60 digits: epsilon is rounded up and q down, from tiny to huge epsilons, and by 2e-12 at most."""
    slack = decimal.Decimal("2e-12")
    with decimal.localcontext(decimal.Context(prec=200)):
        for step in range(250):
            inner = 10 ** (-10 + step / 20)
            wrapped = BoundaryWrapper(_finite(inner, 2))
            e = decimal.Decimal(inner)
            t = e + (3 / (2 + (-e).exp())).ln()
            q = (t.exp() - 1) / (t.exp() - 1 + (2 * t.exp() + 1) * (e.exp() - 1))
            assert t < decimal.Decimal(wrapped.epsilon) < t * (1 + slack), inner
            assert q * (1 - slack) < decimal.Decimal(wrapped.target.q) < q, inner


def test_a_target_belongs_to_its_computation():
    one, other = (NoisyZoneTest(LinearQuery([1]), threshold, 4, epsilon=1.0) for threshold in (5, 6))
    for first, second in ((one, other), (TwoRuns(one), TwoRuns(other))):
        with pytest.raises(ValueError, match="another computation"):
            first.target.probability(second)


def test_two_runs_cost_two_runs():
    twice = TwoRuns(Scripted([3, 4], epsilon=0.7, delta=1e-7))
    assert (twice.epsilon, twice.delta) == (1.4, 2e-7)
    assert twice.target.hit(twice.run(None, None))
