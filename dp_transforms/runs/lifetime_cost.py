"""What a run costs its users for ever, and the filter that adds runs up: whole numbers on a grid, rounded up.

Guarantee: let all runs over one population be admitted by one `BudgetRule`, each before it draws anything. Plans, data
and times may be chosen by what earlier runs published, and runs may go on side by side. Then all that they publish,
together, is (max_epsilon, max_delta)-DP for adding or removing one user with all events in all of them. Proofs and
sources: docs/guarantee.md, "Many runs".

- ``basic``: epsilons and deltas add up (Rogers, Roth, Ullman, Vadhan, *Privacy odometers and filters*, 2016).
- ``renyi``, of one order: divergences of this order add up (Feldman, Zrnic, *Individual privacy accounting via a Renyi
  filter*, 2021), beside the deltas of events that are outside of it.

The first plan chooses the rule and its constants, before anything is published: by which rule more runs like it fit.
No run is charged more by ``renyi`` than by ``basic``, so it refuses no more than its constants, `BudgetRule.base` and
`BudgetRule.sampling`.

**The grid.** Epsilons and divergences are multiples of 10^-15, deltas of 10^-30, all rounded up; caps are rounded down.
The epsilon and delta of a plan stand for the decimal numbers that they print as, so that ten runs of 0.1 fit into 1.
Such a number is within 2^-53 of the float, relatively; the proofs behind a plan round by 10^-12 or more toward more
noise (`ROUNDING` of `accounting`), so they hold for the decimal number too.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
import sys
from decimal import Decimal

from dp_transforms.checks import shown
from dp_transforms.plan.plan import Plan

EPSILON_DIGITS = 15
DELTA_DIGITS = 30
_DISTANCE_DIGITS = 45
LARGEST_MAX_EPSILON = Decimal(1000)
LARGEST_MAX_DELTA = Decimal("0.01")
LARGEST_ORDER = 10**6  # with which e^(order max_epsilon) is within the exponents of `_MATH`
BASIC, RENYI = "basic", "renyi"
# For the distances of sampled noise these parts are set aside: of the first delta at least, and of max_delta at most.
_SAMPLING_SHARE, _LARGEST_SHARE = 10**12, 1000
# 60 digits, each operation correctly rounded; results are moved by 10^-50 in the safe direction before they are used.
_MATH = decimal.Context(prec=60, Emin=-(10**9), Emax=10**9, rounding=decimal.ROUND_HALF_EVEN)
_SLACK = Decimal(1).scaleb(-50)


def epsilon_units(name: str, value: object) -> int:
    """An epsilon or a divergence in units of 10^-15, rounded up. Raises ValueError; see `_decimal`."""
    return _up(_decimal(name, value), EPSILON_DIGITS)


def delta_units(name: str, value: object) -> int:
    """A delta in units of 10^-30, rounded up. Raises ValueError; see `_decimal`."""
    return _up(_decimal(name, value), DELTA_DIGITS)


def cap_units(max_epsilon: object, max_delta: object) -> tuple[int, int]:
    """Caps in units of 10^-15 and 10^-30, rounded down. Raises ValueError for what is no amount, or out of range."""
    caps = []
    for name, value, digits, largest in (
        ("max_epsilon", max_epsilon, EPSILON_DIGITS, LARGEST_MAX_EPSILON),
        ("max_delta", max_delta, DELTA_DIGITS, LARGEST_MAX_DELTA),
    ):
        units = -_up(_decimal(name, value).copy_negate(), digits)  # exact, unlike a minus
        if not 0 < units <= _up(largest, digits):
            raise ValueError(f"{name} must lie in 1e-{digits} .. {largest}, got {shown(value)}.")
        caps.append(units)
    return caps[0], caps[1]


def from_epsilon_units(units: int) -> Decimal:
    """The exact number that so many units of 10^-15 stand for."""
    return _MATH.scaleb(Decimal(units), -EPSILON_DIGITS)


def from_delta_units(units: int) -> Decimal:
    """The exact number that so many units of 10^-30 stand for."""
    return _MATH.scaleb(Decimal(units), -DELTA_DIGITS)


@dataclasses.dataclass(frozen=True)
class LifetimeCost:
    """What one run of a plan costs each user, once, over its whole declared range. Build it with `of_plan`.

    epsilon, delta: the guarantee of the run, in units. The rest is of contributions alone, else "" and 0.
    order: the Renyi order as text. divergence: of this order, of all tests and counts, in units of epsilon.
    delta_events: of items that one user alone holds, and of collisions of hashes, in units. distance: of the sampled
    noise from its law in one world, in units of 10^-45.
    """

    epsilon: int
    delta: int
    order: str = ""
    divergence: int = 0
    delta_events: int = 0
    distance: int = 0

    @classmethod
    def of_plan(cls, plan: Plan) -> LifetimeCost:
        """The cost of a run of this plan."""
        epsilon, delta = epsilon_units("epsilon", plan.epsilon), delta_units("delta", plan.delta)
        paid = plan.contributions
        if paid is None:
            return cls(epsilon, delta)
        with decimal.localcontext(_MATH):
            events = Decimal(plan.delta_open) + Decimal(plan.shares.hash) + _SLACK
            # The share of sampling is (1 + e^epsilon) d.
            distance = Decimal(plan.shares.sampling) / (1 + Decimal(plan.epsilon).exp()) + _SLACK
        return cls(
            epsilon=epsilon,
            delta=delta,
            # The exact value of the float: the order of the prices, and none beside it.
            order=str(Decimal(paid.order)),
            divergence=_up(Decimal(paid.budget), EPSILON_DIGITS),
            delta_events=_up(events, DELTA_DIGITS),
            distance=_up(distance, _DISTANCE_DIGITS),
        )


@dataclasses.dataclass(frozen=True)
class Price:
    """What a rule charges for a run, in units: each sum over the runs of a population stays below its own limit."""

    epsilon: int
    delta: int
    sampling: int

    def __add__(self, other: Price) -> Price:
        return Price(self.epsilon + other.epsilon, self.delta + other.delta, self.sampling + other.sampling)

    def times(self, count: int) -> Price:
        """Of so many runs."""
        return Price(count * self.epsilon, count * self.delta, count * self.sampling)


NOTHING = Price(0, 0, 0)


@dataclasses.dataclass(frozen=True)
class BudgetRule:
    """How the runs of one population add up, and what they may cost together. Build it with `declare`; see the module.

    kind: ``basic`` or ``renyi``. max_epsilon, max_delta: in units, what a user may ever lose.
    order: the Renyi order, as text; "" in ``basic``, where the fields below are 0.
    base_epsilon, base_delta: what the conversion to (epsilon, delta) takes, once, with the first run.
    sampling: this much of max_delta is set aside for distances of sampled noise. Runs after it is used up are charged
    as runs of which only epsilon and delta are known.
    """

    kind: str
    max_epsilon: int
    max_delta: int
    order: str = ""
    base_epsilon: int = 0
    base_delta: int = 0
    sampling: int = 0

    def __post_init__(self) -> None:
        """Of one that is read: raises ValueError unless the caps are in range, and the base pays for the conversion."""
        caps = _up(LARGEST_MAX_EPSILON, EPSILON_DIGITS), _up(LARGEST_MAX_DELTA, DELTA_DIGITS)
        is_right = 0 < self.max_epsilon <= caps[0] and 0 < self.max_delta <= caps[1]
        if self.kind == RENYI:
            is_right = is_right and 1 < Decimal(self.order) <= LARGEST_ORDER
            is_right = is_right and self.base_epsilon >= _conversion_loss(self.order, self.base_delta)
        if not is_right or self.kind not in (BASIC, RENYI):
            raise ValueError("the rule of a population cannot be.")

    @property
    def base(self) -> Price:
        return Price(self.base_epsilon, self.base_delta, 0)

    @classmethod
    def declare(cls, max_epsilon: object, max_delta: object, first: LifetimeCost) -> BudgetRule:
        """The rule of a new population, from its caps and its first plan, before anything is published: the one that
        admits more runs of this plan; ``renyi`` if both admit as many. Raises ValueError for caps that are not numbers
        in range."""
        caps = cap_units(max_epsilon, max_delta)
        basic, renyi = cls(BASIC, *caps), cls.renyi(*caps, first)
        return renyi if renyi and renyi.runs_that_fit(first) >= basic.runs_that_fit(first) else basic

    @classmethod
    def renyi(cls, max_epsilon: int, max_delta: int, first: LifetimeCost) -> BudgetRule | None:
        """The rule ``renyi`` for these caps, in units; None where it cannot begin with this plan.

        The first plan costs its epsilon and delta, and at most a thousandth of max_delta more; a further one of the
        same order costs its divergence, about half of its epsilon.
        """
        if not first.order or Decimal(first.order) > LARGEST_ORDER:
            return None
        events, delta = first.delta_events, min(first.delta, max_delta)
        # Enough for as many runs like the first as the caps allow, unless that is a large share of max_delta.
        distances = _sampling_units(first.distance, max_epsilon)
        by_epsilon = max(0, max_epsilon - first.epsilon) // max(1, first.divergence)
        by_delta = (max_delta - delta) // max(1, events)
        share = min((1 + min(by_epsilon, by_delta)) * distances, max_delta // _LARGEST_SHARE)
        sampling = max(delta // _SAMPLING_SHARE, distances, share)
        # What is left of the first plan's delta pays for the conversion, for all runs together.
        own = _sampling_units(first.distance, first.epsilon)
        conversion = min(delta - events - own, max_delta - events - sampling)
        if sampling > max_delta // 10 or conversion <= 0:
            return None
        loss = max(_conversion_loss(first.order, conversion), first.epsilon - first.divergence)
        return cls(RENYI, max_epsilon, max_delta, first.order, loss, conversion, sampling)

    def price(self, cost: LifetimeCost, spent: Price = NOTHING) -> Price:
        """What a run of this cost takes in addition to `base`. spent: what the runs before it took."""
        if self.kind == BASIC:
            return Price(cost.epsilon, cost.delta, 0)
        # Divergences do not fall with the order (van Erven, Harremoes 2014, Theorem 3): a larger one covers this one.
        if cost.order and Decimal(cost.order) >= Decimal(self.order):
            sampling = _sampling_units(cost.distance, self.max_epsilon)
            if spent.sampling + sampling <= self.sampling and cost.divergence <= cost.epsilon:
                return Price(cost.divergence, cost.delta_events, sampling)
        return Price(pure_divergence(self.order, cost.epsilon), cost.delta, 0)

    def runs_that_fit(self, cost: LifetimeCost) -> int:
        """How many runs of this cost the rule admits, one after another."""
        runs, prices = 0, NOTHING
        while self.allows(self.total(prices + (price := self.price(cost, prices)))):
            # As many of this price as fit at once.
            before = self.total(prices)
            limits = self.max_epsilon, self.max_delta - self.sampling, self.sampling
            left = (limit - took for limit, took in zip(limits, dataclasses.astuple(before), strict=True))
            count = min(room // each for room, each in zip(left, dataclasses.astuple(price), strict=True) if each)
            runs, prices = runs + count, prices + price.times(count)
        return runs

    def total(self, prices: Price) -> Price:
        """What one run or more took, of these prices together; the base included."""
        return prices + self.base

    def allows(self, total: Price) -> bool:
        """Whether this total is within the caps."""
        return (
            total.epsilon <= self.max_epsilon
            and total.delta <= self.max_delta - self.sampling
            and total.sampling <= self.sampling
        )


def pure_divergence(order: str, epsilon: int) -> int:
    """The Renyi divergence of this order that an epsilon-DP run cannot exceed, in units, rounded up; never above
    epsilon.

    It is that of randomized response: a run that is (epsilon, delta)-DP, and interactive, is a function of one
    randomized response with epsilon that fails with probability delta (Lyu, *Composition theorems for interactive
    differential privacy*, 2022; Vadhan, Zhang 2023, arXiv 2207.08335; [KOV15] for one answer).
    """
    with decimal.localcontext(_MATH):
        alpha, e = Decimal(order), from_epsilon_units(epsilon)
        # p^alpha (1-p)^(1-alpha) + (1-p)^alpha p^(1-alpha), with p = e^eps / (1 + e^eps).
        moment = ((alpha * e).exp() + ((1 - alpha) * e).exp()) / (1 + e.exp())
        divergence = moment.ln() / (alpha - 1) + _SLACK / (alpha - 1)
    return min(epsilon, _up(divergence, EPSILON_DIGITS))


def _conversion_loss(order: str, delta: int) -> int:
    """epsilon less the divergence that proves it with this delta, in units, rounded up.

    Canonne, Kamath, Steinke (2020), Proposition 12: ``delta = e^((order-1)(B-epsilon)) (1-1/order)^order / (order-1)``.
    """
    with decimal.localcontext(_MATH):
        alpha = Decimal(order)
        factor = alpha * (1 - 1 / alpha).ln() - (alpha - 1).ln()
        loss = (factor - from_delta_units(delta).ln() + _SLACK) / (alpha - 1)
    return max(0, _up(loss, EPSILON_DIGITS))


def _sampling_units(distance: int, max_epsilon: int) -> int:
    """``(1 + e^max_epsilon) d`` in units of delta, rounded up: both directions, as in docs/guarantee.md, "Theorem of
    many runs"."""
    with decimal.localcontext(_MATH):
        factor = (1 + from_epsilon_units(max_epsilon).exp()) * (1 + _SLACK)
        return _up(Decimal(distance).scaleb(-_DISTANCE_DIGITS) * factor, DELTA_DIGITS)


def _decimal(name: str, value: object) -> Decimal:
    """What a number prints as. Raises ValueError unless it is finite, > 0 and no subnormal float."""
    try:
        number = Decimal(str(value))
    except decimal.InvalidOperation:
        number = Decimal("nan")
    least, most = Decimal(sys.float_info.min), Decimal(sys.float_info.max)
    if not number.is_finite() or not least <= number <= most or len(str(number)) > 400:
        raise ValueError(f"{name} must be a finite number > 0, not too small and not too large, got {shown(value)}.")
    return number


def _up(value: Decimal, digits: int) -> int:
    """In units of ``10^-digits``, rounded up; exact, whatever the number of digits."""
    sign, figures, exponent = value.as_tuple()
    return math.ceil(Decimal((sign, figures, int(exponent) + digits)))
