"""The numbers of a purse: `PurseChoice`, which checks that they are safe, and `choose_purse`, which picks them.

Guarantee: whatever is chosen, the result is safe: `PurseChoice` recomputes the budget, every price and the threshold.
The search (`purse_search`) only decides which numbers are good.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from dp_transforms.accounting.composition import check_delta, check_epsilon
from dp_transforms.accounting.purse.look_prices import MAX_ORDER
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.purse.price_list import MOST_LOOKS, PriceList, make_price_list, order_budget
from dp_transforms.accounting.purse.purse_search import SHAPES, Terms, best_terms, scale_for
from dp_transforms.checks import check_range, check_whole, shown
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS

DEFAULT_USUAL_LOOKS = (1, 1000)
DEFAULT_MOST_LOOKS = 3000
SMALLEST_KNOWN_ERROR = 1e-30


@dataclasses.dataclass(frozen=True)
class PurseChoice:
    """The numbers of a run in mode `looks`. Build it with `choose_purse`; construction checks that they are safe.

    epsilon, delta_looks, delta_open: the looks are (epsilon, delta_looks)-DP, and delta_open pays for items that one
        user alone holds; 0 where all items are known. prices: with their noise and order. threshold: T of items that
        were not reported before. open_units: what a user can pay for looks at such items, of a purse.
    """

    epsilon: float
    delta_looks: float
    delta_open: float
    prices: PriceList
    threshold: int
    open_units: int = PURSE_UNITS

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta_looks)
        affordable = order_budget(self.prices.order, self.epsilon, self.delta_looks)
        if not self.prices.budget <= affordable:
            raise ValueError(
                f"budget must be at most {affordable:.9g} at order {self.prices.order:g} for these epsilon and "
                f"delta_looks, got {self.prices.budget:.9g}. Use choose_purse."
            )
        check_whole("threshold", self.threshold, 1)
        if self.delta_open:
            safe = smallest_open_threshold(self.prices, self.delta_open, open_units=self.open_units)
            if self.threshold < safe:
                raise ValueError(f"threshold must be >= {safe} for this delta_open, got {self.threshold}.")


def choose_purse(
    epsilon: float,
    delta: float,
    *,
    usual_looks: tuple[int, int] = DEFAULT_USUAL_LOOKS,
    most_looks: int = DEFAULT_MOST_LOOKS,
    shapes: Sequence[float] = SHAPES,
    level_spacing: float = 0.0,
    known_error: float | None = None,
    amounts: Sequence[int] | None = None,
) -> PurseChoice:
    """The numbers that find most for this budget and activity.

    delta: for looks and open items together; what sampling and hashes need is taken off before.
    usual_looks: most users have between so many pairs (window, item) over the whole run. most_looks: a user's further
    pairs are dropped. level_spacing: of the boundaries of levels, in standard deviations; 0 for no levels. known_error:
    None for an open domain. In a known one no threshold has to be safe: all of delta goes to the looks, and the
    threshold is the smallest that noise alone reaches with at most this probability. amounts: as in `make_price_list`.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_whole("most_looks", most_looks, 1, MOST_LOOKS)
    if known_error is not None:
        check_range("known_error", known_error, SMALLEST_KNOWN_ERROR, 0.5)
    usual = check_usual_looks(usual_looks, most_looks)
    best = best_terms(Terms(epsilon, delta, usual, most_looks, known_error), shapes)
    if best is None:
        raise ValueError(
            f"epsilon = {epsilon:g} with delta = {delta:g} is too small to pay for most_looks = {most_looks} looks at "
            f"any order up to {MAX_ORDER:g}. Raise epsilon or delta, or lower most_looks."
        )
    budget = order_budget(best.order, epsilon, delta * (1 - best.share_open))
    noise = ExponentialPower(best.shape, scale_for(best.shape, best.order, budget, most_looks))
    spacing = math.ceil(level_spacing * noise.standard_deviation)
    prices = make_price_list(noise, best.order, budget, most_looks, spacing=spacing, amounts=amounts)
    if known_error is not None:
        return PurseChoice(epsilon, delta, 0.0, prices, noise.smallest_margin(known_error))
    delta_open = delta * best.share_open
    threshold = smallest_open_threshold(prices, delta_open)
    return PurseChoice(epsilon, delta * (1 - best.share_open), delta_open, prices, threshold)


def check_usual_looks(usual_looks: object, most_looks: int) -> tuple[int, int]:
    """The pair, the smaller one first. Raises ValueError."""
    if not isinstance(usual_looks, tuple) or len(usual_looks) != 2:
        raise ValueError(f"usual_looks must be a pair such as (1, 1000), got {shown(usual_looks)}.")
    first, last = sorted(check_whole("each of usual_looks", looks, 1, most_looks) for looks in usual_looks)
    return first, last
