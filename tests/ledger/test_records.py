"""What is stored and shown of amounts, entries and processes."""

from __future__ import annotations

import hashlib
import os
from decimal import Decimal
from typing import Any

import pytest

from dp_transforms.runs.ledger import records
from dp_transforms.runs.ledger.book import Entry
from dp_transforms.runs.ledger.records import Actor, LedgerDamagedError, amount


def test_what_is_spent_is_shown_rounded_up_and_what_is_left_rounded_down() -> None:
    assert [amount(Decimal(text)) for text in ("0", "0.5", "0.1234561", "1.0000001e-9")] == [
        *("0", "0.5", "0.123457", "1.00001e-09")
    ]
    assert [amount(Decimal(text), down=True) for text in ("0.1234569", "3.9999999")] == ["0.123456", "3.99999"]


def test_the_digest_of_an_entry_is_of_all_that_it_says() -> None:
    first = Entry.first(Actor("somebody", "place", "7:1:boot"))
    again = Entry.parsed(first.text)
    assert (again, again.digest) == (first, hashlib.sha256(first.text.encode()).hexdigest())
    assert Entry.first(Actor("somebody", "place", "7:1:boot")).digest != first.digest, "another ledger"


@pytest.mark.parametrize("value", [1.5, 1.0, True, "1", -1, None, 10**60])
@pytest.mark.parametrize("name", ["counter", "part", "spent_epsilon"])
def test_only_whole_numbers_are_amounts_of_an_entry(name: str, value: Any) -> None:
    first = Entry.first(Actor("somebody", "place", "7:1:boot"))
    with pytest.raises(LedgerDamagedError, match="cannot be read"):
        Entry.of({**first.fields, name: value}, [])


def test_without_proc_a_process_is_gone_only_if_its_number_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    here, child = records.Actor.here(), os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    monkeypatch.setattr(records, "_process", lambda number: None)
    assert not records.is_gone(here.place, str(os.getpid()))
    assert not records.is_gone(here.place, "1"), "it may not be asked, and is there"
    assert records.is_gone(here.place, str(child))
