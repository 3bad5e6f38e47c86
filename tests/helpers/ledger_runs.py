"""Requests of a ledger, and a replay of one part with everything but the pipeline: ledger, state file, report."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import secrets
import sys
from collections.abc import Callable
from typing import Any

from dp_transforms.plan.lifetime_cost import LifetimeCost, delta_units, epsilon_units
from dp_transforms.runs.ledger import Caps, Ledger, PartRequest, VerdictKind
from dp_transforms.runs.ledger.records import Actor
from dp_transforms.stores.local_files import create_new, publish, sync_folder

PLAN, KEY = "a" * 64, "b" * 64
CAPS = Caps("4.0", "1e-8")
HORIZON = 30


def cost(epsilon: float = 0.5, delta: float = 1e-9) -> LifetimeCost:
    """Of a run of labels."""
    return LifetimeCost(epsilon_units("epsilon", epsilon), delta_units("delta", delta), "hits")


def names_cost(activity: float = 0.5) -> LifetimeCost:
    """Of a run of names with epsilon 2, whose plan was made from a histogram of the same users with this epsilon."""
    divergence, events = epsilon_units("divergence", 0.7), delta_units("events", 3e-10)
    units = epsilon_units("activity", activity) if activity else 0
    return LifetimeCost(2 * 10**15, 10**21, "looks", "16", divergence, events, distance=10**12, activity=units)


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


class Night:
    """One part of a replay in a folder, by the order of steps that a real one keeps. `run` may die anywhere."""

    STEPS = ("read", "create", "reserve", "intent", "start", "draw", "publish", "state", "finish")

    def __init__(self, folder: pathlib.Path, end: int, reached: Callable[[str], None] = lambda step: None) -> None:
        self.folder = folder
        self.end = end
        self.reached = reached

    def run(self) -> VerdictKind:
        state_file, report = self.folder / "state.json", self.folder / f"report-{self.end}.txt"
        self.reached("read")
        text = state_file.read_text() if state_file.exists() else ""
        self.reached("create")
        state = json.loads(text) if text else {"run_id": secrets.token_hex(16), "closed": 0, "intent": None}
        if not text:
            _replace(state_file, state)
        # The intent is no part of what the ledger compares: it changes while a part runs.
        fingerprint = _fingerprint(state) if state["closed"] else ""
        self.reached("reserve")
        ledger = Ledger.open(self.folder / "ledger.db")
        request = part(
            state["closed"],
            self.end,
            run_id=state["run_id"],
            state_fingerprint=fingerprint,
            input_fingerprint=f"input of {self.end}",
        )
        verdict = ledger.reserve(request, CAPS)
        if verdict.kind == VerdictKind.DONE:
            return verdict.kind
        self.reached("intent")
        _replace(state_file, {**state, "run_id": verdict.run_id, "intent": self.end})
        self.reached("start")
        ledger.start(verdict)
        self.reached("draw")
        answer = f"{verdict.run_id} {state['closed']} {self.end} {request.input_fingerprint}\n".encode()
        with open(self.folder / "draws.txt", "ab") as draws:
            draws.write(answer)
        draft = self.folder / "report.draft"
        draft.unlink(missing_ok=True)
        with create_new(draft) as file:
            file.write(answer)
            os.fsync(file.fileno())
        after = {"run_id": verdict.run_id, "closed": self.end, "intent": None}
        self.reached("publishing")
        ledger.publishing(verdict, _fingerprint(after))
        self.reached("publish")
        if not report.exists():
            publish(draft, report)
        assert report.read_bytes() == answer, "a second, different answer"
        self.reached("state")
        _replace(state_file, after)
        self.reached("finish")
        ledger.finish(verdict, _fingerprint(after))
        return verdict.kind


def dies(work: Callable[[], object]) -> int | None:
    """Runs it in a forked process. The signal that ended it; None if it came to its end."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            work()
            code = 0
        finally:
            sys.settrace(None)
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code <= 0, f"the process failed with {code}"
    return -code or None


def _fingerprint(state: dict[str, Any]) -> str:
    content = json.dumps({**state, "intent": None}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _replace(path: pathlib.Path, state: dict[str, Any]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(state))
    os.replace(draft, path)
    sync_folder(path)


HERE = Actor.here()
GONE = Actor("somebody", HERE.place, "4194303:1:another boot")


def of(ledger: Ledger, actor: Actor) -> Ledger:
    return Ledger(ledger._database, actor)


def done(ledger: Ledger, request: PartRequest, state: str = "") -> str:
    """Reserves, starts and finishes a part. Its run id."""
    verdict = ledger.reserve(request, CAPS)
    ledger.start(verdict)
    ledger.finish(verdict, state)
    return verdict.run_id


def spent(ledger: Ledger) -> int:
    return ledger.balances("news")[0].total.epsilon
