"""The entrance of `shh`: exit codes, and what it says of errors that nobody expected or that are of its own output."""

import os
import re

import pytest

from dp_transforms.cli import show
from dp_transforms.errors import reason_of_machine
from tests.helpers import shh_here, shh_process
from tests.helpers.replay_logs import BUDGET, write_log

REPLAY = ["replay", "log.parquet", *BUDGET, "--output", "report.avro"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "taken").touch()
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [["--no-such-option"], ["no-such-command"], ["show"], ["plan", "--epsilon", "two"], ["replay", "log", *BUDGET]],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read_is_2_and_shows_the_usage(folder, words):
    ended = shh_here.shh(*words, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.match(r"Usage: shh .*\n(.*\n)*\nError: [^\n]+\n\Z", ended.stderr), ended.stderr


def entered(folder, *words, **streams):
    return shh_process.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, **streams)


@pytest.fixture(params=["a closed pipe", "a full disk"])
def nowhere(request):
    """A standard output whose reader has gone, or that has no room."""
    if request.param == "a full disk":
        with open("/dev/full", "w") as full:
            yield full
        return
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as file:
        yield file


def test_a_report_that_is_published_is_success_whoever_can_be_told(folder, nowhere):
    """Exit code 1 means that nothing was published: who reads it replays again, and pays again."""
    write_log(folder / "log.parquet")
    assert entered(folder, *REPLAY, stdout=nowhere, stderr=nowhere).returncode == 0
    assert (folder / "report.avro").exists()
    ended = entered(folder, "show", "report.avro", stdout=nowhere)
    assert ended.returncode == 1, "of what was only to be said nothing was done"
    is_full = nowhere.name == "/dev/full"  # who closes a pipe knows
    said = "shh: cannot write to standard output: No space left on device.\n"
    assert ended.stderr == (said if is_full else "")


@pytest.mark.parametrize("error", [KeyError("a cell of the data"), BrokenPipeError(32, "Broken pipe")], ids=repr)
def test_an_error_that_nobody_expected_shows_its_place_and_not_its_words(folder, monkeypatch, error):
    """Nor is a connection that breaks taken for standard output."""

    def read(*words):
        raise error

    monkeypatch.setattr(show, "read_report", read)
    ended = shh_here.shh("show", "taken", cwd=folder)
    assert ended.returncode == 1
    assert re.match(r"shh: failed with \w+Error at cli/\w+\.py:\d+\. This should not happen", ended.stderr)
    assert "cell of the data" not in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "is_of_memory"),
    [
        ("Traceback\npyarrow.lib.ArrowMemoryError: malloc of size 9 failed\n", True),
        ("RuntimeError: can't start new thread", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("ValueError: a cell says MemoryError: 1\n", False),
    ],
)
def test_errors_of_memory_are_known_by_their_kind(text, is_of_memory):
    assert (reason_of_machine(text) is not None) == is_of_memory
