"""Reports that pages are made of: small ones with a plan, and one of 10,000 windows."""

from __future__ import annotations

import itertools

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


def many_windows(windows: int = 10_000) -> tuple[Plan, list[WindowReport]]:
    """So many hours with some 22 items in each. They come and go and change their size as on a news portal."""
    held: dict[str, dict[int, int]] = {}
    size = itertools.cycle([7, 35, 64, 92, 120, 148, 120, 204, 261, 92, 35, 7, 64, 35, 7])
    stories = windows * 4 // 5
    for number in range(stories):
        begin = number * (windows - 60) // stories
        hours = [hour for hour in range(20 + number % 20) if hour not in (17, 29, 30)]
        held[f"story-{number * 7919 % 400_009:06d}"] = {begin + hour: next(size) for hour in hours}
    plan = hourly_plan(windows)
    return plan, reports_of(plan, held)
