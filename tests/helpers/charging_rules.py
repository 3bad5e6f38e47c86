"""How a run charges for tests of contributions, as plain numbers that the tests of its code compute their laws from."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import (
    FEWEST_BESIDE,
    SIZING_PART,
    SIZING_TESTS,
    TO_LEAVE_OUT,
    most_of_sizing_test,
)


@dataclasses.dataclass(frozen=True)
class PricesOfUser:
    """A price list, and what a user has to pay its looks with.

    weights, units: rising, and what a look with each costs. purse: in units.
    """

    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int

    @property
    def prices(self) -> Iterator[tuple[int, int]]:
        """Each weight, and what a look with it costs."""
        return zip(self.weights, self.units, strict=True)

    @property
    def most_tests(self) -> int:
        """A purse pays for no more looks than this."""
        return self.purse // self.units[0]

    def payable(self, amount: int) -> int | None:
        """Where in the list the largest weight is that costs at most this; None if none does."""
        place = bisect.bisect_right(self.units, amount) - 1
        return None if place < 0 else place

    def replay_weight(self, looks: int) -> int:
        """Of a user with so many pairs in the whole run."""
        place = self.payable(self.purse // min(looks, self.most_tests))
        assert place is not None
        return self.weights[place]


@dataclasses.dataclass(frozen=True)
class ChargingRules:
    """looks_list: with a full purse.

    threshold, followed_threshold: noisy sums from which an item has level 1, if it is not followed and if it is; in
    rounds, of the first round and of later ones, the highest one that these can have. spacing: of levels.
    tests_lone_items: whether an item is drawn for only if somebody holds it (an open domain). rounds: of each round of
    looks, the looks list with its own purse. size_error: with which a size that is stated is wrong in one round, or by
    second looks. most_of_second: units that one of these costs at most.
    """

    looks_list: PricesOfUser
    threshold: int
    followed_threshold: int
    spacing: int
    tests_lone_items: bool = True
    rounds: tuple[PricesOfUser, ...] = ()
    size_error: float = 0.01
    most_of_second: int = 0

    @classmethod
    def of_plan(cls, plan: Plan) -> ChargingRules:
        looks, followed_threshold, horizon = plan.paid_contributions, plan.followed_threshold, plan.schedule.horizon
        if plan.rounds is not None:
            followed_threshold = plan.terms_of_round(1, plan.max_items * horizon, horizon).threshold
        rounds = plan.rounds
        units_of_rounds = () if rounds is None else rounds.units
        return cls(
            PricesOfUser(looks.weights, looks.units, BUDGET_UNITS),
            plan.threshold,
            followed_threshold,
            looks.spacing,
            tests_lone_items=plan.public_items is None,
            rounds=tuple(PricesOfUser(looks.weights, looks.units, units) for units in units_of_rounds),
            size_error=looks.size_error / (1 + len(units_of_rounds)),
            most_of_second=0 if rounds is None else most_of_sizing_test(rounds),
        )

    @property
    def purse(self) -> int:
        """A full one, in units."""
        return self.looks_list.purse

    @property
    def purses(self) -> tuple[PricesOfUser, ...]:
        """What all looks of a user may be paid from: a full one, or of each round its own."""
        return self.rounds or (self.looks_list,)

    def last_weight(self, looks: int, second: int, *, is_second: bool = False) -> int:
        """Of a user in the last round, with so many looks and so many second looks, at what is named already: a weight
        of the first, or of the second kind."""
        purse, parts = self.rounds[-1].purse, SIZING_TESTS * looks + second
        paid = purse // max(1, parts) * parts
        again = min(paid // max(FEWEST_BESIDE, SIZING_PART * second) if looks else paid // second, self.most_of_second)
        place = self.looks_list.payable(again if is_second else (paid - again * second) // looks)
        return self.looks_list.weights[place or 0]

    def leaves_out(self, number: int) -> bool:
        """Whether what stays a spacing below the threshold of this round is not drawn for in the last one."""
        if not 0 < number == len(self.rounds) - 2:
            return False
        return TO_LEAVE_OUT * self.rounds[-2].purse >= self.rounds[-1].purse

    @property
    def most_tests(self) -> int:
        """A user pays for no more looks than this."""
        return sum(listed.most_tests for listed in self.purses)

    @property
    def most_paid(self) -> int:
        """So many pairs of a user of a replay are paid for, in one round of looks."""
        return max(listed.most_tests for listed in self.purses)

    @property
    def pairs_in_rounds(self) -> int:
        """So many pairs of a user are paid for in each round of looks; 0 without rounds."""
        return min((listed.most_tests for listed in self.rounds), default=0)
