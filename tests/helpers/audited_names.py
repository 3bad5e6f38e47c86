"""Plans of contributions for tests of the audit: a usual guarantee, little noise, no search."""

from __future__ import annotations

import functools

from dp_transforms.audit.contributions import ContributionsClaim, ContributionsMechanism
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers import modes
from tests.helpers.contributions_plans import contributions_plan_of

HOURS = 24
_SCHEDULE = WindowSchedule.fixed(0, HOURS * 3600, 3600)


@functools.cache
def audited_plan(*, most_tests: int = 20, forget_after: int = 3, public: tuple[str, ...] = ()) -> Plan:
    """Epsilon 2 and delta 1e-4 over a day of hours; 20 tests of a user at most."""
    return contributions_plan_of(
        _SCHEDULE,
        most_tests=most_tests,
        forget_after=forget_after,
        public=public,
        epsilon=2.0,
        delta=1e-4,
        order=8.0,
    )


@functools.cache
def plan_in_rounds(most_tests: int = 20) -> Plan:
    """Epsilon 2 and delta 1e-4 over a day of hours, and ten times as many tests in all rounds."""
    budget = {"epsilon": 2, "delta": 1e-4, "schedule": _SCHEDULE, "max_users": 100_000}
    return modes.plan_in_rounds(**budget, most_contributions=most_tests)


@functools.cache
def plan_with_shapes() -> Plan:
    """The same, and each round has noise of a shape and a price list of its own."""
    return Plan.for_contributions(
        epsilon=2,
        delta=1e-4,
        schedule=_SCHEDULE,
        max_users=100_000,
        usual_contributions=(1, 20),
        most_contributions=20,
    )


def mechanism_and_claim(plan: Plan) -> tuple[ContributionsMechanism, ContributionsClaim]:
    return ContributionsMechanism.of_plan(plan), ContributionsClaim.of_plan(plan)
