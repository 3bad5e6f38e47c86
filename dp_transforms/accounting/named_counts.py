"""What counts of named items cost: Gaussian noise, paid for out of the purse of looks.

Guarantee: a user who adds 1 to a sum with this noise changes the law of the result by a Renyi divergence of at most
what `count_units` of a purse stand for, either way, whatever others add. The noise is ``round(X)`` with X of density
``exp(-(x / scale)^2)``. So the published integer is a function of the sum plus X, and costs at most what a Gaussian of
variance ``scale^2 / 2`` costs ([Mironov 2017], Proposition 7): ``order / scale^2``.

[Mironov 2017] I. Mironov. Renyi differential privacy. CSF 2017. Proof of the whole: docs/purse.md, section 11.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dp_transforms.accounting.purse.look_prices import check_order
from dp_transforms.accounting.purse.price_list import PURSE_UNITS
from dp_transforms.checks import check_positive, check_whole
from dp_transforms.mechanisms.exponential_power import COUNT_SHAPE, MAX_SCALE, ExponentialPower

SHARE_OF_COUNTS = 0.2  # of a purse, at most: for users with `counts_per_user` counted pairs or more
MOST_COUNTS_PER_USER = 100
_MORE = 1 + 1e-9  # before rounding up: above the error of a few products of floats


class CountPrice(NamedTuple):
    """units: of a purse, for one counted pair. scale: of the noise of a count."""

    units: int
    scale: int


def count_units(order: float, budget: float, scale: int) -> int:
    """What one counted pair costs in units of a purse, rounded up."""
    check_order(order)
    check_positive("budget", budget)
    check_whole("count_scale", scale, 1, MAX_SCALE)
    return math.ceil(order / scale / scale / budget * PURSE_UNITS * _MORE)


def price_counts(order: float, budget: float, counts_per_user: int) -> CountPrice:
    """The least noise for which so many counted pairs cost at most `SHARE_OF_COUNTS` of a purse.

    Raises ValueError where no noise that can be sampled is enough.
    """
    check_whole("counts_per_user", counts_per_user, 1)
    most = math.floor(SHARE_OF_COUNTS * PURSE_UNITS) // counts_per_user
    scale = math.ceil(math.sqrt(order / budget * PURSE_UNITS / max(1, most)))
    while scale <= MAX_SCALE and count_units(order, budget, scale) > most:
        scale += 1
    if scale > MAX_SCALE:
        raise ValueError("the budget is too small for counts. Raise epsilon or delta, or leave counts_for out.")
    return CountPrice(count_units(order, budget, scale), scale)


def count_noise(scale: int) -> ExponentialPower:
    """The law of the noise of one count; its standard deviation is ``scale / sqrt(2)``."""
    return ExponentialPower(COUNT_SHAPE, scale)
