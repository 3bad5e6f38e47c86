"""What is stored and shown of amounts, entries and processes."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from dp_transforms.runs.ledger import records
from dp_transforms.runs.ledger.records import LedgerDamagedError, amount
from dp_transforms.runs.ledger.rows import META, Whole, check_row, entry_digest


def test_what_is_spent_is_shown_rounded_up_and_what_is_left_rounded_down() -> None:
    assert [amount(Decimal(text)) for text in ("0", "0.5", "0.1234561", "1.0000001e-9")] == [
        *("0", "0.5", "0.123457", "1.00001e-09")
    ]
    assert [amount(Decimal(text), down=True) for text in ("0.1234569", "3.9999999")] == ["0.123456", "3.99999"]


def test_the_digest_of_an_entry_is_the_one_that_ledgers_have_stored() -> None:
    texts = {name: name for name in ("at", "action", "population", "run_id", "who", "place", "process", "note")}
    entry = {**texts, "counter": 1, "part": 2, "spent_epsilon": 3, "spent_delta": 4, "digest": "is left out"}
    first = "e4326d949e9c253cd74e33bc28a3768e5cd86074d78fa48aeecab045bd9617b2"
    assert entry_digest("", entry) == first
    assert entry_digest(first, entry) != first
    for name in set(entry) - {"digest"}:
        assert entry_digest("", {**entry, name: 9}) != first, name


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1", -1, None, 10**60])
def test_only_whole_numbers_are_stored_as_amounts(value: Any) -> None:
    with pytest.raises(ValueError, match="whole number"):
        Whole().process_bind_param(value, sqlite.dialect())


@pytest.mark.parametrize(
    "changes", [{"counter": "1"}, {"counter": -1}, {"digest": 1}, {"digest": None}, {"version": 1.0}]
)
def test_a_row_with_a_value_of_another_type_is_damage(changes: dict[str, Any]) -> None:
    row = {"id": 1, "ledger_id": "7e", "version": 1, "counter": 1, "digest": ""}
    check_row(META, row)
    with pytest.raises(LedgerDamagedError, match="cannot be read"):
        check_row(META, row | changes)
    assert isinstance(META.c.digest.type, sa.String)


def test_without_proc_a_process_is_gone_only_if_its_number_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    here, child = records.Actor.here(), os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    monkeypatch.setattr(records, "_process", lambda number: None)
    assert not records.is_gone(here.place, str(os.getpid()))
    assert not records.is_gone(here.place, "1"), "it may not be asked, and is there"
    assert records.is_gone(here.place, str(child))
