"""What a ledger allows, refuses, charges and shows."""

from __future__ import annotations

import dataclasses
import itertools
import re
from decimal import Decimal
from typing import Any

import pytest

from dp_transforms.runs.ledger import Caps, Ledger, Shown
from dp_transforms.runs.records import RunRefusedError, Status, Verdict, VerdictKind, amount
from tests.helpers.ledger_runs import CAPS, cost, done, drawn, part, spent

NEW, CONTINUES, RESUMES, DONE = VerdictKind


def told(ledger: Ledger, story: str, end: int = 1) -> Verdict:
    """The first windows of the run "run" up to this one, and what was done: words of the methods, some with a state."""
    verdict = ledger.reserve(part(0, end, run_id="run"), CAPS)
    for word in story.split():
        step, _, state = word.partition(":")
        if step == "end":
            ledger.end("run")
        elif step == "forget":
            ledger.fail(verdict, forget=True)
        else:
            getattr(ledger, step)(verdict, *([state] if step in ("publishing", "finish") else []))
    return verdict


# What was done with windows 0 .. end - 1, what is asked then, and the answer: a kind, or words. The process that did it
# has ended: of one that lives, test_crowds.
OTHER = {"input_fingerprint": "input 2"}
PUBLISHED = "start publishing:s1 finish:s1"
STORIES: list[tuple[str, int, dict[str, Any], VerdictKind | str]] = [
    ("", 1, {}, RESUMES),
    ("", 1, OTHER, RESUMES),  # it drew nothing
    ("", 1, {"end_window": 3}, CONTINUES),
    ("", 1, {"draws_once": True}, RESUMES),
    ("", 1, {"key_fingerprint": "d" * 64, "user_field": "id"}, RESUMES),
    ("fail", 1, OTHER, CONTINUES),
    ("start", 1, {}, RESUMES),
    ("start", 1, OTHER, "has another input"),
    ("start", 1, {"end_window": 2}, "has another input, end or output"),
    ("start", 1, {"output": "2.avro"}, "has another input, end or output"),
    ("start", 1, {"draws_once": True}, "was used before, and may have been drawn"),
    ("start", 1, {"key_fingerprint": "d" * 64}, "another noise key"),
    ("start", 1, {"first_window": 1, "end_window": 2}, "at window 0, and the state at window 1 .* older copy"),
    ("start", 2, {"first_window": 1, "state_before": "s1"}, "at window 0, and the state at window 1 .* older copy"),
    ("start fail", 1, {}, RESUMES),
    ("start fail", 1, OTHER, "has another input"),
    ("start fail", 1, {"state_before": "s1"}, "at window 0 is not the one"),
    ("start forget", 1, OTHER, CONTINUES),
    ("start forget", 1, {"key_fingerprint": "d" * 64}, CONTINUES),
    ("start publishing:s1", 1, {}, RESUMES),
    ("start publishing:s1 forget", 1, OTHER, "has another input"),
    ("start publishing:s1 forget", 1, {"key_fingerprint": "d" * 64}, "another noise key"),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 3, "state_before": "s1"}, CONTINUES),
    ("start publishing:s1", 2, {"first_window": 2, "state_before": "s1"}, DONE),
    ("start publishing:s1", 2, {"first_window": 2, "state_before": "s1", **OTHER}, "published already"),
    ("start publishing:s1", 2, {"first_window": 2, "end_window": 3, "state_before": "x"}, "the state at window 2"),
    ("start publishing:s1", 2, {"first_window": 1, "end_window": 3, "state_before": "s1"}, "the state at window 1"),
    (PUBLISHED, 1, {"first_window": 1, "state_before": "s1"}, DONE),
    (PUBLISHED, 1, {"first_window": 1, "state_before": "s1", **OTHER}, "published already, from another log"),
    (PUBLISHED, 2, {"first_window": 2, "state_before": "s1", "end_window": 1}, "begins there: give a later --until"),
    (PUBLISHED, 1, {"first_window": 1, "end_window": 6, "state_before": "s1", **OTHER}, CONTINUES),
    (PUBLISHED, 1, {"plan_fingerprint": "c" * 64}, "used before with another plan"),
    (PUBLISHED, 1, {"key_fingerprint": "d" * 64}, "used before with another noise key"),
    (PUBLISHED, 1, {"stream": "other"}, "used before with another stream"),
    (PUBLISHED, 1, {"user_field": "id"}, "used before with another user field"),
    (PUBLISHED, 1, {}, "at window 1, and the state at window 0 is not the one"),
    (PUBLISHED, 1, {"state_path": ""}, "was used before"),
    (PUBLISHED, 1, {"first_window": 1, "end_window": 6, "state_before": "x"}, "older copy"),
    (PUBLISHED, 1, {"first_window": 2, "end_window": 6, "state_before": "s1"}, "has run run at window 1, and the"),
    (PUBLISHED, 2, {"first_window": 1, "end_window": 2, "state_before": "s1"}, "older copy"),
    ("start end", 1, {}, "was abandoned"),
    ("end", 1, {}, "was released"),
]


@pytest.mark.parametrize(("story", "end", "changes", "answer"), STORIES)
def test_a_part_of_a_run_that_has_paid(
    ledger: Ledger, story: str, end: int, changes: dict[str, Any], answer: VerdictKind | str
) -> None:
    """It takes nothing more, whatever the answer is. Only what may run changes anything, and a trial nothing."""
    first = told(ledger, story, end)
    before, charged = ledger.runs(), spent(ledger)
    asked = {"first_window": 0, "end_window": end, "run_id": "run"} | changes
    request = part(**asked)
    for is_trial in (True, False):
        if not isinstance(answer, VerdictKind):
            with pytest.raises(RunRefusedError, match=answer) as error:
                ledger.reserve(request, is_trial=is_trial)
            assert not re.search(r"\w\. [a-z]", str(error.value)), "a sentence begins with a capital letter"
            assert (error.value.exit_code == 3) == ("published already" in answer or "begins there" in answer)
        elif is_trial:
            assert ledger.reserve(request, is_trial=True).kind == answer
        if is_trial or not isinstance(answer, VerdictKind):
            assert ledger.runs() == before
    assert spent(ledger) == charged
    if isinstance(answer, VerdictKind):
        verdict = ledger.reserve(request)
        assert verdict.kind == answer
        assert verdict.part is not None
        assert "takes nothing more" in verdict.line
        assert bool(verdict.part.state_after) == ("publishing" in story and answer in (RESUMES, DONE))
        if answer != DONE:
            ledger.start(verdict)
            with pytest.raises(RunRefusedError, match="ended meanwhile, another process has taken them"):
                ledger.start(first)
            parts = [each for each in ledger.runs()[0][1] if each.may_be_published]
            assert all(before.end_window <= after.first_window for before, after in itertools.pairwise(parts))
        assert spent(ledger) == charged


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"first_window": -1}, "first_window must be a whole number >= 0, got -1"),
        ({"end_window": 0}, "end_window must be a whole number >= 1, got 0"),
        ({"horizon": 0}, "horizon must be a whole number >= 1, got 0"),
        ({"nonce": "c" * 31}, "nonce must be 32 hex digits"),
        ({"nonce": "g" * 32}, "nonce must be 32 hex digits"),
        *(({name: "x" * 501}, f"{name} must have at most 500") for name in ("population", "stream", "run_id")),
    ],
)
def test_what_cannot_be_a_part_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        part(**changes)


def test_one_part_of_a_run_is_open_and_what_is_asked_last_takes_its_place(ledger: Ledger) -> None:
    waiting = [ledger.reserve(part(0, end, run_id="run"), CAPS) for end in (3, 4, 5)]
    assert [verdict.kind for verdict in waiting] == [NEW, CONTINUES, CONTINUES]
    same = ledger.reserve(part(0, 5, run_id="run", input_fingerprint="input 2"))
    assert same.kind == RESUMES
    for verdict in waiting:
        with pytest.raises(RunRefusedError, match="another process has taken them"):
            ledger.start(verdict)
    ledger.start(same)
    ((_, (stored,)),) = ledger.runs()
    found = str(stored.status), stored.end_window, stored.input_fingerprint, stored.output
    assert found == ("running", 5, "input 2", "")


def test_what_was_begun_keeps_its_nonce_and_what_begins_has_the_one_that_is_given(ledger: Ledger) -> None:
    """Whoever resumes a part draws as it did; a part from an older state never does."""
    told(ledger, PUBLISHED)
    following = {"run_id": "run", "state_before": "s1"}
    nonces = []
    for number, step in enumerate(("nothing", "fail", "start", "fail", "start", "publishing")):
        verdict = ledger.reserve(part(1, 2, **following, nonce=f"{number}" * 32))
        assert verdict.part is not None
        nonces.append(verdict.part.nonce[0])
        if step != "nothing":
            ledger.start(verdict)
        if step == "fail":
            ledger.fail(verdict, forget=number == 1)
        if step == "publishing":
            ledger.publishing(verdict, "s2")
    assert nonces == list("012222")
    for first, nonce in itertools.product((0, 1), ("", "E" * 32, "e" * 31)):
        with pytest.raises(ValueError, match="nonce must be 32 hex digits"):
            part(first, 2, nonce=nonce)
    assert part(state_path="", nonce="").part.nonce == "", "a whole run draws by its key and its name"


@pytest.mark.parametrize(
    ("story", "step", "words"),
    [
        ("", "publishing:s", "are reserved"),
        ("", "finish:s", "are reserved"),
        (PUBLISHED, "publishing:s", "are finished"),
        (PUBLISHED, "finish:s2", "have left another state"),
        (PUBLISHED, "start", "are finished"),
        ("start", "finish:s", "have left another state"),
        ("start fail", "finish:s", "are failed"),
        ("start end", "finish:s", "are abandoned"),
        ("end", "start", "are released"),
        ("start forget", "finish:s", "are released"),
    ],
)
def test_steps_in_another_order_are_refused(ledger: Ledger, story: str, step: str, words: str) -> None:
    with pytest.raises(RunRefusedError, match=words):
        told(ledger, f"{story} {step}")
    assert spent(ledger) == (0 if story == "end" else cost().epsilon)


@pytest.mark.parametrize(
    "story", [f"{PUBLISHED} finish:s1", "start start", "start publishing:s publishing:t finish:t", "start fail fail"]
)
def test_a_step_may_be_said_again(ledger: Ledger, story: str) -> None:
    told(ledger, story)
    assert ledger.faults() == []


@pytest.mark.parametrize(
    ("caps", "epsilon", "runs", "words"),
    [
        (CAPS, 0.5, 8, r"takes 0\.5 and delta 1e-09.*0 of 4 and delta 2e-09 of 1e-08"),
        (CAPS, 0.1, 10, "delta 0 of 1e-08 is left"),
        ((1.0, 1e-8), 0.1, 10, "0 of 1 and delta 0"),
    ],
)
def test_a_run_that_would_exceed_a_cap_is_refused_and_changes_nothing(
    ledger: Ledger, caps: Caps, epsilon: float, runs: int, words: str
) -> None:
    for number in range(runs):
        ledger.reserve(part(run_id=f"run {number}", cost=cost(epsilon)), caps)
    before = ledger.runs()
    for is_trial in (True, False):
        with pytest.raises(RunRefusedError, match=words):
            ledger.reserve(part(run_id="one more", cost=cost(epsilon)), is_trial=is_trial)
    assert ledger.runs() == before


def test_a_run_that_was_ended_is_charged_unless_it_drew_nothing(ledger: Ledger) -> None:
    for run_id, has_drawn in (("a", False), ("b", True), ("c", True)):
        verdict = ledger.reserve(part(run_id=run_id), CAPS)
        if has_drawn:
            ledger.start(verdict)
        if run_id == "b":
            ledger.fail(verdict, forget=True)
    assert [ledger.end(run_id) for run_id in "abab"] == 2 * [Status.RELEASED, Status.ABANDONED]
    assert spent(ledger) == 2 * cost().epsilon
    with pytest.raises(RunRefusedError, match="knows no run d"):
        ledger.end("d")


def test_no_run_begins_in_its_middle(ledger: Ledger) -> None:
    done(ledger, part())
    with pytest.raises(RunRefusedError, match="at window 0, and the state at window 3 is not the one"):
        ledger.reserve(part(3, 4, run_id="old", state_before="state 3"))


def test_a_part_that_is_forgotten_does_not_free_the_key_with_which_another_one_drew(ledger: Ledger) -> None:
    told(ledger, PUBLISHED)
    following = part(1, 2, run_id="run", state_before="s1")
    verdict = ledger.reserve(following)
    ledger.start(verdict)
    ledger.fail(verdict, forget=True)
    with pytest.raises(RunRefusedError, match="another noise key"):
        ledger.reserve(dataclasses.replace(following, run=dataclasses.replace(following.run, key_fingerprint="d" * 64)))
    assert ledger.reserve(part(1, 2, run_id="run", state_before="s1", **OTHER)).kind == CONTINUES


def test_the_run_that_has_left_no_state_yet_is_found_by_where_it_will(ledger: Ledger) -> None:
    assert ledger.begun_at("/run.state") == ""
    told(ledger, "")
    assert (ledger.begun_at("/run.state"), ledger.begun_at("/other.state")) == ("run", "")
    ledger.end("run")
    assert ledger.begun_at("/run.state") == ""
    own = ledger.reserve(part(population="", state_path="/own.state"))
    assert (own.balance, own.line, ledger.begun_at("/own.state")) == (None, "", own.run_id)
    drawn(ledger, own, "s1")
    assert ledger.begun_at("/own.state") == ""


def test_caps_are_set_once_and_are_those_of_one_population(ledger: Ledger) -> None:
    wrong: list[Caps] = [("nan", 1e-8), (-1, 1e-8), (4, 0), (4, 1e-310), (4, 0.5)]
    for caps in wrong:
        with pytest.raises(RunRefusedError, match="max_"):
            ledger.reserve(part(), caps)
    with pytest.raises(RunRefusedError, match="--caps"):
        ledger.reserve(part())
    ledger.reserve(part(run_id="run"), CAPS)
    ledger.reserve(part(run_id="run 2"), (4, "0.00000001"))
    for caps in ((5, "1e-8"), (4, "1e-7"), *wrong):
        with pytest.raises(RunRefusedError, match=r"set once|max_"):
            ledger.reserve(part(run_id="run 3"), caps)
    ledger.reserve(part(population="films"), (1, 1e-9))
    assert [balance.total.epsilon for balance in ledger.balances()] == [cost().epsilon, 2 * cost().epsilon]
    with pytest.raises(RunRefusedError, match="no population shows"):
        ledger.balances("shows")


# --- What is told


def test_a_ledger_that_does_not_reach_a_report_or_a_state_is_an_older_copy(ledger: Ledger) -> None:
    run_id = done(ledger, part(0, 2), "state 2")
    begun = ledger.reserve(part(2, 4, run_id=run_id, state_before="state 2"))
    ledger.start(begun)
    for publishing in (False, True):
        if publishing:
            ledger.publishing(begun, "state 4")
        files = {
            "": [
                Shown("x", run_id),
                Shown("x", run_id, 2, "state 2"),
                *[Shown("x", run_id, 4, "state 4")] * publishing,
            ],
            "x is an older copy of the state": [Shown("x", run_id, 1, "state 1")],
            "the ledger is an older copy": [
                Shown("x", run_id, 5, "state 5"),
                Shown("x", "other", 3, "s"),
                Shown("x", "o"),
            ],
        }
        for what, shown in files.items():
            for file in shown:
                faults = ledger.faults([file])
                assert (len(faults), what in "".join(faults)) == (bool(what), True)
    ledger.reserve(part(run_id="reserved"))
    assert ledger.faults([Shown("x", "reserved")]), "nothing was drawn that could be in a report"


@pytest.mark.parametrize("changes", [{"population": "\n"}, {"stream": "a\n"}, {"run_id": "x" * 501}, {"end_window": 0}])
def test_a_request_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        part(**changes)


def test_what_is_spent_is_shown_rounded_up_and_what_is_left_rounded_down() -> None:
    assert [amount(Decimal(text)) for text in ("0", "0.5", "0.1234561", "1.0000001e-9")] == [
        *("0", "0.5", "0.123457", "1.00001e-09")
    ]
    assert [amount(Decimal(text), down=True) for text in ("0.1234569", "3.9999999")] == ["0.123456", "3.99999"]
