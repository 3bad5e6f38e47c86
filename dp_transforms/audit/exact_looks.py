"""What a run of mode `looks` attains at the worst, exactly, against what its plan claims.

Nothing is random or sampled, and no number comes from the accounting. Each is attained and rounded down: if it exceeds
a claim, the claim is wrong. docs/audit.md says what is tried.

And what workers get of a plan (`run_violations`): what it says of sizes, computed again by another law of the noise.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dp_transforms.accounting.priced_weights import FEWEST_STATED
from dp_transforms.audit.few_looks import FewLooks, FewLooksAdversary
from dp_transforms.audit.look_law import (
    ROUNDING,
    LookLaw,
    NoiseLaw,
    WorstLook,
    reach_of_prices,
    static_delta,
)
from dp_transforms.audit.mechanism import LooksClaim, LooksMechanism, PricesOfUser, violations_of_delta, with_lone_items
from dp_transforms.audit.round_looks import RoundLooks, together_in_rounds, worst_in_rounds
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import PaidContributions
from dp_transforms.plan.rounds import RoundTerms

MOST_FEW = 3  # looks of the adaptive adversary
_MOST_STATIC = 30_000  # looks of one weight at one count
_STATIC_REACH, _STATIC_STEPS = 3.6, 20  # of their margins, in scales; and for each unit of scale
_FINELY = 4  # weights whose worst count is searched among all integers, besides the first and the last
_SPLITS = 8  # of a purse between items that a user holds alone and others
_PAIRS_IN_ROUNDS = (1, 3, 10)  # of more, all transcripts are too many: each round is tried alone

OnStep = Callable[[str], None]

_ERROR = 1e-9  # of a quadrature, relative
_MANY = 10_000  # pairs that a round draws for; and so often as many


@dataclasses.dataclass(frozen=True)
class AuditedPrice:
    """A look with this weight: what it costs in units, the divergence that these stand for, and what it attains."""

    weight: int
    units: int
    claimed: float
    look: WorstLook

    @property
    def ratio(self) -> float:
        return self.look.divergence / self.claimed


@dataclasses.dataclass(frozen=True)
class StaticLooks:
    """So many looks of one weight, all at one count, and the delta that they attain at the claimed epsilon."""

    looks: int
    weight: int
    margin: int
    delta: float
    adds_user: bool


@dataclasses.dataclass(frozen=True)
class LooksExactAudit:
    """All that is attained.

    worst_price: of all weights, the one whose price falls shortest. prices: how many were compared.
    purse_delta: what all that a user can pay proves, by its formula. most_tests: that a purse pays for; most_paid: in
    rounds in one of them. few, static: of looks on items that others hold too; in_rounds: of all rounds of them.
    lone_delta: an item of the user alone is named in one of lone_looks looks. together_delta: of both, at the claimed
    epsilon. violations: a sentence for each claim that is exceeded.
    """

    worst_price: AuditedPrice
    prices: int
    purse_delta: float
    most_tests: int
    most_paid: int
    few: tuple[FewLooks, ...]
    static: tuple[StaticLooks, ...]
    lone_delta: float
    lone_looks: int
    together_delta: float
    violations: tuple[str, ...]
    in_rounds: tuple[RoundLooks, ...] = ()

    @property
    def tried(self) -> int:
        """So many looks of one user on items that others hold too, in rounds of each round."""
        return max([each.looks for each in self.static] + [each.pairs for each in self.in_rounds])

    @property
    def worst_delta(self) -> float:
        found = (each.delta for tried in (self.few, self.static, self.in_rounds) for each in tried)
        return max(found)


def audit_looks_exactly(
    mechanism: LooksMechanism, claim: LooksClaim, *, most_tests: int | None = None, on_step: OnStep = lambda step: None
) -> LooksExactAudit:
    """most_tests: of a user, in what is tried on items that others hold too; None: all that a purse pays for."""
    largest = mechanism.looks_list.weights[-1]
    reach = reach_of_prices(mechanism.shape, claim.order, largest, mechanism.scale)
    law = NoiseLaw(mechanism.shape, mechanism.scale, max(reach, mechanism.threshold) + largest + 1)
    on_step("prices")
    worst_price = worst_price_of(law, mechanism, claim, reach)
    on_step("few tests")
    tried = mechanism.most_paid if most_tests is None else min(mechanism.most_paid, most_tests)
    most_few = 0 if mechanism.rounds else min(MOST_FEW, tried)
    few = [_few(law, mechanism, looks, claim.epsilon) for looks in range(1, most_few + 1)]
    of_rounds = sorted({min(number, tried, mechanism.pairs_in_rounds) for number in _PAIRS_IN_ROUNDS} - {0})
    in_rounds = [worst_in_rounds(law, mechanism, pairs, claim.epsilon) for pairs in of_rounds]
    on_step("many tests")
    numbers = [looks for looks in _numbers(min(tried, _MOST_STATIC)) if looks not in of_rounds]
    static = [_static(law, mechanism, looks, claim.epsilon) for looks in numbers]
    on_step("items of one user alone")
    lone_delta, lone_looks = _lone(law, mechanism)
    together = together_in_rounds if mechanism.rounds else _together
    audit = LooksExactAudit(
        worst_price=worst_price,
        prices=len(mechanism.looks_list.weights),
        purse_delta=claim.delta_of(claim.price(mechanism.units_of_user, mechanism.purse)),
        most_tests=mechanism.most_tests,
        most_paid=mechanism.most_paid,
        few=tuple(few),
        static=tuple(static),
        lone_delta=lone_delta,
        lone_looks=lone_looks,
        together_delta=together(law, mechanism, claim.epsilon),
        violations=(),
        in_rounds=tuple(in_rounds),
    )
    most = max(audit.together_delta, audit.lone_delta, audit.worst_delta)
    audit = dataclasses.replace(audit, together_delta=most)
    return dataclasses.replace(audit, violations=tuple(_violations(audit, claim)))


def worst_price_of(law: NoiseLaw, mechanism: LooksMechanism, claim: LooksClaim, reach: int) -> AuditedPrice:
    """Every weight on a grid of counts; then the worst ones, the first and the last among all integers."""
    look_law, listed = LookLaw(law, mechanism.distances), mechanism.looks_list
    places = range(len(listed.weights))

    def price(place: int, *, finely: bool) -> AuditedPrice:
        weight, units = listed.weights[place], listed.units[place]
        look = look_law.worst(weight, claim.order, reach, finely=finely)
        return AuditedPrice(weight, units, claim.price(units, mechanism.purse), look)

    coarse = [price(place, finely=False) for place in places]
    worst = sorted(places, key=lambda place: -coarse[place].ratio)[:_FINELY]
    found = [*coarse, *(price(place, finely=True) for place in sorted({0, *worst, places[-1]}))]
    return max(found, key=lambda each: each.ratio)


def _numbers(most: int) -> list[int]:
    """1, 3, 10, 30, ... and the last one."""
    powers = [10**exponent for exponent in range(len(str(most)))]
    return sorted({most, *(number for power in powers for number in (power, 3 * power) if number <= most)})


def _few(law: NoiseLaw, mechanism: LooksMechanism, looks: int, epsilon: float) -> FewLooks:
    """The worst of both directions."""
    adversary = functools.partial(FewLooksAdversary, law, mechanism.looks_list, mechanism.threshold, epsilon)
    return max((adversary(adds_user=adds_user).play(looks) for adds_user in (True, False)), key=lambda each: each.delta)


def _static(law: NoiseLaw, mechanism: LooksMechanism, looks: int, epsilon: float) -> StaticLooks:
    reach = math.ceil(_STATIC_REACH * law.scale)
    found = []
    for listed, highest in zip(mechanism.purses, mechanism.highest_margins, strict=True):
        if mechanism.rounds and looks > listed.most_tests:
            continue
        weight = listed.replay_weight(looks)
        margins = np.arange(weight - reach, reach + 1, max(1, law.scale // _STATIC_STEPS))
        margins = margins[margins <= highest]
        delta, margin, adds_user = static_delta(law, weight, looks, margins, epsilon)
        found.append(StaticLooks(looks, weight, margin, delta, adds_user))
    return max(found, key=lambda each: each.delta)


def _lone(law: NoiseLaw, mechanism: LooksMechanism) -> tuple[float, int]:
    """The probability that one of the items that the user alone holds is named; and the number of looks, the worst.

    Without the user none of them can be, so this is the delta of such a stream at every epsilon.
    """
    if not mechanism.tests_lone_items:
        return 0.0, 0
    listed = mechanism.purses[0]  # in rounds the first one alone makes such looks
    looks = np.arange(1, listed.most_tests + 1)
    places = np.searchsorted(listed.units, listed.purse // looks, side="right") - 1
    log_tails = law.log_tail(mechanism.threshold - np.array(listed.weights)[places])
    deltas = -np.expm1(looks * np.log1p(-np.minimum(np.exp(log_tails), 1 - 1e-16)))
    worst = int(np.argmax(deltas))
    return float(deltas[worst]) * (1 - ROUNDING), int(looks[worst])


def _together(law: NoiseLaw, mechanism: LooksMechanism, epsilon: float) -> float:
    """Some looks of the smallest weight at items of the user alone, and then one at an item of others."""
    if not mechanism.tests_lone_items:
        return 0.0
    each = law.tail(mechanism.threshold - mechanism.looks_list.weights[0])
    best = 0.0
    for part in range(_SPLITS + 1):
        looks = mechanism.looks_list.most_tests * part // _SPLITS
        named = -math.expm1(looks * math.log1p(-min(each, 1 - 1e-16)))
        place = mechanism.looks_list.payable(mechanism.looks_list.purse - looks * mechanism.looks_list.units[0])
        weight = 0 if place is None else mechanism.looks_list.weights[place]  # of which nothing can be seen
        best = max(best, with_lone_items(named, epsilon, functools.partial(_one_look, law, mechanism, weight)))
    return best * (1 - ROUNDING)


def _one_look(law: NoiseLaw, mechanism: LooksMechanism, weight: int, epsilon: float) -> float:
    margins = np.arange(weight, min(mechanism.threshold, math.ceil(4 * law.scale)) + 1, max(1, law.scale // 1000))
    if not len(margins):
        return 0.0
    p, q = law.log_tail(margins - weight), law.log_tail(margins)
    return float(np.max(np.exp(p) * -np.expm1(np.minimum(0.0, epsilon + q - p))))


def _violations(audit: LooksExactAudit, claim: LooksClaim) -> list[str]:
    found = []
    price = audit.worst_price
    if price.look.divergence > price.claimed:
        found.append(
            f"a test of weight {price.weight:,} has a divergence of {price.look.divergence:.6g} at order "
            f"{claim.order:.4g}, but its price is {price.claimed:.6g}"
        )
    if audit.purse_delta * (1 - ROUNDING) > claim.delta_tests:
        found.append(
            f"a full budget of {claim.budget:.6g} at order {claim.order:.4g} proves delta {audit.purse_delta:.4g} at "
            f"epsilon {claim.epsilon:g}, but only {claim.delta_tests:.4g} is set aside for tests"
        )
    if audit.most_tests > claim.most_tests:
        found.append(f"a user budget pays for {audit.most_tests:,} tests, but the plan says {claim.most_tests:,}")
    if audit.worst_delta > claim.delta_tests:
        found.append(
            f"tests of items that others hold too attain delta {audit.worst_delta:.4g} at epsilon {claim.epsilon:g}, "
            f"but only {claim.delta_tests:.4g} is set aside for tests"
        )
    return found + violations_of_delta(audit.lone_delta, audit.together_delta, claim)


def run_violations(plan: Plan, run: PlannedRun) -> Iterator[str]:
    """A sentence for whatever workers get that is not the plan's, or breaks what it says of sizes."""
    if run.plan != plan or run.plan.fingerprint != plan.fingerprint:
        yield "workers get another plan than the one that is audited"
    if plan.contributions is not None:
        wrong = _wrong_sizes(plan, plan.contributions, run.plan)
        if wrong > plan.contributions.size_error * (1 + _ERROR):
            yield f"with the likely_noise that workers get up to {wrong:.3g} sizes of a run are wrong on average"


def _wrong_sizes(plan: Plan, looks: PaidContributions, of_run: Plan) -> float:
    """How many sizes of a run are wrong on average, at most: docs/guarantee.md, "Sizes", by another law of the
    noise."""
    law, mechanism = NoiseLaw.whole(looks.shape, looks.scale), LooksMechanism.of_plan(plan)
    horizon = plan.schedule.horizon
    unheld = plan.domain_size * horizon or 2 * plan.followed_for * plan.max_users * looks.most_tests
    if plan.rounds is None:
        numbers = [(weight, mechanism.purse / units) for weight, units in mechanism.looks_list.prices]
        return _wrong_of_weights(law, looks.weights[-1], numbers, of_run.likely_noise, plan.max_users, unheld)
    wrong = _wrong_of_terms(law, plan, mechanism.rounds[0], of_run.terms_of_round(0, 0, horizon).likely_noise, 0)
    of_all: list[Callable[..., RoundTerms]] = [of_run.terms_of_sizing]
    of_all += [functools.partial(of_run.terms_of_round, number) for number in range(1, len(mechanism.purses))]
    return wrong + sum(_wrong_of_all(law, terms_of, horizon, parts=[1, horizon]) for terms_of in of_all)


def _wrong_of_all(law: NoiseLaw, terms_of: Callable[..., RoundTerms], horizon: int, parts: Iterable[int]) -> float:
    """Where all that is drawn for is counted, a size is wrong only if its noise is larger than the likely one. parts:
    windows of a part of the run."""

    def wrong(windows: int, drawn: int) -> float:
        likely_noise = terms_of(drawn=drawn, windows=windows).likely_noise
        return horizon / windows * drawn * float(law.tail(likely_noise + 1))

    return max(itertools.starmap(wrong, itertools.product(parts, (1, _MANY, _MANY**2))))


def _wrong_of_terms(law: NoiseLaw, plan: Plan, listed: PricesOfUser, likely_noise: int, unheld: int) -> float:
    numbers = [(weight, listed.purse / units) for weight, units in listed.prices if units <= listed.purse]
    return _wrong_of_weights(law, listed.replay_weight(1), numbers, likely_noise, plan.max_users, unheld)


def _wrong_of_weights(
    law: NoiseLaw, largest: int, numbers: Iterable[tuple[int, float]], likely_noise: int, users: int, unheld: int
) -> float:
    """numbers: weights, and so many looks of each a user can pay. unheld: sums of 0 that are drawn for."""
    weights, paid = np.array(list(numbers)).T
    beyond = likely_noise + 1 + (FEWEST_STATED - 1) * (largest - weights.astype(np.int64))
    of_users = users * float((np.exp(law.log_tail(beyond)) * paid).max())
    return of_users + unheld * law.tail(likely_noise + 1 + (FEWEST_STATED - 1) * largest)
