"""Tests of one group run in one process: else each process would start a Flink cluster and a broker of its own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("one group")
def test_in_a_group(number):
    (pathlib.Path(__file__).parent / f"group {os.getpid()}").touch()

@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    (pathlib.Path(__file__).parent / f"alone {os.getpid()}").touch()
"""


def test_the_tests_of_a_group_share_a_process(tmp_path: pathlib.Path) -> None:
    """pytest-xdist 3.8 says nothing where it cannot do it, as with pytest 9.2."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    assert len([*tmp_path.glob("group *")]) == 1
    assert len({path.name.split()[1] for path in tmp_path.glob("* *")}) == 2, "there were two processes"
