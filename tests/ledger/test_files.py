"""The files of a ledger: who may open them, what is not a ledger, and how it is named."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from dp_transforms.runs.ledger import Ledger, LedgerError
from tests.helpers.ledger_runs import CAPS, cost, done, part, spent
from tests.helpers.seen_connections import check_durable_and_in_turns, seen_connections


def test_the_files_are_closed_to_others(ledger: Ledger, folder: pathlib.Path) -> None:
    ledger.reserve(part(), CAPS)
    assert {path.name for path in folder.iterdir()} == {"ledger.db", "ledger.db.counter", "ledger.db.lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_ledger_that_others_may_open_is_refused(ledger: Ledger, folder: pathlib.Path) -> None:
    (folder / "ledger.db").chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        Ledger.open(folder / "ledger.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_ledger_of_another_user_is_refused(ledger: Ledger, folder: pathlib.Path) -> None:
    os.chown(folder / "ledger.db", 65534, 65534)
    with pytest.raises(LedgerError, match="belongs to another user"):
        Ledger.open(folder / "ledger.db")


def test_a_link_and_a_pipe_are_refused(ledger: Ledger, folder: pathlib.Path) -> None:
    (folder / "link").symlink_to(folder / "ledger.db")
    os.mkfifo(folder / "pipe", 0o600)
    for name in ("link", "pipe"):
        with pytest.raises(LedgerError, match="not a regular file"):
            Ledger.open(folder / name)


def test_a_path_may_be_given_as_a_url(ledger: Ledger, folder: pathlib.Path) -> None:
    ledger.reserve(part(), CAPS)
    assert spent(Ledger.open(f"sqlite:///{folder}/ledger.db", create=False)) == cost().epsilon


def test_a_ledger_is_made_only_where_it_is_asked_for(folder: pathlib.Path) -> None:
    with pytest.raises(LedgerError, match="shh ledger reserve"):
        Ledger.open(folder / "ledger.db", create=False)
    with pytest.raises(LedgerError, match=r"mysql|needs|path"):
        Ledger.open("mysql://host/database")
    assert list(folder.iterdir()) == []


def test_what_is_reserved_is_on_the_disk_and_nobody_else_writes_meanwhile(folder: pathlib.Path) -> None:
    with seen_connections() as seen:
        ledger = Ledger.open(folder / "ledger.db")
        done(ledger, part())
        assert spent(ledger) == cost().epsilon
    check_durable_and_in_turns(seen)
