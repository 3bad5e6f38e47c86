"""Whether a plan keeps its promise: checked whenever one is built or read, so that no guarantee hangs on the search."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dp_transforms.accounting.accountants import hash_delta, sampling_delta
from dp_transforms.accounting.charged_hits import check_threshold, smallest_safe_threshold
from dp_transforms.accounting.price_list import check_prices, order_budget, smallest_open_threshold
from dp_transforms.checks import check_whole
from dp_transforms.errors import InputError
from dp_transforms.plan.calibration import check_most_contributions, open_units_of, sampling_of_hits
from dp_transforms.plan.records import ChargedHits, PaidContributions
from dp_transforms.plan.rounds import stated_threshold

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
    _check_records(plan)
    _check_delta_split(plan)
    if plan.contributions is None:
        _check_hits(plan, plan.charged_hits)
    else:
        _check_contributions(plan, plan.contributions)


def _check_records(plan: Plan) -> None:
    """Which records go together."""
    public, pays, is_open = plan.public_items, plan.contributions is not None, plan.takes_open_items
    if public is not None and public.size > plan.max_items:
        raise InputError(
            "max_items", f"must be >= {public.size}, the public items, got {plan.max_items}.", "Declare more."
        )
    if plan.second_test is not None:
        states_all = pays and plan.paid_contributions.least_users is not None
        if plan.rounds is not None or public is not None or not pays or states_all:
            raise ValueError("a second test is of contributions, without rounds, public items and least_users.")
    if (
        pays == (plan.hits is not None)
        or (plan.followed is not None) + (plan.rounds is not None) > (pays and is_open)
        or (is_open == (public is not None) and not (is_open and pays))
    ):
        raise ValueError(
            "a plan must have contributions or hits; followed items, or rounds, of contributions with open items; and"
            " the share open of delta unless all items are public. Items of hits are all public or all open."
        )


def _check_delta_split(plan: Plan) -> None:
    shares = {name: share for name, share in vars(plan.shares).items() if share is not None}
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


def _check_false_reports(plan: Plan, tail: float) -> None:
    """A run must not publish more items that nobody holds than can be drawn. tail: noise alone reaches the threshold"""
    in_window = plan.public_item_count * tail
    if in_window > MOST_FALSE_REPORTS_PER_WINDOW or in_window * plan.schedule.horizon > MOST_FALSE_REPORTS:
        raise InputError(
            "threshold",
            f"= {plan.followed_threshold} would publish about {in_window:.3g} items that nobody holds in each window.",
            "Raise it, or leave it out.",
        )


def _check_hits(plan: Plan, hits: ChargedHits) -> None:
    _check_false_reports(plan, hits.noise.upper_tail(plan.threshold))
    if plan.shares.open is not None:
        check_threshold(plan.threshold, smallest_safe_threshold(hits.noise, plan.queries_per_user, plan.shares.open))
    proved = hits.proof.delta(plan.epsilon)
    if not proved <= plan.shares.paid:
        raise ValueError(
            f"epsilon_per_query = {hits.epsilon_per_query!r} is too little noise: at epsilon = {plan.epsilon:g} it "
            f"needs a share paid >= {proved:.6g}, got {plan.shares.paid:.6g}. Calibrate the plan again."
        )
    needed = sampling_of_hits(plan, hits.keys, plan.queries_per_user, hits.noise.total_variation)
    _check_share("hash", plan.shares.hash, hits.keys * hash_delta(plan.max_users, plan.max_items))
    _check_share("sampling", plan.shares.sampling, needed)


def _check_contributions(plan: Plan, paid: PaidContributions) -> None:
    _check_followed(plan)
    _check_share("hash", plan.shares.hash, hash_delta(plan.max_users, plan.max_items))
    units, of_rounds = plan.units_of_rounds, plan.prices_of_rounds
    most = [each // prices.units[0] for each, prices in zip(units, of_rounds, strict=True)]
    check_most_contributions(sum(most))
    variation = sum(
        number * prices.noise.sampling_total_variation for number, prices in zip(most, of_rounds, strict=True)
    )
    needed = sampling_delta(plan.epsilon, variation, plan.schedule.horizon, plan.public_item_count)
    _check_share("sampling", plan.shares.sampling, needed)
    if plan.followed_threshold < (stated := stated_threshold(plan, paid, plan.rounds, plan.followed_for)):
        raise ValueError(f"thresholds must be >= {stated} for least_users = {paid.least_users}.")
    if plan.rounds is not None and plan.rounds.block_seconds < plan.schedule.slide_seconds:
        least = plan.schedule.slide_seconds
        raise ValueError(f"block_seconds must be at least {least}, so that windows end in each block.")
    if not min(most):
        unpaid = most.index(0)
        least = of_rounds[unpaid].units[0]
        raise ValueError(f"round {unpaid} must pay for a test, {least} units. Calibrate the plan again.")
    for prices in of_rounds:
        check_prices(prices)
    affordable = order_budget(paid.order, plan.epsilon, plan.shares.paid)
    if not paid.budget <= affordable:
        raise ValueError(
            f"budget must be at most {affordable:.9g} at order {paid.order:g} for this epsilon and share of delta, got "
            f"{paid.budget:.9g}. Calibrate the plan again."
        )
    if plan.shares.open is not None:
        safe = smallest_open_threshold(paid.prices, plan.shares.open, open_units=open_units_of(plan.rounds))
        if plan.threshold < safe:
            raise ValueError(f"threshold must be >= {safe} for the share open of delta, got {plan.threshold}.")


def _check_followed(plan: Plan) -> None:
    _check_false_reports(plan, plan.false_name_error)
    if plan.followed is None:
        return
    check_whole("forget_after", plan.followed.forget_after, 1, plan.schedule.horizon)
    if plan.followed.threshold > plan.threshold:
        raise ValueError(f"the threshold of followed items must be at most the threshold {plan.threshold}.")
    if plan.followed.forget_after * plan.false_name_error > _MOST_NAMED_AGAIN:
        raise ValueError(
            f"a threshold of {plan.followed.threshold} for followed items is too low for forget_after = "
            f"{plan.followed.forget_after}: noise would name an item that nobody holds again and again. Lower "
            "false_name_error or forget_after."
        )
