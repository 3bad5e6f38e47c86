"""Readers of a ledger: the SQLite file, and the counter file beside it, each beside a good copy of the other."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import pathlib
import random
import shutil
import sqlite3
import tempfile
from typing import Any

import pytest

from dp_transforms.runs.ledger import Ledger, book
from dp_transforms.runs.ledger.book import Actor
from dp_transforms.runs.records import BudgetExceededError, Caps, LedgerDamagedError, LedgerError, RunRefusedError
from dp_transforms.views.ledger_tables import json_of
from tests.fuzz import format_mutators
from tests.fuzz.mutators import flip_bits
from tests.fuzz.reader import FaultError, Reader, Sample
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


def _change_a_value(rng: random.Random, data: bytes) -> bytes:
    """Of the counter file: in one line another value of its type, a line less, or the same line in other words."""
    lines = data.splitlines()
    try:
        at = rng.randrange(len(lines))
        if rng.random() < 0.4:  # an entry is missed; that one before the last was made is not
            return b"".join(line + b"\n" for line in [*lines[:at], *lines[at + 1 :]])
        fields = json.loads(lines[at])
        place = rng.choice([fields, *(record for _, record in fields["records"])])
        name = rng.choice(sorted(place))
        value = place[name]
        if isinstance(value, int):
            place[name] = rng.choice([value + 1, max(0, value - 1), 0, 10**15, 2 * value])
        elif isinstance(value, str):
            place[name] = rng.choice(["", "basic", "renyi", "8", "news", value[:-1], value[::-1]])
        elif isinstance(value, list):
            place[name] = rng.choice([value[:-1], value[1:], value[::-1], [0 for _ in value], [10**15 for _ in value]])
        lines[at] = json.dumps(fields if rng.random() < 0.8 else json.loads(lines[at])).encode()
        return b"".join(line + b"\n" for line in lines)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return flip_bits(rng, data)


@functools.cache
def _files() -> tuple[bytes, bytes]:
    """Of a ledger with runs in each status, and two populations; the same bytes in each process."""
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "now", noon.isoformat)
        patch.setattr(book.secrets, "token_hex", lambda size: "7e" * size)
        path = pathlib.Path(folder, "ledger.db")
        ledger = Ledger.open(path, actor=Actor("somebody", "another machine", "7:1:boot"))
        for number, end in enumerate((ledger.finish, ledger.fail, ledger.start, None)):
            verdict = ledger.reserve(part(run_id=f"run {number}"), CAPS)
            if end is not None:
                ledger.start(verdict)
                end(verdict)
        ledger.release("run 3")
        ledger.reserve(part(run_id="film", cost=cost(1, 1e-7), **_RENYI), Caps(9, "1e-6"))
        return path.read_bytes(), path.with_name("ledger.db.counter").read_bytes()


def _place(folder: str, name: str, sample: Sample, data: bytes) -> str:
    """In a folder of its own: the ledger makes files beside itself."""
    own = os.path.join(folder, name)
    os.mkdir(own)
    ledger, counter = (data, _files()[1]) if sample.context == "ledger" else (_files()[0], data)
    for ending, content in (("", ledger), (".counter", counter)):
        path = os.path.join(own, f"ledger.db{ending}")
        with open(path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
    return os.path.join(own, "ledger.db")


def _spent(ledger: Ledger) -> dict[str, int]:
    return {balance.population.name: balance.total.epsilon for balance in ledger.balances()}


def _read(sample: Sample, path: str) -> Any:
    """All that is shown; then a copy is repaired, and a run reserved in it: nothing that was spent is forgotten."""
    ledger = Ledger.open(path, create=False)
    findings = ledger.doctor()
    copy = os.path.join(os.path.dirname(path), "copy.db")
    for ending in ("", ".counter"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    repaired = Ledger.open(copy, create=False, rebuild=True)
    repaired.repair()
    after = _spent(repaired)
    if sample.context == "ledger" and any(after.get(name, 0) < spent for name, spent in _true_spent().items()):
        raise FaultError("spent", f"{after} after a repair, and {_true_spent()} was spent")
    with contextlib.suppress(BudgetExceededError, RunRefusedError):
        repaired.reserve(part(run_id="another"))
    if any(finding.is_fault for finding in findings):
        raise LedgerDamagedError("; ".join(finding.text for finding in findings if finding.is_fault)[:3000])
    balances, runs = ledger.balances(), ledger.runs()
    if _spent(ledger) != _true_spent():
        raise FaultError("spent", "the doctor finds nothing in a ledger where other amounts are spent")
    return [json_of(balances, runs)]


@functools.cache
def _true_spent() -> dict[str, int]:
    return {"news": 3 * cost().epsilon, "films": cost(1).epsilon}


@functools.cache
def _ledger_samples() -> list[Sample]:
    return [Sample("ledger", _files()[0], "", (_change_a_cell,) * 6, "ledger")]


@functools.cache
def _counter_samples() -> list[Sample]:
    return [Sample("counter", _files()[1], "", (*format_mutators.JSON, *(_change_a_value,) * 60), "counter")]


def ledger_readers() -> list[Reader]:
    refusals = (LedgerError, LedgerDamagedError)
    return [
        Reader("ledger", _ledger_samples, refusals, _place, _read, cost=8),
        Reader("ledger-counter", _counter_samples, refusals, _place, _read, cost=8),
    ]
