"""The search for a plan of mode `looks`: from a budget and a declared activity to the fields of a plan.

Guarantee: none of its own. `LooksPlan` checks all that is found here again, as it does for a plan that is read.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_transforms.accounting.activity import activity_delta
from dp_transforms.accounting.calibration import DEFAULT_FALSE_REPORTS, delta_left, hash_delta, sampling_delta
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import (
    MOST_COUNTS_PER_USER,
    CountPrice,
    hits_from,
    make_price_list,
    price_counts,
)
from dp_transforms.accounting.purse.purse_choice import (
    DEFAULT_MOST_LOOKS,
    DEFAULT_USUAL_LOOKS,
    SMALLEST_KNOWN_ERROR,
    PurseChoice,
    check_usual_looks,
    choose_purse,
)
from dp_transforms.checks import check_range, check_whole, is_whole, shown
from dp_transforms.mechanisms.exponential_power import MAX_SCALE, ExponentialPower
from dp_transforms.plan.plan_checks import as_float
from dp_transforms.plan.release_plan import Budget

DEFAULT_FORGET_AFTER = 168  # windows: a week of hours
# An item that nobody holds any more is followed for 168 windows after its last name, and noise names it 168 * 1e-5 =
# 0.0017 times, on average. So if items are named in two windows or more, fewer than one in a thousand reports is noise.
DEFAULT_KNOWN_ERROR = 1e-5
DEFAULT_SIZE_ERROR = 0.01
LEVEL_SPACING = 5.5  # standard deviations: a level then costs next to nothing more than a name
HITS_TO_TRY = (3, 10, 30)  # where a plan chooses, besides looks alone
MOST_LOOKS_OF_PLAN = 100_000  # prices for more take minutes


def calibrate_looks(
    mode: str,
    budget: Budget,
    *,
    usual_looks: tuple[int, int] | None = None,
    most_looks: int | None = None,
    hits_per_user: int | None = None,
    known_items: bool = True,
    forget_after: int | None = None,
    known_error: float | None = None,
    size_error: float = DEFAULT_SIZE_ERROR,
    counts_for: int = 0,
    activity_epsilon: float = 0.0,
) -> dict[str, Any]:
    """The fields of the plan that finds most for users with `usual_looks`. Names as in `ReleasePlan.calibrate`."""
    horizon, is_known_domain = budget.schedule.horizon, budget.domain is not None
    forget_after = _forget_after(forget_after, horizon, is_known_domain=is_known_domain, known_items=known_items)
    if known_error is None:
        tests = budget.domain_size * horizon
        known_error = min(0.5, DEFAULT_FALSE_REPORTS / tests) if is_known_domain else DEFAULT_KNOWN_ERROR
    elif not forget_after:
        raise ValueError("known_error cannot be used with known_items=False. Leave one out.")
    check_range("known_error", known_error, SMALLEST_KNOWN_ERROR, 0.5)
    if most_looks is None:
        most_looks = max(DEFAULT_MOST_LOOKS, _largest(usual_looks))
    check_most_looks(most_looks)
    if usual_looks is None:
        usual_looks = (DEFAULT_USUAL_LOOKS[0], min(DEFAULT_USUAL_LOOKS[1], most_looks))
    usual_looks = check_usual_looks(usual_looks, most_looks)
    hash_share = looks_hash_delta(budget.max_users, budget.max_items)
    if check_whole("counts_for", counts_for, 0):
        if hits_per_user:
            raise ValueError("counts_for cannot be used with hits_per_user above 0. Leave one out.")
        hits_per_user = 0
    counts_per_user = min(MOST_COUNTS_PER_USER, usual_looks[1], counts_for * horizon)
    # With the widest noise; still far below 1e-20.
    variation = (most_looks + counts_per_user) * ExponentialPower(1.0, MAX_SCALE).sampling_total_variation
    sampling_share = sampling_delta(budget.epsilon, variation, horizon, budget.domain_size)
    activity_epsilon = as_float("activity_epsilon", activity_epsilon)
    sampling_share += activity_delta(budget.epsilon, activity_epsilon, budget.max_users)
    choice = choose_purse(
        budget.epsilon,
        delta_left(budget.delta, hash_share + sampling_share, budget.max_users),
        usual_looks=usual_looks,
        most_looks=most_looks,
        hits=_hits_to_try(hits_per_user, most_looks),
        level_spacing=LEVEL_SPACING,
        known_error=known_error if is_known_domain else None,
    )
    counts = CountPrice(0, 0)
    if counts_for:
        counts = price_counts(choice.prices.order, choice.prices.budget, counts_per_user)
        choice = _with_counts(choice, counts_per_user, counts)
    noise, listed = choice.prices.noise, choice.hit_prices
    known_threshold = min(choice.threshold, noise.smallest_margin(known_error))
    return {
        **budget.fields(),
        "mode": mode,
        "usual_looks": usual_looks,
        "most_looks": most_looks,
        "shape": noise.shape,
        "scale": noise.scale,
        "order": choice.prices.order,
        "budget": choice.prices.budget,
        "weights": choice.prices.weights,
        "units": choice.prices.units,
        "hits_per_user": 0 if listed is None else listed.hits,
        "hit_units": 0 if listed is None else listed.hit_units,
        "hits_from": 0 if listed is None else hits_from(choice.prices, listed),
        "hit_weights": () if listed is None else listed.weights,
        "hit_look_units": () if listed is None else listed.units,
        "counts_for": counts_for,
        "counts_per_user": counts_per_user,
        "count_units": counts.units,
        "count_scale": counts.scale,
        "spacing": choice.prices.spacing,
        "threshold": choice.threshold,
        "known_threshold": known_threshold if forget_after else choice.threshold,
        "forget_after": forget_after,
        "size_error": size_error,
        "activity_epsilon": activity_epsilon,
        "delta_looks": choice.delta_looks,
        "delta_open": choice.delta_open,
        "delta_sampling": sampling_share,
        "delta_hash": hash_share,
    }


def _with_counts(choice: PurseChoice, counts_per_user: int, counts: CountPrice) -> PurseChoice:
    """The same noise, order and split, with weights for purses from which counts are paid."""
    old = choice.prices
    prices = make_price_list(
        old.noise,
        old.order,
        old.budget,
        old.most_looks,
        counts=counts_per_user,
        count_units=counts.units,
        spacing=old.spacing,
    )
    threshold = smallest_open_threshold(prices, choice.delta_open) if choice.delta_open else choice.threshold
    return dataclasses.replace(choice, prices=prices, threshold=threshold)


def _largest(usual_looks: object) -> int:
    """Of a pair that is not checked yet; 1 where it is not a pair of numbers, as the check will say."""
    if not isinstance(usual_looks, tuple):
        return 1
    return max([1, *(int(looks) for looks in usual_looks if is_whole(looks))])


def _forget_after(given: int | None, horizon: int, *, is_known_domain: bool, known_items: bool) -> int:
    if not isinstance(known_items, bool):
        raise ValueError(f"known_items must be True or False, got {shown(known_items)}.")
    if is_known_domain:
        if given is not None or not known_items:
            name = "forget_after" if given is not None else "known_items=False"
            raise ValueError(f"{name} cannot be used with a known domain, where every item is known. Leave it out.")
        return horizon
    if not known_items:
        if given is not None:
            raise ValueError("forget_after cannot be used with known_items=False. Leave one out.")
        return 0
    return min(DEFAULT_FORGET_AFTER, horizon) if given is None else check_whole("forget_after", given, 1, horizon)


def _hits_to_try(given: int | None, most_looks: int) -> tuple[int, ...]:
    if given is not None:
        return (check_whole("hits_per_user", given, 0, most_looks),)
    return (0, *(hits for hits in HITS_TO_TRY if hits <= most_looks))


def check_most_looks(most_looks: int) -> None:
    """Raises ValueError for more looks than a plan may have."""
    check_whole("most_looks", most_looks, 1, MOST_LOOKS_OF_PLAN)


def looks_hash_delta(max_users: int, max_items: int) -> float:
    """All items of the run have different hashes, and no other user has that of x' (docs/guarantee.md, "How delta is
    split for looks")."""
    return hash_delta(max_items, max_users, max_items)
