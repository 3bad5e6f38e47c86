"""Users who pay for tests of contributions: what a test reveals against its price, and what a full budget proves.

Nothing is random or sampled, and no number comes from the accounting. `ContributionsMechanism` is what a plan runs, as
plain numbers, so that tests can change one of them and leave the claim as it was. Divergences and lone items are
attained and rounded down: if one exceeds its claim, the claim is wrong. That prices within a budget bound a whole run
is the theorem of docs/guarantee.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.noise_law import ROUNDING, LevelsLaw, NoiseLaw, WorstTest, reach_of_prices
from dp_transforms.plan.plan import Plan

_LEVELS = 6  # of each item; what more boundaries show is the same again
_FINELY = 4  # weights whose worst count is searched among all integers, besides the first and the last

OnStep = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContributionsClaim:
    """What is promised: (epsilon, delta) for the run. Of delta, delta_tests is for tests of contributions and
    delta_open for items that one user holds alone. order, budget: a full user budget stands for this divergence of
    this order. most_tests: that it pays for, by the list with the least price.
    """

    epsilon: float
    delta: float
    delta_open: float
    delta_tests: float
    order: float
    budget: float
    most_tests: int

    @classmethod
    def of_plan(cls, plan: Plan) -> ContributionsClaim:
        paid = plan.paid_contributions
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            delta_open=plan.delta_open,
            delta_tests=plan.shares.paid,
            order=paid.order,
            budget=paid.budget,
            most_tests=max(prices.most_tests for prices in plan.prices_of_rounds),
        )

    def divergence_of(self, units: int) -> float:
        """That so many units of a user budget stand for."""
        return self.budget * units / BUDGET_UNITS

    def delta_of(self, divergence: float) -> float:
        """What this divergence proves at this order (Canonne, Kamath, Steinke 2020, Proposition 12)."""
        lam = self.order - 1
        exponent = lam * (divergence - self.epsilon) + self.order * math.log1p(-1 / self.order) - math.log(lam)
        return math.exp(min(0.0, exponent))


@dataclasses.dataclass(frozen=True)
class ContributionsMechanism:
    """shape, scale: of the noise. weights, units: rising, and what a test with each costs. budgets: of a user, in
    units: one, or in rounds one of each. threshold: the noisy sum from which a new item has level 1, in rounds in the
    first one. spacing: of levels. tests_lone_items: whether an item is tested only if somebody holds it (no public
    items). later: each later round, where these have noise and prices of their own; budgets is then that of the first.
    """

    shape: float
    scale: int
    weights: tuple[int, ...]
    units: tuple[int, ...]
    budgets: tuple[int, ...]
    threshold: int
    spacing: int
    tests_lone_items: bool = True
    later: tuple[ContributionsMechanism, ...] = ()

    @classmethod
    def of_plan(cls, plan: Plan) -> ContributionsMechanism:
        first, *later = (
            cls(
                prices.noise.shape,
                prices.noise.scale,
                prices.weights,
                prices.units,
                (budget,),
                plan.threshold,
                prices.spacing,
                tests_lone_items=plan.takes_open_items,
            )
            for prices, budget in zip(plan.prices_of_rounds, plan.units_of_rounds, strict=True)
        )
        if plan.second_test is not None:  # both tests have one price list, and both test lone items
            return dataclasses.replace(first, budgets=(sum(plan.units_of_rounds),))
        if plan.rounds is None or plan.rounds.later is None:
            return dataclasses.replace(first, budgets=plan.units_of_rounds)
        return dataclasses.replace(first, later=tuple(later))

    @property
    def price_lists(self) -> tuple[ContributionsMechanism, ...]:
        return (self, *self.later)

    @property
    def all_budgets(self) -> tuple[int, ...]:
        """Of all rounds."""
        return sum((listed.budgets for listed in self.price_lists), ())

    @property
    def most_tests(self) -> int:
        """A user pays for no more tests than this."""
        return sum(budget // listed.units[0] for listed in self.price_lists for budget in listed.budgets)

    @property
    def distances(self) -> tuple[int, ...]:
        """Of the levels from the first one, those of followed items alike. What a test shows depends on these."""
        return tuple(level * self.spacing for level in range(_LEVELS))


@dataclasses.dataclass(frozen=True)
class AuditedPrice:
    """A test with this weight: what it costs in units, the divergence that these stand for, and what it attains.
    round: whose list has this price; None where all rounds have one list."""

    weight: int
    units: int
    claimed: float
    test: WorstTest
    round: int | None = None

    @property
    def ratio(self) -> float:
        return self.test.divergence / self.claimed

    @property
    def where(self) -> str:
        """The round, in words."""
        return "" if self.round is None else f" in round {self.round}"


@dataclasses.dataclass(frozen=True)
class ContributionsAudit:
    """worst_price: of all weights, the one whose price falls shortest. prices: how many were compared. budget_delta:
    what all that a user can pay proves. most_tests: that it pays for. lone_delta: the probability that an item of the
    user alone is named in one of lone_tests tests. together_delta: the two deltas. violations: a sentence for each
    claim that is exceeded.
    """

    worst_price: AuditedPrice
    prices: int
    budget_delta: float
    most_tests: int
    lone_delta: float
    lone_tests: int
    together_delta: float
    violations: tuple[str, ...]


def audit_contributions(
    mechanism: ContributionsMechanism, claim: ContributionsClaim, *, on_step: OnStep = lambda step: None
) -> ContributionsAudit:
    on_step("prices")
    worst_prices = [_worst_price(listed, claim) for listed in mechanism.price_lists]
    if mechanism.later:
        worst_prices = [dataclasses.replace(each, round=number) for number, each in enumerate(worst_prices)]
    worst_price = max(worst_prices, key=lambda each: each.ratio)
    on_step("items of one user alone")
    lone_delta, lone_tests = _lone(mechanism)
    budget_delta = claim.delta_of(claim.divergence_of(sum(mechanism.all_budgets))) * (1 - ROUNDING)
    audit = ContributionsAudit(
        worst_price=worst_price,
        prices=sum(len(listed.weights) for listed in mechanism.price_lists),
        budget_delta=budget_delta,
        most_tests=mechanism.most_tests,
        lone_delta=lone_delta,
        lone_tests=lone_tests,
        together_delta=budget_delta + lone_delta,
        violations=(),
    )
    return dataclasses.replace(audit, violations=tuple(_violations(audit, claim)))


def _worst_price(mechanism: ContributionsMechanism, claim: ContributionsClaim) -> AuditedPrice:
    """Every weight on a grid of counts; then the worst ones, the first and the last among all integers."""
    largest = mechanism.weights[-1]
    reach = reach_of_prices(mechanism.shape, claim.order, largest, mechanism.scale)
    law = NoiseLaw(mechanism.shape, mechanism.scale, reach + largest + 1)
    levels, places = LevelsLaw(law, mechanism.distances), range(len(mechanism.weights))

    def price(place: int, *, finely: bool) -> AuditedPrice:
        weight, units = mechanism.weights[place], mechanism.units[place]
        test = levels.worst(weight, claim.order, reach, finely=finely)
        return AuditedPrice(weight, units, claim.divergence_of(units), test)

    coarse = [price(place, finely=False) for place in places]
    worst = sorted(places, key=lambda place: -coarse[place].ratio)[:_FINELY]
    found = [*coarse, *(price(place, finely=True) for place in sorted({0, *worst, places[-1]}))]
    return max(found, key=lambda each: each.ratio)


def _lone(mechanism: ContributionsMechanism) -> tuple[float, int]:
    """The probability that one of the items that the user alone holds is named; and the number of tests, the worst.

    Without the user none of them can be, so this is the delta of such a stream at every epsilon.
    """
    if not mechanism.tests_lone_items:
        return 0.0, 0
    law = NoiseLaw(mechanism.shape, mechanism.scale, mechanism.threshold + 1)
    budget = mechanism.budgets[0]  # in rounds the first one alone tests such items
    tests = np.arange(1, budget // mechanism.units[0] + 1)
    places = np.searchsorted(mechanism.units, budget // tests, side="right") - 1
    log_tails = law.log_tail(mechanism.threshold - np.array(mechanism.weights)[places])
    deltas = -np.expm1(tests * np.log1p(-np.minimum(np.exp(log_tails), 1 - 1e-16)))
    worst = int(np.argmax(deltas))
    return float(deltas[worst]) * (1 - ROUNDING), int(tests[worst])


def _violations(audit: ContributionsAudit, claim: ContributionsClaim) -> list[str]:
    found = []
    price = audit.worst_price
    if price.test.divergence > price.claimed:
        found.append(
            f"a test of weight {price.weight:,}{price.where} has a divergence of {price.test.divergence:.6g} at order "
            f"{claim.order:.4g}, but its price is {price.claimed:.6g}"
        )
    if audit.budget_delta > claim.delta_tests:
        found.append(
            f"a full budget of {claim.budget:.6g} at order {claim.order:.4g} proves delta {audit.budget_delta:.4g} at "
            f"epsilon {claim.epsilon:g}, but only {claim.delta_tests:.4g} is set aside for tests"
        )
    if audit.most_tests > claim.most_tests:
        found.append(f"a user budget pays for {audit.most_tests:,} tests, but the plan says {claim.most_tests:,}")
    if audit.lone_delta > claim.delta_open:
        found.append(
            f"items that one user holds alone are published with probability {audit.lone_delta:.4g}, but only "
            f"{claim.delta_open:.4g} is set aside for them"
        )
    if audit.together_delta > claim.delta:
        found.append(f"together they come to delta {audit.together_delta:.4g} at epsilon {claim.epsilon:g}")
    return found
