"""The audit holds what workers get against the plan: each field, in each mode."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dp_transforms.audit.mechanism import settings_violations
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.run_settings import settings_of_plan
from dp_transforms.plan.hits_plan import HitsPlan
from dp_transforms.plan.looks_plan import LooksPlan
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.audited_names import audited_plan


def _hits_plan(mode: str) -> ReleasePlan:
    schedule = WindowSchedule.fixed(0, 200 * 60, 60)
    return ReleasePlan.calibrate(epsilon=1.0, delta=1e-6, schedule=schedule, mode=mode, hits_per_user=2)


PLANS = [
    audited_plan(),
    audited_plan(hits=2),
    audited_plan(counts=3),
    audited_plan(domain=("a", "b")),
    *map(_hits_plan, ("hits", "hits-with-counts", "kms21")),
]


def _violations(plan: LooksPlan | HitsPlan, **changes: Any) -> list[str]:
    settings = settings_of_plan(plan, stream="audit", run_id="run")
    for name, value in changes.items():
        object.__setattr__(settings, name, value)  # whatever the settings themselves would refuse
    return list(settings_violations(plan, settings))


@pytest.mark.parametrize("plan", PLANS)
def test_each_field_is_that_of_the_plan(plan: LooksPlan | HitsPlan) -> None:
    assert _violations(plan) == []
    fields = {field.name for field in dataclasses.fields(settings_of_plan(plan, stream="s", run_id="r"))}
    for name in fields - {"stream", "run_id", "likely_noise"}:
        assert _violations(plan, **{name: object()}) == [f"workers get another {name} than the plan says"]


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": lambda threshold: threshold * 9 // 10},
        {"known_threshold": lambda threshold: 1},
        {"spacing": lambda spacing: spacing // 10},
        {"noise": lambda noise: ExponentialPower(noise.shape, noise.scale - 1)},
        {"units": lambda units: (units[0] - 1, *units[1:])},
        {"purse": lambda purse: purse + 1},
        {"forget_after": lambda windows: windows + 1},
    ],
)
def test_another_number_is_found(changes: dict[str, Any]) -> None:
    plan = audited_plan()
    ((name, change),) = changes.items()
    now = getattr(settings_of_plan(plan, stream="audit", run_id="run"), name)
    assert _violations(plan, **{name: change(now)}) == [f"workers get another {name} than the plan says"]


def test_likely_noise_is_computed_again() -> None:
    """By another law of the noise. A larger one is no lie: it says less."""
    plan = audited_plan()
    assert _violations(plan, likely_noise=plan.likely_noise + 1) == []
    (violation,) = _violations(plan, likely_noise=plan.likely_noise - 1)
    assert "likely_noise" in violation


def test_a_field_of_which_the_audit_knows_nothing_is_a_violation() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class More(NamingSettings):
        more: int = 0

    plan = audited_plan()
    settings = settings_of_plan(plan, stream="audit", run_id="run")
    wider = More(**{field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)})
    assert list(settings_violations(plan, wider)) == ["workers get more, and the audit does not know what it must be"]
