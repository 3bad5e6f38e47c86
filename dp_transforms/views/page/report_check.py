"""Whether a report and the plan in its header agree: for somebody who did not make them.

It finds a plan that was changed or exchanged, and results that such a run cannot publish. It cannot find a run that did
not follow its plan: for the code there is ``shh audit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dp_transforms.monitor.window_report import HeavyHitter, WindowReport
from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.reports import ReportHeader


class Finding(NamedTuple):
    """One point that was looked at: a sentence that holds if `holds`, and is contradicted else."""

    holds: bool
    sentence: str


def check_against_plan(
    header: ReportHeader, reports: Sequence[WindowReport], plan: ReleasePlan | None
) -> list[Finding]:
    """All findings; a plan that cannot be read is one, and nothing else can be looked at then."""
    readable = Finding(
        plan is not None, "The plan in the report can be read, and passes all checks of this version of shh."
    )
    if plan is None:
        return [readable]
    schedule = plan.schedule
    step, length = schedule.slide_seconds * 1_000_000, schedule.window_seconds * 1_000_000
    first, last = schedule.window_start_micros(0), schedule.window_start_micros(schedule.horizon - 1)
    on_schedule = all(
        first <= report.window_start <= last
        and (report.window_start - first) % step == 0
        and report.window_end - report.window_start == length
        for report in reports
    )
    keys = {(report.stream, report.window_start, report.window_end) for report in reports}
    return [
        readable,
        Finding(header.guarantee == plan.guarantee, "The guarantee that the report states is that of its plan."),
        Finding(
            all((report.epsilon_total, report.delta) == (plan.epsilon, plan.delta) for report in reports),
            "All windows state the epsilon and delta of the plan.",
        ),
        Finding(on_schedule, "All windows are windows of the plan."),
        Finding(
            len(keys) == len(reports) and all(report.stream == header.stream for report in reports),
            "No window is there twice, and all are of the stream that the report names.",
        ),
        Finding(
            all(_is_of_mode(entry, plan) for report in reports for entry in report.heavy_hitters),
            f"What is said of items is what mode {plan.release} publishes.",
        ),
    ]


def _is_of_mode(entry: HeavyHitter, plan: ReleasePlan) -> bool:
    if isinstance(plan, NamesPlan):
        return entry.level is not None and (entry.noisy_count is None or plan.counts_for > 0)
    if entry.level is not None:
        return False
    if plan.release == "labels":
        return entry.zone is not None
    return entry.zone is None and (entry.noisy_count is None) == (plan.release == "kms21")
