"""1,000 generated logs and plans of what stays: this tree answers as the one before the removal, byte for byte."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BEFORE = "8ba102716be8e5596c4e4f1f9167fa56b64b41bd"  # with all mends, before anything went
CASES, IN_SHORT = 1000, 60  # 60 plans, which the others take again in other ways


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The library of then, in a folder of its own."""
    folder = tmp_path_factory.mktemp("before")
    packed = subprocess.run(["git", "-C", ROOT, "archive", BEFORE, "dp_transforms"], capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"git has no commit {BEFORE[:8]} here: {packed.stderr.decode().strip()[:200]}")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
    return folder


def _begin(tree: pathlib.Path, cases: range) -> subprocess.Popen[str]:
    """In a process of its own, which must take the library of this tree."""
    script = ROOT / "tests" / "differential" / ("answers.py" if tree == ROOT else "answers_before.py")
    program = f"import dp_transforms; assert dp_transforms.__file__.startswith({str(tree)!r}), dp_transforms.__file__\n"
    program += f"import runpy, sys; sys.argv = ['answers', '{cases.start}', '{cases.stop}']\n"
    program += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)


def _answers(tree: pathlib.Path, cases: range) -> list[dict[str, Any]]:
    with _begin(tree, cases) as running:
        said, _ = running.communicate()
    assert running.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


def _check(before: pathlib.Path, cases: range) -> None:
    old, new = _answers(before, cases), _answers(ROOT, cases)
    assert [case["case"] for case in new] == list(cases)
    differ = [one for one, other in zip(old, new, strict=True) if one != other]
    assert not differ, f"{len(differ)} of {len(new)} cases have other answers, the first ones: {differ[:5]}"
    assert sum(case["named"] > 0 for case in new) > 0.8 * len(new)  # or the cases show nothing
    assert len({case["digest"] for case in new}) == len(new)


def test_the_first_cases_have_the_same_answers(before: pathlib.Path) -> None:
    _check(before, range(IN_SHORT))


@pytest.mark.nightly
def test_all_cases_have_the_same_answers(before: pathlib.Path) -> None:
    for low in range(0, CASES, 100):
        _check(before, range(low, min(low + 100, CASES)))
