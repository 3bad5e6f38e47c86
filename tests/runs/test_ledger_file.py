"""The file of a ledger: on full and read-only disks, damaged, older, of other versions; kills, clocks and locks."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import resource
import signal
import sqlite3
import stat
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.runs import ledger as ledger_module
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.ledger_file import VERSION, LedgerFile
from dp_transforms.runs.records import LedgerError, Run, RunRefusedError, VerdictKind
from dp_transforms.views.ledger_tables import json_of
from tests.helpers.ledger_runs import CAPS, cost, done, drawn, part, spent
from tests.runs.killed_nights import in_a_process, lines_of

EXTRA = 3  # of PRAGMA synchronous: what was committed survives a loss of power


@pytest.fixture
def path(folder: pathlib.Path) -> pathlib.Path:
    """Of a ledger with two runs, of which one has drawn."""
    path = folder / "ledger.db"
    ledger = Ledger(path)
    ledger.reserve(part(run_id="run 1"), CAPS)
    done(ledger, part(run_id="run 2"), "state 1")
    return path


def test_what_is_reserved_is_on_the_disk_and_nobody_else_writes_meanwhile(path: pathlib.Path) -> None:
    """Who writes has the file for itself from its first statement on; all that is committed is on the disk."""
    with LedgerFile(path, 0).writing() as rows:
        assert rows.connection.execute("PRAGMA synchronous").fetchone() == (EXTRA,)
        with pytest.raises(LedgerError, match="is locked"), LedgerFile(path, 0).writing():
            pytest.fail("two write at once")
        with LedgerFile(path, 0).reading() as others:
            assert len(others.all(Run)) == 2


# --- Other files


def change(statement: str, *values: Any) -> Callable[[pathlib.Path], None]:
    def work(path: pathlib.Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement, values)
            connection.commit()

    return work


DAMAGES: dict[str, Callable[[pathlib.Path], object]] = {
    "cut to half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut to a few bytes": lambda path: os.truncate(path, 100),
    "something else": lambda path: path.write_bytes(b"user,item,timestamp\n" * 500),
    "a table less": change("DROP TABLE runs"),
    "a name of any bytes": lambda path: path.write_bytes(path.read_bytes().replace(b"TABLE runs", b"TABLE \xffuns")),
    "an amount below 0": change("UPDATE runs SET charged_epsilon = '-5'"),
    "an amount in bytes": change("UPDATE runs SET plan_epsilon = ?", b"\xff"),
    "a rule that cannot be": change("UPDATE populations SET kind = 'pld'"),
    "a status that is none": change("UPDATE runs SET status = 'free'"),
    "a part before the first window": change("UPDATE parts SET first_window = '-1'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_ledger_that_is_damaged_is_refused(path: pathlib.Path, name: str) -> None:
    DAMAGES[name](path)
    before = path.read_bytes()
    following = part(1, 2, run_id="run 2", state_before="state 1")
    for asked in (lambda ledger: ledger.reserve(following), Ledger.faults):
        with pytest.raises(LedgerError, match="damaged"):
            asked(Ledger(path))
    assert path.read_bytes() == before


COLUMNS = [
    *(f"populations.{name}" for name in ("kind", "max_epsilon", "max_delta", "base_delta", "name", "declared_at")),
    *(f"runs.{name}" for name in ("run_id", "population", "horizon", "charged_delta", "status", "who", "plan_delta")),
    *(f"parts.{name}" for name in ("part", "run_id", "end_window", "status", "claim", "state_after", "started_at")),
]
VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=9)


@given(data=st.data())
def test_a_ledger_in_which_anything_was_changed_is_read_or_refused_in_one_line(path: pathlib.Path, data: Any) -> None:
    """Any byte, or a value with a tool for SQLite. What somebody makes of it who knows how cannot be told."""
    whole = path.read_bytes()
    try:
        if data.draw(st.booleans()):
            at, new = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.binary(min_size=1, max_size=9))
            path.write_bytes(whole[:at] + new + whole[at + len(new) :])
        else:
            table, _, column = data.draw(st.sampled_from(COLUMNS)).partition(".")
            with contextlib.suppress(sqlite3.Error, UnicodeError):
                change(f"UPDATE {table} SET {column} = ?", data.draw(VALUES))(path)
        ledger = Ledger(path, wait_seconds=0)
        ledger.faults()
        with contextlib.suppress(RunRefusedError):
            ledger.reserve(part(run_id="another"), is_trial=True)
        said = json_of(ledger.balances(), ledger.runs()).replace("\n", " ")
    except LedgerError as error:
        said = str(error)
    path.write_bytes(whole)
    assert said.isprintable()


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_ledger_of_another_version_is_refused_and_stays_as_it_is(path: pathlib.Path, version: int) -> None:
    change(f"PRAGMA user_version = {version}")(path)
    before = path.read_bytes()
    for asked in (Ledger.balances, Ledger.faults, lambda ledger: ledger.reserve(part())):
        with pytest.raises(LedgerError, match=f"one of version {version}, and this program knows version {VERSION}"):
            asked(Ledger(path))
    assert path.read_bytes() == before


def test_only_a_file_that_is_closed_to_others_is_a_ledger(ledger: Ledger, folder: pathlib.Path) -> None:
    ledger.reserve(part(), CAPS)
    path = folder / "ledger.db"
    assert {each.name for each in folder.iterdir()} == {"ledger.db", "ledger.db.lock"}
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    (folder / "link").symlink_to(path)
    os.mkfifo(folder / "pipe", 0o600)
    for name in ("link", "pipe"):
        with pytest.raises(LedgerError, match="must be a regular file"):
            Ledger(folder / name).balances()
    path.chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        ledger.balances()
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(LedgerError, match="of your own"):
            ledger.balances()


def test_a_ledger_is_made_by_what_is_reserved_alone(ledger: Ledger, folder: pathlib.Path) -> None:
    for asked in (ledger.balances, ledger.runs, ledger.faults, functools.partial(ledger.end, "run")):
        with pytest.raises(LedgerError, match="there is no ledger"):
            asked()
    assert ledger.reserve(part(), CAPS, is_trial=True).kind == VerdictKind.NEW
    assert list(folder.iterdir()) == []


# --- Kills, disks, clocks, locks


STEPS: list[tuple[str, Callable[[Ledger, Any], Any]]] = [
    ("reserved", lambda ledger, _: ledger.reserve(part(run_id="run"), CAPS)),
    ("running", Ledger.start),
    ("running", lambda ledger, verdict: ledger.publishing(verdict, "s1")),
    ("finished", lambda ledger, verdict: ledger.finish(verdict, "s1")),
]


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_step_that_is_killed_at_any_line_forgets_nothing(folder: pathlib.Path, step: int) -> None:
    """What was said before stays; what was being said is said, or not; and the same steps go on. The first one makes
    the file."""
    place, (said, say) = folder / "ledger.db", STEPS[step]

    def statuses() -> list[str]:
        known = place.exists() and place.stat().st_size
        return [str(each.status) for _, parts in (Ledger(place).runs() if known else []) for each in parts]

    def steps_before() -> Any:
        for each in folder.iterdir():
            each.unlink()
        verdict = None
        for _, said_before in STEPS[:step]:
            verdict = said_before(Ledger(place), verdict) or verdict
        return verdict

    _, kills = lines_of(functools.partial(say, Ledger(place), steps_before()), folder)
    assert len(kills) > 1
    for at in kills:
        verdict, before = steps_before(), statuses()
        assert in_a_process(functools.partial(say, Ledger(place), verdict), at) == (True, "")
        assert (after := statuses()) in (before, [said])  # noqa: RUF018
        if after != ["finished"]:
            drawn(Ledger(place), Ledger(place).reserve(part(run_id="run"), CAPS), "s1")
        assert spent(Ledger(place)) == cost().epsilon
        assert not Ledger(place).faults()
        assert {each.name for each in folder.iterdir()} == {"ledger.db", "ledger.db.lock"}


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


@pytest.mark.parametrize("most_bytes", [0, 500, 5_000, 20_000])
def test_a_full_disk_changes_nothing(path: pathlib.Path, most_bytes: int) -> None:
    """Whichever file finds no room: what is not on the disk is not said to be reserved, or started."""
    for name in ("reserve", "start"):
        verdict = Ledger(path).reserve(part(run_id="run 5")) if name == "start" else None
        before = Ledger(path).runs()

        def work(verdict: Any = verdict) -> None:
            Ledger(path).start(verdict) if verdict else Ledger(path).reserve(part(run_id="run 5"))

        said = with_files_of(most_bytes, work)
        assert (said == "") == (Ledger(path).runs() != before)
        assert not said or "nothing was changed" in said
        assert most_bytes > 3_000 or said
        assert not Ledger(path).faults()
    assert Ledger(path).reserve(part(run_id="run 6")).kind == VerdictKind.NEW


def test_a_ledger_that_is_read_only_can_be_shown_and_not_written(path: pathlib.Path) -> None:
    report = path.with_name("report")

    def work() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        ledger = Ledger(path)
        ledger.reserve(part(run_id="run 5"), is_trial=True)
        report.write_text(str(ledger.balances()[0].runs))
        ledger.reserve(part(run_id="run 5"))

    report.touch()
    for file in (path, path.with_name("ledger.db.lock"), report, path.parent):
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
    assert Ledger(path).balances()[0].runs == 2


def test_a_clock_that_is_set_back_changes_only_the_times_that_are_shown(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, year in enumerate((2030, 2026, 2020)):
        monkeypatch.setattr(ledger_module, "_now", lambda year=year: f"{year}-01-01T00:00:00+00:00")
        done(ledger, part(run_id=f"run {number}"))
    assert [run.reserved_at[:4] for run, _ in ledger.runs("news")] == ["2030", "2026", "2020"]
    assert ledger.balances()[0].runs == 3
    assert ledger.faults() == []


def test_a_process_waits_for_another_one_and_says_when_that_takes_too_long(path: pathlib.Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="is locked, wait"):
        Ledger(path, wait_seconds=0.05).reserve(part(run_id="run 3"))
    threading.Timer(0.1, connection.rollback).start()
    assert Ledger(path, wait_seconds=30).reserve(part(run_id="run 3")).kind == VerdictKind.NEW
    connection.close()
