"""Requests of a ledger, and who asks."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.ledger.book import Actor
from dp_transforms.runs.lifetime_cost import LifetimeCost, delta_units, epsilon_units
from dp_transforms.runs.records import Caps, PartRequest

PLAN, KEY = "a" * 64, "b" * 64
CAPS = Caps("4.0", "1e-8")
HORIZON = 30


def cost(epsilon: float = 0.5, delta: float = 1e-9) -> LifetimeCost:
    """Of a run of labels."""
    return LifetimeCost(epsilon_units("epsilon", epsilon), delta_units("delta", delta), "hits")


def names_cost() -> LifetimeCost:
    """Of a run of names with epsilon 2."""
    divergence, events = epsilon_units("divergence", 0.7), delta_units("events", 3e-10)
    return LifetimeCost(2 * 10**15, 10**21, "looks", "16", divergence, events, distance=10**12)


def part(first: int = 0, end: int = 1, **changes: Any) -> PartRequest:
    """Windows first .. end - 1 of a run of labels, of population news, except for the changes."""
    fields = {
        "population": "news",
        "stream": "events",
        "plan_fingerprint": PLAN,
        "cost": cost(),
        "horizon": HORIZON,
        "first_window": first,
        "end_window": end,
        "range_start": "2026-01-01T00:00:00Z",
        "range_end": "2026-01-31T00:00:00Z",
        "input_fingerprint": "input 1",
        "key_fingerprint": KEY,
    }
    return PartRequest(**{**fields, **changes})


HERE = Actor.here()
GONE = Actor("somebody", HERE.place, "4194303:1:another boot")


def living() -> Actor:
    """Another process that certainly lives: the one that started this one."""
    number = os.getppid()
    stat = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return Actor("somebody", HERE.place, ":".join((str(number), stat[19], HERE.process.split(":")[2])))


def of(ledger: Ledger, actor: Actor) -> Ledger:
    return Ledger.open(ledger.name, actor=actor)


def done(ledger: Ledger, request: PartRequest, state: str = "") -> str:
    """Reserves, starts and finishes a part. Its run id."""
    verdict = ledger.reserve(request, CAPS)
    ledger.start(verdict)
    ledger.finish(verdict, state)
    return verdict.run_id


def spent(ledger: Ledger) -> int:
    return ledger.balances("news")[0].total.epsilon
