"""Whether a plan keeps its promise: what its records must be to each other, checked when it is built or read.

``delta = paid + open + sampling + hash`` (docs/guarantee.md, "How delta is split for contributions" and "How delta is
split for hits"): each share is at least what the run needs. Each function raises ValueError.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dp_transforms.accounting.calibration import charged_sampling_delta, hash_delta, sampling_delta, threshold_error
from dp_transforms.accounting.purse_search import PurseChoice
from dp_transforms.accounting.release_modes import smallest_safe_threshold
from dp_transforms.checks import check_whole
from dp_transforms.plan.records import MOST_CONTRIBUTIONS, Contributions, Hits

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

# Public items that are published although nobody holds them are drawn and sorted one by one: not more.
MOST_FALSE_REPORTS_PER_WINDOW = 1e5
MOST_FALSE_REPORTS = 1e7
# An item that nobody holds any more may be named again, and is then followed for longer: at most so often on average.
_MOST_NAMED_AGAIN = 0.5


def check_plan(plan: Plan) -> None:
    """Raises ValueError unless the plan keeps its promise."""
    check_whole("threshold", plan.threshold, 1)
    if plan.domain is not None and plan.domain.size > plan.max_items:
        raise ValueError(
            f"max_items must be >= {plan.domain.size}, the public items, got {plan.max_items}. Declare more."
        )
    _check_records(plan)
    _check_delta_split(plan)
    if plan.looks is None:
        _check_charged(plan, plan.charged_hits)
    else:
        _check_looks(plan, plan.looks)


def check_most_contributions(most_looks: int) -> int:
    """Raises ValueError for more tests of a user than a plan may have."""
    return check_whole("most_contributions", most_looks, 1, MOST_CONTRIBUTIONS)


def _check_records(plan: Plan) -> None:
    """Which records go together."""
    if (plan.looks is None) == (plan.hits is None):
        raise ValueError("a plan must have looks or hits, and not both.")
    if plan.looks is None and plan.known:
        raise ValueError("known must be left out of a plan without looks.")
    if plan.rounds is not None and (plan.looks is None or plan.known or plan.domain):
        raise ValueError("rounds need looks, and cannot be used with followed or public items.")
    if plan.domain is not None and plan.known is not None:
        raise ValueError("known must be left out with public items, which are all followed.")


def _check_delta_split(plan: Plan) -> None:
    shares = {"paid": plan.shares.paid, "sampling": plan.shares.sampling, "hash": plan.shares.hash}
    if (plan.shares.open is None) != (plan.domain is not None):
        raise ValueError("the share open of delta must be left out with public items, and be there without them.")
    if plan.shares.open is not None:
        shares["open"] = plan.shares.open
    for name, share in shares.items():
        if not 0 < share < plan.delta:
            raise ValueError(f"the share {name} must lie strictly between 0 and delta, got {share!r}.")
    total = math.fsum(shares.values())
    if not total <= plan.delta:
        raise ValueError(f"the shares of delta must add up to at most {plan.delta!r}, got {total!r}.")


def _check_share(name: str, share: float, needed: float) -> None:
    """One share of delta covers what the run needs."""
    if not share >= needed:
        raise ValueError(f"the share {name} must be >= {needed!r} for this plan, got {share!r}.")


def _check_false_reports(plan: Plan, threshold: int, tail: float) -> None:
    """A run must not publish more items that nobody holds than can be drawn. tail: noise alone reaches the threshold"""
    in_window = plan.domain_size * tail
    if in_window > MOST_FALSE_REPORTS_PER_WINDOW or in_window * plan.schedule.horizon > MOST_FALSE_REPORTS:
        raise ValueError(
            f"threshold = {threshold} would publish about {in_window:.3g} items that nobody holds in each "
            f"window. Raise it, or leave it out."
        )


def _check_charged(plan: Plan, hits: Hits) -> None:
    _check_false_reports(plan, plan.threshold, hits.noise.upper_tail(plan.threshold))
    if plan.shares.open is not None:
        safe = smallest_safe_threshold(hits.noise, plan.queries_per_user, plan.shares.open)
        if not plan.threshold >= safe:
            raise threshold_error(plan.threshold, safe)
    proved = hits.rules.proof(hits.noise, hits.in_all).delta(plan.epsilon)
    if not proved <= plan.shares.paid:
        raise ValueError(
            f"epsilon_per_query = {hits.epsilon_per_query!r} is too little noise: at epsilon = {plan.epsilon:g} it "
            f"needs a share paid >= {proved:.6g}, got {plan.shares.paid:.6g}. Calibrate the plan again."
        )
    queries, variation = plan.queries_per_user, hits.noise.total_variation
    windows = hits.keys * plan.schedule.horizon
    needed = charged_sampling_delta(plan.epsilon, queries, variation, windows, plan.domain_size)
    _check_share("hash", plan.shares.hash, hits.keys * hash_delta(plan.max_users, plan.max_items))
    _check_share("sampling", plan.shares.sampling, needed)


def _check_looks(plan: Plan, looks: Contributions) -> None:
    check_most_contributions(looks.most_looks)
    _check_known(plan)
    _check_share("hash", plan.shares.hash, hash_delta(plan.max_users, plan.max_items))
    variation = looks.most_looks * looks.noise.sampling_total_variation
    needed = sampling_delta(plan.epsilon, variation, plan.schedule.horizon, plan.domain_size)
    _check_share("sampling", plan.shares.sampling, needed)
    if plan.rounds is not None and plan.rounds.block_seconds < plan.schedule.slide_seconds:
        least = plan.schedule.slide_seconds
        raise ValueError(f"block_seconds must be at least {least}, so that windows end in each block.")
    if min(plan.units_of_rounds) < looks.units[0]:
        raise ValueError(f"each round must pay for a test, {looks.units[0]} units. Calibrate the plan again.")
    # The price list is checked when it is built; this checks the rest: budget and threshold.
    units, shares = plan.units_of_rounds[0], (plan.shares.paid, plan.delta_open)
    PurseChoice(plan.epsilon, *shares, looks.prices, plan.threshold, open_units=units)


def _check_known(plan: Plan) -> None:
    if plan.known is None:
        return _check_false_reports(plan, plan.threshold, plan.false_name_error)
    check_whole("forget_after", plan.known.forget_after, 1, plan.schedule.horizon)
    if plan.known.threshold > plan.threshold:
        raise ValueError(f"the threshold of followed items must be at most the threshold {plan.threshold}.")
    if plan.known.forget_after * plan.false_name_error > _MOST_NAMED_AGAIN:
        raise ValueError(
            f"a threshold of {plan.known.threshold} for followed items is too low for forget_after = "
            f"{plan.known.forget_after}: noise would name an item that nobody holds again and again. Lower "
            "false_name_error or forget_after."
        )
