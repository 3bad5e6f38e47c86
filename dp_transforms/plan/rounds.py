"""Rounds: how a purse is cut for them, and the threshold and the stated sizes of each (docs/guarantee.md, "Rounds").

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

from dp_transforms.accounting.open_threshold import found_from, size_margin, smallest_open_threshold
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, FEWEST_STATED
from dp_transforms.accounting.purse_search import PurseChoice
from dp_transforms.checks import is_whole
from dp_transforms.plan.records import MOST_ROUNDS, Budget, Looks, Rounds
from dp_transforms.plan.window_schedule import WindowSchedule

LOOKS_OF_ROUNDS = 10  # times the most looks of a user: as many as the first round can pay, with a tenth of a purse
SPACING_IN_ROUNDS = 4.0  # of the boundaries of levels, in standard deviations: as good as free for small weights
FALSE_NAMES = 0.65  # of each later round, in the whole run
USUAL_SHARES = (10, 5, 20, 100)  # percents of what is left of a purse, in each round
TO_LEAVE_OUT = 5  # with less than such a part of what the last round has, the one before shows too little
# Second looks, at what is named already in the last round.
SECOND_LOOKS = 100  # so many weigh as much as another look where looks to come are foreseen
SECOND_PART, FEWEST_BESIDE = 10, 150  # beside other looks all cost at most such a part of what is paid, each such a one
FEWEST_SECOND = 64  # that the purse of the round pays for: so nobody adds far more
_DAY = 86_400
_LARGEST_ERROR = 0.01  # with which noise alone names a pair, however few pairs there are
LIKELY_DRAWN = 10**6  # pairs, in a run
_LEFT_OUT = 0.05  # of the probability with which a pair is missed
_RATIO = 1.02  # of the amounts for which there is a weight
_EACH = 16  # so many looks of a round have each a weight of their own
_REFUSED = ("forget_after", "false_name_error")
_FEWEST_WINDOWS = 6  # of a block, and
_FEWEST_LOOKS = 3  # of the busiest usual users: with fewer one round finds more (docs/benchmarks.md)


def units_of_shares(shares: object) -> tuple[int, ...]:
    """What a purse has for each round. shares: percents of what is left; True: the usual ones. Raises ValueError for
    others than 2 to `MOST_ROUNDS` whole ones, and if they leave anything."""
    percents = USUAL_SHARES if shares is True else shares
    if not (isinstance(percents, (tuple, list)) and 2 <= len(percents) <= MOST_ROUNDS):
        raise ValueError(f"rounds must be True, or 2 to {MOST_ROUNDS} percents such as {USUAL_SHARES}, got {shares!r}.")
    if not all(is_whole(each) and 1 <= each <= 100 for each in percents) or percents[-1] != 100:
        raise ValueError(f"rounds must be whole percents of what is left, 1 to 100, the last one 100, got {shares!r}.")
    units, left = [], BUDGET_UNITS
    for percent in percents:
        units.append(left * percent // 100)
        left -= units[-1]
    if not all(units):
        raise ValueError(f"rounds must leave something for each later round, got {shares!r}. Only the last takes 100.")
    return tuple(units)


class RoundTerms(NamedTuple):
    """threshold: of noisy sums. likely_noise: what a stated size allows it to be. largest_weight: of a user. Each is a
    number, or one for each sum. least: what is below it is left out in later rounds; None: nothing is."""

    threshold: Any
    likely_noise: Any
    largest_weight: Any
    least: Any = None


def terms_of_round(
    looks: Looks, rounds: Rounds, number: int, drawn: int, users: int, *, threshold: int, parts: Fraction = Fraction(1)
) -> RoundTerms:
    """A function of what was named before, and of the plan.

    drawn: for so many pairs a later round draws, held or not, in this part of the run; round 0 for none without a sum.
    users: of the run, at most. threshold: of round 0. parts: how often the windows of the part fit into the run, at
    least 1. Each part has its share of `false_names` and of the false sizes.
    """
    paid = rounds.units[number]
    if number == 0:
        count = int(np.searchsorted(looks.units, paid, side="right"))
        weights, units = np.array(looks.weights[:count]), np.array(looks.units[:count])
        likely_noise = size_margin(looks.noise, weights, paid / units, _size_error(looks, rounds), users, 0)
        return RoundTerms(threshold, likely_noise, int(weights[-1]))
    drawn = math.ceil(drawn * parts)  # as many in all parts, if they were all like this one
    likely_noise = _likely_noise(looks, rounds, drawn)
    threshold = threshold_of_round(looks, rounds, drawn)
    least = threshold - looks.spacing if leaves_out(rounds, number) else None  # the price of a look covers it
    return RoundTerms(threshold, likely_noise, _largest_weight(looks, paid), least)


def leaves_out(rounds: Rounds, number: int) -> bool:
    """Whether this round tells what the last one need not draw for."""
    return 0 < number == len(rounds.units) - 2 and TO_LEAVE_OUT * rounds.units[-2] >= rounds.units[-1]


def second_terms(looks: Looks, rounds: Rounds, drawn: int, parts: Fraction) -> RoundTerms:
    """Of the last round, for so many pairs that are named already. threshold: from where on a size is stated. parts: as
    of `terms_of_round`."""
    largest = _largest_weight(looks, max(looks.units[0], most_of_second_look(rounds)))
    likely_noise = _likely_noise(looks, rounds, math.ceil(drawn * parts))
    return RoundTerms(likely_noise + (FEWEST_STATED - 1) * largest + 1, likely_noise, largest)


def most_of_second_look(rounds: Rounds) -> int:
    """What a second look costs at most."""
    return rounds.units[-1] // FEWEST_SECOND


def _size_error(looks: Looks, rounds: Rounds) -> float:
    """Of each round, and of second looks."""
    return looks.size_error / (len(rounds.units) + 1)


def _likely_noise(looks: Looks, rounds: Rounds, drawn: int) -> int:
    """Where the number of pairs that are drawn for is known: the noise of any of them is larger with the share of
    `size_error` at most."""
    return looks.noise.smallest_margin(_size_error(looks, rounds) / max(1, drawn)) - 1


def _largest_weight(looks: Looks, units: int) -> int:
    return int(looks.listed.largest(np.array([units]))[0][0])


def threshold_of_round(looks: Looks, rounds: Rounds, drawn: int) -> int:
    """At which noise alone names at most `Rounds.false_names` of so many pairs, on average, and one in a hundred."""
    return looks.noise.smallest_margin(min(_LARGEST_ERROR, rounds.false_names / max(1, drawn)))


def found_in_rounds(looks: Looks, rounds: Rounds, threshold: int | None, number: int, probability: float) -> int:
    """From how many users on an item is named in a window with this probability, if each has so many looks in the run:
    in its block by this threshold, None if it was, then not left out, and named in the last round, which draws for a
    million pairs."""
    last = threshold_of_round(looks, rounds, LIKELY_DRAWN)
    asked, missed = [(rounds.units[-1], last)], 1 - probability
    users = 1
    if leaves_out(rounds, len(rounds.units) - 2):
        users = _found_from(looks, rounds.units[-2], last - looks.spacing, number, 1 - missed * _LEFT_OUT)
        missed *= 1 - _LEFT_OUT
    if threshold is not None:
        asked.append((rounds.units[0], threshold))
    of_each = 1 - missed / len(asked)
    return max(users, *(_found_from(looks, units, at, number, of_each) for units, at in asked))


def found_in_block(looks: Looks, rounds: Rounds, threshold: int, number: int, probability: float) -> int:
    """The same of an item in a block, if each user has so many items in blocks."""
    return _found_from(looks, rounds.units[0], threshold, number, probability)


def _found_from(looks: Looks, units: int, threshold: int, number: int, probability: float) -> int:
    return found_from(looks.prices, threshold, number, probability, reserved=BUDGET_UNITS - units)


def check_choices(budget: Budget, given: Mapping[str, Any]) -> None:
    """given: choices of `Plan.for_contributions`. Raises ValueError for what rounds cannot be used with."""
    if given.get("block_seconds") is not None and not given.get("rounds"):
        raise ValueError("block_seconds cannot be used without rounds. Leave it out.")
    if given.get("rounds") and (reason := _why_not(given, has_domain=budget.domain is not None)):
        raise ValueError(reason)


def rounds_suit(schedule: WindowSchedule, given: Mapping[str, Any], *, has_domain: bool) -> bool:
    """Whether a replay of a whole run finds more by rounds, by what is declared alone. given: choices."""
    windows = min(schedule.horizon, _block_seconds(schedule) // schedule.slide_seconds)
    _, most_usual = given.get("usual_contributions") or (1, _FEWEST_LOOKS)
    has_many: bool = windows >= _FEWEST_WINDOWS and most_usual >= _FEWEST_LOOKS
    return has_many and not _why_not(given, has_domain=has_domain)


def _why_not(given: Mapping[str, Any], *, has_domain: bool) -> str:
    """What rounds cannot be used with; empty if with all of it."""
    if has_domain:
        return "rounds cannot be used with public items yet. Leave one out."
    for other in _REFUSED:
        if given.get(other) is not None:
            return f"{other} cannot be used with rounds. Leave one out."
    most_looks: Any = given.get("most_contributions")
    least = -(-BUDGET_UNITS // (LOOKS_OF_ROUNDS * min(units_of_shares(given.get("rounds") or True))))
    if is_whole(most_looks) and most_looks < least:
        return f"most_contributions must be at least {least} with rounds, each of which pays for a test."
    return ""


def block_rounds(schedule: WindowSchedule, given: Mapping[str, Any]) -> Rounds | None:
    """None where they are not asked for. given: choices of `Plan.for_contributions`."""
    if not given.get("rounds"):
        return None
    seconds = given["block_seconds"]
    seconds = _block_seconds(schedule) if seconds is None else seconds
    return Rounds(block_seconds=seconds, units=units_of_shares(given["rounds"]), false_names=FALSE_NAMES)


def _block_seconds(schedule: WindowSchedule) -> int:
    return _DAY if schedule.window_seconds < _DAY else schedule.horizon * schedule.slide_seconds


def amounts_of_rounds(units: Sequence[int], most_looks: int) -> tuple[int, ...]:
    """For which there is a weight: for the purses of rounds."""
    least = BUDGET_UNITS // most_looks
    steps = math.ceil(math.log(BUDGET_UNITS / least) / math.log(_RATIO))
    amounts = (max(least, math.floor(BUDGET_UNITS / _RATIO**step)) for step in range(steps + 1))
    return (*amounts, *(each // looks for each, looks in itertools.product(units, range(1, _EACH + 1))))


def with_rounds(choice: PurseChoice, units: Sequence[int]) -> PurseChoice:
    """The same with the threshold of the first round, the only one that looks at items that are not known."""
    threshold = smallest_open_threshold(choice.prices, choice.delta_open, open_units=units[0])
    return dataclasses.replace(choice, threshold=threshold, open_units=units[0])
