"""Plan files that somebody changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.stored import fingerprint_of


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
