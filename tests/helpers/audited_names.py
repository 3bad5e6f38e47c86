"""Plans of release mode `names` for tests of the audit: a usual guarantee, little noise, no search."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from dp_transforms.audit.copies import run_trial
from dp_transforms.audit.look_law import NoiseLaw
from dp_transforms.audit.mechanism import NamesClaim, NamesMechanism
from dp_transforms.audit.scenes import Trial
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.run_settings import settings_of_plan
from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.names_plans import names_plan_of
from tests.helpers.small_runs import SECRET

HOURS = 24


@functools.cache
def audited_plan(
    *, most_looks: int = 20, forget_after: int = 3, domain: tuple[str, ...] = (), hits: int = 0, counts: int = 0
) -> NamesPlan:
    """Epsilon 2 and delta 1e-4 over a day of hours; 20 looks of a user at most. hits: that a user may pay for. counts:
    so many counted pairs of a user count; 0 for no counts."""
    return names_plan_of(
        WindowSchedule.fixed(0, HOURS * 3600, 3600),
        most_looks=most_looks,
        forget_after=forget_after,
        domain=domain,
        epsilon=2.0,
        delta=1e-4,
        order=8.0,
        hits=hits,
        counts_for=counts and 5,
        counts_per_user=counts or 1,
    )


def mechanism_and_claim(plan: NamesPlan) -> tuple[NamesMechanism, NamesClaim]:
    return NamesMechanism.of_plan(plan), NamesClaim.of_plan(plan)


def with_prices(mechanism: NamesMechanism, **changes: tuple[int, ...]) -> NamesMechanism:
    """With other weights or prices of looks."""
    return dataclasses.replace(mechanism, looks_list=dataclasses.replace(mechanism.looks_list, **changes))


def run_settings(plan: NamesPlan) -> NamingSettings:
    return settings_of_plan(plan, stream="audit", run_id="run")


def law_of(mechanism: NamesMechanism) -> NoiseLaw:
    return NoiseLaw.whole(mechanism.shape, mechanism.scale)


def p_values_of(trials: Iterable[Trial], settings: NamingSettings) -> dict[str, float]:
    """Of all tests of these trials, with a fixed key."""
    found: dict[str, float] = {}
    for trial in trials:
        published = run_trial(trial, settings, SECRET)
        found |= dict(trial.p_values({with_user: each.levels for with_user, each in published.items()}))
    return found
