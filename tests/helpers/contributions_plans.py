"""Small plans of mode `contributions`, made without the search: a few users suffice for an item to be named."""

from __future__ import annotations

import functools
import math

from dp_transforms.accounting.accountants import hash_delta, sampling_delta
from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import make_price_list, order_budget, smallest_open_threshold
from dp_transforms.core.public_items import PublicItems
from dp_transforms.plan.calibration import LEVEL_SPACING
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import DeclaredItems, Followed, PaidContributions, Shares
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MINUTE, START

_NOISE = ExponentialPower(2.5, 200)


@functools.lru_cache(maxsize=64)
def small_contributions_plan(
    windows: int = 12,
    *,
    sliding: int = 1,
    window_seconds: int = MINUTE,
    most_tests: int = 20,
    forget_after: int = 3,
    known_error: float = 0.05,
) -> Plan:
    """The schedule is as in `small_plan`."""
    slide = window_seconds // sliding
    schedule = WindowSchedule(START, START + windows * slide, window_seconds, slide)
    return contributions_plan_of(schedule, most_tests=most_tests, forget_after=forget_after, known_error=known_error)


def contributions_plan_of(
    schedule: WindowSchedule,
    *,
    most_tests: int = 20,
    forget_after: int = 3,
    known_error: float = 0.05,
    public: tuple[str, ...] = (),
    epsilon: float = 10.0,
    delta: float = 0.1,
    order: float = 1.6,
    most_ids: int = 1000,
) -> Plan:
    """epsilon 10 and delta 0.1 protect nobody, but little noise is needed. A smaller delta needs a higher order."""
    known = PublicItems.of_ids(public) if public else None
    delta_open = 0.0 if known else delta / 2
    delta_hash = hash_delta(most_ids, most_ids)
    sampling = sampling_delta(
        epsilon, most_tests * _NOISE.sampling_total_variation, schedule.horizon, known.size if known else 0
    )
    delta_tests = (delta - delta_open - delta_hash - sampling) * (1 - 1e-9)
    budget, spacing = order_budget(order, epsilon, delta_tests), math.ceil(LEVEL_SPACING * _NOISE.standard_deviation)
    prices = make_price_list(Published(_NOISE, order, spacing), budget, most_tests)
    followed_threshold = _NOISE.smallest_margin(known_error)
    safe = 0 if known else smallest_open_threshold(prices, delta_open)
    threshold = max(followed_threshold, safe)
    is_followed = forget_after > 0 and not known
    return Plan(
        epsilon=epsilon,
        delta=delta,
        schedule=schedule,
        public_items=DeclaredItems(known.size, known.fingerprint) if known else None,
        max_users=most_ids,
        max_items=most_ids,
        threshold=threshold,
        contributions=PaidContributions.of(prices, (1, most_tests), 0.01),
        followed=Followed(threshold=followed_threshold, forget_after=forget_after) if is_followed else None,
        shares=Shares(paid=delta_tests, open=delta_open or None, sampling=sampling, hash=delta_hash),
    )
