"""The search for the records of a plan. No guarantee hangs on it: `check` asks each plan whether it keeps its promise.

``delta = paid + open + sampling + hash`` (docs/guarantee.md, "How delta is split for contributions" and "How delta is
split for hits"): each share is at least what the run needs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from dp_transforms.accounting.accountants import hash_delta, sampling_delta
from dp_transforms.accounting.charged_hits import (
    COUNTS,
    DEFAULT_HITS,
    NAMES,
    PRINTED,
    NoiseParameters,
    check_threshold,
    least_noise,
    smallest_safe_threshold,
    widest_total_variation,
)
from dp_transforms.accounting.exponential_power import MAX_SCALE, ExponentialPower
from dp_transforms.accounting.paid_tests import choose_tests, price_lists
from dp_transforms.accounting.price_list import PriceList, smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.checks import check_range, check_whole, is_whole, shown
from dp_transforms.errors import InputError
from dp_transforms.plan.records import (
    MOST_CONTRIBUTIONS,
    SMALLEST_ERROR,
    Budget,
    ChargedHits,
    Followed,
    LaterTests,
    PaidContributions,
    Rounds,
    SecondTest,
    Shares,
    WideNoise,
    check_hits,
    usual_tests_of,
)
from dp_transforms.plan.rounds import (
    FALSE_NAMES,
    SPACING_IN_ROUNDS,
    TESTS_OF_ROUNDS,
    TESTS_OF_STREAM,
    amounts_of_rounds,
    rounds_by_shape,
    stated_threshold,
)

EXACT = "exact"  # noise of hits: the least for the budget; or `PRINTED`, as in [KMS21]
DEFAULT_USUAL_TESTS, DEFAULT_MOST_TESTS = (1, 1000), 3000
DEFAULT_MAX_ITEMS_PER_USER = 3
DEFAULT_FORGET_AFTER = 168  # windows: a week of hours
# An item that nobody holds any more is followed for 168 windows after its last name, and noise names it 168 * 1e-5 =
# 0.0017 times, on average. So if items are named in two windows or more, fewer than one in a thousand reports is noise.
DEFAULT_FALSE_NAME_ERROR = 1e-5
DEFAULT_SIZE_ERROR = 0.01
# With public items the guarantee does not need a threshold. It only keeps out items that nobody holds: by default, at
# most one run in twenty publishes any.
DEFAULT_FALSE_REPORTS = 0.05
LEVEL_SPACING = 5.5  # standard deviations: a level then costs next to nothing more than a name


def mode_of(noise: str, *, counts: bool) -> str:
    """The name of a way to charge hits in `accounting.charged_hits`. Raises ValueError."""
    if noise not in (EXACT, PRINTED):
        raise InputError("noise", f"must be {EXACT} or {PRINTED}, got {shown(noise)}.")
    if counts and noise == PRINTED:
        raise InputError("counts", "cannot be used with printed noise: [KMS21] publishes names.", "Leave one out.")
    return PRINTED if noise == PRINTED else COUNTS if counts else NAMES


def _left(budget: Budget, taken: float) -> float:
    """What is left of delta for noise and threshold, rounded down. taken: the shares of hashes and sampling."""
    left = (budget.delta - taken) * (1 - 1e-12)
    if not left > 0:
        raise InputError(
            "delta",
            f"must be > {taken:.3g}, the share that hash collisions and sampling take, got {budget.delta:g}.",
            f"Raise it, or declare fewer users and items (max_users = {budget.max_users}).",
        )
    return left


def sampling_of_hits(budget: Budget, keys: int, queries: int, total_variation: float) -> float:
    """Each query has two draws, within total_variation of their exact distributions."""
    windows = keys * budget.schedule.horizon
    return sampling_delta(budget.epsilon, 2 * queries * total_variation, windows, budget.public_item_count)


def calibrate_hits(
    mode: str, budget: Budget, keys: int, hits: int | None, items: int | None, threshold: int | None
) -> dict[str, Any]:
    """The records of the plan with the least noise. mode: as in `accounting.charged_hits`. keys: under how many a user
    may be. hits: how many it pays under each. items: how many of its items count in a window of a key.

    Raises ValueError if the budget is too small for any noise that can be sampled, or if the threshold is below the
    smallest safe one.
    """
    horizon = budget.schedule.horizon
    hits = DEFAULT_HITS[mode] if hits is None else hits
    check_whole("most_keys", keys, 1)
    check_hits(hits, keys)
    items = check_whole("max_items_per_user", DEFAULT_MAX_ITEMS_PER_USER if items is None else items, 1)
    if threshold is not None:
        check_whole("threshold", threshold, 1)
    queries = keys * items * horizon
    delta_hash = keys * hash_delta(budget.max_users, budget.max_items)
    # The worst case; still far below 1e-20.
    delta_sampling = sampling_of_hits(budget, keys, queries, widest_total_variation(mode))
    shared = _left(budget, delta_hash + delta_sampling)
    solve = functools.partial(least_noise, mode, keys * hits, budget.epsilon)
    if budget.public_items is None:
        noise, threshold, delta_open = _with_lone_items(solve, shared, queries, threshold)
    else:
        noise, delta_open = solve(shared), 0.0
        if threshold is None:
            # The item of one more holder would be at T - 1; the item of none is at T.
            tests = budget.public_item_count * horizon
            threshold = max(1, smallest_safe_threshold(noise, tests, DEFAULT_FALSE_REPORTS) - 1)
    wide = noise.wide_epsilon_per_query
    return {
        "threshold": threshold,
        "hits": ChargedHits(
            publishes=COUNTS if mode == COUNTS else NAMES,
            per_user=hits,
            max_items_per_user=items,
            epsilon_per_query=noise.epsilon_per_query,
            wide=WideNoise(epsilon_per_query=wide, cap=noise.noise_cap) if wide else None,
            most_keys=None if keys == 1 else keys,
        ),
        "shares": Shares(paid=shared - delta_open, open=delta_open or None, sampling=delta_sampling, hash=delta_hash),
    }


def _with_lone_items(
    solve: Callable[[float], NoiseParameters], shared: float, queries: int, threshold: int | None
) -> tuple[NoiseParameters, int, float]:
    """The noise, the threshold, and the share of delta that lone items take: half of it, or less where the threshold
    needs less; the rest is for the noise.

    solve: the least noise for a delta. shared: what is left of delta. threshold: None for the smallest safe one.
    """
    delta_open = shared / 2
    noise = solve(shared - delta_open)
    smallest = smallest_safe_threshold(noise, queries, delta_open)
    if threshold is None or threshold == smallest:
        return noise, smallest, delta_open
    check_threshold(threshold, smallest)
    # What lone items no longer need goes to the accountant: less noise, and with it a smaller tail.
    delta_open = max(queries * noise.upper_tail(threshold - 1), shared * 1e-6)
    return solve(shared - delta_open), threshold, delta_open


# Who compares plans makes some of them again.
_choose = functools.lru_cache(maxsize=64, typed=True)(choose_tests)
_price = functools.lru_cache(maxsize=64, typed=True)(price_lists)


def calibrate_contributions(
    budget: Budget,
    usual_contributions: tuple[int, int],
    most_contributions: int,
    forget_after: int | None = None,
    false_name_error: float | None = None,
    size_error: float | None = None,
    least_users: int | None = None,
    rounds: Rounds | None = None,
    second_test: SecondTest | None = None,
    *,
    also_open: bool = False,
    by_activity: bool = False,
) -> dict[str, Any]:
    """The records of the plan that finds most for users with the usual contributions. Numbers as in
    `Plan.for_contributions`, the first two from `checked_contributions`. by_activity: how many rounds there are, what
    each costs, and the shape of its noise, follow the usual contributions."""
    if also_open and budget.public_items is None:
        raise InputError("also_open", "cannot be used without public items: all items are open.", "Leave it out.")
    only_public = budget.public_items is not None and not also_open
    forget_after, name_error = _followed(budget, forget_after, false_name_error, only_public=only_public)
    if rounds is not None:
        forget_after, most_contributions = 0, check_most_contributions(most_contributions * TESTS_OF_ROUNDS)
    if second_test is not None:
        name_error, most_contributions = name_error / 2, most_contributions * TESTS_OF_STREAM
    hash_share = hash_delta(budget.max_users, budget.max_items)
    # With the widest noise; still far below 1e-20.
    variation = most_contributions * ExponentialPower(1.0, MAX_SCALE).sampling_total_variation
    sampling_share = sampling_delta(budget.epsilon, variation, budget.schedule.horizon, budget.public_item_count)
    choice = _choose(
        budget.epsilon,
        _left(budget, hash_share + sampling_share),
        usual_tests=usual_contributions,
        most_tests=most_contributions,
        false_name_error=name_error if only_public else None,
    )
    shapes: tuple[float, ...] = (choice.shape,)
    amounts: dict[float, tuple[int, ...] | None] = {choice.shape: None}
    spacing = LEVEL_SPACING
    if in_rounds := rounds or second_test:
        spacing, units = SPACING_IN_ROUNDS, in_rounds.units
        if by_activity:
            units, shapes = rounds_by_shape(choice.shape)
        amounts = amounts_of_rounds(units, shapes, most_contributions)
    listed = _price(choice, most_contributions, level_spacing=spacing, amounts=tuple(amounts.items()))
    prices = listed[shapes[0]]
    if rounds is not None and by_activity:
        later = tuple(later_tests_of(listed[shape]) for shape in shapes[1:])
        rounds = dataclasses.replace(rounds, units=units, later=later)
    if only_public:
        threshold = prices.noise.smallest_margin(name_error)
    else:
        threshold = smallest_open_threshold(prices, choice.delta_open, open_units=open_units_of(rounds))
    error = DEFAULT_SIZE_ERROR if size_error is None else size_error
    paid = PaidContributions.of(prices, usual_contributions, error, least_users)
    stated = stated_threshold(budget, paid, rounds, forget_after)
    threshold = max(threshold, stated)
    followed = min(threshold, max(prices.noise.smallest_margin(name_error), stated))
    return {
        "threshold": threshold,
        "contributions": paid,
        "followed": Followed(threshold=followed, forget_after=forget_after) if forget_after else None,
        "rounds": rounds,
        "second_test": second_test,
        "shares": Shares(
            paid=choice.delta_tests, open=choice.delta_open or None, sampling=sampling_share, hash=hash_share
        ),
    }


def later_tests_of(prices: PriceList) -> LaterTests:
    return LaterTests(shape=prices.noise.shape, weights=prices.weights, units=prices.units, spacing=prices.spacing)


def checked_contributions(usual: tuple[int, int] | None, most: int | None) -> tuple[tuple[int, int], int]:
    """The usual contributions of a user, and the most; None stands for the default. Raises ValueError."""
    if most is None:
        largest = max([1, *map(int, filter(is_whole, usual))]) if isinstance(usual, tuple) else 1
        most = max(DEFAULT_MOST_TESTS, largest)
    check_most_contributions(most)
    if usual is None:
        usual = (DEFAULT_USUAL_TESTS[0], min(DEFAULT_USUAL_TESTS[1], most))
    return usual_tests_of(usual, most), most


def _followed(budget: Budget, forget_after: int | None, error: float | None, *, only_public: bool) -> tuple[int, float]:
    """For how many windows named items are followed, 0 for not at all; and how often noise names a followed item."""
    horizon = budget.schedule.horizon
    if forget_after is not None and only_public:
        raise InputError("forget_after", "cannot be used with public items, which are all followed.", "Leave it out.")
    if forget_after is None:
        forget_after = 0 if only_public else min(DEFAULT_FORGET_AFTER, horizon)
    # With open items beside public ones, the threshold of both kinds is that of followed items.
    check_whole("forget_after", forget_after, 1 if budget.public_items and not only_public else 0, horizon)
    if error is not None and not (forget_after or only_public):
        raise InputError("false_name_error", "cannot be used with forget_after=0.", "Leave one out.")
    if error is None:
        tests = budget.public_item_count * horizon
        most = 0.5 if only_public else DEFAULT_FALSE_NAME_ERROR
        error = min(most, (DEFAULT_FALSE_REPORTS if only_public else FALSE_NAMES) / tests) if tests else most
    check_range("false_name_error", error, SMALLEST_ERROR, 0.5)
    return forget_after, error


def check_most_contributions(most: int) -> int:
    """Raises ValueError for more tests of a user than a plan may have."""
    return check_whole("most_contributions", most, 1, MOST_CONTRIBUTIONS)


def open_units_of(rounds: Rounds | None) -> int:
    """What a user can pay for tests of items that are not named yet: of the rounds the first one alone has some, but
    the first and the second test of a stream both do."""
    return BUDGET_UNITS if rounds is None else rounds.units[0]
