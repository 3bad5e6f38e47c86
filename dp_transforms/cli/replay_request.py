"""What a replay is asked for, and what it tells the operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dp_transforms.cli.state_options import StateOptions
from dp_transforms.logs import EventFields, LogChunk
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from dp_transforms.reports.report_table import ReportTable


@dataclasses.dataclass(frozen=True)
class ReplayRequest:
    """All that a replay needs.

    logs: as they were named. chunks: of them. hint: for the operator, why most rows may be unreadable (`hint_of_log`).
    shards: into how many parts users and items are cut; None for the number that suits this machine. Results do not
        depend on it.
    table: where the report goes instead of a file;
        `output` is then its name for people. workers: so many of a cluster read the log at once.
    allow_empty: whether there is a report if no event is inside the range. is_named: the operator chose the run id;
        else it was drawn. state: of the part that is taken; None for all of a run at once.
    """

    chunks: Sequence[LogChunk]
    fields: EventFields
    plan: Plan
    domain_file: str | None
    output: str
    dead_letter: str | None
    max_bad_fraction: float
    noise_key_file: str | None
    run_id: str
    stream: str
    hint: str | None = None
    shards: int | None = None
    table: ReportTable | None = None
    workers: int = 1
    allow_empty: bool = False
    logs: tuple[str, ...] = ()
    is_named: bool = False
    state: StateOptions | None = None

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, self.run_id, self.stream)


@dataclasses.dataclass(frozen=True)
class ReplaySummary:
    """For the operator alone. unpaid: pairs of users with more than a purse pays for. seconds: of the pipeline."""

    events: int
    outside_range: int
    outside_domain: int
    rejected: int
    unpaid: int
    seconds: float
