"""`shh replay --state` that is killed anywhere: the same command repairs it."""

from __future__ import annotations

import pathlib
import shutil

import pytest

from dp_transforms.reports import read_report_file
from tests.helpers import forked
from tests.helpers.nights import Nights


@pytest.fixture
def nights(tmp_path: pathlib.Path) -> Nights:
    return Nights(tmp_path)


# Kills itself before or after the n-th call that changes what is on the disk: files appear, are synced, get their name.
KILLED = """
import os
from tests.helpers.dying_programs import DyingProgram
program = DyingProgram()
program.dies_at(os, "replace", "link", "fsync", "mkdir", "unlink")
from dp_transforms.cli.main import main
main()
"""


def killed_at(nights: Nights, at: int, words: list[str]) -> bool:
    """Whether the process was killed before it had ended."""
    ended = forked.run_python("-c", KILLED, at, *words, cwd=nights.folder)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode == -9


def check_kills(nights: Nights, end: int, points: list[int] | None) -> int:
    """Kills the command at each of these points, or at all, and runs it again. Returns how many points there are."""
    before = nights.folder.with_name("before")
    shutil.copytree(nights.folder, before)
    words = nights.words(end)
    nights.taken(end)
    expected, at = nights.content(), 0
    while True:
        at += 1
        if points is not None and at not in points and at < max(points):
            continue
        if points is not None and at > max(points):
            break
        shutil.rmtree(nights.folder)
        shutil.copytree(before, nights.folder)
        if not killed_at(nights, at, words):
            break
        if nights.state.header.intent is not None:
            (nights.folder / "other.parquet").write_bytes((nights.folder / "0.parquet").read_bytes())
            refused = nights.run(end, "other.parquet")
            assert refused.returncode == 1
            assert "has another input" in refused.stderr
            (nights.folder / "other.parquet").unlink()
        nights.taken(end)
        again = nights.run(end)
        assert (again.returncode, "is done" in again.stderr) == (0, True), at
        found = nights.content()
        assert found == expected, at
    shutil.rmtree(before)
    return at - 1


def test_a_command_that_was_killed_is_repaired_by_the_same_command(nights: Nights) -> None:
    """Byte for byte; and the intent lets no other input in. Some points; the long test takes all."""
    nights.taken(1)
    check_kills(nights, 2, [5, 12, 19, 26])


@pytest.mark.nightly
def test_a_command_that_was_killed_anywhere_is_repaired_by_the_same_command(nights: Nights) -> None:
    nights.taken(1)
    assert check_kills(nights, 2, None) > 20


@pytest.mark.nightly
def test_a_first_part_that_was_killed_anywhere_is_repaired_by_the_same_command(nights: Nights) -> None:
    """It draws the run id. Whatever was published before the kill is what the state goes on with."""
    words, at = nights.words(1), 0
    while True:
        at += 1
        for path in nights.folder.glob("*run.state*"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
        (nights.folder / "1.jsonl").unlink(missing_ok=True)
        if not killed_at(nights, at, words):
            break
        published = nights.folder / "1.jsonl"
        before = published.read_bytes() if published.exists() else None
        nights.taken(1)
        assert before in (None, published.read_bytes())
        assert nights.reports("1.jsonl") == nights.expected(range(1))[:1]
        header, _ = read_report_file(published)
        assert header.run_id == nights.state.header.run_id
        assert "is done" in nights.run(1).stderr
    assert at > 20
