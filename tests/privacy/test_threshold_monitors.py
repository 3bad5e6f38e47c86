"""ThresholdMonitor and individual charging on neighbouring streams.

User 0 is the one that is there or not. The others take part in both worlds, and may be removed on the way. Streams are
adaptive: what is asked next, of whom and with which weights, depends on what was published. Claims are those of the
accountant that knows how many queries there are; the mechanisms attain up to all of their delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.accountants import smallest_safe_argument
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.core.hit_noise import Release, ReleaseRule
from dp_transforms.papers import individual_charging
from dp_transforms.papers.individual_charging import IndividualCharging
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.threshold_monitor import ThresholdMonitor, ThresholdMonitorEvolving, UserCounters
from tests.privacy.scenarios import Scenario, broken, each
from tests.reference.charging_game import capped_game_delta

Transcript = list[Release | None]


def hits_of(transcript: Transcript) -> int:
    return sum(release is not None and release.charged for release in transcript)


def query_of(weights: Sequence[int], grid: int, with_user: bool) -> LinearQuery:
    return LinearQuery(np.array([weights[0] if with_user else 0, *weights[1:]]), grid)


def claim_of(queries: int, delta: float, *, epsilon: float, **numbers: Any) -> float:
    """The epsilon of individual charging when the user takes part in at most so many queries."""
    q = IndividualCharging(1, epsilon_per_query=epsilon, hits=1, **numbers).target_probability
    game = functools.partial(capped_game_delta, epsilon, q, 1, queries)
    return smallest_safe_argument(game, delta, guess=1.0, lowest=0.0, highest=math.inf)


# --- The mechanisms of the papers


def labels(noise: NoiseSource, with_user: bool) -> Hashable:
    """Whole weights; the values in the zone are published."""
    zone, queries = 2, 6
    stream = IndividualCharging(3, hits=1, epsilon_per_query=1.0, zone_width=zone, noise=noise)
    transcript: Transcript = []
    for step in range(queries):
        # The user tips the sum over the upper edge: hits come where the evidence speaks against the user, and results
        # for it are free. Once "above" has come often, the lower edge is probed. User 1 comes, goes, may be removed.
        often = sum(release is not None and release.zone == "above" for release in transcript) > queries // 2
        others = int(stream.active()[1]) * (step % 2) + int(stream.active()[2])
        weights = [1, step % 2, 1]
        transcript.append(stream.ask(query_of(weights, 1, with_user), others + 1 if often else others + 1 - zone))
        if hits_of(transcript):
            break  # both worlds are alike from here
    return tuple(transcript)


def labels_of_thirds(noise: NoiseSource, with_user: bool) -> Hashable:
    """Weights in thirds; the zone, in thirds too, is narrower than user 0. User 1 is removed before or after it."""
    stream = IndividualCharging(2, hits=1, epsilon_per_query=0.7, zone_width=2, grid=3, noise=noise)
    transcript: Transcript = []
    for step in range(6):
        weights = [(3, 1), (3, 2), (2, 3)][(step + hits_of(transcript)) % 3]
        others = weights[1] * int(stream.active()[1])
        lower_edge = others - 1 if step % 4 < 3 else others + weights[0]
        transcript.append(stream.ask(query_of(weights, 3, with_user), lower_edge / 3))
        if hits_of(transcript):
            break
    return tuple(transcript)


def counts(noise: NoiseSource, with_user: bool, *, grid: int) -> Hashable:
    """Noisy values published and charged. With grid 2, user 0 has weight 1 at first and then 1/2."""
    stream = IndividualCharging(2, hits=1, epsilon_per_query=1.0, grid=grid, noise=noise)
    transcript: Transcript = []
    for step in range(5):
        weights = [grid if step < 3 else 1, (step % 2) * grid]
        transcript.append(stream.ask(query_of(weights, grid, with_user), 1 + step % 2))
        if hits_of(transcript):
            break
    return tuple(transcript)


PROVED = {"wide_epsilon": 0.05, "narrow_epsilon": 0.5, "cap": 2, "hits": 1}  # the least noise for which it is proved


def monitor(noise: NoiseSource, with_user: bool, *, evolving: bool) -> Hashable:
    if evolving:
        asked: Any = ThresholdMonitorEvolving(2, threshold=1, noise=noise, **PROVED)
    else:
        asked = ThresholdMonitor([int(with_user), 1], threshold=1, noise=noise, **PROVED)
    transcript: list[bool] = []
    while len(transcript) < 1 + evolving and not any(transcript):
        transcript.append(asked.ask(query_of([1, len(transcript) % 2], 1, with_user or not evolving)))
    return tuple(transcript)


def lone_user(noise: NoiseSource, with_user: bool) -> Hashable:
    """[KMS21] with small noise and one user, who is all that there is: accounted by target charging."""
    asked = ThresholdMonitorEvolving(1, hits=1, threshold=1, wide_epsilon=1.0, narrow_epsilon=8.0, cap=1, noise=noise)
    transcript: list[bool] = []
    while len(transcript) < 4 and not any(transcript):
        transcript.append(asked.ask(LinearQuery([int(with_user)])))
    return tuple(transcript)


# --- The best play against labels, for which [CL23]'s accounting is tight


class QuietRule(ReleaseRule):
    """Publishes no values, only where the sum is: less than the mechanism, so a claim that it breaks is broken."""

    def __call__(self, noisy_count: int) -> Release | None:  # before its value is asked for, which makes many paths
        release = super().__call__(noisy_count)
        return release if release is None else release._replace(noisy_count=None)


class Forgetful(UserCounters):
    """A planted fault: hits are counted, and every user counts forever."""

    def active(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self), dtype=np.bool_)


EPSILON, QUERIES = 0.5, 8
LABELS_EPSILON = claim_of(QUERIES, 0.08, epsilon=EPSILON, zone_width=60)


@mock.patch.object(individual_charging, "ReleaseRule", QuietRule)
def best_play(noise: NoiseSource, with_user: bool, *, noise_factor: float = 1.0, forgets: bool = False) -> Hashable:
    """Always at the upper edge of the zone. Stops when the claim can no longer be exceeded. noise_factor: the
    accountant assumes this many times the noise."""
    stream = IndividualCharging(1, hits=1, epsilon_per_query=EPSILON * noise_factor, zone_width=60, noise=noise)
    if forgets:
        stream._counters = Forgetful(1, 1)
    transcript: Transcript = []
    evidence = 0
    for step in range(QUERIES):
        if EPSILON * (evidence + QUERIES - step) <= LABELS_EPSILON:
            break
        release = stream.ask(LinearQuery([int(with_user)]), 1 - 60)
        transcript.append(release)
        evidence += 1 if release is not None and release.zone == "above" else -1
        if not forgets and release is not None and release.charged:
            break
    return tuple(transcript)


MONITOR_EPSILON = ThresholdMonitorAccountant(**PROVED).epsilon(1e-6)
LONE_DELTA = capped_game_delta(1.0, 1 / (math.e + 1), 1, 4, 2.0)

SCENARIOS = [
    Scenario("labels", claim_of(6, 0.2, epsilon=1.0, zone_width=2), 0.2, labels),
    Scenario("labels, thirds", claim_of(6, 0.3, epsilon=0.7, zone_width=2, grid=3), 0.3, labels_of_thirds),
    Scenario("counts", claim_of(5, 0.2, epsilon=1.0), 0.2, functools.partial(counts, grid=1)),
    Scenario("counts, halves", claim_of(5, 0.4, epsilon=1.0, grid=2), 0.4, functools.partial(counts, grid=2)),
    Scenario("ThresholdMonitor", MONITOR_EPSILON, 1e-6, functools.partial(monitor, evolving=False), cut=1e-9),
    Scenario("ThresholdMonitorEvolving", MONITOR_EPSILON, 1e-6, functools.partial(monitor, evolving=True), cut=1e-9),
    Scenario("ThresholdMonitorEvolving, by target charging", 2.0, LONE_DELTA, lone_user, cut=1e-7),
    Scenario("labels, the best play", LABELS_EPSILON, 0.08, best_play),
    broken("labels, half the noise", LABELS_EPSILON, 0.08, functools.partial(best_play, noise_factor=2.0)),
    broken("labels, and users stay", LABELS_EPSILON, 0.08, functools.partial(best_play, forgets=True)),
]


@each(SCENARIOS)
def test_a_claim_is_kept_or_seen_to_be_broken(scenario: Scenario) -> None:
    scenario.check()
