"""The search for the records of a plan, and whether a plan keeps its promise, which is checked whenever one is built or
read: no guarantee hangs on the search.

``delta = paid + open + sampling + hash`` (docs/guarantee.md, "How delta is split for contributions" and "How delta is
split for hits"): each share is at least what the run needs.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from dp_transforms.accounting.charged_hits import (
    DEFAULT_FALSE_REPORTS,
    choose_for_known_domain,
    choose_for_open_domain,
    mode_of,
    smallest_safe_threshold,
    threshold_error,
)
from dp_transforms.accounting.composition import charged_sampling_delta, delta_left, hash_delta, sampling_delta
from dp_transforms.accounting.exponential_power import MAX_SCALE, ExponentialPower
from dp_transforms.accounting.paid_tests import (
    DEFAULT_MOST_LOOKS,
    DEFAULT_USUAL_LOOKS,
    SMALLEST_KNOWN_ERROR,
    PaidTests,
    check_usual_looks,
    choose_tests,
)
from dp_transforms.accounting.price_list import PriceList
from dp_transforms.checks import check_range, check_whole, is_whole, shown
from dp_transforms.plan.records import (
    MOST_CONTRIBUTIONS,
    Budget,
    ChargedHits,
    Followed,
    PaidContributions,
    Rounds,
    Shares,
    WideNoise,
    check_hits,
)
from dp_transforms.plan.rounds import (
    SPACING_IN_ROUNDS,
    TESTS_OF_ROUNDS,
    amounts_of_rounds,
    with_rounds,
)

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

EXACT, PRINTED = "exact", "printed"  # noise of hits: least for the budget, or as in [KMS21]
DEFAULT_MAX_ITEMS_PER_USER = 3
DEFAULT_FORGET_AFTER = 168  # windows: a week of hours
# An item that nobody holds any more is followed for 168 windows after its last name, and noise names it 168 * 1e-5 =
# 0.0017 times, on average. So if items are named in two windows or more, fewer than one in a thousand reports is noise.
DEFAULT_FALSE_NAME_ERROR = 1e-5
DEFAULT_SIZE_ERROR = 0.01
LEVEL_SPACING = 5.5  # standard deviations: a level then costs next to nothing more than a name

# Public items that are published although nobody holds them are drawn and sorted one by one: not more.
MOST_FALSE_REPORTS_PER_WINDOW = 1e5
MOST_FALSE_REPORTS = 1e7
# An item that nobody holds any more may be named again, and is then followed for longer: at most so often on average.
_MOST_NAMED_AGAIN = 0.5


def stored_mode(noise: str, *, counts: bool) -> str:
    """The name of a way to charge hits in stored plans. Raises ValueError."""
    if noise not in (EXACT, PRINTED):
        raise ValueError(f"noise must be {EXACT} or {PRINTED}, got {shown(noise)}.")
    if counts and noise == PRINTED:
        raise ValueError("counts cannot be used with printed noise: [KMS21] publishes names. Leave one out.")
    return "kms21" if noise == PRINTED else "hits-with-counts" if counts else "hits"


def calibrate_hits(
    mode: str, budget: Budget, keys: int, hits: int | None, items: int | None, threshold: int | None
) -> dict[str, Any]:
    """The records of the plan with the least noise. mode: as it is stored. keys, hits, items: of one user; under a key,
    in a window.

    Raises ValueError if the budget is too small for any noise that can be sampled, or if the threshold is below the
    smallest safe one.
    """
    charging, domain_size, horizon = mode_of(mode), budget.domain_size, budget.schedule.horizon
    hits = charging.default_hits if hits is None else hits
    check_whole("most_keys", keys, 1)
    check_hits(hits, keys)
    items = check_whole("max_items_per_user", DEFAULT_MAX_ITEMS_PER_USER if items is None else items, 1)
    if threshold is not None:
        check_whole("threshold", threshold, 1)
    queries = keys * items * horizon
    delta_hash = keys * hash_delta(budget.max_users, budget.max_items)
    # The worst case; still far below 1e-20.
    delta_sampling = charged_sampling_delta(
        budget.epsilon, queries, charging.widest.total_variation, keys * horizon, domain_size
    )
    shared = delta_left(budget.delta, delta_hash + delta_sampling, budget.max_users)
    solve = functools.partial(charging.solve, keys * hits, budget.epsilon)
    if domain_size:
        noise, threshold, delta_open = choose_for_known_domain(solve, shared, domain_size * horizon, threshold)
    else:
        noise, threshold, delta_open = choose_for_open_domain(solve, shared, queries, threshold)
    wide = noise.wide_epsilon_per_query
    return {
        "threshold": threshold,
        "hits": ChargedHits(
            mode=mode,
            per_user=hits,
            max_items_per_user=items,
            accountant=charging.accountant,
            epsilon_per_query=noise.epsilon_per_query,
            wide=WideNoise(epsilon_per_query=wide, cap=noise.noise_cap) if wide else None,
            most_keys=None if keys == 1 else keys,
        ),
        "shares": Shares(paid=shared - delta_open, open=delta_open or None, sampling=delta_sampling, hash=delta_hash),
    }


_choose = functools.lru_cache(maxsize=64, typed=True)(choose_tests)  # who compares plans makes some of them again


def calibrate_contributions(
    budget: Budget,
    usual_contributions: tuple[int, int],
    most_contributions: int,
    *,
    forget_after: int | None = None,
    false_name_error: float | None = None,
    size_error: float | None = None,
    rounds: Rounds | None = None,
) -> dict[str, Any]:
    """The records of the plan that finds most for users with the usual contributions. Numbers as in
    `Plan.for_contributions`, the first two from `checked_contributions`."""
    forget_after, name_error = _followed(budget, forget_after, false_name_error)
    if rounds is not None:
        forget_after, most_contributions = 0, check_most_contributions(most_contributions * TESTS_OF_ROUNDS)
    hash_share = hash_delta(budget.max_users, budget.max_items)
    # With the widest noise; still far below 1e-20.
    variation = most_contributions * ExponentialPower(1.0, MAX_SCALE).sampling_total_variation
    sampling_share = sampling_delta(budget.epsilon, variation, budget.schedule.horizon, budget.domain_size)
    choice = _choose(
        budget.epsilon,
        delta_left(budget.delta, hash_share + sampling_share, budget.max_users),
        usual_looks=usual_contributions,
        most_looks=most_contributions,
        level_spacing=LEVEL_SPACING if rounds is None else SPACING_IN_ROUNDS,
        known_error=name_error if budget.domain else None,
        amounts=None if rounds is None else amounts_of_rounds(rounds.units, most_contributions),
    )
    if rounds is not None:
        choice = with_rounds(choice, rounds.units)
    return {
        "threshold": choice.threshold,
        "looks": contributions_of(choice.prices, usual_contributions, size_error),
        "known": followed_of(choice.prices, choice.threshold, name_error, forget_after),
        "rounds": rounds,
        "shares": Shares(
            paid=choice.delta_looks, open=choice.delta_open or None, sampling=sampling_share, hash=hash_share
        ),
    }


def contributions_of(prices: PriceList, usual_looks: tuple[int, int], size_error: float | None) -> PaidContributions:
    return PaidContributions(
        usual_looks=usual_looks,
        shape=prices.noise.shape,
        scale=prices.noise.scale,
        order=prices.order,
        budget=prices.budget,
        weights=prices.weights,
        units=prices.units,
        spacing=prices.spacing,
        size_error=DEFAULT_SIZE_ERROR if size_error is None else size_error,
    )


def followed_of(prices: PriceList, threshold: int, known_error: float, forget_after: int) -> Followed | None:
    """None where items are not followed: forget_after is 0."""
    if not forget_after:
        return None
    return Followed(threshold=min(threshold, prices.noise.smallest_margin(known_error)), forget_after=forget_after)


def checked_contributions(usual: tuple[int, int] | None, most: int | None) -> tuple[tuple[int, int], int]:
    """The usual contributions of a user, and the most; None stands for the default. Raises ValueError."""
    if most is None:
        largest = max([1, *map(int, filter(is_whole, usual))]) if isinstance(usual, tuple) else 1
        most = max(DEFAULT_MOST_LOOKS, largest)
    check_most_contributions(most)
    if usual is None:
        usual = (DEFAULT_USUAL_LOOKS[0], min(DEFAULT_USUAL_LOOKS[1], most))
    return check_usual_looks(usual, most), most


def _followed(budget: Budget, forget_after: int | None, error: float | None) -> tuple[int, float]:
    """For how many windows named items are followed, 0 for not at all; and how often noise names a followed item."""
    horizon = budget.schedule.horizon
    if forget_after is not None and budget.domain:
        raise ValueError("forget_after cannot be used with public items, which are all followed. Leave it out.")
    if forget_after is None:
        forget_after = 0 if budget.domain else min(DEFAULT_FORGET_AFTER, horizon)
    check_whole("forget_after", forget_after, 0, horizon)
    if error is not None and not (forget_after or budget.domain):
        raise ValueError("false_name_error cannot be used with forget_after=0. Leave one out.")
    if error is None:
        tests = budget.domain_size * horizon
        error = min(0.5, DEFAULT_FALSE_REPORTS / tests) if tests else DEFAULT_FALSE_NAME_ERROR
    check_range("false_name_error", error, SMALLEST_KNOWN_ERROR, 0.5)
    return forget_after, error


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


def _check_charged(plan: Plan, hits: ChargedHits) -> None:
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


def _check_looks(plan: Plan, looks: PaidContributions) -> None:
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
    PaidTests(plan.epsilon, *shares, looks.prices, plan.threshold, open_units=units)


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
