"""A ledger against a plain model of it: what each step answers, and what all of them together have charged."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from dp_transforms.runs.ledger import (
    BudgetExceededError,
    Caps,
    Ledger,
    LedgerBusyError,
    LedgerError,
    RunRefusedError,
    Verdict,
)
from dp_transforms.runs.ledger.records import Actor
from tests.helpers.ledger_runs import GONE, HERE, cost, living, part

REFUSED, BUSY, TOO_MUCH, DONE_QUIETLY = RunRefusedError, LedgerBusyError, BudgetExceededError, None
MOST_RUNS = 3
CAPS = Caps(0.5 * MOST_RUNS, "1e-8")
WINDOWS = st.integers(0, 4)
RUN_IDS = st.sampled_from("abcde")
STATES = st.sampled_from(["", "s1", "s2", "s3", "s4"])
INPUTS = st.sampled_from(["i", "i", "i", "j"])
KEYS = st.sampled_from(["k", "k", "k", "k", "l"])
WHO = st.sampled_from(["me", "other", "gone"])


def actors() -> dict[str, Actor]:
    """me and other live, gone does not."""
    return {"me": HERE, "other": living(), "gone": GONE}


@dataclasses.dataclass
class ModelPart:
    first: int
    end: int
    input: str
    before: str
    owner: str
    after: str = ""
    status: str = "waiting"  # begun, broken, done, dropped
    claim: int = 0


@dataclasses.dataclass
class ModelRun:
    key: str
    parts: list[ModelPart]
    ended: str = ""  # released, abandoned

    @property
    def drawn(self) -> list[ModelPart]:
        return [part for part in self.parts if part.status in ("begun", "broken", "done")]

    @property
    def waiting(self) -> list[ModelPart]:
        return [part for part in self.parts if part.status == "waiting"]


class Model:
    """The words of the issue, in lists and loops. Each method returns what the ledger should answer."""

    def __init__(self) -> None:
        self.runs: dict[str, ModelRun] = {}
        self.claims = 0

    @property
    def charged(self) -> int:
        return sum(run.ended != "released" for run in self.runs.values())

    def reserve(
        self, run_id: str, first: int, end: int, input: str, state: str, key: str, who: str, once: bool
    ) -> tuple[Any, ModelPart | None]:
        run = self.runs.get(run_id)
        if run is None:
            if first or state or first == end:
                return REFUSED, None
            if self.charged == MOST_RUNS:
                return TOO_MUCH, None
            run = self.runs[run_id] = ModelRun(key, [])
            return "new", self.add(run, ModelPart(first, end, input, state, who))
        if run.ended or run.key != key:
            return REFUSED, None
        if any(each.owner not in ("", who, "gone") for each in run.parts if each.status in ("waiting", "begun")):
            return BUSY, None
        last = max(run.drawn, key=lambda each: each.first, default=None)
        told = last is not None and last.status != "done" and bool(state) and last.first < first <= last.end
        if last and told and last.after != state:
            return REFUSED, None
        after = last.after if last else ""
        if first == end:
            if last is None or (last.end != end and not told) or (last.status != "done" and not told) or after != state:
                return REFUSED, None
            self.settle(last, told, first)
            return "done", last
        if last and not told and (last.first, last.end) == (first, end):
            if once or last.input != input:
                return REFUSED, None
            if last.status == "done":
                return "done", last
            return (REFUSED, None) if last.before != state else ("resumes", self.take(last, input, state, who))
        if last and ((first != last.end and not told) or (last.status != "done" and not told) or after != state):
            return REFUSED, None
        if last:
            self.settle(last, told, first)
        elif state or first:
            return REFUSED, None
        same = None
        for each in run.waiting:
            if (each.first, each.end) == (first, end):
                same = each
            else:
                each.status = "dropped"
        if same:
            return "resumes", self.take(same, input, state, who)
        return "continues", self.add(run, ModelPart(first, end, input, state, who))

    def settle(self, last: ModelPart, told: bool, end: int) -> None:
        if told:
            last.status, last.end = "done", end

    def add(self, run: ModelRun, new: ModelPart) -> ModelPart:
        run.parts.append(new)
        return self.take(new, new.input, new.before, new.owner)

    def take(self, each: ModelPart, input: str, state: str, who: str) -> ModelPart:
        self.claims += 1
        each.input, each.before, each.owner, each.claim = input, state, who, self.claims
        return each

    def claimed(self, run_id: str, each: ModelPart, claim: int) -> bool:
        return not self.runs[run_id].ended and each.status != "dropped" and each.claim == claim

    def start(self, run_id: str, each: ModelPart, claim: int, who: str) -> Any:
        if not self.claimed(run_id, each, claim) or each.status == "done":
            return REFUSED
        each.status, each.owner = "begun", who
        return DONE_QUIETLY

    def publishing(self, run_id: str, each: ModelPart, claim: int, state: str) -> Any:
        if not self.claimed(run_id, each, claim) or each.status != "begun":
            return REFUSED
        each.after = state
        return DONE_QUIETLY

    def finish(self, run_id: str, each: ModelPart, claim: int, state: str) -> Any:
        if not self.claimed(run_id, each, claim):
            return REFUSED
        if each.status == "done" and each.after == state:
            return DONE_QUIETLY
        if each.status != "begun":
            return REFUSED
        each.status, each.after = "done", state
        return DONE_QUIETLY

    def fail(self, run_id: str, each: ModelPart, claim: int) -> Any:
        if not self.claimed(run_id, each, claim):
            return REFUSED
        if each.status in ("waiting", "begun"):
            each.status, each.owner = ("broken" if each.status == "begun" else "waiting"), ""
        return DONE_QUIETLY

    def end(self, run_id: str, how: str) -> Any:
        run = self.runs.get(run_id)
        if run is None or run.ended not in ("", how):
            return REFUSED
        if how == "released" and run.drawn:
            return REFUSED
        run.ended = how
        return DONE_QUIETLY

    def operator_fails(self, run_id: str) -> Any:
        run = self.runs.get(run_id)
        if run is None:
            return REFUSED
        if not run.ended:
            for each in run.parts:
                if each.status in ("waiting", "begun"):
                    self.claims += 1
                    each.claim = self.claims
                    each.status, each.owner = ("broken" if each.status == "begun" else "waiting"), ""
        return DONE_QUIETLY


class LedgerMachine(RuleBasedStateMachine):
    """Every step is done by both, and answered by both alike."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shh-ledger-", dir=memory))
        self.ledgers = {name: Ledger.open(self.folder / "ledger.db", actor=actor) for name, actor in actors().items()}
        self.model = Model()
        self.verdicts: list[tuple[Verdict, ModelPart, int, str]] = []

    def teardown(self) -> None:
        findings = [finding for finding in self.ledgers["me"].doctor() if finding.is_fault]
        balances = self.ledgers["me"].balances()
        shutil.rmtree(self.folder)
        assert findings == []
        assert [balance.total.epsilon for balance in balances] == (
            [self.model.charged * cost().epsilon] if self.model.runs else []
        )

    def both(self, expected: Any, work: Any) -> Any:
        try:
            answer = work()
        except LedgerError as error:
            if type(error) is not expected:
                raise AssertionError(f"{error}, where the model says {expected}") from error
            return None
        assert expected is DONE_QUIETLY or isinstance(expected, str), f"{answer}, where the model says {expected}"
        return answer

    def reserve(
        self, run_id: str, first: int, end: int, input: str, state: str, key: str, who: str, once: bool = False
    ) -> None:
        expected, each = self.model.reserve(run_id, first, end, input, state, key, who, once)
        request = part(
            first,
            end,
            run_id=run_id,
            input_fingerprint=input,
            state_fingerprint=state,
            key_fingerprint=key,
            draws_once=once,
            cost=cost(0.5, 1e-10),
        )
        verdict = self.both(expected, lambda: self.ledgers[who].reserve(request, CAPS))
        if verdict is not None:
            assert verdict.kind == expected
            assert each is not None
            self.verdicts = [*self.verdicts[-9:], (verdict, each, each.claim, who)]

    @rule(run_id=RUN_IDS, first=WINDOWS, length=st.integers(0, 2), input=INPUTS, state=STATES, key=KEYS, who=WHO)
    def reserve_anything(
        self, run_id: str, first: int, length: int, input: str, state: str, key: str, who: str
    ) -> None:
        self.reserve(run_id, first, min(first + length, 6), input, state, key, who)

    @rule(run_id=RUN_IDS, ahead=st.integers(0, 2), input=INPUTS, who=WHO)
    def reserve_what_is_next(self, run_id: str, ahead: int, input: str, who: str) -> None:
        run = self.model.runs.get(run_id)
        last = max(run.drawn, key=lambda each: each.first, default=None) if run else None
        first, state = (last.end, last.after or "s1") if last else (0, "")
        self.reserve(run_id, first, min(first + ahead, 30), input, state, run.key if run else "k", who)

    @rule(run_id=RUN_IDS, input=INPUTS, who=WHO, once=st.booleans())
    def reserve_what_is_open(self, run_id: str, input: str, who: str, once: bool) -> None:
        run = self.model.runs.get(run_id)
        if run and run.parts:
            last = run.parts[-1]
            self.reserve(run_id, last.first, last.end, input, last.before, run.key, who, once)

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        if self.verdicts:
            verdict, each, claim, who = data.draw(st.sampled_from(self.verdicts))
            expected = self.model.start(verdict.run_id, each, claim, who)
            self.both(expected, lambda: self.ledgers[who].start(verdict))

    @rule(data=st.data(), state=STATES)
    def publishing(self, data: st.DataObject, state: str) -> None:
        if self.verdicts:
            verdict, each, claim, who = data.draw(st.sampled_from(self.verdicts))
            expected = self.model.publishing(verdict.run_id, each, claim, state)
            self.both(expected, lambda: self.ledgers[who].publishing(verdict, state))

    @rule(data=st.data(), state=STATES)
    def finish(self, data: st.DataObject, state: str) -> None:
        if self.verdicts:
            verdict, each, claim, who = data.draw(st.sampled_from(self.verdicts))
            expected = self.model.finish(verdict.run_id, each, claim, state)
            self.both(expected, lambda: self.ledgers[who].finish(verdict, state))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if self.verdicts:
            verdict, each, claim, who = data.draw(st.sampled_from(self.verdicts))
            expected = self.model.fail(verdict.run_id, each, claim)
            self.both(expected, lambda: self.ledgers[who].fail(verdict))

    @rule(run_id=RUN_IDS, how=st.sampled_from(["released", "abandoned", "failed"]))
    def operate(self, run_id: str, how: str) -> None:
        ledger = self.ledgers["me"]
        expected = self.model.operator_fails(run_id) if how == "failed" else self.model.end(run_id, how)
        work = {"released": ledger.release, "abandoned": ledger.abandon, "failed": ledger.fail_run}[how]
        self.both(expected, lambda: work(run_id))

    @invariant()
    def what_is_charged_is_what_the_model_charged_and_no_window_was_drawn_twice(self) -> None:
        runs = self.ledgers["me"].runs()
        charged = [run for run, _ in runs if run.status != "released"]
        assert len(charged) == self.model.charged <= MOST_RUNS
        assert {run.price.epsilon for run, _ in runs} <= {cost().epsilon}
        for _, parts in runs:
            drawn = [each.range for each in parts if each.has_started and each.status != "released"]
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(drawn))


def check_machine(machine: type[LedgerMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_ledger_answers_as_its_model_does() -> None:
    check_machine(LedgerMachine, 20, 40)


@pytest.mark.long
@pytest.mark.nightly
def test_a_ledger_answers_as_its_model_does_in_a_hundred_thousand_steps() -> None:
    check_machine(LedgerMachine, 3300, 50)  # about 32 steps each; in the others a rule found nothing to do
