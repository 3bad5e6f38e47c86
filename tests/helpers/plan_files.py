"""Plan files that somebody changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

from dp_transforms.plan.release_plan import ReleasePlan


def changed_plan(plan: ReleasePlan, **changes: Any) -> str:
    """Changed on purpose: with the fingerprint of what the plan is now."""
    fields = {**json.loads(plan.to_json()), **changes}
    del fields["fingerprint"]
    for name in plan.FLOATS:
        if type(fields[name]) is int:
            with contextlib.suppress(OverflowError):
                fields[name] = float(fields[name])
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return json.dumps({**fields, "fingerprint": hashlib.sha256(text.encode()).hexdigest()})
