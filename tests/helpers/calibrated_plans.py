"""Plans of one schedule, calibrated in each mode; and plan files that somebody changed."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from dp_transforms.core.public_items import PublicItems
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.stored import fingerprint_of
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import plan_of_mode

START = 1_506_826_800  # 2017-10-01T03:00:00Z
HOURLY = WindowSchedule.fixed(START, START + 384 * 3600, 3600)


def calibrated_plan(**changes: Any) -> Plan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, mode hits, except for the changes."""
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, "mode": "hits", **changes}
    return plan_of_mode(**options)


@functools.cache
def contributions_plan(**changes: Any) -> Plan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, except for the changes. A small scale would hide rounding."""
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, **changes}
    return plan_of_mode("contributions", **options)


def short_contributions_plan(**changes: Any) -> Plan:
    """With few weights, so that many constructions are quick."""
    return contributions_plan(**{"most_contributions": 20, "usual_contributions": (1, 10), **changes})


LABELS = calibrated_plan()
COUNTS = calibrated_plan(mode="hits-with-counts")


KMS21 = calibrated_plan(mode="kms21")


PUBLIC = PublicItems.of_ids([f"item-{number}" for number in range(1000)])
OF_PUBLIC = calibrated_plan(public_items=PUBLIC)


def changed_plan(plan: Plan, changes: Mapping[str, Any]) -> str:
    """Changed on purpose: with the fingerprint of what the plan is now.

    changes: by the names of fields, those of a record in the plan as ``record.field``; None: without this field.
    """
    fields = json.loads(plan.to_json())
    del fields["fingerprint"]
    for place, value in changes.items():
        *records, name = place.split(".")
        inner = fields
        for record in records:
            inner = inner.setdefault(record, {})
        inner[name] = json.loads(json.dumps(value))
        if value is None:
            del inner[name]
    return json.dumps({**fields, "fingerprint": fingerprint_of(fields)})


def with_changes(plan: Plan, changes: Mapping[str, Any]) -> Plan:
    """The changed plan, read and checked."""
    return Plan.from_json(changed_plan(plan, changes))
