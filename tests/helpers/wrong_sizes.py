"""How many sizes of a run are wrong on average, at most: docs/guarantee.md, "Sizes", by another law of the noise."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable

import numpy as np

from dp_transforms.accounting.priced_weights import FEWEST_STATED
from dp_transforms.audit.noise_law import NoiseLaw
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import RoundTerms
from tests.helpers.charging_rules import ChargingRules, PricesOfUser

_MANY = 10_000  # pairs that a round draws for; and so often as many


def wrong_sizes(plan: Plan, of_run: Plan) -> float:
    """As a share of what the plan says. of_run: with the likely_noise that workers get."""
    looks = plan.paid_contributions
    law, mechanism = NoiseLaw.whole(looks.shape, looks.scale), ChargingRules.of_plan(plan)
    horizon = plan.schedule.horizon
    unheld = plan.domain_size * horizon or 2 * plan.followed_for * plan.max_users * looks.most_tests
    if plan.rounds is None:
        numbers = [(weight, mechanism.purse / units) for weight, units in mechanism.looks_list.prices]
        wrong = _wrong_of_weights(law, looks.weights[-1], numbers, of_run.likely_noise, plan.max_users, unheld)
        return wrong / looks.size_error
    wrong = _wrong_of_terms(law, plan, mechanism.rounds[0], of_run.terms_of_round(0, 0, horizon).likely_noise, 0)
    of_all: list[Callable[..., RoundTerms]] = [of_run.terms_of_sizing]
    of_all += [functools.partial(of_run.terms_of_round, number) for number in range(1, len(mechanism.purses))]
    wrong += sum(_wrong_of_all(law, terms_of, horizon, parts=[1, horizon]) for terms_of in of_all)
    return wrong / looks.size_error


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
