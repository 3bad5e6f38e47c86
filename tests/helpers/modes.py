"""Plans by the mode that they are stored with: one word for what users pay for, for counts and for the noise."""

from __future__ import annotations

from typing import Any

from dp_transforms.plan.charges import plan_for
from dp_transforms.plan.plan import Plan

_CHOICES: dict[str, dict[str, Any]] = {
    "looks": {"charge": "contributions"},
    "hits": {"charge": "hits"},
    "hits-with-counts": {"charge": "hits", "counts": True},
    "kms21": {"charge": "hits", "noise": "printed"},
}


def plan_of_mode(mode: str, **choices: Any) -> Plan:
    """choices: of `Plan.for_contributions` or `Plan.for_hits`."""
    return plan_for(**_CHOICES[mode], **choices)


def stored_mode_of(plan: Plan) -> str:
    return "looks" if plan.hits is None else plan.hits.mode


def words_of_mode(mode: str) -> list[str]:
    """Of the command line."""
    return ["--charge", _CHOICES[mode]["charge"], *(["--counts"] if _CHOICES[mode].get("counts") else [])]
