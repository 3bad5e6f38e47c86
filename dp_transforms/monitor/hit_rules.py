"""What the sequential monitor needs of a plan whose users pay for hits, alone or beside looks."""

from __future__ import annotations

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.mechanisms.release_rule import (
    BetweenThresholds,
    CountsAboveThreshold,
    HitOrAbove,
    NamesAboveThreshold,
    ReleaseRule,
)
from dp_transforms.monitor.look_noise import LookNoise
from dp_transforms.monitor.query_noise import CappedSumNoise, QueryNoise, SingleNoise
from dp_transforms.plan.plan import Plan


def query_noise(plan: Plan, keys: StreamKeys) -> QueryNoise:
    """What is added to the count, or the sum of weights, of an item in a window."""
    if plan.looks is not None:
        return LookNoise(plan.looks.noise, plan.known_threshold, keys)
    hits = plan.charged_hits
    if hits.wide is None:
        return SingleNoise(hits.epsilon_per_query, plan.threshold, keys)
    return CappedSumNoise(
        plan.threshold,
        keys,
        wide_epsilon=hits.wide.epsilon_per_query,
        narrow_epsilon=hits.epsilon_per_query,
        cap=hits.wide.cap,
    )


def release_rule(plan: Plan, *, is_known: bool = False) -> ReleaseRule:
    """What is published of a noisy count, and whether it is a hit."""
    threshold = plan.known_threshold if is_known else plan.threshold
    if plan.looks is not None:
        return HitOrAbove(threshold, plan.looks.spacing, plan.likely_noise, plan.looks.weights[-1])
    if plan.mode == "hits":
        return BetweenThresholds(threshold, plan.charged_hits.zone_width)
    return CountsAboveThreshold(threshold) if plan.mode == "hits-with-counts" else NamesAboveThreshold(threshold)


def most_hits(plan: Plan, charged: int) -> int:
    """So many of a window's charged results can be of one user."""
    return charged if plan.looks is not None else min(plan.charged_hits.max_items_per_user, charged)


def epsilon_spent(plan: Plan, hit_bound: int) -> float:
    """The running estimate, if no user can have paid more hits than this.

    Results without a hit leak a little too and belong to the next hit: the estimate is that of hit_bound + 1 hits,
    entry hit_bound of the table (docs/guarantee.md, "Claim (running figure)"). Where users pay for looks too it is all
    of epsilon: public output does not say how much of a purse is left.
    """
    if plan.looks is not None:
        return plan.epsilon
    return plan.epsilon_after_hits[min(hit_bound, plan.charged_hits.per_user - 1)]
