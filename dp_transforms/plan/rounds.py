"""Rounds: how a purse is cut for them, and the threshold and the stated sizes of each (docs/guarantee.md, "Rounds").

A user who holds a pair that a later round draws for held it in each round before. So it has spent the purses of these
but for what rounding leaves, and a purse for each round costs next to nothing against a share of what is left.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dp_transforms.accounting.purse.open_threshold import found_from, size_margin, smallest_open_threshold
from dp_transforms.accounting.purse.price_list import make_price_list
from dp_transforms.accounting.purse.purse_choice import PurseChoice
from dp_transforms.checks import is_whole
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.plan.records import Budget, Looks, Rounds
from dp_transforms.plan.window_schedule import WindowSchedule

LOOKS_OF_ROUNDS = 10  # times the most looks of a user: as many as the first round can pay, with a tenth of a purse
FALSE_NAMES = 0.5  # of each later round, in the whole run
_OPEN_PERCENT = 10  # of a purse
_PERCENTS = (5, 20, 100)  # of what is left
_DAY = 86_400
_LARGEST_ERROR = 0.01  # with which noise alone names a pair, however few pairs there are
_LIKELY_DRAWN = 10**6
_RATIO = 1.02  # of the amounts for which there is a weight
_EACH = 16  # so many looks of a round have each a weight of their own
_REFUSED = ("hits_per_user", "counts_for", "known_items", "forget_after", "known_error")
_FEWEST_WINDOWS = 6  # of a block, and
_FEWEST_LOOKS = 3  # of the busiest usual users: with fewer one round finds more (docs/benchmarks.md, "Finding")


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
    of_parts = 1 if parts == 1 else 2
    return _terms(looks, rounds, number, threshold_of_round(looks, rounds, drawn), drawn, users, of_parts)


def terms_of_blocks(looks: Looks, rounds: Rounds, threshold: int, users: int) -> RoundTerms:
    """Of round 0, in all parts alike: it draws for no item without a sum."""
    return _terms(looks, rounds, 0, threshold, 0, users, 1)


def _terms(
    looks: Looks, rounds: Rounds, number: int, threshold: int, drawn: int, users: int, of_parts: int
) -> RoundTerms:
    """Each round has its share of the false sizes. of_parts: what that is divided by."""
    paid = rounds.units[number]
    count = int(np.searchsorted(looks.units, paid, side="right"))
    weights, units = np.array(looks.weights[:count]), np.array(looks.units[:count])
    size_error = looks.size_error / len(rounds.units) / of_parts
    likely_noise = size_margin(looks.noise, weights, paid / units, size_error, users, drawn)
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
    return max(_found_from(looks, units, at, number, of_each) for units, at in asked)


def found_in_block(looks: Looks, rounds: Rounds, threshold: int, number: int, probability: float) -> int:
    """The same of an item in a block, if each user has so many items in blocks."""
    return _found_from(looks, rounds.units[0], threshold, number, probability)


def _found_from(looks: Looks, units: int, threshold: int, number: int, probability: float) -> int:
    return found_from(looks.prices, threshold, number, probability, reserved=PURSE_UNITS - units)


def choose_rounds(budget: Budget, given: Mapping[str, Any]) -> Rounds | None:
    """None where they are not asked for. given: `LooksChoices`. Raises ValueError for what they cannot be used with."""
    block = given.get("block_seconds")
    if not given.get("rounds"):
        if block is not None:
            raise ValueError("block_seconds cannot be used without rounds. Leave it out.")
        return None
    if reason := _why_not(given, has_domain=budget.domain is not None):
        raise ValueError(reason)
    usual = _block_seconds(budget.schedule)
    return Rounds(block_seconds=usual if block is None else block, units=_purses(), false_names=FALSE_NAMES)


def rounds_suit(schedule: WindowSchedule, given: Mapping[str, Any], *, has_domain: bool) -> bool:
    """Whether a replay of a whole run finds more by rounds, by what is declared alone. given: `LooksChoices`."""
    windows = min(schedule.horizon, _block_seconds(schedule) // schedule.slide_seconds)
    _, most_usual = given.get("usual_looks") or (1, _FEWEST_LOOKS)
    has_many: bool = windows >= _FEWEST_WINDOWS and most_usual >= _FEWEST_LOOKS
    return has_many and not _why_not(given, has_domain=has_domain)


def _why_not(given: Mapping[str, Any], *, has_domain: bool) -> str:
    """What rounds cannot be used with; empty if with all of it."""
    if has_domain:
        return "rounds cannot be used with a known domain yet. Leave one out."
    for name in _REFUSED:
        if given.get(name) is not None:
            return f"{name} cannot be used with rounds. Leave one out."
    most_looks: Any = given.get("most_looks")
    least = -(-PURSE_UNITS // (LOOKS_OF_ROUNDS * min(_purses())))
    if is_whole(most_looks) and most_looks < least:
        return f"most_looks must be at least {least} with rounds, each of which pays for a look."
    return ""


def _block_seconds(schedule: WindowSchedule) -> int:
    return _DAY if schedule.window_seconds < _DAY else schedule.horizon * schedule.slide_seconds


def _purses() -> tuple[int, ...]:
    """Of each round."""
    left = PURSE_UNITS
    units = []
    for percent in (_OPEN_PERCENT, *_PERCENTS):
        units.append(left * percent // 100)
        left -= units[-1]
    return tuple(units)


def with_rounds(choice: PurseChoice, rounds: Rounds) -> PurseChoice:
    """The same noise, order and split, with weights for the purses of rounds."""
    old = choice.prices
    least = PURSE_UNITS // old.most_looks
    steps = math.ceil(math.log(PURSE_UNITS / least) / math.log(_RATIO))
    amounts = [max(least, math.floor(PURSE_UNITS / _RATIO**step)) for step in range(steps + 1)]
    exact = [units // looks for units, looks in itertools.product(rounds.units, range(1, _EACH + 1))]
    prices = make_price_list(
        old.noise, old.order, old.budget, old.most_looks, spacing=old.spacing, amounts=[*amounts, *exact]
    )
    open_units = rounds.units[0]
    threshold = smallest_open_threshold(prices, choice.delta_open, open_units=open_units)
    return dataclasses.replace(choice, prices=prices, threshold=threshold, open_units=open_units)
