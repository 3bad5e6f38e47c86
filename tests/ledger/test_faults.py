"""Ledgers that were deleted, cut off, restored or written twice; full and read-only disks; clocks; other versions."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import sys
import time
import types
from typing import Any

import pytest

from dp_transforms.runs.ledger import (
    Ledger,
    LedgerBusyError,
    LedgerDamagedError,
    LedgerError,
    LedgerUnsettledError,
    RunRefusedError,
    StateMark,
    VerdictKind,
    database,
)
from dp_transforms.runs.ledger.rows import VERSION
from tests.helpers.ledger_copies import (
    counter,
    cut_to,
    delete,
    go_on_with_a_copy,
    restore,
    restore_counter,
    take_another,
)
from tests.helpers.ledger_runs import PLAN, dies, part

FAULTS = {
    "deleted": (delete, "deleted or emptied"),
    "emptied": (cut_to(0), "deleted or emptied"),
    "cut to half": (cut_to(0.5), "damaged"),
    "cut to a few bytes": (cut_to(0.01), "damaged|deleted or emptied"),
    "restored": (restore, "an older copy: 3 entries less"),
    "counter file deleted": (lambda path: counter(path).unlink(), "is missing"),
    "counter file restored": (restore_counter, "an older copy than ledger.db: 3 behind"),
    "counter file damaged": (lambda path: counter(path).write_text("{}"), "cannot be read"),
    "two copies": (go_on_with_a_copy, "two copies that were both written to"),
    "another ledger": (take_another, "belongs to another ledger"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_ledger_that_is_not_the_one_that_was_last_written_is_refused(path: pathlib.Path, name: str) -> None:
    damage, words = FAULTS[name]
    damage(path)
    with pytest.raises(LedgerDamagedError, match=words):
        Ledger.open(path).reserve(part(run_id="run 5"))
    with pytest.raises(LedgerDamagedError, match=words):
        Ledger.open(path).balances()


@pytest.mark.parametrize(
    "change",
    ["UPDATE shh_runs SET price_epsilon = '0'", "DELETE FROM shh_runs", "UPDATE shh_populations SET max_epsilon = '9'"],
)
def test_the_doctor_finds_amounts_that_were_changed_in_the_tables(path: pathlib.Path, change: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute(change).rowcount
        connection.commit()
    faults = [finding.text for finding in Ledger.open(path).doctor() if finding.is_fault]
    assert any("population news" in text and "not by shh" in text for text in faults), faults


def test_a_ledger_and_counter_file_that_were_restored_together_are_found_by_a_state(path: pathlib.Path) -> None:
    restore(path)
    restore_counter(path)
    ledger = Ledger.open(path)
    with pytest.raises(RunRefusedError, match="restored from a backup"):
        ledger.reserve(part(1, 2, run_id="run 2", state_fingerprint="state 1"))
    (fault,) = (f for f in ledger.doctor([StateMark("run 2", PLAN, 1, "state 1")]) if f.is_fault)
    assert "not in the ledger" in fault.text


def test_a_row_that_somebody_changed_is_found_by_the_doctor(path: pathlib.Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE shh_journal SET spent_epsilon = '0' WHERE counter = 1")
    connection.close()
    assert ["journal" in finding.text for finding in Ledger.open(path).doctor() if finding.is_fault] == [True]


@pytest.mark.parametrize("amount", ["-1", "nan", "5e-324", "1.5", "", "9" * 61])
def test_an_amount_that_is_no_whole_number_is_damage(path: pathlib.Path, amount: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE shh_runs SET price_epsilon = ?", (amount,))
    connection.close()
    with pytest.raises(LedgerDamagedError, match="not a whole number"):
        Ledger.open(path).balances()


def limited(path: pathlib.Path, most_bytes: int, report: pathlib.Path) -> None:
    """Reserves with files of at most this size; writes how it ended."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    try:
        Ledger.open(path).reserve(part(run_id="run 5"))
        text = "reserved"
    except LedgerError as error:
        text = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    report.write_text(text)


@pytest.mark.parametrize("most_bytes", [0, 100, 600, 5_000, 30_000])
def test_a_full_disk_changes_nothing(path: pathlib.Path, most_bytes: int) -> None:
    report = path.with_name("report")
    dies(lambda: limited(path, most_bytes, report))
    ledger = Ledger.open(path)
    runs = ledger.balances()[0].runs
    if report.read_text() == "reserved":
        assert runs == 3
    else:
        assert "nothing was changed" in report.read_text()
        assert runs == 2
    assert not [finding for finding in ledger.doctor() if finding.is_fault]
    kind = ledger.reserve(part(run_id="run 5")).kind if runs == 2 else VerdictKind.NEW
    assert kind == VerdictKind.NEW


def test_a_counter_file_that_cannot_be_settled_does_not_undo_what_was_committed(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = database.write_counter, []

    def full_at_the_second(*words: Any) -> None:
        calls.append(words)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(*words)

    monkeypatch.setattr(database, "write_counter", full_at_the_second)
    ledger = Ledger.open(path)
    assert ledger.reserve(part(run_id="run 3")).kind == VerdictKind.NEW
    assert ledger.balances()[0].runs == 3
    assert any("not settled" in finding.text and not finding.is_fault for finding in ledger.doctor())
    assert ledger.reserve(part(run_id="run 4")).kind == VerdictKind.NEW


def test_a_part_draws_only_when_its_start_can_no_longer_be_forgotten(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy without its start record would pass, and `release` would give back what was drawn."""
    ledger = Ledger.open(path)
    verdict = ledger.reserve(part(run_id="run 3"))
    shutil.copy(path, path.with_name("older.db"))
    real, calls = database.write_counter, []

    def full_from_the_second_on(*words: Any) -> None:
        calls.append(words)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(database, "write_counter", full_from_the_second_on)
        for _ in range(2):
            with pytest.raises(LedgerUnsettledError, match=r"No space left.*Nothing was drawn"):
                ledger.start(verdict)
    entries = len(ledger.journal())
    ledger.start(verdict)
    assert len(ledger.journal()) == entries
    assert not [finding for finding in ledger.doctor() if "not settled" in finding.text]
    restore(path)
    with pytest.raises(LedgerDamagedError, match="older copy: 1 entry less"):
        Ledger.open(path).release("run 3")


def test_a_disk_of_no_size_is_full_for_the_test_above(path: pathlib.Path) -> None:
    report = path.with_name("report")
    dies(lambda: limited(path, 0, report))
    assert "nothing was changed" in report.read_text()


def test_a_ledger_that_is_read_only_can_be_shown_and_not_written(path: pathlib.Path) -> None:
    report = path.with_name("report")

    def work() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        ledger = Ledger.open(path, create=False)
        runs = ledger.balances()[0].runs
        try:
            ledger.reserve(part(run_id="run 5"))
            words = "reserved"
        except LedgerError as error:
            words = str(error)
        report.write_text(f"{runs} {words}")

    report.touch()
    for file in (path, counter(path), path.with_name("ledger.db.lock"), report, path.parent):
        if os.geteuid() == 0:
            os.chown(file, 65534, 65534)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert dies(work) is None
    finally:
        path.parent.chmod(0o700)
        path.chmod(0o600)
        for file in (path.parent, *path.parent.iterdir()):
            os.chown(file, os.geteuid(), os.getegid())
    assert report.read_text().startswith("2 the ledger")
    assert "readonly" in report.read_text()
    assert Ledger.open(path).balances()[0].runs == 2


def test_a_clock_that_is_set_back_changes_only_the_times_that_are_shown(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            return datetime.datetime(2001, 1, 1, tzinfo=tz)

    clock = types.SimpleNamespace(datetime=Earlier, UTC=datetime.UTC)
    monkeypatch.setattr(database, "datetime", clock)
    ledger = Ledger.open(path)
    verdict = ledger.reserve(part(run_id="run 3"))
    ledger.start(verdict)
    ledger.finish(verdict)
    assert ledger.balances()[0].runs == 3
    assert [entry["counter"] for entry in ledger.journal()] == list(range(1, 8))
    assert ["clock was set back" in finding.text for finding in ledger.doctor() if "clock" in finding.text] == [True]
    assert not [finding for finding in ledger.doctor() if finding.is_fault]


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1])
def test_a_ledger_of_another_version_is_refused_and_stays_as_it_is(path: pathlib.Path, version: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE shh_ledger SET version = ?", [version])
    connection.close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=f"has version {version}, and this program knows version {VERSION} alone"):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_a_process_waits_for_another_one_and_says_when_that_takes_too_long(path: pathlib.Path) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with Ledger.open(path)._database._locked():
                os.write(writing, b"1")
                time.sleep(0.5)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.read(reading, 1)
    with pytest.raises(LedgerBusyError, match=r"has had the ledger .* for 0\.05 s"):
        Ledger.open(path, wait_seconds=0.05)
    assert Ledger.open(path, wait_seconds=30).reserve(part(run_id="run 3")).kind == VerdictKind.NEW
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
