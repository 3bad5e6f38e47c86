"""The audit holds what workers get against the plan."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dp_transforms.audit.exact_looks import run_violations
from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.audited_names import audited_plan


def _violations(plan: Plan, **changes: Any) -> list[str]:
    run = PlannedRun(plan=plan, stream="audit", run_id="run")
    return list(run_violations(plan, TrialPlan.of(run, **changes) if changes else run))  # type: ignore[arg-type]


def test_a_trial_that_promises_nothing_is_not_a_plan_to_run() -> None:
    trial = TrialPlan.of(PlannedRun(plan=audited_plan(), stream="audit", run_id="run"), threshold=1)
    with pytest.raises(ValueError, match="plan must be a Plan, got a TrialPlan"):
        PlannedRun(plan=trial, stream="news", run_id="run")


def test_workers_get_the_plan() -> None:
    schedule = WindowSchedule.fixed(0, 200 * 60, 60)
    charged = Plan.calibrate(epsilon=1.0, delta=1e-6, schedule=schedule, mode="hits", hits_per_user=2)
    for plan in (audited_plan(), audited_plan(hits=2), audited_plan(counts=3), audited_plan(domain=("a",)), charged):
        assert _violations(plan) == []
    for plan in (audited_plan(), charged):
        assert "workers get another plan than the one that is audited" in _violations(plan, threshold=1)
    other = dataclasses.replace(charged, epsilon=2.0)
    run = PlannedRun(plan=other, stream="audit", run_id="run")
    assert list(run_violations(charged, run)) == ["workers get another plan than the one that is audited"]


@pytest.mark.parametrize(("further", "is_found"), [(1, False), (-1, True)])
def test_likely_noise_is_computed_again(further: int, is_found: bool) -> None:
    """By another law of the noise. A larger one is no lie: it says less."""
    plan = audited_plan()
    found = _violations(plan, likely_noise=plan.likely_noise + further)
    assert any("likely_noise" in each for each in found) == is_found
