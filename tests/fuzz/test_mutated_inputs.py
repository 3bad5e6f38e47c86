"""A short campaign with a fixed seed over every reader; ``make fuzz`` is the long one.

A case ends after 10 s of its own CPU time, so that a slow machine fails none.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.fuzz.campaign import alike, run
from tests.fuzz.readers import all_readers, cases_by_reader

_SEED = 9
_CASES = 2000
_GROUPS = {
    "logs": ("parquet", "avro", "csv", "json", "gzip"),
    "folders": ("folder", "folder-position", "report-folder"),
    "records": ("json-record", "avro-record", "avro-schema", "topic-record"),
    "outputs": ("report", "show", "plan", "domain", "key"),
    "states": ("progress", "batch", "packed", "naming", "run-state"),
    "ledgers": ("ledger", "ledger-counter"),
    "options": ("config", "titles"),
}


def test_every_reader_is_in_a_group() -> None:
    assert sorted(name for group in _GROUPS.values() for name in group) == sorted(all_readers())


@pytest.mark.parametrize("group", _GROUPS)
def test_mutated_inputs_are_read_or_refused(group: str, tmp_path: pathlib.Path) -> None:
    cases = {name: count for name, count in cases_by_reader(_CASES).items() if name in _GROUPS[group]}
    result = run(cases, _SEED, tmp_path)
    assert {name: tally.cases for name, tally in result.tallies.items()} == cases
    lines = [f"{times} times, first --case {one.case} ({one.sample}): {one.what}" for times, one in alike(result.found)]
    assert not lines, "\n".join(lines)
    for name, tally in result.tallies.items():
        assert tally.accepted + tally.refused == tally.cases, name
        assert tally.accepted, f"{name}: nothing was accepted, so what is accepted was not checked"
