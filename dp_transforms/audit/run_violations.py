"""What workers get: the plan, and what it says of sizes, computed again by another law of the noise.

The sampled runs have thresholds and windows of their own, and would not see others in it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dp_transforms.audit.look_law import NoiseLaw
from dp_transforms.audit.mechanism import LooksMechanism, PricesOfUser
from dp_transforms.mechanisms.priced_weights import FEWEST_STATED
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import Looks
from dp_transforms.plan.rounds import RoundTerms

_ERROR = 1e-9  # of a quadrature, relative
_MANY = 10_000  # pairs that a round draws for; and so often as many


def run_violations(plan: Plan, run: PlannedRun) -> Iterator[str]:
    """A sentence for whatever workers get that is not the plan's, or breaks what it says of sizes."""
    if run.plan != plan or run.plan.fingerprint != plan.fingerprint:
        yield "workers get another plan than the one that is audited"
    if plan.looks is not None:
        wrong = _wrong_sizes(plan, plan.looks, run.plan)
        if wrong > plan.looks.size_error * (1 + _ERROR):
            yield f"with the likely_noise that workers get up to {wrong:.3g} sizes of a run are wrong on average"


def _wrong_sizes(plan: Plan, looks: Looks, of_run: Plan) -> float:
    """How many sizes of a run are wrong on average, at most: docs/guarantee.md, "Sizes", by another law of the
    noise."""
    law, mechanism = NoiseLaw.whole(looks.shape, looks.scale), LooksMechanism.of_plan(plan)
    horizon = plan.schedule.horizon
    unheld = plan.domain_size * horizon or 2 * plan.known_for * plan.max_users * looks.most_looks
    if plan.window_rounds is not None:
        each_round = zip(of_run.terms_in_windows, mechanism.rounds, strict=True)
        wrong = sum(_wrong_of_terms(law, plan, listed, terms.likely_noise, unheld) for terms, listed in each_round)
        return wrong + _wrong_of_all(law, of_run.terms_of_second_looks, horizon, parts=[1])
    if plan.rounds is None:
        numbers = [(weight, each.purse / units) for each in mechanism.lists for weight, units in each.prices]
        return _wrong_of_weights(law, looks.weights[-1], numbers, of_run.likely_noise, plan.max_users, unheld)
    wrong = _wrong_of_terms(law, plan, mechanism.rounds[0], of_run.terms_of_round(0, 0, horizon).likely_noise, 0)
    of_all: list[Callable[..., RoundTerms]] = [of_run.terms_of_second_looks]
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
