"""What is audited: the mechanism that a plan runs, what the plan claims about it, and what workers get of it.

In a `Mechanism` users pay for hits, in a `LooksMechanism` (mode `looks`) for looks. A mechanism is plain
numbers, so that tests can change one of them and leave the claim as it was.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.look_law import ThresholdLaw
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import (
    FEWEST_BESIDE,
    SIZING_PART,
    SIZING_TESTS,
    TO_LEAVE_OUT,
    most_of_sizing_test,
)

_LEVELS = 6  # of each item; what more boundaries show is the same again


# ---------------------------------------------------------------------------------------------------------------------
# Claims. Names as in the plans.
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is promised: (epsilon, delta) for the run, and what of delta is for items that one user holds alone."""

    epsilon: float
    delta: float
    delta_open: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitsClaim(Claim):
    """delta_accounting: for charged results. epsilon_after_hits: entry j - 1 is the epsilon promised, at
    delta_accounting, for an exclusion after j hits."""

    delta_accounting: float
    epsilon_after_hits: tuple[float, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan) -> HitsClaim:
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            delta_open=plan.delta_open,
            delta_accounting=plan.shares.paid,
            epsilon_after_hits=plan.epsilon_after_hits,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LooksClaim(Claim):
    """delta_tests: for looks. order, budget: the divergence of this order that a full purse stands for. most_tests:
    that it pays for."""

    delta_tests: float
    order: float
    budget: float
    most_tests: int

    @classmethod
    def of_plan(cls, plan: Plan) -> LooksClaim:
        looks = plan.paid_contributions
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            delta_open=plan.delta_open,
            delta_tests=plan.shares.paid,
            order=looks.order,
            budget=looks.budget,
            most_tests=looks.most_tests,
        )

    def price(self, units: int, purse: int) -> float:
        """The divergence that so many units stand for."""
        return self.budget * units / purse

    def delta_of(self, divergence: float) -> float:
        """What this divergence proves at this order (Canonne, Kamath, Steinke 2020, Proposition 12)."""
        lam = self.order - 1
        exponent = lam * (divergence - self.epsilon) + self.order * math.log1p(-1 / self.order) - math.log(lam)
        return math.exp(min(0.0, exponent))


def violations_of_delta(lone_delta: float, together_delta: float, claim: Claim) -> list[str]:
    """What exceeds the claim, in words.

    lone_delta: attained by items that one user holds alone. together_delta: by everything.
    """
    found = []
    if lone_delta > claim.delta_open:
        found.append(
            f"items that one user holds alone are published with probability {lone_delta:.4g}, but only "
            f"{claim.delta_open:.4g} is set aside for them"
        )
    if together_delta > claim.delta:
        found.append(f"together they attain delta {together_delta:.4g} at epsilon {claim.epsilon:g}")
    return found


def with_lone_items(published: float, epsilon: float, delta: Callable[[float], float]) -> float:
    """The delta of items that the user holds alone, one of which is published with this probability, and of a stream
    that follows, whose own delta is `delta` of an epsilon.

    Without the user none of them can be. If none is, the loss of what follows is lower by ``-ln(1 - published)``.
    """
    return 1.0 if published >= 1 else published + (1 - published) * delta(epsilon - math.log1p(-published))


# ---------------------------------------------------------------------------------------------------------------------
# Mechanisms
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is run, as plain numbers: the law of one query, the smallest count that is published, and the limits.

    hits_per_user: charged results after which a user is excluded, in all of its keys together: a user who is excluded
    under one key goes on under the next. horizon: windows. max_items_per_user: in one window, under one key.
    tests_lone_items: whether an item is tested only if somebody holds it (an open domain).
    """

    law: ThresholdLaw
    threshold: int
    hits_per_user: int
    horizon: int
    max_items_per_user: int
    tests_lone_items: bool = True
    keys: int = 1

    @classmethod
    def of_plan(cls, plan: Plan) -> Mechanism:
        hits = plan.charged_hits
        if hits.wide is not None:
            raise ValueError("there is no audit of plans with printed noise.")
        return cls(
            law=ThresholdLaw(hits.epsilon_per_query, hits.zone_width),
            threshold=plan.threshold,
            hits_per_user=hits.in_all,
            horizon=plan.schedule.horizon,
            max_items_per_user=hits.max_items_per_user,
            tests_lone_items=plan.domain is None,
            keys=hits.keys,
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
class LooksMechanism:
    """shape, scale: of the noise. looks_list: with a full purse.

    threshold, followed_threshold: noisy sums from which an item has level 1, if it is not followed and if it is; in
    rounds, of the first round and of later ones, the highest one that these can have. spacing: of levels.
    tests_lone_items: whether an item is drawn for only if somebody holds it (an open domain). rounds: of each round of
    looks, the looks list with its own purse. size_error: with which a size that is stated is wrong in one round, or by
    second looks. most_of_second: units that one of these costs at most.
    """

    shape: float
    scale: int
    looks_list: PricesOfUser
    threshold: int
    followed_threshold: int
    spacing: int
    tests_lone_items: bool = True
    rounds: tuple[PricesOfUser, ...] = ()
    size_error: float = 0.01
    most_of_second: int = 0

    @classmethod
    def of_plan(cls, plan: Plan) -> LooksMechanism:
        looks, followed_threshold, horizon = plan.paid_contributions, plan.followed_threshold, plan.schedule.horizon
        if plan.rounds is not None:
            followed_threshold = plan.terms_of_round(1, plan.max_items * horizon, horizon).threshold
        rounds = plan.rounds
        units_of_rounds = () if rounds is None else rounds.units
        return cls(
            looks.shape,
            looks.scale,
            PricesOfUser(looks.weights, looks.units, BUDGET_UNITS),
            plan.threshold,
            followed_threshold,
            looks.spacing,
            tests_lone_items=plan.domain is None,
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
    def highest_margins(self) -> tuple[int, ...]:
        """For each of `purses`: others cannot add less than nothing, so no sum is farther below its threshold."""
        return (self.threshold, *[self.followed_threshold] * (len(self.purses) - 1))

    @property
    def units_of_user(self) -> int:
        """A user pays at most this."""
        return sum(listed.purse for listed in self.purses)

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

    @property
    def distances(self) -> tuple[int, ...]:
        """Of the levels from the first one, those of known items alike. What a look shows depends on these."""
        return tuple(level * self.spacing for level in range(_LEVELS))
