"""A short campaign with a fixed seed over every reader (``make fuzz`` is the long one), a case at which a process dies,
and mutated inputs that were once read wrongly: each of those is refused in one line now.

A new one: ``python -m tests.fuzz --case READER:SEED:NUMBER --write tests/fuzz/reproducers/READER-SEED-NUMBER``, and a
line in the table.
"""

from __future__ import annotations

import pathlib
import time

import pytest

from tests.fuzz.campaign import alike, run
from tests.fuzz.reader import FaultError, Reader, Sample, one_input, outcome, place_bytes
from tests.fuzz.readers import all_readers, cases_by_reader

_SEED = 9
_CASES = 2000
_FOLDER = pathlib.Path(__file__).parent / "reproducers"
# name: (sample, what happened)
_KNOWN = {
    "plan-1-10": ("plan 3", "the name of an unknown field, a lone surrogate, stood in the error"),
    "report-folder-1-398": ("jsonl, header.json", "TypeError: a list as the format of the files"),
    "folder-position-101-132": ("position 0", "RecursionError"),
    "folder-position-101-442": ("position 0", "TypeError"),
    "folder-position-101-5488": ("position 0", "ValueError: the name held a zero byte"),
    "topic-record-31-8816": (
        "json 0",
        "UnicodeEncodeError as the header was written again: a lone surrogate in its plan",
    ),
    "topic-record-11-7393": ("json 0", "a run id that is no Unicode was accepted, and could not be written"),
    "topic-record-11-7458": ("json 3", "more windows than 64 bits hold were accepted, and could not be written"),
    "key-1-2027": ("32 bytes", "a key of zeros was accepted"),
}


def test_mutated_inputs_are_read_or_refused() -> None:
    counts = cases_by_reader(_CASES)
    for name, result in run(counts, _SEED).items():
        tally = result.tally
        assert alike(result.found) == []
        assert tally.accepted + tally.refused == tally.cases == counts[name], name
        assert tally.accepted, f"{name}: nothing was accepted, so what is accepted was not checked"


def test_every_reproducer_is_in_the_table() -> None:
    assert sorted(path.name for path in _FOLDER.iterdir()) == sorted(_KNOWN)


@pytest.mark.parametrize("name", _KNOWN)
def test_what_was_read_wrongly_once_is_refused(name: str, tmp_path: pathlib.Path) -> None:
    reader = all_readers()[name.rsplit("-", 2)[0]]
    sample = next(sample for sample in reader.samples() if sample.name == _KNOWN[name][0])
    place = reader.place(str(tmp_path), "input", sample, (_FOLDER / name).read_bytes())
    time.sleep(reader.settle_seconds)
    verdict, words = outcome(reader, sample, place)
    assert verdict == "refused", words


def test_a_continuous_fuzzer_gives_every_reader_bytes_and_gets_its_faults() -> None:
    for reader in all_readers().values():
        for data in (b"", b"\0", *(bytes([number]) + one.data for number, one in enumerate(reader.samples()))):
            one_input(reader, data)

    def read(sample: Sample, placed: bytes) -> None:
        if placed == b"bad":
            raise KeyError(placed)

    faulty = Reader("faulty", lambda: [Sample("one", b"good")], (ValueError,), place_bytes, read)
    one_input(faulty, b"\0good")
    with pytest.raises(FaultError, match="KeyError"):
        one_input(faulty, b"\0bad")
