"""Of a test with few cases more than the first one runs for every change."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.helpers.chosen_cases import marks_of_case

ROOT = pathlib.Path(__file__).resolve().parents[1]


def shown(count: int, *, is_quick: bool) -> tuple[list[int], list[int]]:
    """The places that `make test` runs, and those that `make test-long` runs."""
    marks = [marks_of_case(place, count, is_quick=is_quick) for place in range(count)]
    return [n for n, each in enumerate(marks) if not each], [n for n, each in enumerate(marks) if each == ["long"]]


def test_few_cases_are_shown_first_and_last_or_all_and_many_now_and_then() -> None:
    assert [shown(count, is_quick=False) for count in (1, 2, 4, 7)] == [
        ([0], []),
        ([0], [1]),
        ([0], [3]),
        ([0], [4, 6]),
    ]
    assert shown(7, is_quick=True) == ([0], [1, 2, 3, 4, 5, 6])
    for is_quick in (False, True):
        assert shown(20, is_quick=is_quick) == ([0, 8, 16], [4, 12])


@pytest.mark.long
def test_pytest_chooses_so() -> None:
    """On two tests of this project with two cases each: one in a quick folder, one in another."""
    tests = {
        "tests/unit/test_kubernetes_manifests.py::test_only_who_needs_the_key_sees_it": ("task manager", "stream"),
        "tests/beam/test_publish_report.py::test_a_report_in_a_store_is_published_once_however_often_a_step_runs": "13",
    }
    words = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    for place, marks in enumerate(("not long", "long and not nightly")):
        done = subprocess.run([*words, "-m", marks], cwd=ROOT, capture_output=True, text=True, check=False)
        chosen = [line for line in done.stdout.splitlines() if "::" in line]
        assert chosen == [f"{test}[{cases[place]}]" for test, cases in tests.items()]
