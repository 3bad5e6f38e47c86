"""A run of a plan: what workers get."""

from __future__ import annotations

import dataclasses
import secrets
import uuid

from dp_transforms.core.randomness import StreamKeys
from dp_transforms.plan.plan import Plan


def fresh_run_id() -> str:
    """A name that no run had before. Draw it when a pipeline is built: noise is a function of the key and this name,
    so two runs of one name over different data would show what differs."""
    return uuid.uuid4().hex


def fresh_nonce() -> str:
    """What tells a later part of a run from every other one: 128 random bits of the operating system, in hex. Draw it
    when the part begins, whatever the data: which parts have equal noise must not depend on these."""
    return secrets.token_hex(16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One stream of one run of a plan; contains no secret. part: as in `StreamKeys`."""

    plan: Plan
    stream: str
    run_id: str
    part: str = ""

    def __post_init__(self) -> None:
        if type(self.plan) is not Plan:  # one of a trial promises nothing, and was not checked
            raise ValueError(f"plan must be a Plan, got a {type(self.plan).__name__}. Use Plan.for_hits(...).")
        # What all windows share of accounting is computed here, once, and travels with the plan. Workers compute what
        # depends on how many pairs a round of looks draws for.
        _ = self.plan.fingerprint
        _ = self.plan.epsilon_after_hits if self.plan.contributions is None else self.plan.likely_noise

    def of_key(self, key: str) -> PlannedRun:
        """The same run for one key of many, which takes the place of the stream."""
        return dataclasses.replace(self, stream=key)

    def stream_keys(self, secret: bytes) -> StreamKeys:
        """All keyed functions of the run."""
        return StreamKeys(
            secret,
            run_id=self.run_id,
            plan_fingerprint=self.plan.fingerprint,
            stream=self.stream,
            threshold=self.plan.threshold,
            part=self.part,
        )
