"""Plans of mode `looks` for tests of the audit: a usual guarantee, little noise, no search."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from dp_transforms.audit.contributions import ContributionsClaim, ContributionsMechanism
from dp_transforms.audit.noise_law import NoiseLaw
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.copies import run_trial
from tests.audit.scenes import Trial
from tests.audit.statistics import NamedPValue
from tests.helpers import modes
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import trial_of

HOURS = 24


@functools.cache
def audited_plan(*, most_tests: int = 20, forget_after: int = 3, domain: tuple[str, ...] = ()) -> Plan:
    """Epsilon 2 and delta 1e-4 over a day of hours; 20 looks of a user at most."""
    return looks_plan_of(
        WindowSchedule.fixed(0, HOURS * 3600, 3600),
        most_tests=most_tests,
        forget_after=forget_after,
        domain=domain,
        epsilon=2.0,
        delta=1e-4,
        order=8.0,
    )


@functools.cache
def plan_in_rounds(most_tests: int = 20) -> Plan:
    """Epsilon 2 and delta 1e-4 over a day of hours, and ten times as many looks in all rounds."""
    schedule = WindowSchedule.fixed(0, HOURS * 3600, 3600)
    budget = {"epsilon": 2, "delta": 1e-4, "schedule": schedule, "max_users": 100_000}
    return modes.plan_in_rounds(**budget, most_contributions=most_tests)


def mechanism_and_claim(plan: Plan) -> tuple[ContributionsMechanism, ContributionsClaim]:
    return ContributionsMechanism.of_plan(plan), ContributionsClaim.of_plan(plan)


def run_settings(plan: Plan) -> TrialPlan:
    return trial_of(plan, stream="audit", run_id="run")


def law_of(plan: Plan) -> NoiseLaw:
    return NoiseLaw.whole(plan.paid_contributions.shape, plan.paid_contributions.scale)


def p_values_of(trials: Iterable[Trial], settings: TrialPlan) -> list[NamedPValue]:
    """Of all tests of these trials, with a fixed key; several have one name. And whether each size is that of its
    level."""
    found: list[NamedPValue] = []
    for trial in trials:
        published = run_trial(trial, settings, SECRET)
        found += trial.p_values({with_user: each.levels for with_user, each in published.items()})
        found.append((f"{trial.scene.name}, sizes", float(all(each.sizes_fit for each in published.values()))))
    return found
