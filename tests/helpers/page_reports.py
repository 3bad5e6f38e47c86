"""Small reports with a plan, of which pages are made, and others that `shh show` and pages are tested with."""

from __future__ import annotations

import dataclasses

from dp_transforms.core.window_report import ABOVE, BETWEEN, HeavyHitter, WindowReport
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportHeader
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.report_samples import HOUR, report

STORIES = {
    "first": {0: 300, 1: 500, 2: 200},
    "second": {1: 60, 2: 60, 3: 90},
    "third": {4: 40},
    "fourth": {2: 30, 4: 30},
}


def hourly_plan(windows: int = 12) -> Plan:
    return small_contributions_plan(windows, window_seconds=3600)


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


HOSTILE = "[red]x[/red] \x1b]0;owned\x07\x1b[31m\r\x9b2J\u202eevil\u2028\x00:smile:"
_LATE = report(5, HeavyHitter("android", ABOVE, None), spent=0.06)
LABELS = [
    report(0, HeavyHitter("iphone", ABOVE, None), HeavyHitter("the beatles", BETWEEN, 812), spent=0.01),
    _LATE._replace(window_end=_LATE.window_start + 36 * HOUR),
]
_PAID = dataclasses.replace(hourly_plan().paid_contributions, size_error=0.001)
NAMES_HEADER = header_of(dataclasses.replace(hourly_plan(), contributions=_PAID))
NAMES = [
    report(0, HeavyHitter("big", None, None, 3, 240), HeavyHitter("new", None, None, 1, 12), spent=2.0),
    report(1, HeavyHitter("big", None, None, 1, 0), HeavyHitter("old", None, None, 1, None), spent=2.0),
]
