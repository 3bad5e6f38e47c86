"""The scenarios with noise as it is really drawn: 250,000 runs a side, and what they prove about epsilon.

Half of the runs choose an event; the others give Clopper-Pearson bounds on its two probabilities, and so a lower bound
on epsilon at the claimed delta. All bounds of all scenarios hold together with probability 99.9 % over the keys (fixed
here), by Bonferroni's inequality: so true claims are rejected with probability 0.1 %. Planted faults must be found.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections import Counter
from collections.abc import Hashable

import numpy as np
import pytest
from scipy import stats

from dp_transforms.mechanisms.papers.noise_source import SecretNoise
from tests.helpers.branching import exact_law, sampled_law
from tests.helpers.sampling_checks import chi_squared_rejects
from tests.privacy.all_scenarios import collect
from tests.privacy.scenarios import Scenario

RUNS = 250_000
FALSE_ALARM_OF_ALL = 1e-3
SAMPLED = [scenario for scenario in collect() if scenario.sampled]
# Both tests of a scenario run in one process, and draw its runs once.
each_scenario = pytest.mark.parametrize(
    "scenario",
    [pytest.param(scenario, marks=pytest.mark.xdist_group(scenario.name), id=scenario.name) for scenario in SAMPLED],
)
_BOUNDS = 4 * len(SAMPLED)  # two probabilities, in both directions


@functools.cache
def _counts(name: str, with_user: bool, half: int) -> Counter[Hashable]:
    (scenario,) = (scenario for scenario in SAMPLED if scenario.name == name)
    key = hashlib.sha256(f"{name}, {with_user}, {half}".encode()).digest()
    return Counter(sampled_law(lambda noise: scenario.run(noise, with_user), RUNS // 2, SecretNoise(key)))


def _at_least(count: int, runs: int, miss: float) -> float:
    """Clopper-Pearson: above the true probability with probability at most `miss`."""
    return float(stats.beta.ppf(miss, count, runs - count + 1)) if count else 0.0


def _at_most(count: int, runs: int, miss: float) -> float:
    return float(stats.beta.isf(miss, count + 1, runs - count)) if count < runs else 1.0


def epsilon_lower_bound(scenario: Scenario) -> float:
    """The larger one of both directions: ``P(E) <= e^epsilon Q(E) + delta`` for the chosen event E."""
    bounds = [0.0]
    miss = FALSE_ALARM_OF_ALL / _BOUNDS
    for likely in (False, True):
        chosen, against = _counts(scenario.name, likely, 0), _counts(scenario.name, not likely, 0)
        event = [
            transcript for transcript in chosen if chosen[transcript] > math.exp(scenario.epsilon) * against[transcript]
        ]
        hits, misses = (
            sum(_counts(scenario.name, side, 1)[transcript] for transcript in event) for side in (likely, not likely)
        )
        excess = _at_least(hits, RUNS // 2, miss) - scenario.delta
        if excess > 0:
            bounds.append(math.log(excess / _at_most(misses, RUNS // 2, miss)))
    return max(bounds)


@each_scenario
def test_many_runs_reject_what_is_broken_and_nothing_else(scenario: Scenario) -> None:
    bound = epsilon_lower_bound(scenario)
    if scenario.private:
        assert bound <= scenario.epsilon
    else:
        assert bound > scenario.epsilon


@each_scenario
def test_runs_follow_the_exact_law(scenario: Scenario) -> None:
    """Pearson's test, false-alarm rate 1e-6 for each side; the other side's law is the twin."""
    laws = [
        exact_law(lambda noise, world=world: scenario.run(noise, world), cut=scenario.cut) for world in (False, True)
    ]
    for world, law in enumerate(laws):
        assert not _rejected(_counts(scenario.name, bool(world), 0), law)
    if max(abs(laws[0].get(transcript, 0) - laws[1].get(transcript, 0)) for transcript in laws[0]) > 0.01:
        assert _rejected(_counts(scenario.name, False, 0), laws[1])


def _rejected(counts: Counter[Hashable], law: dict[Hashable, float]) -> bool:
    """Transcripts that are expected less than 20 times are taken together; ones that are impossible reject."""
    if any(transcript not in law for transcript in counts):
        return True
    runs = counts.total()
    often = [transcript for transcript, probability in law.items() if runs * probability >= 20]
    expected = np.array([runs * law[transcript] for transcript in often])
    observed = np.array([counts[transcript] for transcript in often])
    rest = runs - expected.sum()
    if rest < 20:  # into the least likely one of the others
        least = expected.argmin()
        expected[least] += rest
        observed[least] += runs - observed.sum()
    else:
        expected, observed = np.append(expected, rest), np.append(observed, runs - observed.sum())
    return chi_squared_rejects(observed, expected)


def test_there_are_claims_and_faults_to_sample() -> None:
    assert {scenario.private for scenario in SAMPLED} == {True, False}
    assert RUNS // 2 * FALSE_ALARM_OF_ALL > 100, "bounds are far from trivial"
