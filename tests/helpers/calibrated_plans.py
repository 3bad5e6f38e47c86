"""Plans of one schedule, calibrated in each mode."""

from __future__ import annotations

import functools
from typing import Any

from dp_transforms.core.public_items import PublicItems
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import plan_of_mode

START = 1_506_826_800  # 2017-10-01T03:00:00Z
HOURLY = WindowSchedule.fixed(START, START + 384 * 3600, 3600)


def calibrated_plan(**changes: Any) -> Plan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, mode hits, except for the changes."""
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, "mode": "hits", **changes}
    return plan_of_mode(**options)


@functools.cache
def looks_plan(**changes: Any) -> Plan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, except for the changes. A small scale would hide rounding."""
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, **changes}
    return plan_of_mode("looks", **options)


def short_looks_plan(**changes: Any) -> Plan:
    """With few weights, so that many constructions are quick."""
    return looks_plan(**{"most_contributions": 20, "usual_contributions": (1, 10), **changes})


LABELS = calibrated_plan()
COUNTS = calibrated_plan(mode="hits-with-counts")


KMS21 = calibrated_plan(mode="kms21")


DOMAIN = PublicItems.of_ids([f"item-{number}" for number in range(1000)])
IN_DOMAIN = calibrated_plan(public_items=DOMAIN)
