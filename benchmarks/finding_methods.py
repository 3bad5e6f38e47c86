"""The methods of the benchmark `finding`: what is chosen for a log, and one run.

A method that needs a cap or another number gets the best one of a grid for the log, found on the log itself: its user
would have to know it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks import found_names, peers_histograms, peers_pipeline_dp, peers_set_union
from benchmarks.finding_logs import LogPairs
from benchmarks.found_pairs import FoundPairs
from dp_transforms.plan.plan import Plan, plan_for
from dp_transforms.plan.window_schedule import WindowSchedule

EPSILON, DELTA = 2.0, 1e-9
MODES: dict[str, dict[str, Any]] = {
    "looks": found_names.LOOKS,
    "looks, rounds": {"usual_contributions": (1, 1000)},
    "hits": {"charge": "hits", "hits_per_user": 3},
    "hits-with-counts": {"charge": "hits", "counts": True, "hits_per_user": 10},
}
_DAY_SECONDS = 86_400
_CAPS = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 512)
_CAPS_OF_WINDOW = (1, 2, 3, 5)
_WIDER = (1.0005, 1.002, 1.005, 1.01, 1.02, 1.05)  # sigma over the least one
_MOST_LOOKS = (10, 30, 100, 300, 1000, 3000)
_ALPHAS = (3.0, 5.0, 8.0, 12.0, 20.0)


class Chosen(NamedTuple):
    """note: what was chosen. run: one run. is_slow: it is run once."""

    note: str
    run: Callable[[], FoundPairs]
    is_slow: bool = False


def _names_replay(log: LogPairs, _: np.random.Generator) -> Chosen:
    plan = _looks_plan(log)
    return Chosen(f"p = {plan.paid_contributions.shape:g}", lambda: found_names.replay(log, plan))


def _names_in_stream_order(mode: str) -> Callable[[LogPairs, np.random.Generator], Chosen]:
    def choose(log: LogPairs, _: np.random.Generator) -> Chosen:
        plan = _plan(log, mode)
        return Chosen(f"p = {plan.paid_contributions.shape:g}", lambda: found_names.stream_order(log, plan))

    return choose


def _names_in_rounds(log: LogPairs, _: np.random.Generator) -> Chosen:
    plan = _plan(log, "looks, rounds")
    return Chosen(f"p = {plan.paid_contributions.shape:g}", lambda: found_names.replay(log, plan))


def _nightly(mode: str) -> Callable[[LogPairs, np.random.Generator], Chosen]:
    """A part of the run for each day, or window if it is longer."""

    def choose(log: LogPairs, _: np.random.Generator) -> Chosen:
        plan = _plan(log, mode)
        parts = -(-log.horizon * log.window_seconds // max(_DAY_SECONDS, log.window_seconds))
        return Chosen(f"{parts} parts", lambda: found_names.replay(log, plan, parts), is_slow=True)

    return choose


def _charging(mode: str) -> Callable[[LogPairs, np.random.Generator], Chosen]:
    def choose(log: LogPairs, _: np.random.Generator) -> Chosen:
        plan = _plan(log, mode)
        return Chosen(f"T = {plan.threshold:,}", lambda: found_names.replay(log, plan))

    return choose


def _weighted_gaussian(log: LogPairs, random: np.random.Generator) -> Chosen:
    def run(most: int) -> FoundPairs:
        return peers_set_union.weighted_gaussian(log, EPSILON, DELTA, most, random)

    most = max(_MOST_LOOKS, key=lambda most: run(most).pairs)
    return Chosen(_at_most(most), lambda: run(most))


def _weighted_gaussian_known(log: LogPairs, random: np.random.Generator) -> Chosen:
    numbers = {"known_error": MODES["looks"]["false_name_error"], "forget_after": _looks_plan(log).followed_for}

    def run(most: int) -> FoundPairs:
        return peers_set_union.weighted_gaussian_known(log, EPSILON, DELTA, most, random, **numbers)

    most = max(_MOST_LOOKS, key=lambda most: run(most).pairs)
    return Chosen(_at_most(most), lambda: run(most))


def _policy_gaussian(log: LogPairs, random: np.random.Generator) -> Chosen:
    """First the best alpha at the best limit of the weighted Gaussian, then the limits beside it."""

    def run(most: int, alpha: float) -> FoundPairs:
        return peers_set_union.policy_gaussian(log, EPSILON, DELTA, most, alpha, random)

    place = max(
        range(len(_MOST_LOOKS)),
        key=lambda place: peers_set_union.weighted_gaussian(log, EPSILON, DELTA, _MOST_LOOKS[place], random).pairs,
    )
    alpha = max(_ALPHAS, key=lambda alpha: run(_MOST_LOOKS[place], alpha).pairs)
    most = max(_MOST_LOOKS[max(0, place - 1) : place + 2], key=lambda most: run(most, alpha).pairs)
    return Chosen(f"{_at_most(most)}, alpha {alpha:g}", lambda: run(most, alpha), is_slow=True)


def _gaussian_per_window(log: LogPairs, random: np.random.Generator) -> Chosen:
    return _gaussian(log, log.rank_in_window(random), _CAPS_OF_WINDOW, log.horizon, random)


def _gaussian_for_run(log: LogPairs, random: np.random.Generator) -> Chosen:
    return _gaussian(log, log.rank_in_user(random), _CAPS, 1, random)


def _gaussian(
    log: LogPairs, rank: npt.NDArray[np.int64], caps: tuple[int, ...], windows: int, random: np.random.Generator
) -> Chosen:
    """rank: of each pair among those that a cap chooses from; caps times windows counts of a user change."""

    def numbers(cap: int, wider: float) -> tuple[float, float]:
        return peers_histograms.exact_threshold(EPSILON, DELTA, cap * windows, wider)

    counts = {cap: peers_histograms.counts_under_cap(log, rank, cap) for cap in caps}
    cap, wider = max(
        itertools.product(caps, _WIDER),
        key=lambda each: peers_histograms.expected_gaussian(counts[each[0]], *numbers(*each)),
    )
    sigma, threshold = numbers(cap, wider)
    gain = 1 - peers_histograms.correlated_gain(cap * windows, int((counts[cap] > 0).sum()))
    note = f"cap {cap}, T = {threshold:,.1f}; correlated noise could be at most {gain:.2%} less".replace("%", " %")
    return Chosen(note, lambda: peers_histograms.gaussian_histogram(log, counts[cap], sigma, threshold, random))


def _laplace_for_run(log: LogPairs, random: np.random.Generator) -> Chosen:
    rank = log.rank_in_user(random)
    counts = {cap: peers_histograms.counts_under_cap(log, rank, cap) for cap in _CAPS}

    def numbers(cap: int) -> tuple[float, float]:
        return cap / EPSILON, peers_histograms.laplace_threshold(EPSILON, DELTA, cap)

    cap = max(_CAPS, key=lambda cap: peers_histograms.expected_laplace(counts[cap], *numbers(cap)))
    scale, threshold = numbers(cap)
    note = f"cap {cap}, T = {threshold:,.1f}"
    return Chosen(note, lambda: peers_histograms.laplace_histogram(log, counts[cap], scale, threshold, random))


def _pipeline_dp(log: LogPairs, random: np.random.Generator) -> Chosen:
    choice = peers_pipeline_dp.best_selection(log, log.rank_in_user(random), EPSILON, DELTA, _CAPS)
    note = f"{choice.strategy.lower().replace('_', ' ')}, cap {choice.cap}"
    return Chosen(note, lambda: peers_pipeline_dp.select_partitions(log, choice, EPSILON, DELTA), is_slow=True)


METHODS: dict[str, Callable[[LogPairs, np.random.Generator], Chosen]] = {
    "contributions, replay": _names_replay,
    "contributions, replay in rounds": _names_in_rounds,
    "contributions, nightly": _nightly("looks"),
    "contributions, nightly in rounds": _nightly("looks, rounds"),
    "contributions, stream order": _names_in_stream_order("looks"),
    "hits": _charging("hits"),
    "hits-with-counts": _charging("hits-with-counts"),
    "weighted Gaussian": _weighted_gaussian,
    "weighted Gaussian, followed items": _weighted_gaussian_known,
    "policy Gaussian": _policy_gaussian,
    "Gaussian histogram per window": _gaussian_per_window,
    "Gaussian histogram, cap for the run": _gaussian_for_run,
    "Laplace histogram, cap for the run": _laplace_for_run,
    "PipelineDP select_partitions": _pipeline_dp,
}
OURS = tuple(name for name in METHODS if name.startswith(("contributions", "hits")))


def _looks_plan(log: LogPairs) -> Plan:
    plan = _plan(log, "looks")
    assert plan.contributions is not None
    return plan


def _plan(log: LogPairs, mode: str) -> Plan:
    end = log.start_seconds + log.horizon * log.window_seconds
    schedule = WindowSchedule.fixed(log.start_seconds, end, log.window_seconds)
    return plan_for(epsilon=EPSILON, delta=DELTA, schedule=schedule, **MODES[mode])


def _at_most(most: int) -> str:
    return f"at most {most:,} pairs of a user"
