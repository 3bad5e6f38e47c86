"""Every mode by every driver publishes what the reference says, however the log is cut.

A cell is one run: a word of `cuts.CUTS`, and one that says the reader, or where parts end. A cell that begins with
``~`` is for the night. Each mode gates a change by the driver that is cheapest for it, and once more where an answer in
order is another one; each driver does so at least three times.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dp_transforms import WindowReport
from tests.conformance.cuts import CUTS
from tests.conformance.drivers import AT_ONCE, IN_ORDER, MODES, Case, in_parts
from tests.transcripts.cases import MODES as TOLD

AT_ONCE_TABLE = """
                                  | replay          | pool            | batch
contributions                     | ~crumbs csv     | twice parquet   | ~back
contributions-sliding             | back parquet    | ~early avro     | ~crumbs csv
contributions-public              | twice avro      | ~nothing jsonl  | ~nothing
hits                              | ~nothing parquet| whole avro      | again
hits-sliding                      | crumbs jsonl    | ~twice csv      | ~early
hits-public                       | ~back csv       | ~early parquet  | whole jsonl
hits-with-counts                  | twice parquet   | ~nothing avro   | ~again
contributions-from-noise          | early jsonl     | ~early csv      | ~nothing
contributions-twice               | -               | -               | -
contributions-twice-sliding       | -               | -               | -
contributions-least               | ~twice avro     | ~back csv       | ~crumbs jsonl
contributions-in-rounds-least     | crumbs csv      | ~back jsonl     | ~again
contributions-in-rounds           | ~back avro      | crumbs jsonl    | ~again
contributions-in-rounds-sliding   | crumbs csv      | ~early parquet  | ~twice avro
contributions-also-open           | ~crumbs avro    | ~twice csv      | nothing
contributions-in-rounds-also-open | ~twice jsonl    | ~crumbs avro    | nothing
contributions-public-sliding      | nothing csv     | ~whole parquet  | ~twice parquet
hits-from-noise-public            | whole avro      | ~back jsonl     | ~again
hits-with-counts-public-sliding   | nothing jsonl   | ~whole csv      | ~crumbs csv
"""

IN_ORDER_TABLE = """
                                  | parts           | stream          | watermark
contributions                     | ~twice two      | late            | ~back
contributions-sliding             | again two       | ~crumbs         | ~late
contributions-public              | ~crumbs each    | ~again          | ~twice
hits                              | ~nothing five   | twice           | ~late
hits-sliding                      | ~whole two      | ~early avro     | ~nothing
hits-public                       | ~twice two      | ~whole jsonl    | ~whole
hits-with-counts                  | again two       | ~late           | ~back
contributions-from-noise          | early each      | ~early parquet  | ~early
contributions-twice               | -               | early           | late
contributions-twice-sliding       | -               | back            | ~early
contributions-least               | ~again two      | crumbs          | ~twice
contributions-in-rounds-least     | ~twice two      | -               | -
contributions-in-rounds           | again five      | -               | -
contributions-in-rounds-sliding   | ~twice two      | -               | -
contributions-also-open           | again five      | ~crumbs         | ~late
contributions-in-rounds-also-open | early two       | -               | -
contributions-public-sliding      | ~back two       | ~back           | twice
hits-from-noise-public            | crumbs two      | ~nothing csv    | ~back
hits-with-counts-public-sliding   | ~early five     | ~crumbs         | late
"""


def rows_of(table: str) -> dict[str, list[list[str]]]:
    """The words of each cell, by mode; a cell with ``-`` has none: the driver does not take such a plan."""
    lines = [line.split("|") for line in table.strip().splitlines()]
    return {mode.strip(): [cell.replace("-", "").split() for cell in cells] for mode, *cells in lines[1:]}


AT_ONCE_RUNS, IN_ORDER_RUNS = rows_of(AT_ONCE_TABLE), rows_of(IN_ORDER_TABLE)


def runs(found: dict[str, list[list[str]]], drivers: Iterable[str]) -> Iterator[Any]:
    for mode, cells in found.items():
        for driver, words in zip(drivers, cells, strict=True):
            if not words:
                continue
            # One process calibrates the plan of a mode, and knows what the reference says.
            marks = [pytest.mark.xdist_group(mode), *([pytest.mark.nightly] if words[0].startswith("~") else [])]
            asked = [word.lstrip("~") for word in words]
            yield pytest.param(mode, driver, asked, marks=marks, id=" ".join([mode, driver, *asked]))


def case_of(folder: pathlib.Path, mode: str, words: list[str]) -> Case:
    return Case(folder, MODES[mode], CUTS[words[0]], " ".join(words[1:]))


@pytest.mark.parametrize(("mode", "driver", "words"), runs(AT_ONCE_RUNS, AT_ONCE))
def test_at_once(tmp_path: pathlib.Path, mode: str, driver: str, words: list[str]) -> None:
    case = case_of(tmp_path, mode, words)
    assert AT_ONCE[driver](case) == case.expected()


@pytest.mark.parametrize(("mode", "driver", "words"), runs(IN_ORDER_RUNS, IN_ORDER))
def test_in_order(tmp_path: pathlib.Path, mode: str, driver: str, words: list[str]) -> None:
    case = case_of(tmp_path, mode, words)
    assert IN_ORDER[driver](case) == case.expected(in_order=True)


@pytest.mark.xdist_group("contributions-public")
def test_the_state_is_a_function_of_what_was_carried_on(tmp_path: pathlib.Path) -> None:
    """Byte for byte after each part, however events and shards were cut."""
    states = []
    for name, words in {"plain": "whole two", "cut": "again two", "disorder": "twice two"}.items():
        (tmp_path / name).mkdir()
        case = case_of(tmp_path / name, "contributions-public", words.split())
        left = in_parts(case)
        assert left.reports == case.expected(in_order=True)
        states.append([path.read_bytes() for path in left.states])
        assert len(set(states[-1])) == len(left.states)
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=pytest.mark.xdist_group(mode)) for mode in MODES])
def test_the_log_is_such_that_this_shows_something(mode: str) -> None:
    def expected(cut: str) -> list[WindowReport]:
        return case_of(pathlib.Path(), mode, [cut]).expected(in_order=MODES[mode].choices.get("use") != "replay")

    assert len(expected("whole")) >= 7
    if MODES[mode].public and mode not in TOLD:
        assert expected("nothing"), "items that nobody holds are published too"
    elif "noise" in mode:
        assert len(expected("early")) > 4, "items are followed when nobody holds them any more"
