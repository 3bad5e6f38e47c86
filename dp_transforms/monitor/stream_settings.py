"""The plain numbers that the workers of every mode need."""

from __future__ import annotations

import dataclasses

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.plan.window_schedule import WindowSchedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """One stream of one run. Names as in `ReleasePlan`; contains no secret.

    domain_size: number of items of a known domain; 0 for an open one.
    """

    stream: str
    run_id: str
    plan_fingerprint: str
    schedule: WindowSchedule
    threshold: int
    epsilon_total: float
    delta: float
    domain_size: int = 0

    def stream_keys(self, secret: bytes) -> StreamKeys:
        return StreamKeys(
            secret,
            run_id=self.run_id,
            plan_fingerprint=self.plan_fingerprint,
            stream=self.stream,
            threshold=self.threshold,
        )
