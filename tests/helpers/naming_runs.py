"""Trials by contributions, made by hand: little noise, a short price list."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import PriceList, make_price_list
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.core_runs import START
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import looks_trial


@functools.cache
def short_price_list(most_tests: int = 5, scale: int = 40, shape: float = 2.5) -> PriceList:
    """Weights of a quarter to once the standard deviation of the noise: it protects nobody, and a few users suffice."""
    noise = ExponentialPower(shape, scale)
    return make_price_list(Published(noise, 2.0, 15 * scale), 3.0, most_tests)


def naming_settings(
    windows: int = 6,
    *,
    most_tests: int = 5,
    threshold: int = 90,
    followed_threshold: int = 60,
    forget_after: int = 2,
    spacing: int = 25,
    scale: int = 40,
    sliding: int = 1,
    run_id: str = "run-1",
    domain: Collection[str] = (),
    also_open: bool = False,
) -> TrialPlan:
    """Windows of 10 seconds from `START` on. Noise alone now and then passes the threshold of followed items. Less
    noise counts as likely than in any plan, so that few users are enough for a size to be stated."""
    prices = short_price_list(most_tests, scale)
    return looks_trial(
        run_id=run_id,
        schedule=WindowSchedule(START, START + 10 * windows, 10 * sliding, 10),
        threshold=threshold,
        domain_size=len(set(domain)),
        also_open=also_open,
        weights=prices.weights,
        units=prices.units,
        noise=prices.noise,
        followed_threshold=followed_threshold,
        forget_after=forget_after,
        spacing=spacing,
        likely_noise=-120,
    )


def units_of(settings: TrialPlan, weights: Iterable[int]) -> list[int]:
    """What looks with these weights cost, each 0 (nothing) or one of the list. Raises KeyError for another."""
    listed = {0: 0, **dict(zip(settings.contributions.weights, settings.contributions.units, strict=True))}
    return [listed[int(weight)] for weight in weights]
