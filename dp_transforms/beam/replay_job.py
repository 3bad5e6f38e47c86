"""What a job of a replay is made of. No engine is loaded: a replay on this machine is asked for in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dp_transforms.logs import EventFields, LogChunk
from dp_transforms.plan.plan import Plan

if TYPE_CHECKING:
    import apache_beam as beam


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayJob:
    """A log, and the files of its report. Fields: as in `ShiftingHeavyHitters` and `WriteReports`; output and
    dead_letter are paths or URLs."""

    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: Plan
    noise_key: beam.Secret | str | None
    run_id: str
    output: str
    stream: str = "events"
    public_items: str | None = None
    dead_letter: str | None = None
    allow_empty: bool = False
