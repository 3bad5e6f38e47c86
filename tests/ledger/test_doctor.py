"""What a ledger tells an operator: its journal, and what needs a hand."""

from __future__ import annotations

from dp_transforms.runs.ledger import Ledger, StateMark
from tests.helpers.ledger_runs import CAPS, GONE, HERE, PLAN, done, of, part


def test_the_journal_says_who_did_what_in_order(ledger: Ledger) -> None:
    done(ledger, part(run_id="run"))
    entries = ledger.journal()
    assert [(entry["counter"], entry["action"], entry["run_id"]) for entry in entries] == [
        (1, "reserve", "run"),
        (2, "start", "run"),
        (3, "finish", "run"),
    ]
    assert {entry["who"] for entry in entries} == {HERE.who}


def test_the_doctor_shows_what_needs_a_hand(ledger: Ledger) -> None:
    gone = of(ledger, GONE)
    gone.reserve(part(run_id="waiting"), CAPS)
    gone.start(gone.reserve(part(run_id="begun")))
    ledger.reserve_run(part(run_id="set aside"))
    texts = [finding.text for finding in ledger.doctor() if not finding.is_fault]
    assert len(texts) == 3
    assert any("shh ledger release waiting" in text for text in texts)
    assert any("begun" in text and "same command and input" in text for text in texts)
    assert any("set aside" in text and "no part yet" in text for text in texts)


def test_the_doctor_compares_states_with_the_ledger(ledger: Ledger) -> None:
    run_id = done(ledger, part(0, 2), "state 2")
    marks = {
        "is sound": StateMark(run_id, PLAN, 2, "state 2"),
        "older copy": StateMark(run_id, PLAN, 1, "state 1"),
        "ahead of the ledger": StateMark(run_id, PLAN, 3, "state 3"),
        "not in the ledger": StateMark("other", PLAN, 3, "state 3"),
        "another plan": StateMark(run_id, "c" * 64, 2, "state 2"),
    }
    for what, mark in marks.items():
        findings = ledger.doctor([mark])
        assert [finding.is_fault for finding in findings] == ([] if what == "is sound" else [True])
        assert all(what in finding.text for finding in findings)
