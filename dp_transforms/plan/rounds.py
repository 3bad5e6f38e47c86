"""Rounds: whether contributions are tested in them, how a user budget is cut for them, and the threshold and the stated
sizes of each (docs/guarantee.md, "Rounds").

A user who holds a contribution that a later round draws for held it in each round before. So it has spent the budgets
of these but for what rounding leaves, and a budget for each round costs next to nothing against a share of what is
left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.paid_tests import SHAPES
from dp_transforms.accounting.price_list import PriceList, found_from, smallest_size_margin
from dp_transforms.accounting.priced_weights import BUDGET_UNITS, FEWEST_STATED, stated_from
from dp_transforms.checks import shown
from dp_transforms.errors import InputError
from dp_transforms.plan.records import MOST_CONTRIBUTIONS, Budget, PaidContributions, Rounds, SecondTest
from dp_transforms.plan.window_schedule import WindowSchedule

if TYPE_CHECKING:
    from dp_transforms.plan.plan import Plan

REPLAY, PARTS, STREAM = USES = ("replay", "parts", "stream")
TESTS_OF_ROUNDS = 10  # times the most contributions: so many tests all rounds pay for, and each for its part of them
SPACING_IN_ROUNDS = 4.0  # of the boundaries of levels, in standard deviations: as good as free for small weights
FALSE_NAMES = 0.75  # of each later round, in the whole run
UNITS = tuple(BUDGET_UNITS * each // 1000 for each in (100, 45, 171, 684))  # 10, 5, 20 and 100 % of what is left
# Of replays: the same by the shape of the noise that is best in one round, smaller for users of few contributions, and
# what is added to this shape in each round: many small contributions are tested in early ones, few large ones at last.
_FEW = 2.5
_OF_FEW = tuple(BUDGET_UNITS * each // 10_000 for each in (500, 475, 1805, 7220)), (0.75, 0.75, 0.25, -0.25)
_OF_MANY = (
    tuple(BUDGET_UNITS * each // 10_000 for each in (700, 465, 1325, 3004, 4506)),
    (0.75, 0.75, 0.75, 0.25, -0.25),
)
TO_LEAVE_OUT = 5  # with less than such a part of what the last round has, the one before shows too little
# Sizing tests: in the last round, of what is named already.
SIZING_TESTS = 100  # so many of them count as one test where later tests are foreseen
# Beside other tests all of them together cost at most 1/10 of what a user pays now, and each at most 1/150.
SIZING_PART, FEWEST_BESIDE = 10, 150
FEWEST_SIZED = 64  # each costs at most 1/64 of the last round's budget: so nobody adds far more than others
LIKELY_DRAWN = 10**6  # items in windows, in a run
_MOST_PUBLIC_DRAWN = 10**7  # public items in blocks, in a run: each is drawn for one by one
_DAY = 86_400
_FEWEST_WINDOWS = 6  # of a block, and
_FEWEST_USUAL = 3  # contributions of the busiest usual users: with fewer one round finds more (docs/benchmarks.md)
_LARGEST_ERROR = 0.01  # with which noise alone names an item in a window, however few there are
_LEFT_OUT = 0.05  # of the probability with which an item in a window is missed
# A stream tests each contribution twice, the first time with 30 % of a user budget, and leaves out what would hardly be
# named. So a first and a second test pay for as many contributions as declared.
SECOND_TEST = SecondTest(units=(3 * BUDGET_UNITS // 10, 7 * BUDGET_UNITS // 10))
TESTS_OF_STREAM = 4  # times the most contributions
_RATIO = 1.02  # of the amounts for which there is a weight
_EACH = 16  # so many tests of a round have each a weight of their own


def why_one_round(
    schedule: WindowSchedule,
    usual_contributions: tuple[int, int],
    most_contributions: int,
    use: str,
    *,
    public_items: int = 0,
    also_open: bool = False,
    declares_followed: bool = False,
) -> str:
    """Why a plan has one round, by declared numbers alone (docs/benchmarks.md, "Rounds or one?"); empty where it has
    rounds.

    public_items: how many. also_open: whether others count, too. declares_followed: whether and how named items are
    followed was declared; rounds follow none. Raises ValueError for another use than `USES`.
    """
    if not isinstance(use, str) or use not in USES:
        raise InputError("use", f"must be one of {', '.join(USES)}, got {shown(use)}.")
    windows = min(schedule.horizon, block_seconds_of(schedule) // schedule.slide_seconds)
    if use == STREAM:
        return "a stream cannot go over its windows again"
    if public_items and not also_open:
        return "rounds do not go with public items alone"
    if public_items * schedule.horizon > _MOST_PUBLIC_DRAWN * windows:
        return "there are too many public items for rounds"
    if declares_followed:
        return "rounds do not follow named items as declared"
    if use == PARTS and schedule.window_seconds >= _DAY:
        return "parts of a run are shorter than its blocks where windows are a day or longer"
    if windows < _FEWEST_WINDOWS:
        return f"a block of windows has only {windows} of them"
    if usual_contributions[1] < _FEWEST_USUAL:
        return f"users have at most {usual_contributions[1]} contributions"
    if most_contributions * TESTS_OF_ROUNDS > MOST_CONTRIBUTIONS:
        return "users may have too many contributions for rounds"
    return ""


def rounds_of(schedule: WindowSchedule) -> Rounds:
    """Over blocks of a day, or of the whole run where windows are a day or longer."""
    return Rounds(block_seconds=block_seconds_of(schedule), units=UNITS, false_names=FALSE_NAMES)


def block_seconds_of(schedule: WindowSchedule) -> int:
    return _DAY if schedule.window_seconds < _DAY else schedule.horizon * schedule.slide_seconds


class RoundTerms(NamedTuple):
    """threshold: of noisy sums. likely_noise: what a stated size allows it to be. largest_weight: of a user. Each is a
    number, or one for each sum. spacing: of the boundaries of levels. least: what is below it is left out in later
    rounds; None: nothing is. raised: by so much the threshold is higher for least users; levels do not count that."""

    threshold: Any
    likely_noise: Any
    largest_weight: Any
    spacing: int
    least: Any = None
    raised: int = 0


def tests_twice(most_contributions: int, use: str, *, has_public_items: bool, least_users: int | None) -> bool:
    """Whether a plan has a second test: of streams, with open items alone, whose names may state no number."""
    too_many = most_contributions * TESTS_OF_STREAM > MOST_CONTRIBUTIONS
    return use == STREAM and not has_public_items and least_users is None and not too_many


def likely_noise_of_run(budget: Budget, paid: PaidContributions, forget_after: int) -> int:
    """What a size that is stated in one round allows the noise of a sum to be (docs/guarantee.md, "Sizes")."""
    followed = 2 * forget_after * budget.max_users * paid.most_tests
    unheld = budget.public_item_count * budget.schedule.horizon + followed
    return smallest_size_margin(paid.prices, paid.size_error, budget.max_users, unheld)


def terms_of_test(plan: Plan, number: int) -> RoundTerms:
    """Of the first or the second test of a stream, of items that are not followed. What stays a level below its
    threshold in the first test is left out: that is a boundary of levels, which the price of a test covers."""
    prices, units, paid = plan.prices_of_rounds[number], plan.units_of_rounds, plan.paid_contributions
    # Only followed items are drawn for where nobody adds to them (docs/proofs.md, "Two tests in a stream").
    unheld = 2 * plan.followed_for * plan.max_users * (units[0] // prices.units[0])
    likely_noise = smallest_size_margin(prices, paid.size_error / 2, plan.max_users, unheld, units[number])
    return RoundTerms(plan.threshold, likely_noise, plan.largest_in_rounds[number], prices.spacing)


def stated_threshold(budget: Budget, paid: PaidContributions, rounds: Rounds | None, forget_after: int) -> int:
    """The smallest threshold of the plan at which each name states `least_users`. 0 where it need not, and in rounds:
    the first one names no item in a window, and later ones have thresholds of their own."""
    if paid.least_users is None or rounds is not None:
        return 0
    return stated_from(paid.least_users, likely_noise_of_run(budget, paid, forget_after), paid.weights[-1])


def leaves_out(rounds: Rounds, number: int) -> bool:
    """Whether this round tells what the last one need not draw for."""
    return 0 < number == len(rounds.units) - 2 and TO_LEAVE_OUT * rounds.units[-2] >= rounds.units[-1]


def most_of_sizing_test(rounds: Rounds) -> int:
    """What a test of the sizing round costs at most."""
    return rounds.units[-1] // FEWEST_SIZED


def threshold_of_round(noise: ExponentialPower, rounds: Rounds, drawn: int) -> int:
    """At which noise alone names at most `Rounds.false_names` of so many, on average, and one in a hundred."""
    return noise.smallest_margin(min(_LARGEST_ERROR, rounds.false_names / max(1, drawn)))


def public_threshold(plan: Plan, blocks: int, windows: int) -> int:
    """Of public items in round 0 over so many blocks in so many windows: all are drawn for, held or not."""
    drawn = _drawn_in_run(plan, plan.public_item_count * blocks, windows)
    return threshold_of_round(plan.prices_of_rounds[0].noise, plan.paid_rounds, drawn)


def terms_of_round(plan: Plan, number: int, drawn: int, windows: int) -> RoundTerms:
    """Of a round over blocks in so many windows, a function of what was named before, and of the plan.

    drawn: for so many items in windows a later round draws, held or not; round 0 for none without a sum. Each part of a
    run has its share of `Rounds.false_names` and of the false sizes, as if all parts drew for as many.
    """
    rounds, prices, largest = plan.paid_rounds, plan.prices_of_rounds[number], plan.largest_in_rounds[number]
    if number == 0:
        likely_noise = smallest_size_margin(prices, _size_error(plan), plan.max_users, 0, rounds.units[0])
        return RoundTerms(plan.threshold, likely_noise, largest, prices.spacing)
    drawn, least_users = _drawn_in_run(plan, drawn, windows), plan.paid_contributions.least_users
    first, likely_noise = threshold_of_round(prices.noise, rounds, drawn), _likely_noise(plan, prices, drawn)
    threshold = first if least_users is None else max(first, stated_from(least_users, likely_noise, largest))
    least = threshold - prices.spacing if leaves_out(rounds, number) else None  # the price of a test covers it
    return RoundTerms(threshold, likely_noise, largest, prices.spacing, least, raised=threshold - first)


def terms_of_sizing(plan: Plan, drawn: int, windows: int) -> RoundTerms:
    """Of the sizing round, of so many named items in windows. threshold: from where on a size is stated."""
    prices = plan.prices_of_rounds[-1]
    likely_noise = _likely_noise(plan, prices, _drawn_in_run(plan, drawn, windows))
    largest = largest_weight(prices, max(prices.units[0], most_of_sizing_test(plan.paid_rounds)))
    threshold = stated_from(FEWEST_STATED, likely_noise, largest)
    return RoundTerms(threshold, likely_noise, largest, prices.spacing)


def _size_error(plan: Plan) -> float:
    """Of each round, and of the sizing round."""
    return plan.paid_contributions.size_error / (len(plan.paid_rounds.units) + 1)


def _drawn_in_run(plan: Plan, drawn: int, windows: int) -> int:
    return -(-drawn * plan.schedule.horizon // windows)


def _likely_noise(plan: Plan, prices: PriceList, drawn: int) -> int:
    """Where it is known for how many is drawn: the noise of any of them is larger with this probability at most."""
    return prices.noise.smallest_margin(_size_error(plan) / max(1, drawn)) - 1


def largest_weight(prices: PriceList, units: int) -> int:
    """Of a user with so many units in a round."""
    return int(prices.listed.largest(np.array([units]))[0][0])


def found_in_rounds(plan: Plan, number: int, probability: float, *, followed: bool) -> int:
    """From how many users on an item is named in a window with this probability, if each has so many contributions in
    the run: in its block, unless it was named there (followed), then not left out, and named in the last round, which
    draws for a million."""
    last, horizon = len(plan.paid_rounds.units) - 1, plan.schedule.horizon
    before, terms = (terms_of_round(plan, each, LIKELY_DRAWN, horizon) for each in (last - 1, last))
    asked, missed, users = [(-1, terms.threshold)], 1 - probability, 1
    if before.least is not None:
        users = _found_from(plan, -2, before.least, number, 1 - missed * _LEFT_OUT)
        missed *= 1 - _LEFT_OUT
    if not followed:
        asked.append((0, plan.threshold))
    of_each = 1 - missed / len(asked)
    return max(users, *(_found_from(plan, at, least, number, of_each) for at, least in asked))


def found_in_two_tests(plan: Plan, number: int, probability: float, *, followed: bool) -> int:
    """From how many users on the first test does not leave an item out, and the second one names it."""
    threshold, missed = plan.followed_threshold if followed else plan.threshold, 1 - probability
    least = max(1, threshold - plan.prices_of_rounds[0].spacing)
    kept = _found_from(plan, 0, least, number, 1 - missed * _LEFT_OUT)
    return max(1, kept, _found_from(plan, 1, threshold, number, 1 - missed * (1 - _LEFT_OUT)))


def found_in_block(plan: Plan, number: int, probability: float) -> int:
    """The same of an item in a block, if each user has so many items in blocks."""
    return _found_from(plan, 0, plan.threshold, number, probability)


def _found_from(plan: Plan, at: int, threshold: int, number: int, probability: float) -> int:
    reserved = BUDGET_UNITS - plan.units_of_rounds[at]
    return found_from(plan.prices_of_rounds[at], threshold, number, probability, reserved=reserved)


def rounds_by_shape(shape: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """What a user pays in each round, and the shape of its noise, by the shape that is best in one round."""
    units, more = _OF_FEW if shape < _FEW else _OF_MANY
    return units, tuple(min(max(shape + each, SHAPES[0]), SHAPES[-1]) for each in more)


def amounts_of_rounds(
    units: Sequence[int], shapes: tuple[float, ...], most_tests: int
) -> dict[float, tuple[int, ...] | None]:
    """For which there is a weight with noise of each shape: for the budgets of the rounds that have it. One shape alone
    is that of all rounds."""
    of_shape: dict[float, list[int]] = {}
    for each, shape in zip(units, shapes if len(shapes) > 1 else shapes * len(units), strict=True):
        of_shape.setdefault(shape, []).append(each)
    return {shape: _amounts(budgets, BUDGET_UNITS // most_tests) for shape, budgets in of_shape.items()}


def _amounts(budgets: Sequence[int], least: int) -> tuple[int, ...]:
    steps = math.ceil(math.log(max(budgets) / least) / math.log(_RATIO))
    amounts = (max(least, math.floor(max(budgets) / _RATIO**step)) for step in range(steps + 1))
    return (*amounts, *(each // number for each, number in itertools.product(budgets, range(1, _EACH + 1))))
