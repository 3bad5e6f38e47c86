"""A short campaign with a fixed seed over every reader; ``make fuzz`` is the long one.

A case ends after 10 s of its own CPU time, so that a slow machine fails none.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.fuzz import readers
from tests.fuzz.campaign import alike, run
from tests.fuzz.continuous import one_input
from tests.fuzz.reader import FaultError, Reader, Sample, place_bytes
from tests.fuzz.readers import cases_by_reader

_SEED = 9
_CASES = 2000


def test_mutated_inputs_are_read_or_refused(tmp_path: pathlib.Path) -> None:
    cases = cases_by_reader(_CASES)
    result = run(cases, _SEED, tmp_path)
    assert {name: tally.cases for name, tally in result.tallies.items()} == cases
    lines = [f"{times} times, first --case {one.case} ({one.sample}): {one.what}" for times, one in alike(result.found)]
    assert not lines, "\n".join(lines)
    for name, tally in result.tallies.items():
        assert tally.accepted + tally.refused == tally.cases, name
        assert tally.accepted, f"{name}: nothing was accepted, so what is accepted was not checked"


def test_a_continuous_fuzzer_gives_every_reader_bytes_and_gets_its_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in readers.all_readers():
        test_one_input, inputs = one_input(name)
        for data in (b"", b"\0", *inputs):
            test_one_input(data)

    def read(sample: Sample, placed: bytes) -> None:
        if placed == b"bad":
            raise KeyError(placed)

    faulty = Reader("faulty", lambda: [Sample("one", b"good")], (ValueError,), place_bytes, read)
    monkeypatch.setitem(readers.all_readers(), "faulty", faulty)
    test_one_input, _ = one_input("faulty")
    test_one_input(b"\0good")
    with pytest.raises(FaultError, match="KeyError"):
        test_one_input(b"\0bad")
