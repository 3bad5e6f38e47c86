"""Ledgers that were deleted, cut off, restored, changed or written twice, and what a repair charges then; full and
read-only disks, clocks, locks, other versions, and files that are none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import random
import resource
import shutil
import signal
import sqlite3
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

from dp_transforms.runs.ledger import Ledger, book
from dp_transforms.runs.records import (
    BudgetExceededError,
    Caps,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    RunRefusedError,
    StateMark,
    VerdictKind,
)
from tests.helpers.killed_nights import Lines, in_a_process
from tests.helpers.ledger_copies import (
    Damage,
    both,
    change,
    copy_anew,
    counter,
    cut_to,
    delete,
    edit,
    go_on_with_a_copy,
    restore,
    restore_counter,
    take_another,
)
from tests.helpers.ledger_runs import CAPS, PLAN, cost, done, names_cost, part, spent

EXTRA = 3  # of PRAGMA synchronous: what was committed survives a loss of power


class SeenConnection(sqlite3.Connection):
    """statements: in the order in which they ran. synchronous: as it was when the connection was closed."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.statements: list[str] = []
        self.synchronous: int | None = None
        self.set_trace_callback(self.statements.append)

    def close(self) -> None:
        if self.synchronous is None:
            self.set_trace_callback(None)
            (self.synchronous,) = self.execute("PRAGMA synchronous").fetchone()
        super().close()

    @property
    def begins(self) -> list[str]:
        return [statement.strip() for statement in self.statements if statement.startswith("BEGIN")]

    @property
    def writes(self) -> bool:
        return any(statement.startswith(("INSERT", "UPDATE")) for statement in self.statements)


@contextlib.contextmanager
def seen_connections() -> Iterator[list[SeenConnection]]:
    seen: list[SeenConnection] = []
    connect = sqlite3.connect

    def seen_connect(*words: Any, **options: Any) -> SeenConnection:
        seen.append(connect(*words, factory=SeenConnection, **options))
        return seen[-1]

    with mock.patch.object(sqlite3, "connect", seen_connect):
        yield seen


def check_durable_and_in_turns(seen: list[SeenConnection]) -> None:
    """Who writes has the file for itself from its first statement on; all that is committed is on the disk."""
    writers, readers = [each for each in seen if each.writes], [each for each in seen if not each.writes]
    assert writers
    assert readers
    assert {each.synchronous for each in seen} == {EXTRA}
    assert all(each.begins == ["BEGIN IMMEDIATE"] for each in writers)
    assert all(begin in ("BEGIN", "BEGIN IMMEDIATE") for each in readers for begin in each.begins)


class Fault(NamedTuple):
    """words: with which all refuse it. runs: how many are charged after a repair; None: it cannot be repaired."""

    damage: Damage
    words: str
    runs: int | None = 2


PRICE = f'"price":{{"delta":{cost().delta},"epsilon":{cost().epsilon}'
FREE = f'"price":{{"delta":{cost().delta},"epsilon":0'
CAP = f'"max_epsilon":{4 * 10**15}'
CHANGED = "Entries of the journal were changed"
UNREADABLE = "an entry of the ledger cannot be read"
FORKED = "two copies that were both written to"
FAULTS = {
    "deleted": Fault(delete, "deleted or emptied"),
    "emptied": Fault(cut_to(0), "deleted or emptied"),
    "cut to half": Fault(cut_to(0.5), "damaged", None),
    "cut to a few bytes": Fault(cut_to(0.01), "damaged|deleted or emptied", None),
    "restored": Fault(restore, "an older copy: 3 entries less"),
    "all rows removed": Fault(change("DELETE FROM shh_entries"), "an older copy: 5 entries less"),
    "last entry removed": Fault(change("DELETE FROM shh_entries WHERE counter = 4"), "an older copy: 1 entry less"),
    "an entry removed": Fault(change("DELETE FROM shh_entries WHERE counter = 1"), CHANGED),
    "a price changed": Fault(edit(1, PRICE, FREE), CHANGED),
    "the last price changed": Fault(edit(4, '"spent_epsilon":1', '"spent_epsilon":2'), FORKED),
    "a price changed and chained": Fault(edit(1, PRICE, FREE, chain=True), FORKED),
    "a cap raised": Fault(edit(1, CAP, '"max_epsilon":9000000000000000'), CHANGED),
    "a cap raised and chained": Fault(edit(1, CAP, '"max_epsilon":9000000000000000', chain=True), FORKED),
    "a run released": Fault(edit(1, '"status":"reserved"', '"status":"released"', chain=True), FORKED),
    "its name changed": Fault(
        edit(1, '"news"', '"others"', chain=True), "cannot be read|both written to|changed", None
    ),
    "the last entry unreadable": Fault(change("UPDATE shh_entries SET entry = '' WHERE counter = 4"), UNREADABLE, None),
    "an amount below 0": Fault(edit(1, PRICE, PRICE.replace(str(cost().epsilon), "-1")), UNREADABLE),
    "an amount that is not whole": Fault(edit(1, PRICE, PRICE.replace(str(cost().epsilon), "1.5")), UNREADABLE),
    "an amount in words": Fault(edit(1, PRICE, PRICE.replace(str(cost().epsilon), '"1"')), UNREADABLE),
    "a time that is none": Fault(edit(2, '"at":"', '"at":"x'), UNREADABLE),
    "a field more": Fault(edit(2, '"at":', '"et":1,"at":'), UNREADABLE),
    "bytes": Fault(change("UPDATE shh_entries SET entry = ? WHERE counter = 2", b"\xff"), UNREADABLE),
    "counter file deleted": Fault(lambda path: counter(path).unlink(), "is missing"),
    "counter file restored": Fault(restore_counter, "an older copy than ledger.db: 3 behind"),
    "counter file damaged": Fault(lambda path: counter(path).write_text("{}\n"), "cannot be read", None),
    "counter file emptied": Fault(lambda path: counter(path).write_text(""), "cannot be read", None),
    "two copies": Fault(go_on_with_a_copy, FORKED, 4),
    "two copies, a price changed": Fault(both(go_on_with_a_copy, edit(1, PRICE, FREE)), CHANGED, 4),
    "two copies, one unreadable": Fault(both(go_on_with_a_copy, edit(1, PRICE, "")), UNREADABLE, 4),
    "another ledger": Fault(take_another, "belongs to another ledger", 3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_ledger_that_is_not_the_one_that_was_last_written_is_refused(path: pathlib.Path, name: str) -> None:
    """Until it is repaired: then all is charged that was spent in any copy, and no run of before goes on."""
    damage, words, runs = FAULTS[name]
    damage(path)
    for asked in (lambda ledger: ledger.reserve(part(run_id="run 5")), Ledger.balances):
        with pytest.raises(LedgerDamagedError, match=words):
            asked(Ledger.open(path))
    if runs is None:
        with pytest.raises(LedgerDamagedError):
            Ledger.open(path, create=False, rebuild=True).repair()
        return
    ledger = Ledger.open(path, create=False, rebuild=True)
    assert [finding.is_fault for finding in ledger.doctor()][:1] == [True]
    ledger.repair()
    (balance,) = ledger.balances("news")
    assert balance.total.epsilon == runs * cost().epsilon
    assert balance.total.delta >= runs * cost().delta, "more where a run is not the same in both"
    assert str(balance.max_epsilon.normalize()) == "4"
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    assert ledger.repair() == ["The ledger agrees with its counter file: nothing was done."]
    for run_id in ("run 1", "run 2") if name != "another ledger" else ():
        with pytest.raises(RunRefusedError, match=r"abandoned|released"):
            ledger.reserve(part(1, 2, run_id=run_id, state_fingerprint="state 1"))
    assert ledger.reserve(part(run_id="run 5")).kind == VerdictKind.NEW
    again = Ledger.open(path)
    delete(path)  # what was lost then is not forgotten now
    with pytest.raises(LedgerError, match="deleted"):
        Ledger.open(path)
    again = Ledger.open(path, create=False, rebuild=True)
    with pytest.raises(LedgerDamagedError, match="older copy"):
        again.balances()
    again.repair()
    assert spent(again) == (runs + 1) * cost().epsilon


def test_a_bit_that_is_flipped_never_makes_a_charge_smaller(path: pathlib.Path) -> None:
    """In the ledger or its copy, anywhere: a run is refused, or all that was spent is charged, now and later."""
    contents, draws, refused = [each.read_bytes() for each in (path, counter(path))], random.Random(1), 0
    for _ in range(60):
        changed = [bytearray(content) for content in contents]
        one = changed[draws.random() < 0.2]
        one[draws.randrange(len(one))] ^= 1 << draws.randrange(8)
        for file, content in zip((path, counter(path)), changed, strict=True):
            file.write_bytes(content)
        try:
            verdict = Ledger.open(path).reserve(part(run_id="run 5"))
        except LedgerError:
            refused += 1
        else:
            assert verdict.balance.total.epsilon == spent(Ledger.open(path)) == 3 * cost().epsilon
    assert 10 < refused < 50


@pytest.mark.parametrize("without", [lambda path: counter(path).unlink(), restore_counter])
@pytest.mark.parametrize(
    "damage",
    [
        change("DELETE FROM shh_entries WHERE counter = 2"),
        change("UPDATE shh_entries SET entry = ? WHERE counter = 2", b"\xff"),
        change("UPDATE shh_entries SET entry = '' WHERE counter IN (2, 3, 4)"),
        edit(2, PRICE, FREE),
    ],
)
def test_a_ledger_of_which_an_entry_is_lost_is_not_repaired(
    path: pathlib.Path, damage: Damage, without: Damage
) -> None:
    """It reserved run 2, as nothing else says: without it users would be charged for run 1 alone."""
    both(damage, without)(path)
    before = path.read_bytes()
    for asked, words in ((Ledger.repair, "nobody knows what they charged"), (Ledger.balances, ".")):
        with pytest.raises(LedgerDamagedError, match=words):
            asked(Ledger.open(path))
    assert path.read_bytes() == before


def test_a_ledger_that_cannot_be_repaired_is_made_again_from_its_counter_file(path: pathlib.Path) -> None:
    change("UPDATE shh_entries SET entry = '' WHERE counter = 4")(path)
    with pytest.raises(LedgerDamagedError, match="move the ledger away"):
        Ledger.open(path).repair()
    path.rename(path.with_name("away"))
    ledger = Ledger.open(path, rebuild=True)
    ledger.repair()
    assert spent(ledger) == 2 * cost().epsilon


def test_the_doctor_says_what_a_repair_will_do_and_a_repair_what_it_did(path: pathlib.Path) -> None:
    restore(path)
    ledger = Ledger.open(path)
    (fault,) = (finding for finding in ledger.doctor() if finding.is_fault)
    assert "older copy" in fault.text
    assert "--repair" in fault.text
    assert ledger.repair() == [
        "Population news: charged for what was lost; now 1 of its epsilon is spent.",
        "Run run 1 is abandoned: it was open, and stays charged.",
        "Run run 2 is abandoned: it was open, and stays charged.",
    ]
    assert [(entry["action"], entry["counter"]) for entry in ledger.journal()][-2:] == [("finish", 4), ("repair", 5)]
    with pytest.raises(RunRefusedError, match="was abandoned before, and cannot be released"):
        ledger.release("run 1")


def test_a_run_that_went_on_in_two_copies_is_charged_for_each(path: pathlib.Path) -> None:
    copy = path.with_name("copy.db")
    for ending in ("", ".counter"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    for place, name in ((path, "here"), (copy, "there")):
        ledger = Ledger.open(place)
        ledger.start(ledger.reserve(part(run_id="run 1", input_fingerprint=name)))
    shutil.copy(copy, path)
    ledger = Ledger.open(path)
    assert "Both copies were written to" in ledger.repair()[0]
    assert spent(ledger) == 3 * cost().epsilon


@pytest.mark.parametrize("entries_behind", [1, 2, 3])
def test_a_copy_that_went_on_by_itself_is_told_from_an_older_one(path: pathlib.Path, entries_behind: int) -> None:
    """Also if it has as many entries, or one that the counter file promised and another one came."""
    copy = path.with_name("copy.db")
    for ending in ("", ".counter"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    for number in range(entries_behind):
        Ledger.open(path).reserve(part(run_id=f"here {number}"))
    Ledger.open(copy).reserve(part(run_id="there"))
    shutil.copy(copy, path)
    ledger = Ledger.open(path)
    ledger.repair()
    assert spent(ledger) == (3 + entries_behind) * cost().epsilon


def test_a_population_that_was_declared_twice_pays_for_the_runs_of_both_in_full(path: pathlib.Path) -> None:
    """Amounts of one rule say nothing in another one. The smaller caps hold."""
    path.unlink()
    counter(path).rename(path.with_name("kept"))
    Ledger.open(path).reserve_run(part(run_id="here", cost=names_cost()), Caps(9, "1e-6", "renyi"))
    before = Ledger.open(path).balances()[0]
    path.with_name("kept").rename(counter(path))
    ledger = Ledger.open(path)
    ledger.repair()
    (after,) = ledger.balances()
    assert (after.total.epsilon, after.total.delta) == (
        before.total.epsilon + 2 * cost().epsilon,
        before.total.delta + 2 * cost().delta,
    )
    assert (str(after.max_epsilon.normalize()), after.runs) == ("4", 3)
    with pytest.raises(BudgetExceededError):
        ledger.reserve_run(part(cost=cost(epsilon=1.5)))


def test_more_than_the_caps_is_charged_by_a_repair_alone(path: pathlib.Path) -> None:
    copy = path.with_name("copy.db")
    for ending in ("", ".counter"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    for place in (path, copy):
        for number in range(6):
            Ledger.open(place).reserve_run(part(run_id=f"{place.name} {number}"))
    shutil.copy(copy, path)
    ledger = Ledger.open(path)
    ledger.repair()
    assert spent(ledger) == 14 * cost().epsilon
    (note,) = ledger.doctor()
    assert (note.is_fault, "more than its caps by a repair" in note.text) == (False, True)
    with pytest.raises(BudgetExceededError):
        ledger.reserve(part(run_id="run 3"))


@pytest.mark.parametrize("damage", [delete, restore])
@pytest.mark.parametrize(("rule", "released"), [("renyi", True), ("renyi", False), ("basic", True)])
def test_a_repair_charges_each_rule_and_no_released_run(
    folder: pathlib.Path, damage: Damage, rule: str, released: bool
) -> None:
    path = folder / "ledger.db"
    ledger = Ledger.open(path)
    shutil.copy(path, folder / "older.db")
    for number in range(2):
        ledger.reserve_run(part(cost=names_cost(), run_id=f"run {number}"), Caps(20, "1e-6", rule))
    if released:
        ledger.release("run 1")
    before = ledger.balances()[0]
    damage(path)
    ledger = Ledger.open(path, rebuild=True)
    ledger.repair()
    assert ledger.balances()[0] == before


def test_a_ledger_and_counter_file_that_were_restored_together_are_found_by_a_state(path: pathlib.Path) -> None:
    restore(path)
    restore_counter(path)
    ledger = Ledger.open(path)
    with pytest.raises(RunRefusedError, match="restored from a backup"):
        ledger.reserve(part(1, 2, run_id="run 2", state_fingerprint="state 1"))
    (fault,) = (f for f in ledger.doctor([StateMark("run 2", PLAN, 1, "state 1")]) if f.is_fault)
    assert "not in the ledger" in fault.text


@pytest.mark.parametrize("damage", [restore, go_on_with_a_copy, edit(1, PRICE, FREE)])
def test_a_repair_that_is_killed_at_any_line_forgets_nothing(path: pathlib.Path, damage: Damage) -> None:
    damage(path)
    contents = [each.read_bytes() for each in (path, counter(path))]
    lines = Lines()
    sys.settrace(lines.trace)
    try:
        Ledger.open(path).repair()
    finally:
        sys.settrace(None)
    expected = spent(Ledger.open(path))
    late = lines.count - 45  # it writes at its end: of these lines more are tried
    for at in (*range(1, late, late // 6), *range(late, lines.count, 4)):
        for each, content in zip((path, counter(path)), contents, strict=True):
            each.write_bytes(content)
        assert in_a_process(lambda: Ledger.open(path).repair(), at) == (True, "")
        try:
            found = spent(Ledger.open(path))
        except LedgerDamagedError:
            Ledger.open(path).repair()
            found = spent(Ledger.open(path))
        assert found == expected, at


def test_a_ledger_whose_making_is_killed_at_any_line_is_made_by_the_next_command(folder: pathlib.Path) -> None:
    for at in range(1, 200, 15):
        place = folder / str(at)
        place.mkdir()
        was_killed, _ = in_a_process(lambda place=place: Ledger.open(place / "ledger.db"), at)
        Ledger.open(place / "ledger.db").reserve(part(), CAPS)
        left = [each for each in place.iterdir() if each.is_file() or any(each.iterdir())]
        assert {each.name for each in left} == {"ledger.db", "ledger.db.counter", "ledger.db.lock"}
        if not was_killed:
            break
    assert at > 30


def test_where_there_are_no_links_a_kill_leaves_no_counter_file_that_is_in_the_way(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vfat is: the name is claimed by an empty file, and the process is killed before it has another one."""

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError

    def make_and_die() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        Ledger.open(folder / "ledger.db")

    monkeypatch.setattr(os, "link", no_links)
    assert in_a_process(make_and_die) == (True, "")
    assert counter(folder / "ledger.db").stat().st_size == 0
    Ledger.open(folder / "ledger.db").reserve(part(), CAPS)
    assert {each.name for each in folder.iterdir()} == {"ledger.db", "ledger.db.counter", "ledger.db.lock"}


def test_the_doctor_reads_all_of_a_ledger_that_its_process_has_read(path: pathlib.Path) -> None:
    ledger = Ledger.open(path)
    assert spent(ledger) == 2 * cost().epsilon
    edit(1, PRICE, FREE)(path)
    assert [finding.is_fault for finding in ledger.doctor()] == [True]
    with pytest.raises(LedgerDamagedError, match=CHANGED):
        Ledger.open(path).balances()


def test_triggers_in_a_ledger_are_a_fault(path: pathlib.Path) -> None:
    change("CREATE TRIGGER t AFTER INSERT ON shh_entries BEGIN DELETE FROM shh_entries; END")(path)
    assert ["triggers or views" in finding.text for finding in Ledger.open(path).doctor() if finding.is_fault] == [True]


# ---------------------------------------------------------------------------------------------------------------------
# Disks
# ---------------------------------------------------------------------------------------------------------------------


def with_files_of(most_bytes: int, work: Callable[[], object]) -> str:
    """What it says in a process that can write no larger files."""

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
        try:
            work()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    return in_a_process(limited)[1]


@pytest.mark.parametrize("more", [None, 0, 1, 500, 1_200, 1_300, 1_600, 2_000, 30_000])
def test_a_full_disk_changes_nothing(path: pathlib.Path, more: int | None) -> None:
    """more: bytes that the counter file may grow by; None: no file has any."""
    most_bytes = 0 if more is None else counter(path).stat().st_size + more
    said = with_files_of(most_bytes, lambda: Ledger.open(path).reserve(part(run_id="run 5")))
    ledger = Ledger.open(path)
    runs = ledger.balances()[0].runs
    unsettled = [finding for finding in ledger.doctor() if "not settled" in finding.text]
    if said:
        assert "nothing was changed" in said
        assert runs == 2
    else:
        assert (runs, more is not None and more > 500) == (3, True)
        assert [finding.is_fault for finding in unsettled] == [False] * (more != 30_000)
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    assert ledger.reserve(part(run_id="run 6")).kind == VerdictKind.NEW
    assert not [finding for finding in ledger.doctor() if "not settled" in finding.text]


def test_a_part_draws_only_when_its_start_can_no_longer_be_forgotten(path: pathlib.Path) -> None:
    """Else a copy without its start record would pass, and `release` would give back what was drawn."""
    ledger = Ledger.open(path)
    verdict = ledger.reserve(part(run_id="run 3"))
    shutil.copy(path, path.with_name("older.db"))
    lines = counter(path).read_bytes().splitlines(keepends=True)
    counter(path).write_bytes(b"".join([lines[0], b"0" * 99_999 + b"\n", *lines[1:]]))  # larger than any other file
    (start,) = [line for line in lines if b'"action":"start"' in line]
    room = counter(path).stat().st_size + len(start) + 20  # for the entry, and not for what settles it
    for _ in range(2):
        assert "File too large), so an older copy" in with_files_of(room, lambda: ledger.start(verdict))
    entries = len(ledger.journal())
    ledger.start(verdict)
    assert len(ledger.journal()) == entries
    assert not [finding for finding in ledger.doctor() if "not settled" in finding.text]
    restore(path)
    with pytest.raises(LedgerDamagedError, match="older copy: 1 entry less"):
        Ledger.open(path).release("run 3")


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_promise_that_was_not_kept_is_followed_by_another_one(path: pathlib.Path, share: float) -> None:
    """Its process died before the commit, after it had written its line or a part of it."""
    shutil.copy(path, path.with_name("older.db"))
    whole = counter(path).read_bytes()
    Ledger.open(path).reserve(part(run_id="run 3"))
    promised = counter(path).read_bytes().removeprefix(whole).splitlines(keepends=True)[0]
    restore(path)
    counter(path).write_bytes(whole + promised[: int(share * len(promised))])
    ledger = Ledger.open(path)
    assert spent(ledger) == 2 * cost().epsilon
    ledger.reserve(part(run_id="run 4"))
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    path.unlink()
    ledger = Ledger.open(path, rebuild=True)
    ledger.repair()
    assert [run.run_id for run, _ in ledger.runs()] == ["run 1", "run 2", "run 4"]


def test_a_ledger_that_is_read_only_can_be_shown_and_not_written(path: pathlib.Path) -> None:
    report = path.with_name("report")

    def work() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        ledger = Ledger.open(path, create=False)
        report.write_text(str(ledger.balances()[0].runs))
        ledger.reserve(part(run_id="run 5"))

    report.touch()
    for file in (path, counter(path), path.with_name("ledger.db.lock"), report, path.parent):
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        _, said = in_a_process(work)
    finally:
        path.parent.chmod(0o700)
        path.chmod(0o600)
        for file in (path.parent, *path.parent.iterdir()):
            os.chown(file, os.geteuid(), os.getegid())
    assert report.read_text() == "2"
    assert "readonly" in said
    assert Ledger.open(path).balances()[0].runs == 2


# ---------------------------------------------------------------------------------------------------------------------
# Clocks, locks, files
# ---------------------------------------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_changes_only_the_times_that_are_shown(path: pathlib.Path) -> None:
    both(edit(4, '"at":"20', '"at":"30', chain=True), copy_anew)(path)
    ledger = Ledger.open(path)
    done(ledger, part(run_id="run 3"))
    assert ledger.balances()[0].runs == 3
    assert [entry["counter"] for entry in ledger.journal()] == list(range(1, 8))
    assert ["clock was set back" in finding.text for finding in ledger.doctor() if "clock" in finding.text] == [True]
    assert not [finding for finding in ledger.doctor() if finding.is_fault]


def test_runs_are_in_the_order_of_their_entries_also_where_a_clock_was_set_back(path: pathlib.Path) -> None:
    both(edit(1, '"reserved_at":"20', '"reserved_at":"30', chain=True), copy_anew)(path)
    ledger = Ledger.open(path)
    done(ledger, part(run_id="a later run"))
    assert [run.run_id for run, _ in ledger.runs()] == ["run 1", "run 2", "a later run"]
    assert [run.run_id for run, _ in ledger.runs("news")] == ["run 1", "run 2", "a later run"]


@pytest.mark.parametrize("version", [0, book.VERSION - 1, book.VERSION + 1])
def test_a_ledger_of_another_version_is_refused_and_stays_as_it_is(path: pathlib.Path, version: int) -> None:
    edit(0, f'"ledger {book.VERSION}"', f'"ledger {version}"')(path)
    before = path.read_bytes()
    for asked in (Ledger.balances, Ledger.doctor, Ledger.repair):
        with pytest.raises(
            LedgerError, match=f"has version '{version}', and this program knows version {book.VERSION} alone"
        ):
            asked(Ledger.open(path))
    assert path.read_bytes() == before


def test_a_process_waits_for_another_one_and_says_when_that_takes_too_long(path: pathlib.Path) -> None:
    with open(path.with_name("ledger.db.lock"), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LedgerBusyError, match=r"has had the ledger .* for 0\.05 s"):
            Ledger.open(path, wait_seconds=0.05)
        threading.Timer(0.1, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        assert Ledger.open(path, wait_seconds=30).reserve(part(run_id="run 3")).kind == VerdictKind.NEW


def test_only_a_file_that_is_closed_to_others_is_a_ledger(ledger: Ledger, folder: pathlib.Path) -> None:
    ledger.reserve(part(), CAPS)
    path = folder / "ledger.db"
    assert {each.name for each in folder.iterdir()} == {"ledger.db", "ledger.db.counter", "ledger.db.lock"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    (folder / "link").symlink_to(path)
    os.mkfifo(folder / "pipe", 0o600)
    for name in ("link", "pipe"):
        with pytest.raises(LedgerError, match="not a regular file"):
            Ledger.open(folder / name)
    path.chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        Ledger.open(path)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(LedgerError, match="belongs to another user"):
            Ledger.open(path)


def test_a_ledger_is_made_only_where_it_is_asked_for(folder: pathlib.Path) -> None:
    for rebuild in (False, True):
        with pytest.raises(LedgerError, match="there is no ledger"):
            Ledger.open(folder / "ledger.db", create=False, rebuild=rebuild)
    with pytest.raises(LedgerError, match=r"mysql|needs|path"):
        Ledger.open("mysql://host/database")
    assert list(folder.iterdir()) == []


def test_what_is_reserved_is_on_the_disk_and_nobody_else_writes_meanwhile(folder: pathlib.Path) -> None:
    with seen_connections() as seen:
        ledger = Ledger.open(folder / "ledger.db")
        done(ledger, part())
        assert spent(ledger) == cost().epsilon
    check_durable_and_in_turns(seen)
