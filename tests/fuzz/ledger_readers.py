"""Readers of a ledger: the SQLite file."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import random
import sqlite3
import tempfile
from typing import Any

import pytest

from dp_transforms.runs import ledger as ledger_module
from dp_transforms.runs.ledger import Ledger
from dp_transforms.runs.records import Caps, LedgerDamagedError, LedgerError, RunRefusedError
from dp_transforms.views.ledger_tables import json_of
from tests.fuzz.mutators import flip_bits
from tests.fuzz.reader import Reader, Sample, place_file
from tests.helpers.ledger_runs import CAPS, cost, part

_VALUES: tuple[Any, ...] = (0, 1, -1, 2**63 - 1, 1.5, None, "", "0", "9" * 70, "-1", "nan", "news", "renyi", "basic")
_VALUES += ("released", b"", b"\xff")
_RENYI = {"population": "films", "stream": "films"}


def _change_a_cell(rng: random.Random, data: bytes) -> bytes:
    """A value of any type in any row, or a row less: what somebody with a tool for SQLite can do."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        try:
            connection.deserialize(data)
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = rng.choice(tables)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            rowids = [rowid for (rowid,) in connection.execute(f"SELECT rowid FROM {table}")]
            rowid = rng.choice(rowids)
            if rng.random() < 0.1:
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
            else:
                change = f"UPDATE {table} SET {rng.choice(columns)} = ? WHERE rowid = ?"
                connection.execute(change, (rng.choice(_VALUES), rowid))
            return connection.serialize()
        except (sqlite3.Error, IndexError, UnicodeError):
            return flip_bits(rng, data)


@functools.cache
def _ledger() -> bytes:
    """With runs in each status, and two populations; the same bytes in each process."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "_now", lambda: "2026-01-01T12:00:00+00:00")
        patch.setattr(ledger_module, "_login", lambda: "somebody")
        patch.setattr(ledger_module.secrets, "token_hex", lambda size: "7e" * size)
        path = pathlib.Path(folder, "ledger.db")
        ledger = Ledger(path)
        for number in range(4):
            verdict = ledger.reserve(part(run_id=f"run {number}"), CAPS)
            if number:
                ledger.start(verdict)
            if number == 1:
                ledger.fail(verdict)
            if number == 2:
                ledger.publishing(verdict, "state")
                ledger.finish(verdict, "state")
        ledger.release("run 0")
        ledger.reserve(part(run_id="film", cost=cost(1, 1e-7), **_RENYI), Caps(9, "1e-6"))
        return path.read_bytes()


def _place(folder: str, name: str, sample: Sample, data: bytes) -> str:
    path = place_file(folder, name, sample, data)
    os.chmod(path, 0o600)
    return path


def _read(sample: Sample, path: str) -> Any:
    """All that is shown, and what a new run is told. Amounts that somebody has changed are not seen: who can write to
    the file can write what it likes."""
    ledger = Ledger(path)
    if any(finding.is_fault for finding in ledger.findings()):
        raise LedgerDamagedError("a fault")
    with contextlib.suppress(RunRefusedError):
        ledger.reserve_run(part(run_id="another"), is_trial=True)
    return [json_of(ledger.balances(), ledger.runs())]


def ledger_readers() -> list[Reader]:
    samples = functools.partial(list, [Sample("ledger", _ledger(), "", (_change_a_cell,) * 6, "ledger")])
    return [Reader("ledger", samples, (LedgerError, LedgerDamagedError), _place, _read, cost=8)]
