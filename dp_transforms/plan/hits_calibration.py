"""The search for a plan of modes `hits`, `hits-with-counts` and `kms21`: the least noise for a budget.

Guarantee: none of its own. `Plan` checks all that is found here again, as it does for a plan that is read.
"""

from __future__ import annotations

import functools
from typing import Any, TypedDict, Unpack

from dp_transforms.accounting.calibration import (
    charged_sampling_delta,
    choose_for_known_domain,
    choose_for_open_domain,
    delta_left,
    hash_delta,
)
from dp_transforms.accounting.release_modes import mode_of
from dp_transforms.checks import check_whole
from dp_transforms.plan.records import Budget, Hits, Shares, WideNoise, check_hits

DEFAULT_MAX_ITEMS_PER_USER = 3


class PerUser(TypedDict, total=False):
    """hits_per_user: after so many a user no longer counts. 3 in hits, 10 in hits-with-counts, 20 in kms21 by default;
    in looks a number that users may pay for beside looks, of which by default the best is chosen, 0 among them."""

    hits_per_user: int | None


class HitsChoices(PerUser, total=False):
    """What `Plan.calibrate` takes in modes `hits`, `hits-with-counts` and `kms21`, beside hits_per_user.

    max_items_per_user: distinct items of a user that count in one window, 3 by default.
    threshold: by default the smallest safe one. A smaller one raises a ValueError that names the smallest; a larger one
        leaves more of delta to the noise. In a known domain every threshold is safe, and the default is the smallest at
        which the whole run is expected to publish at most 0.05 items that nobody holds.
    """

    max_items_per_user: int | None
    threshold: int | None


def calibrate_hits(mode: str, budget: Budget, **given: Unpack[HitsChoices]) -> dict[str, Any]:
    """The records of the plan with the least noise. given: without None.

    Raises ValueError if the budget is too small for any noise that can be sampled, or if the threshold is below the
    smallest safe one.
    """
    charging, domain_size, horizon = mode_of(mode), budget.domain_size, budget.schedule.horizon
    hits, items = given.get("hits_per_user"), given.get("max_items_per_user")
    hits = charging.default_hits if hits is None else hits
    check_hits(hits)
    items = check_whole("max_items_per_user", DEFAULT_MAX_ITEMS_PER_USER if items is None else items, 1)
    threshold = given.get("threshold")
    if threshold is not None:
        check_whole("threshold", threshold, 1)
    queries = items * horizon
    delta_hash = hash_delta(budget.max_users, budget.max_items)
    # The worst case; still far below 1e-20.
    delta_sampling = charged_sampling_delta(
        budget.epsilon, queries, charging.widest.total_variation, horizon, domain_size
    )
    shared = delta_left(budget.delta, delta_hash + delta_sampling, budget.max_users)
    solve = functools.partial(charging.solve, hits, budget.epsilon)
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
        ),
        "shares": Shares(paid=shared - delta_open, open=delta_open or None, sampling=delta_sampling, hash=delta_hash),
    }
