"""What a ledger allows, refuses, charges and shows."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from decimal import Decimal
from typing import Any

import pytest

from dp_transforms.runs.ledger import Ledger, book
from dp_transforms.runs.ledger.book import Actor, Entry, is_gone
from dp_transforms.runs.records import (
    BudgetExceededError,
    Caps,
    LedgerBusyError,
    LedgerDamagedError,
    RunRefusedError,
    StateMark,
    Verdict,
    VerdictKind,
    amount,
)
from tests.helpers.ledger_runs import CAPS, GONE, HERE, PLAN, cost, done, living, of, part, spent

NEW, CONTINUES, RESUMES, DONE = VerdictKind
ELSEWHERE = Actor("somebody", "another machine/pid:[1]", "7:1:boot")


def told(ledger: Ledger, story: str, end: int = 1, *, actor: Actor = GONE) -> Verdict:
    """The first windows of the run "run" up to this one, by a process of this actor, and what it did: words of the
    methods, some with a state."""
    theirs = of(ledger, actor)
    verdict = theirs.reserve(part(0, end, run_id="run"), CAPS)
    for word in story.split():
        step, _, state = word.partition(":")
        if step in ("abandon", "release", "fail_run"):
            getattr(theirs, step)("run")
        elif step == "forget":
            theirs.fail(verdict, forget=True)
        else:
            getattr(theirs, step)(verdict, *([state] if step in ("publishing", "finish") else []))
    return verdict


# What a process of before did with windows 0 .. end - 1, what is asked then, and the answer: a kind, or words.
OTHER = {"input_fingerprint": "input 2"}
STORIES: list[tuple[str, int, dict[str, Any], VerdictKind | str]] = [
    ("", 1, {}, RESUMES),
    ("", 1, OTHER, RESUMES),  # it drew nothing
    ("", 1, {"end_window": 3}, CONTINUES),
    ("", 1, {"draws_once": True}, RESUMES),
    ("", 1, {"key_fingerprint": "d" * 64}, RESUMES),
    ("start", 1, {}, RESUMES),
    ("start", 1, OTHER, "drawn from another input"),
    ("start", 1, {"draws_once": True}, r"may have been drawn.*--resume-from"),
    ("start", 1, {"first_window": 1, "end_window": 2}, "begun and not finished"),
    ("start", 2, {"first_window": 1, "state_fingerprint": "s1"}, "is not the one that its part from window 0"),
    ("start fail", 1, {}, RESUMES),
    ("start fail", 1, OTHER, "drawn from another input"),
    ("start fail", 1, {"state_fingerprint": "s1"}, "is not the one at window 0"),
    ("start forget", 1, OTHER, CONTINUES),
    ("start forget", 1, {"key_fingerprint": "d" * 64}, CONTINUES),
    ("start publishing:s1", 1, {}, RESUMES),
    ("start publishing:s1 forget", 1, OTHER, "drawn from another input"),
    ("start publishing:s1 forget", 1, {"key_fingerprint": "d" * 64}, "another noise key"),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 3, "state_fingerprint": "s1"}, CONTINUES),
    ("start publishing:s1", 2, {"first_window": 1, "end_window": 3, "state_fingerprint": "s1"}, CONTINUES),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 2, "state_fingerprint": "s1"}, DONE),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 3, "state_fingerprint": "x"}, "is not the one that"),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 2, "state_fingerprint": "x"}, "is not the one that"),
    (
        "start publishing:s1",
        2,
        {"first_window": 3, "end_window": 4, "state_fingerprint": "s1"},
        "begun and not finished",
    ),
    ("start finish:s1", 1, {}, DONE),
    ("start finish:s1", 1, OTHER, "drawn from another input"),
    ("start finish:s1", 1, {"draws_once": True}, "may have been drawn"),
    ("start finish:s1", 1, {"plan_fingerprint": "c" * 64}, "used before with another plan"),
    ("start finish:s1", 1, {"key_fingerprint": "d" * 64}, "used before with another noise key"),
    ("start finish:s1", 1, {"stream": "other"}, "used before with the stream 'events'"),
    ("start finish:s1", 1, {"end_window": 2}, "windows up to 0"),
    ("start finish:s1", 1, {"first_window": 1, "end_window": 1, "state_fingerprint": "s1"}, DONE),
    ("start finish:s1", 1, {"first_window": 1, "end_window": 1, "state_fingerprint": "x"}, "older copy"),
    ("start finish:s1", 1, {"first_window": 1, "end_window": 6, "state_fingerprint": "s1", **OTHER}, CONTINUES),
    ("start finish:s1", 1, {"first_window": 1, "end_window": 6, "state_fingerprint": "x"}, "older copy"),
    ("start finish:s1", 1, {"first_window": 1, "end_window": 6}, "windows up to 0 .* were drawn before"),
    (
        "start finish:s1",
        1,
        {"first_window": 2, "end_window": 6, "state_fingerprint": "s1"},
        "is at window 2, and the ledger has it at window 1",
    ),
    ("start finish:s2", 2, {"first_window": 1, "end_window": 2, "state_fingerprint": "s1"}, "older copy"),
    ("start finish:s1", 2, {"first_window": 1, "end_window": 2, "state_fingerprint": "s1"}, r"older copy|drawn before"),
    ("abandon", 1, {}, "was abandoned"),
    ("release", 1, {}, "was released"),
    ("start fail_run", 1, {}, RESUMES),
]


@pytest.mark.parametrize(("story", "end", "changes", "answer"), STORIES)
def test_a_part_of_a_run_that_has_paid(
    ledger: Ledger, story: str, end: int, changes: dict[str, Any], answer: VerdictKind | str
) -> None:
    """It takes nothing more, whatever the answer is. Only what may run changes anything."""
    first = told(ledger, story, end)
    before, charged = ledger.journal(), spent(ledger)
    request = part(**{"first": 0, "end": end, "run_id": "run"} | changes)
    if isinstance(answer, VerdictKind):
        verdict = ledger.reserve(request)
        assert verdict.kind == answer
        assert "takes nothing more" in verdict.line or "nothing to do" in verdict.line
        assert verdict.was_publishing == (answer == RESUMES and "publishing" in story)
        if answer != DONE:
            ledger.start(verdict)
            with pytest.raises(RunRefusedError, match=r"taken over|released meanwhile|is finished"):
                of(ledger, GONE).start(first)
            drawn = [each for each in ledger.runs()[0][1] if each.may_be_published]
            assert all(before.end_window <= after.first_window for before, after in itertools.pairwise(drawn))
    else:
        with pytest.raises(RunRefusedError, match=answer):
            ledger.reserve(request)
        assert ledger.journal() == before
    assert spent(ledger) == charged


def test_parts_that_wait_give_way_to_what_is_asked_last(ledger: Ledger) -> None:
    """Of several that were reserved only the latest can be started, and what was drawn is finished first."""
    drawn = told(ledger, "start fail", 2)
    after = {"run_id": "run", "state_fingerprint": "s"}
    with pytest.raises(RunRefusedError, match="begun and not finished"):
        ledger.reserve(part(2, 3, run_id="run"))
    again = ledger.reserve(part(0, 2, run_id="run"))
    assert (again.kind, again.part) == (RESUMES, drawn.part)
    ledger.start(again)
    ledger.finish(again, "s")
    gone = of(ledger, GONE)
    waiting = [gone.reserve(part(2, end, **after)) for end in (3, 4, 5)]
    assert [verdict.kind for verdict in waiting] == [CONTINUES] * 3
    same = ledger.reserve(part(2, 5, **after, input_fingerprint="input 2"))
    assert (same.kind, same.part) == (RESUMES, waiting[-1].part)
    for verdict in waiting:
        with pytest.raises(RunRefusedError, match=r"released meanwhile|taken over"):
            gone.start(verdict)
    ledger.start(same)
    assert [str(each.status) for each in ledger.runs()[0][1]] == ["finished", "released", "released", "running"]


@pytest.mark.parametrize("actor", [living(), ELSEWHERE])
@pytest.mark.parametrize("story", ["", "start"])
def test_a_part_whose_process_may_live_is_not_taken_over(ledger: Ledger, actor: Actor, story: str) -> None:
    """A process elsewhere counts as alive until an operator says otherwise."""
    verdict = told(ledger, story, actor=actor)
    for request in (part(run_id="run"), part(0, 2, run_id="run")):
        with pytest.raises(LedgerBusyError, match=r"on .*shh ledger fail"):
            ledger.reserve(request)
    assert ledger.fail_run("run") == 1
    assert [ledger.journal()[-1][name] for name in ("action", "part", "note")] == ["fail", 0, "1 parts, by an operator"]
    resumed = ledger.reserve(part(run_id="run"))
    assert resumed.kind == RESUMES
    with pytest.raises(RunRefusedError, match="taken over"):
        of(ledger, actor).start(verdict)
    ledger.start(resumed)
    ledger.finish(resumed)
    assert spent(ledger) == cost().epsilon


@pytest.mark.parametrize(
    ("story", "step", "words"),
    [
        ("", "publishing:s", "is reserved, and cannot be published"),
        ("", "finish:s", "is reserved, and cannot be finished"),
        ("start finish:s1", "publishing:s", "is finished, and cannot be published"),
        ("start finish:s1", "finish:s2", "is finished, and cannot be finished"),
        ("start finish:s1", "start", "is finished. Reserve it again"),
        ("start fail", "finish:s", "is failed, and cannot be finished"),
        ("start", "release", "start record"),
        ("release", "abandon", "was released before, and cannot be abandoned"),
        ("abandon", "release", "was abandoned before, and cannot be released"),
        ("start abandon", "finish:s", "was abandoned meanwhile"),
        ("release", "start", "was released meanwhile"),
        ("start forget", "finish:s", "was released meanwhile"),
    ],
)
def test_steps_in_another_order_are_refused(ledger: Ledger, story: str, step: str, words: str) -> None:
    with pytest.raises(RunRefusedError, match=words):
        told(ledger, f"{story} {step}")
    assert spent(ledger) == (0 if "release" in story else cost().epsilon)


@pytest.mark.parametrize(
    "story", ["start finish:s finish:s", "start start", "start publishing:s publishing:t finish:t"]
)
def test_a_step_may_be_said_again(ledger: Ledger, story: str) -> None:
    """Also with another state: a stream that was resumed may end at another window."""
    told(ledger, story)
    assert [finding for finding in ledger.doctor() if finding.is_fault] == []


def test_a_run_takes_its_epsilon_and_says_so(ledger: Ledger) -> None:
    verdict = ledger.reserve(part(), CAPS)
    assert verdict.line == "this run takes 0.5 of the 4 that users of *news* may ever lose; 3.5 is left."
    assert (str(verdict.balance.spent_epsilon), str(verdict.balance.left_delta)) == (
        "0.500000000000000",
        "9.000000000000000000000E-9",
    )


@pytest.mark.parametrize(
    ("caps", "epsilon", "runs", "words"),
    [
        (CAPS, 0.5, 8, r"takes 0\.5 and delta 1e-09.*0 of 4 and delta 2e-09 of 1e-08"),
        (CAPS, 0.1, 10, "delta 0 of 1e-08 is left"),
        (Caps(1.0, 1e-8), 0.1, 10, "0 of 1 and delta 0"),
    ],
)
def test_a_run_that_would_exceed_a_cap_is_refused_and_changes_nothing(
    ledger: Ledger, caps: Caps, epsilon: float, runs: int, words: str
) -> None:
    for number in range(runs):
        ledger.reserve(part(run_id=f"run {number}", cost=cost(epsilon)), caps)
    before = ledger.journal()
    for asked in (ledger.reserve, ledger.reserve_run, ledger.check_fits):
        with pytest.raises(BudgetExceededError, match=words):
            asked(part(run_id="one more", cost=cost(epsilon)))
    assert ledger.journal() == before


def test_a_new_run_over_the_same_input_pays_in_full_and_names_the_first_one(ledger: Ledger) -> None:
    done(ledger, part(run_id="a", stream="other"))
    done(ledger, part(run_id="b", population="other"))
    done(ledger, part(run_id="c", input_fingerprint="input 2"))
    ledger.reserve(part(run_id="d"))  # has drawn nothing
    assert ledger.reserve(part(run_id="e")).same_input == ""
    for run_id in ("g", "f"):
        done(ledger, part(run_id=run_id))
    again = ledger.reserve(part())
    assert (again.kind, again.same_input) == (NEW, "f")
    assert again.line.endswith("Run f drew from the same input before, and was paid for too.")
    assert spent(ledger) == 7 * cost().epsilon


def test_what_no_run_begins_with(ledger: Ledger) -> None:
    done(ledger, part())
    following = part(3, 4, run_id="old", state_fingerprint="state 3")
    with pytest.raises(RunRefusedError, match="has it at window 0: parts ran without it"):
        ledger.reserve(following)
    assert ledger.reserve_run(part(run_id="old")).kind == NEW
    with pytest.raises(RunRefusedError, match="has it at window 0: parts ran without it"):
        ledger.reserve(following)
    with pytest.raises(RunRefusedError, match="no windows"):
        ledger.reserve(part(0, 0, population="films"), CAPS)
    assert len(ledger.balances()) == 1


def test_a_run_that_was_set_aside_is_used_for_nothing_more(ledger: Ledger) -> None:
    verdict = ledger.reserve_run(part(run_id="run"), CAPS)
    assert ledger.reserve_run(part(run_id="run")).kind == CONTINUES
    assert ledger.reserve(part(run_id="run")).kind == CONTINUES
    assert (verdict.kind, spent(ledger)) == (NEW, cost().epsilon)
    assert ledger.reserve_run(part(run_id="run", key_fingerprint="")).kind == CONTINUES


def test_a_part_that_is_forgotten_does_not_free_the_key_with_which_another_one_drew(ledger: Ledger) -> None:
    told(ledger, "start finish:s1")
    following = part(1, 2, run_id="run", state_fingerprint="s1")
    verdict = ledger.reserve(following)
    ledger.start(verdict)
    ledger.fail(verdict, forget=True)
    with pytest.raises(RunRefusedError, match="another noise key"):
        ledger.reserve(dataclasses.replace(following, key_fingerprint="d" * 64))
    assert ledger.reserve(dataclasses.replace(following, input_fingerprint="input 2")).kind == CONTINUES


def test_a_later_part_that_may_have_drawn_is_begun_by_no_other_state(ledger: Ledger) -> None:
    """A copy of before it was begun has another nonce, or none: it would draw other noise."""
    told(ledger, "start finish:s1")
    following = part(1, 2, run_id="run", state_fingerprint="s1", input_fingerprint="input 2 nonce 1")
    for step in ("nothing", "start", "fail", "publishing"):
        verdict = ledger.reserve(following)
        if step != "nothing":
            ledger.start(verdict)
            for nonce in ("", " nonce 2"):
                with pytest.raises(RunRefusedError, match=r"that began its part from window 1 on.*is an older copy"):
                    ledger.reserve(dataclasses.replace(following, input_fingerprint=f"input 2{nonce}"))
        if step == "fail":
            ledger.fail(verdict)
        if step == "publishing":
            ledger.publishing(verdict, "s2")


def test_a_part_may_end_before_what_was_reserved_and_the_next_one_begins_there(ledger: Ledger) -> None:
    """A stream that was stopped. It is charged no less."""
    verdict = ledger.reserve(part(0, 20, run_id="run"), CAPS)
    ledger.start(verdict)
    for end in (0, 21):
        with pytest.raises(ValueError, match="end_window must be"):
            ledger.finish(verdict, "state 7", end)
    ledger.finish(verdict, "state 7", 7)
    ledger.finish(verdict, "state 7", 7)
    for first in (0, 6):
        with pytest.raises(RunRefusedError):
            ledger.reserve(part(first, 20, run_id="run", state_fingerprint="state 7" if first else ""))
    assert ledger.reserve(part(7, 20, run_id="run", state_fingerprint="state 7")).kind == CONTINUES
    assert spent(ledger) == cost().epsilon
    assert [stored.range for _, parts in ledger.runs() for stored in parts] == [(0, 7), (7, 20)]


def test_a_state_says_where_a_stream_has_ended_that_could_not_tell_the_ledger(ledger: Ledger) -> None:
    told(ledger, "start publishing:s7", 20)
    (note,) = ledger.doctor([StateMark("run", PLAN, 7, "s7")])[-1:]
    assert (note.is_fault, "not recorded as finished" in note.text) == (False, True)
    ledger.reserve(part(7, 20, run_id="run", state_fingerprint="s7"))
    ((_, parts),) = ledger.runs()
    assert [(str(stored.status), stored.range, stored.state_after) for stored in parts] == [
        ("finished", (0, 7), "s7"),
        ("reserved", (7, 20), ""),
    ]


def test_caps_are_set_once_and_are_those_of_one_population(ledger: Ledger) -> None:
    for caps in (Caps("nan", 1e-8), Caps(-1, 1e-8), Caps(4, 0), Caps(4, 1e-310), Caps(4, 0.5)):
        with pytest.raises(RunRefusedError, match="max_"):
            ledger.reserve(part(), caps)
    with pytest.raises(RunRefusedError, match="--max-epsilon"):
        ledger.reserve(part())
    assert ledger.balances() == []
    ledger.reserve(part(run_id="run"), CAPS)
    ledger.reserve(part(run_id="run 2"), Caps(4, "0.00000001"))
    for caps in (Caps(5, "1e-8"), Caps(4, "1e-7"), Caps(4, "1e-8", "renyi")):
        with pytest.raises(RunRefusedError, match="set once"):
            ledger.reserve(part(run_id="run 3"), caps)
    ledger.reserve(part(population="films"), Caps(1, 1e-9))
    assert [balance.total.epsilon for balance in ledger.balances()] == [cost().epsilon, 2 * cost().epsilon]
    with pytest.raises(RunRefusedError, match="no population shows"):
        ledger.balances("shows")


# ---------------------------------------------------------------------------------------------------------------------
# What is told, and what is stored
# ---------------------------------------------------------------------------------------------------------------------


def test_the_journal_says_who_did_what_in_order(ledger: Ledger) -> None:
    done(ledger, part(run_id="run"))
    entries = ledger.journal()
    assert [(entry["counter"], entry["action"], entry["run_id"]) for entry in entries] == [
        *((1, "reserve", "run"), (2, "start", "run"), (3, "finish", "run"))
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
        "it was restored from a backup": StateMark(run_id, PLAN, 3, "state 3"),
        "not in the ledger": StateMark("other", PLAN, 3, "state 3"),
        "another plan": StateMark(run_id, "c" * 64, 2, "state 2"),
    }
    for what, mark in marks.items():
        findings = ledger.doctor([mark])
        assert [finding.is_fault for finding in findings] == ([] if what == "is sound" else [True])
        assert all(what in finding.text for finding in findings)


def test_a_process_is_gone_only_if_that_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_gone(GONE.place, GONE.process)
    assert not is_gone(HERE.place, HERE.process)
    assert not is_gone(ELSEWHERE.place, ELSEWHERE.process)
    number, start, boot = HERE.process.split(":")
    assert is_gone(HERE.place, f"{number}:{int(start) + 1}:{boot}"), "another process has its number now"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_gone(HERE.place, f"{child}:1:{boot}"), "a zombie has ended"
    os.waitpid(child, 0)
    monkeypatch.setattr(book, "_PROC", pathlib.Path("/nowhere"))
    assert not is_gone(HERE.place, number), "without /proc it is gone only if its number is free"
    assert not is_gone(HERE.place, "1"), "it may not be asked, and is there"
    assert is_gone(HERE.place, str(child))


@pytest.mark.parametrize("changes", [{"population": ""}, {"stream": "a\n"}, {"run_id": "x" * 501}, {"end_window": 31}])
def test_a_request_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        part(**changes)


def test_what_is_spent_is_shown_rounded_up_and_what_is_left_rounded_down() -> None:
    assert [amount(Decimal(text)) for text in ("0", "0.5", "0.1234561", "1.0000001e-9")] == [
        *("0", "0.5", "0.123457", "1.00001e-09")
    ]
    assert [amount(Decimal(text), down=True) for text in ("0.1234569", "3.9999999")] == ["0.123456", "3.99999"]


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1", -1, None, 10**60])
@pytest.mark.parametrize("name", ["counter", "part", "spent_epsilon"])
def test_only_whole_numbers_are_amounts_of_an_entry(name: str, value: Any) -> None:
    first = Entry.first(HERE)
    assert Entry.parsed(first.text) == first
    with pytest.raises(LedgerDamagedError, match="cannot be read"):
        Entry.of({**first.fields, name: value}, [])
