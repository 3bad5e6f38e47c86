"""Which mutants `make mutants` leaves out, how it counts, and that every known survivor has a reason."""

from __future__ import annotations

import ast
import json
import pathlib

import pytest

from tests.mutants import FOLDERS, SURVIVORS, interval, left_out

ROOT = pathlib.Path(__file__).resolve().parents[1]


def function(body: str) -> ast.FunctionDef:
    (found,) = ast.parse(f"def f(a, b):\n    {body}\n").body
    assert isinstance(found, ast.FunctionDef)
    return found


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("check_whole('hits', a, 1)", "check_whole('XXhitsXX', a, 1)", "words"),
        ("check_whole('hits', a, 1)", "check_whole(None, a, 1)", "words"),
        ("check_whole('hits', a, 1)", "check_whole('hits', a, 2)", ""),
        ("check_whole('hits', a, 1)", "check_whole('hits', None, 1)", ""),
        ("check_whole(a, b)", "check_whole(None, b)", ""),
        ("return ValueError(f'is {a + b}')", "return ValueError(f'is {a - b}')", "words"),
        ("return threshold_error(a, b)", "return threshold_error(a, None)", "words"),
        ("self._note_error(a)", "self._note_error(None)", ""),
        ("return error(a + b)", "return error(a - b)", ""),
        ("return cast(int, a)", "return cast(None, a)", "words"),
        ("return cast(int, a + b)", "return cast(int, a - b)", ""),
        ("return zip(a, b, strict=True)", "return zip(a, b, strict=False)", "strict"),
        ("return zip(a, b, strict=True)", "return zip(a, b)", "strict"),
        ("return zip(a, b, strict=True)", "return zip(a, strict=True)", ""),
        ("return zip(a, b, strict=True)", "return zip(a, None, strict=True)", ""),
        ("return a < b", "return a <= b", ""),
        ("return a", "return a", ""),
    ],
)
def test_only_words_and_strict_are_left_out(before: str, after: str, wanted: str) -> None:
    assert left_out(function(before), function(after)) == wanted


def test_a_default_that_changes_is_not_left_out() -> None:
    (before,), (after,) = (ast.parse(f"def f(a={value}):\n    return a").body for value in (1, 2))
    assert left_out(before, after) == ""


@pytest.mark.parametrize(("part", "whole"), [(0, 10), (10, 10), (7, 10), (190, 200)])
def test_the_interval_covers_what_was_seen_and_no_more_than_its_level(part: int, whole: int) -> None:
    """At its ends a binomial count as far off as what was seen has a probability of 2.5 %."""
    scipy_stats = pytest.importorskip("scipy.stats")
    low, high = interval(part, whole)
    assert low <= part / whole <= high
    if part:
        assert scipy_stats.binom.sf(part - 1, whole, low) == pytest.approx(0.025)
    if part < whole:
        assert scipy_stats.binom.cdf(part, whole, high) == pytest.approx(0.025)


def test_every_known_survivor_has_a_kind_a_reason_and_a_module() -> None:
    entries = json.loads(SURVIVORS.read_text())
    assert len(entries) > 20
    for entry in entries:
        assert set(entry) == {"module", "function", "lines", "kind", "reason"}
        assert entry["module"].startswith(tuple(f"{folder}/" for folder in FOLDERS))
        assert entry["kind"] in ("equivalent", "open")
        assert len(entry["reason"]) > 10
        assert (ROOT / "dp_transforms" / f"{entry['module']}.py").is_file()
