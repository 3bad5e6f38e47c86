"""Small reports with a plan, of which pages are made."""

from __future__ import annotations

from dp_transforms.core.window_report import HeavyHitter, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from tests.helpers.looks_plans import small_looks_plan

HOUR = 3600
STORIES = {
    "first": {0: 300, 1: 500, 2: 200},
    "second": {1: 60, 2: 60, 3: 90},
    "third": {4: 40},
    "fourth": {2: 30, 4: 30},
}


def hourly_plan(windows: int = 12) -> Plan:
    return small_looks_plan(windows, window_seconds=HOUR)


def header_of(plan: Plan) -> ReportHeader:
    return ReportHeader.of_plan(plan, "run-1", "news")


def reports_of(plan: Plan, held: dict[str, dict[int, int]]) -> list[WindowReport]:
    """held: item -> window -> at least so many users."""
    by_window: dict[int, list[HeavyHitter]] = {}
    for item, sizes in held.items():
        for window, users in sizes.items():
            by_window.setdefault(window, []).append(HeavyHitter(item, None, None, max(1, users // 30), users))
    return [
        WindowReport(
            "news",
            plan.schedule.window_start_micros(window),
            plan.schedule.window_end_micros(window),
            entries,
            plan.epsilon,
            plan.delta,
            plan.epsilon,
        )
        for window, entries in sorted(by_window.items())
    ]
