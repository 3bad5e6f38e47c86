"""The search for a plan: from a budget, and what is declared beside it, to the records of a plan.

Guarantee: none of its own. `Plan` checks all that is found here again, as it does for a plan that is read.
"""

from __future__ import annotations

import functools
from typing import Any, TypedDict, Unpack

from dp_transforms.accounting.calibration import (
    DEFAULT_FALSE_REPORTS,
    charged_sampling_delta,
    choose_for_known_domain,
    choose_for_open_domain,
    delta_left,
    hash_delta,
    sampling_delta,
)
from dp_transforms.accounting.purse.price_list import PriceList
from dp_transforms.accounting.purse.purse_search import (
    DEFAULT_MOST_LOOKS,
    DEFAULT_USUAL_LOOKS,
    SMALLEST_KNOWN_ERROR,
    check_usual_looks,
    choose_purse,
)
from dp_transforms.accounting.release_modes import mode_of
from dp_transforms.checks import check_range, check_whole, is_whole
from dp_transforms.mechanisms.exponential_power import MAX_SCALE, ExponentialPower
from dp_transforms.plan.plan_checks import check_most_looks
from dp_transforms.plan.records import (
    Budget,
    Hits,
    Known,
    Looks,
    Shares,
    WideNoise,
    check_hits,
)
from dp_transforms.plan.rounds import (
    LOOKS_OF_ROUNDS,
    SPACING_IN_ROUNDS,
    amounts_of_rounds,
    block_rounds,
    check_choices,
    with_rounds,
)

DEFAULT_MAX_ITEMS_PER_USER = 3
DEFAULT_FORGET_AFTER = 168  # windows: a week of hours
# An item that nobody holds any more is followed for 168 windows after its last name, and noise names it 168 * 1e-5 =
# 0.0017 times, on average. So if items are named in two windows or more, fewer than one in a thousand reports is noise.
DEFAULT_KNOWN_ERROR = 1e-5
DEFAULT_SIZE_ERROR = 0.01
LEVEL_SPACING = 5.5  # standard deviations: a level then costs next to nothing more than a name


class HitsChoices(TypedDict, total=False):
    """What `Plan.calibrate` takes in modes `hits`, `hits-with-counts` and `kms21`.

    hits_per_user: after so many a user no longer counts. 3 in hits, 10 in hits-with-counts, 20 in kms21 by default.
    max_items_per_user: distinct items of a user that count in one window, 3 by default.
    most_keys: the promise is for users with events under at most so many keys, 1 by default. Counters, items of a
        window and false reports are those of one key.
    threshold: by default the smallest safe one. A smaller one raises a ValueError that names the smallest; a larger one
        leaves more of delta to the noise. In a known domain every threshold is safe, and the default is the smallest at
        which the whole run is expected to publish at most 0.05 items that nobody holds.
    """

    hits_per_user: int | None
    max_items_per_user: int | None
    most_keys: int | None
    threshold: int | None


def calibrate_hits(mode: str, budget: Budget, **given: Unpack[HitsChoices]) -> dict[str, Any]:
    """The records of the plan with the least noise. given: without None.

    Raises ValueError if the budget is too small for any noise that can be sampled, or if the threshold is below the
    smallest safe one.
    """
    charging, domain_size, horizon = mode_of(mode), budget.domain_size, budget.schedule.horizon
    hits, items = given.get("hits_per_user"), given.get("max_items_per_user")
    hits = charging.default_hits if hits is None else hits
    keys = check_whole("most_keys", given.get("most_keys", 1), 1)
    check_hits(hits, keys)
    items = check_whole("max_items_per_user", DEFAULT_MAX_ITEMS_PER_USER if items is None else items, 1)
    threshold = given.get("threshold")
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
        "hits": Hits(
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


class LooksChoices(TypedDict, total=False):
    """What `Plan.calibrate` takes in mode `looks`.

    usual_looks: most users have between so many pairs (window, item) in the whole run, by default (1, 1000), or up to
        most_looks if that is less. The noise is chosen for them; other users are served too.
    most_looks: a user's further pairs do not count, 3,000 by default.
    forget_after: items that were named are followed down to a lower threshold, until they were not named for so many
        windows, 168 by default; 0: no item is followed.
    known_error: the probability with which noise alone names a known item in a window, 1e-5 by default; in a known
        domain as small as 0.05 false names in the whole run need.
    size_error: the probability that any size that the run states is too large, 0.01 by default.
    rounds: the looks come in rounds, which find more: first at the items of each day, then at the pairs of those that
        were named. For replays, without known items or a known domain. By default False: an item of a single window
        needs more users. In place of True, which percent of what is left of a purse each round pays with:
        (10, 5, 20, 100).
    block_seconds: with rounds; the first looks at the items of blocks of so many seconds. By default a day, or the
        whole run where windows are a day or longer.
    """

    usual_looks: tuple[int, int] | None
    most_looks: int | None
    forget_after: int | None
    known_error: float | None
    size_error: float | None
    rounds: bool | tuple[int, ...] | None
    block_seconds: int | None


_choose = functools.lru_cache(maxsize=64, typed=True)(choose_purse)  # who compares plans makes some of them again


def calibrate_looks(budget: Budget, **given: Unpack[LooksChoices]) -> dict[str, Any]:
    """The records of the plan that finds most for users with the usual looks. given: without None."""
    check_choices(budget, given)
    rounds = block_rounds(budget.schedule, given)
    units = () if rounds is None else rounds.units
    forget_after, known_error = _known(budget, given) if rounds is None else (0, DEFAULT_KNOWN_ERROR)
    usual_looks, most_looks = _looks(given)
    if units:
        most_looks *= LOOKS_OF_ROUNDS
        check_most_looks(most_looks)
    hash_share = hash_delta(budget.max_users, budget.max_items)
    # With the widest noise; still far below 1e-20.
    variation = most_looks * ExponentialPower(1.0, MAX_SCALE).sampling_total_variation
    sampling_share = sampling_delta(budget.epsilon, variation, budget.schedule.horizon, budget.domain_size)
    choice = _choose(
        budget.epsilon,
        delta_left(budget.delta, hash_share + sampling_share, budget.max_users),
        usual_looks=usual_looks,
        most_looks=most_looks,
        level_spacing=SPACING_IN_ROUNDS if units else LEVEL_SPACING,
        known_error=known_error if budget.domain else None,
        amounts=amounts_of_rounds(units, most_looks) if units else None,
    )
    if units:
        choice = with_rounds(choice, units)
    return {
        "threshold": choice.threshold,
        "looks": looks_of(choice.prices, usual_looks, given.get("size_error", DEFAULT_SIZE_ERROR)),
        "known": known_of(choice.prices, choice.threshold, known_error, forget_after),
        "rounds": rounds,
        "shares": Shares(
            paid=choice.delta_looks, open=choice.delta_open or None, sampling=sampling_share, hash=hash_share
        ),
    }


def looks_of(prices: PriceList, usual_looks: tuple[int, int], size_error: float | None) -> Looks:
    return Looks(
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


def known_of(prices: PriceList, threshold: int, known_error: float, forget_after: int) -> Known | None:
    """None where items are not followed: forget_after is 0."""
    if not forget_after:
        return None
    return Known(threshold=min(threshold, prices.noise.smallest_margin(known_error)), forget_after=forget_after)


def _looks(given: LooksChoices) -> tuple[tuple[int, int], int]:
    """The usual looks, and the most."""
    usual_looks, most_looks = given.get("usual_looks"), given.get("most_looks")
    if most_looks is None:
        most_looks = max(DEFAULT_MOST_LOOKS, _largest(usual_looks))
    check_most_looks(most_looks)
    if usual_looks is None:
        usual_looks = (DEFAULT_USUAL_LOOKS[0], min(DEFAULT_USUAL_LOOKS[1], most_looks))
    return check_usual_looks(usual_looks, most_looks), most_looks


def _largest(usual_looks: object) -> int:
    """Of a pair that is not checked yet; 1 where it is not a pair of numbers, as the check will say."""
    if not isinstance(usual_looks, tuple):
        return 1
    return max([1, *(int(looks) for looks in usual_looks if is_whole(looks))])


def _known(budget: Budget, given: LooksChoices) -> tuple[int, float]:
    """For how many windows named items are followed, 0 for not at all; and how often noise names a known item."""
    horizon, forget_after, known_error = budget.schedule.horizon, given.get("forget_after"), given.get("known_error")
    if forget_after is not None and budget.domain:
        raise ValueError("forget_after cannot be used with a known domain, where every item is known. Leave it out.")
    if forget_after is None:
        forget_after = 0 if budget.domain else min(DEFAULT_FORGET_AFTER, horizon)
    check_whole("forget_after", forget_after, 0, horizon)
    if known_error is not None and not (forget_after or budget.domain):
        raise ValueError("known_error cannot be used with forget_after=0. Leave one out.")
    if known_error is None:
        tests = budget.domain_size * horizon
        known_error = min(0.5, DEFAULT_FALSE_REPORTS / tests) if tests else DEFAULT_KNOWN_ERROR
    check_range("known_error", known_error, SMALLEST_KNOWN_ERROR, 0.5)
    return forget_after, known_error
