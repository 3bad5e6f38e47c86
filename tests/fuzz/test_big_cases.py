"""Bombs and giants, each in a process of its own, with limits of CPU and memory. Most are for ``make fuzz``."""

from __future__ import annotations

import os
import pathlib

import pytest

from tests.fuzz.big_binary_cases import BigCase
from tests.fuzz.big_cases import big_cases
from tests.fuzz.child import read_in_child

_CASES = big_cases()
_QUICK = (
    *("json, 100 MB line", "json, nested a million deep, closed", "avro, block of 1 GB, deflate", "avro, 2^62 records"),
    *("avro, array of minus 2^62 values", "avro, type nested 30,000 deep", "parquet, footer that says 4 GB"),
    *("report, nested a million deep", "plan, hits without end", "progress, nested a million deep"),
)


def _name(case: BigCase) -> str:
    return f"{case.reader}, {case.name}"


def _marked(case: BigCase) -> object:
    return pytest.param(case, id=_name(case), marks=[] if _name(case) in _QUICK else [pytest.mark.nightly])


def test_the_quick_cases_are_cases() -> None:
    assert set(_QUICK) <= {_name(case) for case in _CASES}


@pytest.mark.parametrize("case", [_marked(case) for case in _CASES])
def test_giants_are_read_or_refused_within_their_limits(case: BigCase, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"big{case.ending}"
    case.write(path)
    os.chmod(path, 0o600)
    read = read_in_child(case.reader, case.sample, str(path), case.seconds)
    path.unlink()
    assert read.verdict in (("accepted", "refused") if case.verdict == "either" else (case.verdict,)), read.words
    assert read.megabytes <= case.megabytes


@pytest.mark.nightly
def test_a_case_that_takes_too_long_or_dies_is_noticed(tmp_path: pathlib.Path) -> None:
    """The limits above are real: a file that takes seconds is ended at one, and a reader that waits is found."""
    case = next(case for case in _CASES if case.name == "2 GB of blanks and line ends")
    path = tmp_path / f"big{case.ending}"
    case.write(path)
    assert read_in_child(case.reader, case.sample, str(path), 1).verdict == "hang"
