"""ThresholdMonitor and individual charging on neighbouring streams; and individual charging with typical faults.

User 0 is the one that is there or not. The others take part in both worlds, and may be removed on the way. Streams are
adaptive: what is asked next, of whom and with which weights, depends on what was published. Claims are those of the
accountant that knows how many queries there are; the product's attain up to all of their delta.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import smallest_safe_argument
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.core.hit_noise import Release, ReleaseRule
from dp_transforms.papers import individual_charging
from dp_transforms.papers.individual_charging import IndividualCharging
from dp_transforms.papers.noise_source import NoiseSource
from dp_transforms.papers.query import LinearQuery
from dp_transforms.papers.threshold_monitor import ThresholdMonitor, ThresholdMonitorEvolving, UserCounters
from tests.helpers.charging_game_oracle import capped_game_delta
from tests.privacy.scenarios import Scenario

Transcript = Sequence[Release | None]

_LONE_QUERIES = 4


def _hits(transcript: Transcript) -> int:
    return sum(release is not None and release.charged for release in transcript)


def _query(weights: Sequence[int], grid: int, with_user: bool) -> LinearQuery:
    return LinearQuery(np.array([weights[0] if with_user else 0, *weights[1:]]), grid)


def _claim(queries: int, delta: float, *, q_factor: float = 1.0, epsilon: float, **numbers: Any) -> float:
    """The epsilon of individual charging when the user takes part in at most so many queries."""
    stream = IndividualCharging(1, epsilon_per_query=epsilon, **numbers)
    q = min(stream.target_probability * q_factor, 1 / (math.exp(epsilon) + 1))
    game = functools.partial(capped_game_delta, epsilon, q, numbers["hits"], queries)
    return smallest_safe_argument(game, delta, guess=1.0, lowest=0.0, highest=math.inf)


# ---------------------------------------------------------------------------------------------------------------------
# The product
# ---------------------------------------------------------------------------------------------------------------------


def _labels(noise: NoiseSource, with_user: bool, *, epsilon: float, hits: int, zone: int, queries: int) -> Hashable:
    """Whole weights; the values in the zone are published."""
    stream = IndividualCharging(3, hits=hits, epsilon_per_query=epsilon, zone_width=zone, noise=noise)
    transcript: list[Release | None] = []
    for step in range(queries):
        # The user tips the sum over the upper edge: hits come where the evidence speaks against the user, and results
        # for it are free. Once "above" has come often, the lower edge is probed. User 1 comes, goes, may be removed.
        often = sum(release is not None and release.zone == "above" for release in transcript) > queries // 2
        others = int(stream.active()[1]) * (step % 2) + int(stream.active()[2])
        weights = [1, step % 2, 1]
        transcript.append(stream.ask(_query(weights, 1, with_user), others + 1 if often else others + 1 - zone))
        if _hits(transcript) >= hits:
            break  # both worlds are alike from here
    return tuple(transcript)


def _labels_of_thirds(noise: NoiseSource, with_user: bool) -> Hashable:
    """Weights in thirds; the zone, in thirds too, is narrower than user 0. User 1 is removed before or after it."""
    stream = IndividualCharging(2, hits=1, epsilon_per_query=0.7, zone_width=2, grid=3, noise=noise)
    transcript: list[Release | None] = []
    for step in range(6):
        weights = [(3, 1), (3, 2), (2, 3)][(step + _hits(transcript)) % 3]
        others = weights[1] * int(stream.active()[1])
        lower_edge = others - 1 if step % 4 < 3 else others + weights[0]
        transcript.append(stream.ask(_query(weights, 3, with_user), lower_edge / 3))
        if _hits(transcript):
            break
    return tuple(transcript)


def _counts(noise: NoiseSource, with_user: bool, *, grid: int) -> Hashable:
    """Noisy values published and charged. With grid 2, user 0 has weight 1 at first and then 1/2."""
    stream = IndividualCharging(2, hits=1, epsilon_per_query=1.0, grid=grid, noise=noise)
    transcript: list[Release | None] = []
    for step in range(5):
        weights = [grid if step < 3 else 1, (step % 2) * grid]
        transcript.append(stream.ask(_query(weights, grid, with_user), 1 + step % 2))
        if _hits(transcript):
            break
    return tuple(transcript)


def _monitor(noise: NoiseSource, with_user: bool, *, evolving: bool, queries: int) -> Hashable:
    """[KMS21] with the least noise for which it is proved."""
    numbers = {"wide_epsilon": 0.05, "narrow_epsilon": 0.5, "cap": 2, "hits": 1, "noise": noise}
    if evolving:
        monitor = ThresholdMonitorEvolving(2, threshold=1, **numbers)
    else:
        monitor = ThresholdMonitor([int(with_user), 1], threshold=1, **numbers)
    transcript: list[bool] = []
    while len(transcript) < queries and not any(transcript):
        transcript.append(monitor.ask(_query([1, len(transcript) % 2], 1, with_user or not evolving)))
    return tuple(transcript)


def _lone_user(noise: NoiseSource, with_user: bool, *, removes: bool = True, noise_factor: float = 1.0) -> Hashable:
    """[KMS21] with small noise and one user, who is all that there is: accounted by target charging.

    removes: False: the user stays. noise_factor: the accountant assumes this many times the noise.
    """
    monitor = ThresholdMonitorEvolving(
        1, hits=1, threshold=1, wide_epsilon=noise_factor, narrow_epsilon=8.0, cap=1, noise=noise
    )
    if not removes:
        monitor._counters = _Forgetful(1, 1)
    transcript: list[bool] = []
    while len(transcript) < _LONE_QUERIES and not (removes and any(transcript)):
        transcript.append(monitor.ask(LinearQuery([int(with_user)])))
    return tuple(transcript)


# ---------------------------------------------------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------------------------------------------------


class _Quiet(IndividualCharging):
    """Publishes no values, only where the sum is: less than the product, so a claim it breaks is broken."""

    def ask(self, query: LinearQuery, threshold: float) -> Release | None:
        with mock.patch.object(individual_charging, "ReleaseRule", _QuietRule):
            return super().ask(query, threshold)


class _QuietRule(ReleaseRule):
    def __call__(self, noisy_count: int) -> Release | None:  # before its value is asked for, which makes many paths
        release = super().__call__(noisy_count)
        return release if release is None else release._replace(noisy_count=None)


class _Forgetful(UserCounters):
    """Hits are counted, and every user counts forever."""

    def active(self) -> npt.NDArray[np.bool_]:
        return np.ones(len(self), dtype=np.bool_)


def _attack(
    noise: NoiseSource,
    with_user: bool,
    claim: float,
    *,
    epsilon: float,
    zone: int,
    queries: int,
    noise_factor: float = 1.0,
    removes: bool = True,
    windows: int = 1,
) -> Hashable:
    """The best play against labels ([CL23]'s accounting is tight for it): always at the upper edge of the zone.

    Stops when the claim can no longer be exceeded. noise_factor: the accountant assumes this many times the noise.
    removes: False: the user stays. windows: the counters begin again with each; the whole has as many queries.
    """
    stream = _Quiet(1, hits=1, epsilon_per_query=epsilon * noise_factor, zone_width=zone, noise=noise)
    transcript: list[Release | None] = []
    evidence, per_window = 0, queries // windows
    for window in range(windows):
        stream._counters = UserCounters(1, 1) if removes else _Forgetful(1, 1)
        for step in range(per_window):
            if epsilon * (evidence + queries - window * per_window - step) <= claim:
                return tuple(transcript)
            release = stream.ask(LinearQuery([int(with_user)]), 1 - zone)
            transcript.append(release)
            evidence += 1 if release is not None and release.zone == "above" else -1
            if removes and release is not None and release.charged:
                break
    return tuple(transcript)


def _fault(name: str, source: str, delta: float, q_factor: float = 1.0, **play: Any) -> Scenario:
    numbers = {"hits": 1, "epsilon": play["epsilon"], "zone_width": play["zone"]}
    claim = _claim(play["queries"], delta, q_factor=q_factor, **numbers)
    return Scenario(
        name,
        f"fault: {source}",
        claim,
        delta,
        lambda noise, with_user: _attack(noise, with_user, claim, **play),
        private=False,
    )


_MONITOR_EPSILON = ThresholdMonitorAccountant(wide_epsilon=0.05, narrow_epsilon=0.5, cap=2, hits=1).epsilon(1e-6)

SCENARIOS = [
    Scenario(
        "individual charging, labels",
        "[CL23] Algorithm 5 with BetweenThresholds; the game accountant",
        _claim(6, 0.2, epsilon=1.0, hits=1, zone_width=2),
        0.2,
        lambda noise, with_user: _labels(noise, with_user, epsilon=1.0, hits=1, zone=2, queries=6),
    ),
    Scenario(
        "individual charging, labels, weights in thirds",
        'docs/guarantee.md, "Lemma (the zone)"',
        _claim(6, 0.3, epsilon=0.7, hits=1, zone_width=2, grid=3),
        0.3,
        _labels_of_thirds,
    ),
    Scenario(
        "individual charging, counts",
        "[CL23] Algorithm 5; the game accountant",
        _claim(5, 0.2, epsilon=1.0, hits=1),
        0.2,
        lambda noise, with_user: _counts(noise, with_user, grid=1),
    ),
    Scenario(
        "individual charging, counts, weights in halves",
        "[CL23] Algorithm 5 with f(x) in [0, 1]; the game accountant",
        _claim(5, 0.4, epsilon=1.0, hits=1, grid=2),
        0.4,
        lambda noise, with_user: _counts(noise, with_user, grid=2),
    ),
    Scenario(
        "ThresholdMonitor",
        '[KMS21] Algorithm 3 and Theorem 3.2; docs/proofs.md, "Theorem of the monitor"',
        _MONITOR_EPSILON,
        1e-6,
        lambda noise, with_user: _monitor(noise, with_user, evolving=False, queries=1),
        cut=1e-9,
    ),
    Scenario(
        "ThresholdMonitorEvolving",
        '[KMS21] Algorithm 5 and Theorem 4.4; docs/proofs.md, "Theorem of the monitor"',
        _MONITOR_EPSILON,
        1e-6,
        lambda noise, with_user: _monitor(noise, with_user, evolving=True, queries=2),
        cut=1e-9,
    ),
    *(
        Scenario(
            name,
            f'{source}; docs/proofs.md, "The same monitor by target charging"',
            epsilon,
            capped_game_delta(1.0, 1 / (math.e + 1), 1, _LONE_QUERIES, epsilon),
            lambda noise, with_user, play=play: _lone_user(noise, with_user, **play),
            private=not play,
            cut=1e-7,
        )
        for name, source, epsilon, play in (
            ("ThresholdMonitorEvolving, by target charging", "[KMS21] Algorithm 5", 2.0, {}),
            (
                "noise halved (ThresholdMonitor)",
                "fault: half of the noise that was accounted",
                2.0,
                {"noise_factor": 2.0},
            ),
        )
    ),
    _fault(
        "counters not removed (individual charging)",
        "hits are counted, but users stay",
        0.08,
        epsilon=0.5,
        zone=60,
        queries=8,
        removes=False,
    ),
    _fault(
        "counters reset (individual charging)",
        "users that were removed come back with the next window",
        0.05,
        epsilon=0.5,
        zone=4,
        queries=10,
        windows=5,
    ),
    _fault(
        "noise halved (individual charging)",
        "half of the noise that the accountant assumes",
        0.08,
        epsilon=0.5,
        zone=60,
        queries=8,
        noise_factor=2.0,
    ),
    _fault(
        "target q too large (individual charging)",
        "the accountant assumes twice the q of the zone",
        0.03,
        q_factor=2.0,
        epsilon=0.7,
        zone=1,
        queries=14,
    ),
]
