"""ThresholdMonitor, its evolving form and individual charging: loops over dicts as printed, exact roundings, accuracy.

Exact laws of whole streams are in tests/privacy/test_threshold_monitors.py.
"""

import decimal
import math
import random
from fractions import Fraction

import pytest

from dp_transforms.accounting.discrete_laplace_law import capped_sum_upper_tail
from dp_transforms.core.hit_noise import Release
from dp_transforms.papers.individual_charging import IndividualCharging
from dp_transforms.papers.noise_source import SecretNoise
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.threshold_monitor import ThresholdMonitor, ThresholdMonitorEvolving
from tests.helpers.sampling_checks import laplace_probability
from tests.papers.scripted import Given

SMALL = {"wide_epsilon": 0.2, "narrow_epsilon": 0.6, "cap": 3}  # noise that proves nothing


def secret(number):
    return SecretNoise(bytes([number] * 32))


class PlainMonitor:
    """[KMS21] Algorithms 3 and 5 as printed, in real units."""

    def __init__(self, copies, hits, threshold, grid, noise):
        self.database = {x: n for x, n in enumerate(copies) if n}
        self.counters = dict.fromkeys(range(len(copies)), Fraction(0))
        self.hits, self.grid, self.noise = hits, grid, noise
        self.threshold = Fraction(math.ceil(Fraction(threshold) * grid), grid)

    def ask(self, weights):
        f = {x: Fraction(weight, self.grid) for x, weight in enumerate(weights)}
        w = Fraction(self.noise.discrete_laplace(SMALL["wide_epsilon"]), self.grid)
        v = Fraction(self.noise.discrete_laplace(SMALL["narrow_epsilon"]), self.grid)
        total = sum(n * f[x] for x, n in self.database.items()) + w + min(v, Fraction(SMALL["cap"], self.grid))
        if total < self.threshold:
            return False
        for x in f:
            self.counters[x] += f[x]
        self.database = {x: n for x, n in self.database.items() if self.counters[x] < self.hits}
        return True


class PlainCharging:
    """[CL23] Algorithm 5 as printed, with BetweenThresholds where there is a zone."""

    def __init__(self, users, hits, epsilon, zone, grid, noise):
        self.counters = dict.fromkeys(range(users), 0)
        self.hits, self.zone, self.grid, self.noise = hits, zone, grid, noise
        self.epsilon = epsilon if grid == 1 else math.nextafter(epsilon / grid, 0)

    def ask(self, weights, threshold):
        active = [x for x, paid in self.counters.items() if paid < self.hits]
        noisy = sum(weights[x] for x in active) + self.noise.discrete_laplace(self.epsilon)
        above = noisy - math.ceil(Fraction(threshold) * self.grid)
        if above < 0:
            return None
        if self.zone is not None and above >= self.zone:
            return Release("above", None, False)
        for x in active:
            self.counters[x] += weights[x] > 0
        return Release(None if self.zone is None else "between", noisy, True)


@pytest.mark.parametrize("seed", range(12))
def test_monitors_do_what_is_printed(seed):
    generator = random.Random(seed)
    users, grid, hits = generator.randint(1, 60), generator.choice([1, 2, 7]), generator.randint(1, 3)
    copies = [1] * users if seed % 2 else [generator.randint(0, 3) for _ in range(users)]
    threshold = generator.uniform(0, users / 2)
    arguments = {"hits": hits, "threshold": threshold, "grid": grid, "noise": secret(seed), **SMALL}
    monitor = ThresholdMonitorEvolving(users, **arguments) if seed % 2 else ThresholdMonitor(copies, **arguments)
    plain = PlainMonitor(copies, hits, threshold, grid, secret(seed))
    answers = []
    for _ in range(120):
        weights = [generator.randint(0, grid) * (generator.random() < 0.3) for _ in range(users)]
        answers.append(plain.ask(weights))
        assert monitor.ask(LinearQuery(weights, grid)) == answers[-1]
        assert [bool(active) for active in monitor.active()] == [plain.counters[x] < hits for x in range(users)]
    assert any(answers)
    assert not all(answers), "it never halts, and there were answers of both kinds"


@pytest.mark.parametrize("zone", [None, 1, 5])
@pytest.mark.parametrize("grid", [1, 3])
def test_individual_charging_does_what_is_printed(zone, grid):
    generator = random.Random(f"{zone} {grid}")
    stream = IndividualCharging(40, hits=3, epsilon_per_query=0.9, zone_width=zone, grid=grid, noise=secret(7))
    plain = PlainCharging(40, 3, 0.9, zone, grid, secret(7))
    found = set()
    for _ in range(200):
        weights = [generator.randint(0, grid) * (generator.random() < 0.2) for _ in range(40)]
        threshold = generator.uniform(0, 8)
        expected = plain.ask(weights, threshold)
        assert stream.ask(LinearQuery(weights, grid), threshold) == expected
        found.add(None if expected is None else (expected.zone, expected.charged))
    assert len(found) == (2 if zone is None else 3)
    assert [bool(active) for active in stream.active()] == [paid < 3 for paid in plain.counters.values()]
    assert not stream.active().all()


def test_queries_of_another_grid_or_size_are_refused():
    monitor = ThresholdMonitorEvolving(2, hits=1, threshold=1, **SMALL)
    stream = IndividualCharging(2, hits=1, epsilon_per_query=1.0)
    for query in (LinearQuery([1]), LinearQuery([1, 1], grid=2)):
        for ask in (monitor.ask, lambda query: stream.ask(query, 1)):
            with pytest.raises(ValueError, match="the query must have"):
                ask(query)


@pytest.mark.parametrize("grid", [1, 3, 7, 1024, 999_983])
@pytest.mark.parametrize("zone", [None, 1, 5])
def test_epsilon_per_unit_and_q_are_rounded_down(grid, zone):
    """Against 50 digits. A q or an epsilon that is too large by one unit in the last place is found."""
    generator = random.Random(f"{grid} {zone}")
    with decimal.localcontext(decimal.Context(prec=50)):
        for _ in range(40):
            epsilon, noise = 10 ** generator.uniform(-1, 1), Given()
            stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, zone_width=zone, grid=grid, noise=noise)
            stream.ask(LinearQuery([0], grid), 10**6)
            (per_unit,) = noise.epsilons
            together = Fraction(per_unit) * grid
            assert together <= Fraction(epsilon) < together * (1 + Fraction(1, 10**15))
            q = 1 / (decimal.Decimal(epsilon).exp() + 1)
            if zone is not None:
                q *= 1 - (-zone * decimal.Decimal(per_unit)).exp()
            assert q * (1 - decimal.Decimal("2e-12")) < decimal.Decimal(stream.target_probability) < q


@pytest.mark.parametrize(("queries", "beta", "grid"), [(1, 0.1, 1), (100, 0.01, 1), (7, 0.3, 4)])
def test_accuracy_is_the_smallest_alpha_that_the_exact_tails_allow(queries, beta, grid):
    threshold = 10.1
    monitor = ThresholdMonitorEvolving(1, hits=1, threshold=threshold, grid=grid, **SMALL)
    alpha = (monitor.accuracy(queries, beta) - (math.ceil(threshold * grid) / grid - threshold)) * grid
    assert alpha == pytest.approx(round(alpha), abs=1e-9)

    def errs(units):  # the likelier error of one query, at the count nearest to being right
        return max(capped_sum_upper_tail(units + 1, **SMALL), 1 - capped_sum_upper_tail(-units, **SMALL))

    assert errs(round(alpha)) <= beta / queries < errs(round(alpha) - 1)


@pytest.mark.parametrize(("queries", "beta", "epsilon", "grid"), [(50, 0.01, 0.5, 1), (9, 0.1, 2.0, 4)])
def test_accuracy_of_individual_charging_is_the_smallest_alpha(queries, beta, epsilon, grid):
    stream = IndividualCharging(1, hits=1, epsilon_per_query=epsilon, grid=grid)
    units = round(stream.accuracy(queries, beta) * grid)

    def errs(alpha):  # Pr[|Z| > alpha]
        return 1 - math.fsum(laplace_probability(epsilon / grid, z) for z in range(-alpha, alpha + 1))

    assert errs(units) <= beta / queries * (1 + 1e-9)
    assert errs(units - 1) > beta / queries
