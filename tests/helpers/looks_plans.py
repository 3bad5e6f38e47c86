"""Small plans of mode `looks`, made without the search: a few users suffice for an item to be named."""

from __future__ import annotations

import functools
import math

from dp_transforms.accounting.calibration import hash_delta, sampling_delta
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import (
    PURSE_UNITS,
    CountPrice,
    hits_from,
    make_price_list,
    order_budget,
    price_counts,
)
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.looks_calibration import LEVEL_SPACING
from dp_transforms.plan.looks_plan import LooksPlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MINUTE, START

_NOISE = ExponentialPower(2.5, 200)


@functools.lru_cache(maxsize=64)
def small_looks_plan(
    windows: int = 12,
    *,
    sliding: int = 1,
    window_seconds: int = MINUTE,
    most_looks: int = 20,
    forget_after: int = 3,
    known_error: float = 0.05,
    domain: tuple[str, ...] = (),
    hits: int = 0,
) -> LooksPlan:
    """Schedule and domain as in `small_plan`. hits: for so many a user can pay, with a third of its purse."""
    slide = window_seconds // sliding
    schedule = WindowSchedule(START, START + windows * slide, window_seconds, slide)
    return looks_plan_of(
        schedule, most_looks=most_looks, forget_after=forget_after, known_error=known_error, domain=domain, hits=hits
    )


def looks_plan_of(
    schedule: WindowSchedule,
    *,
    most_looks: int = 20,
    forget_after: int = 3,
    known_error: float = 0.05,
    domain: tuple[str, ...] = (),
    epsilon: float = 10.0,
    delta: float = 0.1,
    order: float = 1.6,
    most_ids: int = 1000,
    hits: int = 0,
    counts_for: int = 0,
    counts_per_user: int = 3,
) -> LooksPlan:
    """epsilon 10 and delta 0.1 protect nobody, but little noise is needed. A smaller delta needs a higher order."""
    known = ItemDomain.of_ids(domain) if domain else None
    delta_open = 0.0 if known else delta / 2
    delta_hash = hash_delta(most_ids, most_ids, most_ids)
    draws = most_looks + (counts_per_user if counts_for else 0)
    sampling = sampling_delta(
        epsilon, draws * _NOISE.sampling_total_variation, schedule.horizon, known.size if known else 0
    )
    delta_looks = (delta - delta_open - delta_hash - sampling) * (1 - 1e-9)
    budget, spacing = order_budget(order, epsilon, delta_looks), math.ceil(LEVEL_SPACING * _NOISE.standard_deviation)
    counts = price_counts(order, budget, counts_per_user) if counts_for else CountPrice(0, 0)
    prices = make_price_list(
        _NOISE, order, budget, most_looks, counts=counts_per_user, count_units=counts.units, spacing=spacing
    )
    hit_prices = None
    if hits:
        hit_prices = make_price_list(
            _NOISE, order, budget, most_looks, hits=hits, hit_units=PURSE_UNITS // (3 * hits), spacing=spacing
        )
    known_threshold = _NOISE.smallest_margin(known_error)
    safe = 0 if known else smallest_open_threshold(prices, delta_open, hit_prices)
    threshold = max(known_threshold, safe)
    return LooksPlan(
        epsilon=epsilon,
        delta=delta,
        schedule=schedule,
        mode="looks",
        usual_looks=(1, most_looks),
        most_looks=prices.most_looks,
        shape=_NOISE.shape,
        scale=_NOISE.scale,
        order=prices.order,
        budget=prices.budget,
        weights=prices.weights,
        units=prices.units,
        hits_per_user=hits,
        hit_units=hit_prices.hit_units if hit_prices else 0,
        hits_from=hits_from(prices, hit_prices) if hit_prices else 0,
        hit_weights=hit_prices.weights if hit_prices else (),
        hit_look_units=hit_prices.units if hit_prices else (),
        counts_for=counts_for,
        counts_per_user=counts_per_user if counts_for else 0,
        count_units=counts.units,
        count_scale=counts.scale,
        spacing=prices.spacing,
        threshold=threshold,
        known_threshold=known_threshold if forget_after or known else threshold,
        forget_after=schedule.horizon if known else forget_after,
        size_error=0.01,
        domain_size=known.size if known else 0,
        domain_fingerprint=known.fingerprint if known else "",
        max_users=most_ids,
        max_items=most_ids,
        activity_epsilon=0.0,
        delta_looks=delta_looks,
        delta_open=delta_open,
        delta_sampling=sampling,
        delta_hash=delta_hash,
    )
