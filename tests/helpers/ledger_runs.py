"""Requests of a ledger, and who asks."""

from __future__ import annotations

from typing import Any

from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.lifetime_cost import LifetimeCost, delta_units, epsilon_units
from dp_transforms.runs.records import Part, PartRequest, Run, Verdict

PLAN, KEY, NONCE = "a" * 64, "b" * 64, "c" * 32
CAPS = ("4.0", "1e-8")
HORIZON = 30


def cost(epsilon: float = 0.5, delta: float = 1e-9) -> LifetimeCost:
    """Of a run of labels."""
    return LifetimeCost(epsilon_units("epsilon", epsilon), delta_units("delta", delta))


def part(first: int = 0, end: int = 1, **changes: Any) -> PartRequest:
    """Windows first .. end - 1 of a run of labels in parts, of population news, except for the changes."""
    asked: dict[str, Any] = {
        "population": "news",
        "stream": "events",
        "plan_fingerprint": PLAN,
        "horizon": HORIZON,
        "range_start": "2026-01-01T00:00:00Z",
        "range_end": "2026-01-31T00:00:00Z",
        "key_fingerprint": KEY,
        "state_path": "/run.state",
        "first_window": first,
        "end_window": end,
        "input_fingerprint": "input 1",
        "nonce": NONCE,
        "cost": cost(),
        "draws_once": False,
    }
    asked |= changes
    price, draws_once = asked.pop("cost"), asked.pop("draws_once")
    amounts = {"plan_epsilon": price.epsilon, "plan_delta": price.delta}
    of_part = {name: asked.pop(name) for name in list(asked) if name in Part.__dataclass_fields__ and name != "run_id"}
    return PartRequest(Run(**asked, **amounts), Part(**of_part), price, draws_once)


def drawn(ledger: Ledger, verdict: Verdict, state: str) -> None:
    """The part is drawn and published."""
    ledger.start(verdict)
    ledger.publishing(verdict, state)
    ledger.finish(verdict, state)


def done(ledger: Ledger, request: PartRequest, state: str = "state") -> str:
    """Reserves, starts and finishes a part. Its run id."""
    verdict = ledger.reserve(request, CAPS)
    drawn(ledger, verdict, state)
    return verdict.run_id


def spent(ledger: Ledger) -> int:
    return ledger.balances("news")[0].total.epsilon
