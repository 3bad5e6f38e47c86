"""The methods of the benchmark `finding`: what is chosen for a log, and one run.

A method that needs a cap or another number gets the best one of a grid for the log, found on the log itself: its user
would have to know it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.finding import histograms, ours, partition_selection, set_union
from benchmarks.finding.logs import Found, Log, Whole
from dp_transforms.plan.plan import Plan, plan_for

EPSILON, DELTA = 2.0, 1e-9
ONE_ROUND: dict[str, Any] = {"false_name_error": 1e-5}  # the default
IN_ROUNDS: dict[str, Any] = {}
HITS: dict[str, Any] = {"charge": "hits", "hits_per_user": 3}
HITS_WITH_COUNTS: dict[str, Any] = {"charge": "hits", "counts": True, "hits_per_user": 10}
_DAY_SECONDS = 86_400
_CAPS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 512)
_CAPS_OF_WINDOW = (1, 2, 3, 5)
_WIDER = (1.0005, 1.002, 1.005, 1.01, 1.02, 1.05)  # sigma over the least one
_MOST_CONTRIBUTIONS = (10, 30, 100, 300, 1000, 3000)
_ALPHAS = (3.0, 5.0, 8.0, 12.0, 20.0)


class Chosen(NamedTuple):
    """note: what was chosen. run: one run. is_slow: it is run once."""

    note: str
    run: Callable[[], Found]
    is_slow: bool = False


Method = Callable[[Log, np.random.Generator], Chosen]


def _plan(log: Log, choices: dict[str, Any]) -> Plan:
    return plan_for(epsilon=EPSILON, delta=DELTA, schedule=log.schedule, **choices)


def _replay(choices: dict[str, Any]) -> Method:
    def choose(log: Log, _: np.random.Generator) -> Chosen:
        plan = _plan(log, choices)
        return Chosen(f"T = {plan.threshold:,}", lambda: ours.replay(log, plan))

    return choose


def _nightly(choices: dict[str, Any]) -> Method:
    """A part of the run for each day, or window if it is longer."""

    def choose(log: Log, _: np.random.Generator) -> Chosen:
        plan, window_seconds = _plan(log, choices), log.schedule.window_seconds
        parts = -(-log.schedule.horizon * window_seconds // max(_DAY_SECONDS, window_seconds))
        return Chosen(f"{parts} parts", lambda: ours.replay(log, plan, parts), is_slow=True)

    return choose


def _stream_order(log: Log, _: np.random.Generator) -> Chosen:
    plan = _plan(log, {"use": "stream"})
    return Chosen(f"T = {plan.threshold:,}", lambda: ours.stream_order(log, plan))


def _weighted_gaussian(log: Log, random: np.random.Generator) -> Chosen:
    def run(most: int) -> Found:
        return set_union.weighted_gaussian(log, EPSILON, DELTA, most, random)

    most = max(_MOST_CONTRIBUTIONS, key=lambda most: len(run(most)))
    return Chosen(_at_most(most), lambda: run(most))


def _weighted_gaussian_followed(log: Log, random: np.random.Generator) -> Chosen:
    numbers = {"false_name_error": 1e-5, "forget_after": _plan(log, ONE_ROUND).followed_for}  # as ours

    def run(most: int) -> Found:
        return set_union.weighted_gaussian_followed(log, EPSILON, DELTA, most, random, **numbers)

    most = max(_MOST_CONTRIBUTIONS, key=lambda most: len(run(most)))
    return Chosen(_at_most(most), lambda: run(most))


def _policy_gaussian(log: Log, random: np.random.Generator) -> Chosen:
    """First the best alpha at the best limit of the weighted Gaussian, then the limits beside it."""

    def run(most: int, alpha: float) -> Found:
        return set_union.policy_gaussian(log, EPSILON, DELTA, most, alpha, random)

    place = max(
        range(len(_MOST_CONTRIBUTIONS)),
        key=lambda place: len(set_union.weighted_gaussian(log, EPSILON, DELTA, _MOST_CONTRIBUTIONS[place], random)),
    )
    alpha = max(_ALPHAS, key=lambda alpha: len(run(_MOST_CONTRIBUTIONS[place], alpha)))
    most = max(_MOST_CONTRIBUTIONS[max(0, place - 1) : place + 2], key=lambda most: len(run(most, alpha)))
    return Chosen(f"{_at_most(most)}, alpha {alpha:g}", lambda: run(most, alpha), is_slow=True)


def _gaussian_per_window(log: Log, random: np.random.Generator) -> Chosen:
    return _gaussian(log, log.rank_in_window(random), _CAPS_OF_WINDOW, log.schedule.horizon, random)


def _gaussian_for_run(log: Log, random: np.random.Generator) -> Chosen:
    return _gaussian(log, log.rank_in_user(random), _CAPS, 1, random)


def _gaussian(log: Log, rank: Whole, caps: tuple[int, ...], windows: int, random: np.random.Generator) -> Chosen:
    """rank: of each pair among those that a cap chooses from; caps times windows counts of a user change."""

    def numbers(cap: int, wider: float) -> tuple[float, float]:
        return histograms.exact_threshold(EPSILON, DELTA, cap * windows, wider)

    counts = {cap: histograms.counts_under_cap(log, rank, cap) for cap in caps}
    cap, wider = max(
        itertools.product(caps, _WIDER),
        key=lambda each: histograms.expected_gaussian(counts[each[0]], *numbers(*each)),
    )
    sigma, threshold = numbers(cap, wider)
    note = f"cap {cap}, T = {threshold:,.1f}"
    return Chosen(note, lambda: histograms.gaussian_histogram(counts[cap], sigma, threshold, random))


def _laplace_for_run(log: Log, random: np.random.Generator) -> Chosen:
    rank = log.rank_in_user(random)
    counts = {cap: histograms.counts_under_cap(log, rank, cap) for cap in _CAPS}

    def numbers(cap: int) -> tuple[float, float]:
        return cap / EPSILON, histograms.laplace_threshold(EPSILON, DELTA, cap)

    cap = max(_CAPS, key=lambda cap: histograms.expected_laplace(counts[cap], *numbers(cap)))
    scale, threshold = numbers(cap)
    note = f"cap {cap}, T = {threshold:,.1f}"
    return Chosen(note, lambda: histograms.laplace_histogram(counts[cap], scale, threshold, random))


def _pipeline_dp(*strategies: str) -> Method:
    """The best cap and strategy of these."""

    def choose(log: Log, random: np.random.Generator) -> Chosen:
        ranks = log.rank_in_user(random)
        choice = partition_selection.best_selection(log, ranks, EPSILON, DELTA, _CAPS, strategies)
        note = f"{choice.strategy.lower().replace('_', ' ')}, cap {choice.cap}, expects {choice.expected:,.0f}"
        return Chosen(note, lambda: partition_selection.select_partitions(log, choice, EPSILON, DELTA), is_slow=True)

    return choose


OURS: dict[str, Method] = {
    "contributions, replay in one round": _replay(ONE_ROUND),
    "contributions, replay in rounds": _replay(IN_ROUNDS),
    "contributions, nightly parts in one round": _nightly(ONE_ROUND),
    "contributions, nightly parts in rounds": _nightly(IN_ROUNDS),
    "contributions, stream order": _stream_order,
    "hits": _replay(HITS),
    "hits with counts": _replay(HITS_WITH_COUNTS),
}
PEERS: dict[str, Method] = {
    "weighted Gaussian": _weighted_gaussian,
    "weighted Gaussian, followed items": _weighted_gaussian_followed,
    "policy Gaussian": _policy_gaussian,
    "Gaussian histogram per window": _gaussian_per_window,
    "Gaussian histogram, cap for the run": _gaussian_for_run,
    "Laplace histogram, cap for the run": _laplace_for_run,
    "PipelineDP select_partitions": _pipeline_dp(*partition_selection.STRATEGIES),
    "PipelineDP, its weighted Gaussian": _pipeline_dp(partition_selection.WEIGHTED),
}


def _at_most(most: int) -> str:
    return f"at most {most:,} contributions of a user"
