"""Plans for trials: a run of the real code with thresholds and windows of its own, which promises nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.plan.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialPlan(Plan):
    """Any records, unchecked together; and what else a `PlannedRun` has, so that it can stand for one.

    likely_noise, epsilon_after_hits: as in `Plan`, given instead of computed.
    """

    stream: str = "trial"
    run_id: str = "trial"
    part: str = ""
    fingerprint: str = ""
    likely_noise: int = 0
    epsilon_after_hits: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """No promise, no check."""

    @classmethod
    def of(cls, run: PlannedRun | TrialPlan, **changes: Any) -> TrialPlan:
        """The run with other numbers; noise, prices and limits are those of its plan."""
        plan = run.plan
        derived = (
            {"epsilon_after_hits": plan.epsilon_after_hits}
            if plan.contributions is None
            else {"likely_noise": plan.likely_noise}
        )
        fields = {field.name: getattr(plan, field.name) for field in dataclasses.fields(Plan)}
        names = {"stream": run.stream, "run_id": run.run_id, "fingerprint": plan.fingerprint}
        return cls(**{**fields, **names, **derived, **changes})

    @property
    def plan(self) -> Plan:
        """Itself, as a `PlannedRun` has one."""
        return self

    def of_key(self, key: str) -> TrialPlan:
        """As `PlannedRun.of_key`."""
        return dataclasses.replace(self, stream=key)

    def stream_keys(self, secret: bytes) -> StreamKeys:
        """As `PlannedRun.stream_keys`."""
        return PlannedRun.stream_keys(self, secret)  # type: ignore[arg-type]
