"""What a ledger allows, refuses, charges and shows."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

from dp_transforms.runs.ledger import (
    BudgetExceededError,
    Caps,
    Ledger,
    LedgerBusyError,
    RunRefusedError,
    StateMark,
    VerdictKind,
)
from dp_transforms.runs.ledger.records import Actor, is_gone
from tests.helpers.ledger_runs import CAPS, GONE, HERE, PLAN, cost, done, names_cost, of, part, spent

ELSEWHERE = Actor("somebody", "another machine/pid:[1]", "7:1:boot")


def living() -> Actor:
    """Another process that certainly lives: the one that started this one."""
    from dp_transforms.runs.ledger import records

    process = records._process(os.getppid())
    assert process
    return Actor("somebody", HERE.place, process)


def test_a_run_takes_its_epsilon_and_says_so(ledger: Ledger) -> None:
    verdict = ledger.reserve(part(), CAPS)
    assert verdict.line == "this run takes 0.5 of the 4 that users of *news* may ever lose; 3.5 is left."
    assert (str(verdict.balance.spent_epsilon), str(verdict.balance.left_delta)) == (
        "0.500000000000000",
        "9.000000000000000000000E-9",
    )


def test_a_run_that_would_exceed_a_cap_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    for number in range(8):
        ledger.reserve(part(run_id=f"run {number}"), CAPS)
    with pytest.raises(BudgetExceededError, match=r"takes 0\.5 and delta 1e-09.*0 of 4 and delta 2e-09 of 1e-08"):
        ledger.reserve(part(run_id="run 8"))
    assert ledger.balances()[0].runs == 8


def test_the_cap_of_delta_binds_too(ledger: Ledger) -> None:
    for number in range(10):
        ledger.reserve(part(run_id=f"run {number}", cost=cost(0.1)), CAPS)
    with pytest.raises(BudgetExceededError, match="delta 0 of 1e-08 is left"):
        ledger.reserve(part(run_id="run 10", cost=cost(0.1)))


def test_ten_runs_of_a_tenth_fit_into_one(ledger: Ledger) -> None:
    for number in range(10):
        ledger.reserve(part(run_id=f"run {number}", cost=cost(0.1)), Caps(1.0, 1e-8))
    assert ledger.balances()[0].left_epsilon == 0


def test_a_further_part_costs_nothing_and_no_window_is_left_out(ledger: Ledger) -> None:
    run_id = done(ledger, part(0, 1), "state 1")
    following = part(1, 6, run_id=run_id, state_fingerprint="state 1", input_fingerprint="input 2")
    with pytest.raises(RunRefusedError, match="knows its windows up to 0 alone"):
        ledger.reserve(dataclasses.replace(following, first_window=2))
    verdict = ledger.reserve(following)
    assert verdict.kind == VerdictKind.CONTINUES
    assert "takes nothing more; of the 4 that users of *news* may ever lose 3.5 is left." in verdict.line
    ledger.start(verdict)
    ledger.finish(verdict, "state 6")
    assert spent(ledger) == cost().epsilon
    with pytest.raises(RunRefusedError, match="older copy"):
        ledger.reserve(part(1, 2, run_id=run_id, state_fingerprint="state 1"))


def test_a_part_of_a_finished_night_is_done(ledger: Ledger) -> None:
    run_id = done(ledger, part(0, 1), "state 1")
    again = ledger.reserve(part(1, 1, run_id=run_id, state_fingerprint="state 1"))
    assert again.kind == VerdictKind.DONE
    assert ledger.reserve(part(0, 1, run_id=run_id)).kind == VerdictKind.DONE


def test_a_new_run_over_the_same_input_pays_in_full_and_says_that_it_does(ledger: Ledger) -> None:
    run_id = done(ledger, part())
    verdict = ledger.reserve(part())
    assert verdict.kind == VerdictKind.NEW
    assert verdict.line.endswith(f"Run {run_id} drew from the same input before, and was paid for too.")
    assert spent(ledger) == 2 * cost().epsilon


def test_the_first_run_that_drew_from_the_input_is_named_and_no_run_of_others(ledger: Ledger) -> None:
    done(ledger, part(run_id="a", stream="other"))
    done(ledger, part(run_id="b", population="other"))
    done(ledger, part(run_id="c", input_fingerprint="input 2"))
    ledger.reserve(part(run_id="d"))  # has drawn nothing
    assert ledger.reserve(part(run_id="e")).same_input == ""
    for run_id in ("g", "f"):
        done(ledger, part(run_id=run_id))
    assert ledger.reserve(part(run_id="h")).same_input == "f"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"input_fingerprint": "input 2"}, "drawn from another input"),
        ({"plan_fingerprint": "c" * 64}, "used before with another plan"),
        ({"key_fingerprint": "d" * 64}, "used before with another noise key"),
        ({"stream": "other"}, "used before with another stream"),
        ({"end_window": 2}, "windows up to 0"),
    ],
)
def test_a_run_id_that_was_used_is_refused_for_anything_else(
    ledger: Ledger, changes: dict[str, Any], what: str
) -> None:
    run_id = done(ledger, part())
    with pytest.raises(RunRefusedError, match=what):
        ledger.reserve(part(run_id=run_id, **changes))
    assert spent(ledger) == cost().epsilon


@pytest.mark.parametrize("finished", [False, True])
def test_a_part_that_drew_is_never_drawn_from_another_input(ledger: Ledger, finished: bool) -> None:
    first = of(ledger, GONE)
    verdict = first.reserve(part(run_id="run"), CAPS)
    first.start(verdict)
    if finished:
        first.finish(verdict)
    with pytest.raises(RunRefusedError, match="another input"):
        ledger.reserve(part(run_id="run", input_fingerprint="input 2"))
    kind = VerdictKind.DONE if finished else VerdictKind.RESUMES
    assert ledger.reserve(part(run_id="run")).kind == kind


def test_a_part_that_drew_nothing_may_take_another_input_and_other_windows(ledger: Ledger) -> None:
    of(ledger, GONE).reserve(part(run_id="run"), CAPS)
    assert ledger.reserve(part(run_id="run", input_fingerprint="input 2")).kind == VerdictKind.RESUMES
    verdict = ledger.reserve(part(0, 3, run_id="run"))
    assert verdict.kind == VerdictKind.CONTINUES
    ledger.start(verdict)
    assert spent(ledger) == cost().epsilon


def test_a_part_of_a_living_process_is_not_taken_over(ledger: Ledger) -> None:
    other = of(ledger, living())
    verdict = other.reserve(part(run_id="run"), CAPS)
    for request in (part(run_id="run"), part(0, 2, run_id="run")):
        with pytest.raises(LedgerBusyError, match="shh ledger fail"):
            ledger.reserve(request)
    other.start(verdict)
    with pytest.raises(LedgerBusyError):
        ledger.reserve(part(run_id="run"))
    assert spent(ledger) == cost().epsilon


def test_a_process_elsewhere_counts_as_alive_until_an_operator_says_otherwise(ledger: Ledger) -> None:
    first = of(ledger, ELSEWHERE)
    verdict = first.reserve(part(run_id="run"), CAPS)
    first.start(verdict)
    with pytest.raises(LedgerBusyError, match="on another machine"):
        ledger.reserve(part(run_id="run"))
    assert ledger.fail_run("run") == 1
    entry = ledger.journal()[-1]
    assert (entry["action"], entry["run_id"], entry["part"], entry["note"]) == (
        "fail",
        "run",
        0,
        "1 parts, by an operator",
    )
    resumed = ledger.reserve(part(run_id="run"))
    assert resumed.kind == VerdictKind.RESUMES
    with pytest.raises(RunRefusedError, match="taken over"):
        first.finish(verdict)
    ledger.start(resumed)
    ledger.finish(resumed)


def test_a_request_without_a_run_id_is_a_new_run(ledger: Ledger) -> None:
    of(ledger, GONE).reserve(part(), CAPS)
    assert ledger.reserve(part()).kind == VerdictKind.NEW
    assert spent(ledger) == 2 * cost().epsilon


@pytest.mark.parametrize("finished", [False, True])
def test_a_part_whose_input_comes_only_once_is_not_drawn_again(ledger: Ledger, finished: bool) -> None:
    """As the records of a stream do. It is one transaction, so of two that ask at once none may draw as well."""
    first = of(ledger, GONE)
    first.reserve(part(run_id="run", draws_once=True), CAPS)
    verdict = first.reserve(part(run_id="run", draws_once=True))
    assert verdict.kind == VerdictKind.RESUMES, "nothing was drawn"
    first.start(verdict)
    if finished:
        first.finish(verdict)
    with pytest.raises(RunRefusedError, match=r"may have been drawn.*--resume-from"):
        ledger.reserve(part(run_id="run", draws_once=True))
    assert ledger.reserve(part(run_id="run")).kind == (VerdictKind.DONE if finished else VerdictKind.RESUMES)


def test_what_follows_an_unfinished_part_is_refused(ledger: Ledger) -> None:
    first = of(ledger, GONE)
    first.start(first.reserve(part(0, 1, run_id="run"), CAPS))
    with pytest.raises(RunRefusedError, match="begun and not finished"):
        ledger.reserve(part(1, 2, run_id="run"))


def test_a_state_whose_parts_the_ledger_does_not_know_is_refused_even_if_its_run_is_paid_for(ledger: Ledger) -> None:
    done(ledger, part())
    following = part(3, 4, run_id="old", state_fingerprint="state 3")
    with pytest.raises(RunRefusedError, match="not in the ledger"):
        ledger.reserve(following)
    assert ledger.reserve_run(part(run_id="old")).kind == VerdictKind.NEW
    with pytest.raises(RunRefusedError, match="does not know the parts"):
        ledger.reserve(following)


def test_a_part_without_windows_begins_no_run(ledger: Ledger) -> None:
    with pytest.raises(RunRefusedError, match="no windows"):
        ledger.reserve(part(0, 0), CAPS)
    assert ledger.balances() == []


def test_a_run_that_was_set_aside_is_used_for_nothing_more(ledger: Ledger) -> None:
    verdict = ledger.reserve_run(part(run_id="run"), CAPS)
    assert ledger.reserve_run(part(run_id="run")).kind == VerdictKind.CONTINUES
    assert ledger.reserve(part(run_id="run")).kind == VerdictKind.CONTINUES
    assert (verdict.kind, spent(ledger)) == (VerdictKind.NEW, cost().epsilon)
    assert ledger.reserve_run(part(run_id="run", key_fingerprint="")).kind == VerdictKind.CONTINUES


def test_only_a_run_that_drew_nothing_is_released(ledger: Ledger) -> None:
    drawn = ledger.reserve(part(run_id="drawn"), CAPS)
    ledger.start(drawn)
    waiting = ledger.reserve(part(run_id="waiting"))
    with pytest.raises(RunRefusedError, match="start record"):
        ledger.release("drawn")
    ledger.release("waiting")
    ledger.release("waiting")
    assert spent(ledger) == cost().epsilon
    with pytest.raises(RunRefusedError, match="released"):
        ledger.start(waiting)
    with pytest.raises(RunRefusedError, match="released"):
        ledger.reserve(part(run_id="waiting"))
    ledger.abandon("drawn")
    assert spent(ledger) == cost().epsilon
    with pytest.raises(RunRefusedError, match="was abandoned meanwhile"):
        ledger.finish(drawn)


@pytest.mark.parametrize("rule", ["renyi", "basic"])
def test_a_run_that_is_released_keeps_what_the_histogram_of_its_plan_took(ledger: Ledger, rule: str) -> None:
    """It was published with the plan, and the constants of the rule were chosen by it."""
    one = names_cost(activity=0.5)
    ledger.reserve_run(part(run_id="a", cost=one), Caps(4, "1e-8", rule))
    kept = ledger.release("a")
    (balance,) = ledger.balances()
    assert (balance.runs, kept.epsilon, balance.total) == (0, 5 * 10**14, kept)
    assert max(kept.delta, kept.sampling) >= one.distance // 10**15 * 2, "its sampled noise, in both directions"
    assert balance.spent_delta > 0
    assert ledger.release("a") == kept
    plain, number = names_cost(activity=0), 0
    with pytest.raises(BudgetExceededError):  # noqa: PT012
        for number in range(99):
            ledger.reserve_run(part(run_id=f"b {number}", cost=plain))
    (balance,) = ledger.balances()
    added = balance.population.rule
    with_nothing_kept = added.runs_that_fit(plain)
    assert number == balance.runs < with_nothing_kept
    assert balance.total.epsilon == 5 * 10**14 + added.base.epsilon + number * added.price(plain).epsilon
    assert balance.total.epsilon <= added.max_epsilon


def test_a_failed_part_stays_charged_and_is_resumed(ledger: Ledger) -> None:
    verdict = ledger.reserve(part(run_id="run"), CAPS)
    ledger.start(verdict)
    ledger.fail(verdict)
    assert spent(ledger) == cost().epsilon
    resumed = ledger.reserve(part(run_id="run"))
    assert resumed.kind == VerdictKind.RESUMES
    ledger.start(resumed)
    ledger.finish(resumed, "state 1")
    ledger.finish(resumed, "state 1")
    with pytest.raises(RunRefusedError, match="cannot be finished"):
        ledger.finish(resumed, "state 2")


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
    following = ledger.reserve(part(7, 20, run_id="run", state_fingerprint="state 7"))
    assert following.kind == VerdictKind.CONTINUES
    assert spent(ledger) == cost().epsilon
    assert [stored.range for _, parts in ledger.runs() for stored in parts] == [(0, 7), (7, 20)]


def test_a_state_says_where_a_stream_has_ended_that_could_not_tell_the_ledger(ledger: Ledger) -> None:
    first = of(ledger, GONE)
    verdict = first.reserve(part(0, 20, run_id="run"), CAPS)
    first.start(verdict)
    first.publishing(verdict, "state 7")
    for end, state in ((21, "state 7"), (7, "state 21")):
        with pytest.raises(RunRefusedError):
            ledger.reserve(part(end, 22, run_id="run", state_fingerprint=state))
    (told,) = ledger.doctor([StateMark("run", PLAN, 7, "state 7")])[-1:]
    assert (told.is_fault, "not recorded as finished" in told.text) == (False, True)
    following = ledger.reserve(part(7, 20, run_id="run", state_fingerprint="state 7"))
    assert following.kind == VerdictKind.CONTINUES
    ((_, parts),) = ledger.runs()
    assert [(str(stored.status), stored.range, stored.state_after) for stored in parts] == [
        ("finished", (0, 7), "state 7"),
        ("reserved", (7, 20), ""),
    ]


def test_nothing_is_finished_that_was_not_started(ledger: Ledger) -> None:
    verdict = ledger.reserve(part(), CAPS)
    with pytest.raises(RunRefusedError, match="reserved, and cannot be finished"):
        ledger.finish(verdict)


def test_caps_are_set_once(ledger: Ledger) -> None:
    with pytest.raises(RunRefusedError, match="--max-epsilon"):
        ledger.reserve(part())
    ledger.reserve(part(run_id="run"), CAPS)
    ledger.reserve(part(run_id="run 2"), Caps(4, "0.00000001"))
    for caps in (Caps(5, "1e-8"), Caps(4, "1e-7"), Caps(4, "1e-8", "renyi")):
        with pytest.raises(RunRefusedError, match="set once"):
            ledger.reserve(part(run_id="run 3"), caps)
    with pytest.raises(RunRefusedError, match="no population films"):
        ledger.balances("films")


@pytest.mark.parametrize("caps", [Caps("nan", 1e-8), Caps(-1, 1e-8), Caps(4, 0), Caps(4, 1e-310), Caps(4, 0.5)])
def test_caps_that_are_no_amounts_are_refused(ledger: Ledger, caps: Caps) -> None:
    with pytest.raises(RunRefusedError, match="max_"):
        ledger.reserve(part(), caps)
    assert ledger.balances() == []


def test_populations_do_not_share_a_budget(ledger: Ledger) -> None:
    done(ledger, part())
    ledger.reserve(part(population="films"), Caps(1, 1e-9))
    assert [balance.total.epsilon for balance in ledger.balances()] == [cost().epsilon] * 2


def test_a_process_is_gone_only_if_that_is_certain() -> None:
    assert is_gone(GONE.place, GONE.process)
    assert not is_gone(HERE.place, HERE.process)
    assert not is_gone(ELSEWHERE.place, ELSEWHERE.process)
    number, start, boot = HERE.process.split(":")
    assert is_gone(HERE.place, f"{number}:{int(start) + 1}:{boot}"), "another process has its number now"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    from dp_transforms.runs.ledger.records import _process

    assert is_gone(HERE.place, f"{child}:1:{boot}"), "a zombie has ended"
    assert _process(child) != HERE.process
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    "changes", [{"population": ""}, {"stream": "a\n"}, {"run_id": "x" * 501}, {"end_window": 31}, {"unit": "event"}]
)
def test_a_request_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes)) if "unit" not in changes else "unit"):
        part(**changes)
