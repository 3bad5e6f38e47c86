"""Rounds: how a purse is cut for them, and the threshold and the stated sizes of each (docs/guarantee.md, "Rounds").

Over blocks of windows, or in each window (`WindowRounds`).

A user who holds a pair that a later round draws for held it in each round before. So it has spent the purses of these
but for what rounding leaves, and a purse for each round costs next to nothing against a share of what is left.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.accounting.purse.open_threshold import found_from, size_margin, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import make_price_list
from dp_transforms.accounting.purse.purse_choice import PurseChoice
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.records import Budget, Looks, Rounds, WindowRounds
from dp_transforms.plan.window_schedule import WindowSchedule

SHAPE = 2.75  # of the noise: within 3 % of the best one on all logs that were tried
LOOKS_OF_ROUNDS = 10  # times the most looks of a user: as many as the first round can pay, with a tenth of a purse
FALSE_NAMES = 0.5  # of each later round, in the whole run
_OPEN_PERCENT = 10  # of a purse
_PERCENTS = (5, 20, 100)  # of what is left
_DAY = 86_400
_LARGEST_ERROR = 0.01  # with which noise alone names a pair, however few pairs there are
_LIKELY_DRAWN = 10**6
_RATIO = 1.02  # of the amounts for which there is a weight
_EACH = 16  # so many looks of a round have each a weight of their own
_REFUSED_IN_WINDOWS = ("hits_per_user", "counts_for")
_REFUSED = (*_REFUSED_IN_WINDOWS, "known_items", "forget_after", "known_error")
UNITS_IN_WINDOWS = tuple(PURSE_UNITS * percent // 100 for percent in (5, 20, 75))


class RoundTerms(NamedTuple):
    """threshold: of noisy sums. likely_noise: what a stated size allows it to be. largest_weight: of a user."""

    threshold: int
    likely_noise: int
    largest_weight: int


def terms_of_round(
    looks: Looks, rounds: Rounds, number: int, drawn: int, users: int, *, parts: Fraction = Fraction(1)
) -> RoundTerms:
    """Of a later round, which draws for so many pairs: a function of what was named before, and of the plan.

    drawn: held or not, in this part of the run. users: of the run, at most. parts: how often the windows of the part
    fit into the run, at least 1. Each part has its share of `false_names` and of the false sizes.
    """
    drawn = math.ceil(drawn * parts)  # as many in all parts, if they were all like this one
    size_error = looks.size_error / (len(rounds.units) - 1) / (1 if parts == 1 else 2)
    return _terms(looks, rounds.units[number], threshold_of_round(looks, rounds, drawn), size_error, users, drawn)


def terms_in_windows(
    looks: Looks, rounds: WindowRounds, threshold: int, users: int, most_unheld: int
) -> tuple[RoundTerms, ...]:
    """Of each round in a window. threshold: of the first one. most_unheld: sums of 0 that each draws, on average."""
    size_error = looks.size_error / len(rounds.units)
    terms = zip((threshold, *rounds.later_thresholds), rounds.units, strict=True)
    return tuple(_terms(looks, paid, each, size_error, users, most_unheld) for each, paid in terms)


def _terms(looks: Looks, paid: int, threshold: int, size_error: float, users: int, most_unheld: int) -> RoundTerms:
    count = int(np.searchsorted(looks.units, paid, side="right"))
    weights, units = np.array(looks.weights[:count]), np.array(looks.units[:count])
    likely_noise = size_margin(looks.noise, weights, paid / units, size_error, users, most_unheld)
    return RoundTerms(threshold, likely_noise, int(weights[-1]))


def threshold_of_round(looks: Looks, rounds: Rounds, drawn: int) -> int:
    """At which noise alone names at most `Rounds.false_names` of so many pairs, on average, and one in a hundred."""
    return looks.noise.smallest_margin(min(_LARGEST_ERROR, rounds.false_names / max(1, drawn)))


def found_in_rounds(looks: Looks, rounds: Rounds, threshold: int | None, number: int, probability: float) -> int:
    """From how many users on an item is named in a window with this probability, if each has so many looks in the run:
    in its block by this threshold, None if it was, and then in the last round, which draws for a million pairs."""
    asked = [(rounds.units[-1], threshold_of_round(looks, rounds, _LIKELY_DRAWN))]
    if threshold is not None:
        asked.append((rounds.units[0], threshold))
    of_each = 1 - (1 - probability) / len(asked)
    return max(found_from(looks.prices, at, number, of_each, reserved=PURSE_UNITS - units) for units, at in asked)


def check_choices(budget: Budget, given: Mapping[str, Any]) -> None:
    """given: `LooksChoices`. Raises ValueError for what rounds cannot be used with."""
    for name, refused in (("rounds", ("window_rounds", *_REFUSED)), ("window_rounds", _REFUSED_IN_WINDOWS)):
        if not given.get(name):
            continue
        if budget.domain is not None:
            raise ValueError(f"{name} cannot be used with a known domain yet. Leave one out.")
        for other in refused:
            if given.get(other) is not None:
                raise ValueError(f"{other} cannot be used with {name}. Leave one out.")


def block_rounds(schedule: WindowSchedule) -> Rounds:
    is_short = schedule.window_seconds < _DAY
    left = PURSE_UNITS
    units = []
    for percent in (_OPEN_PERCENT, *_PERCENTS):
        units.append(left * percent // 100)
        left -= units[-1]
    whole_run = schedule.horizon * schedule.slide_seconds
    return Rounds(block_seconds=_DAY if is_short else whole_run, units=tuple(units), false_names=FALSE_NAMES)


def with_rounds(choice: PurseChoice, units: Sequence[int], open_rounds: int) -> tuple[PurseChoice, tuple[int, ...]]:
    """The same noise, order and split, with weights for the purses of rounds and the threshold of the first one; and
    those of later ones. open_rounds: so many look at items that are not known, each for its share of delta_open."""
    old = choice.prices
    least = PURSE_UNITS // old.most_looks
    steps = math.ceil(math.log(PURSE_UNITS / least) / math.log(_RATIO))
    amounts = [max(least, math.floor(PURSE_UNITS / _RATIO**step)) for step in range(steps + 1)]
    exact = [each // looks for each, looks in itertools.product(units, range(1, _EACH + 1))]
    prices = make_price_list(
        old.noise, old.order, old.budget, old.most_looks, spacing=old.spacing, amounts=[*amounts, *exact]
    )
    delta_open = choice.delta_open / open_rounds
    first, *later = (smallest_open_threshold(prices, delta_open, open_units=each) for each in units[:open_rounds])
    changed = dataclasses.replace(choice, prices=prices, threshold=first, delta_open=delta_open, open_units=units[0])
    return changed, tuple(later)
