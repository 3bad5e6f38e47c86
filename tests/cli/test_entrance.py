"""The entrance of `shh`: exit codes, and what it says of errors that nobody expected or that are of its own output."""

import os
import pathlib
import re

import pytest

from dp_transforms.cli import show, stream
from dp_transforms.errors import reason_of_machine
from dp_transforms.reports.report_folder import ReportFolder
from tests.helpers import shh_here, shh_process
from tests.helpers.replay_logs import BUDGET, write_log

STREAM = [*("stream", "--input", ".", "--output", "reports", "--clock", "event"), *BUDGET]
UNREADABLE = [
    ["--no-such-option"],
    ["no-such-command"],
    ["show"],
    ["plan", "--epsilon", "two"],
    ["plan", *BUDGET[:6]],
    ["replay", "log.csv", *BUDGET],
    ["stream", *BUDGET],
]
REFUSED = [
    ["plan", *BUDGET, "--hits-per-user", "0"],
    ["plan", *BUDGET, "--output", "taken"],
    ["show", "missing.avro"],
    ["replay", "missing.csv", *BUDGET, "--output", "report.avro"],
    ["replay", "taken", *BUDGET, "--output", "report.avro", "--run-id", "r", "--noise-key-file", "k"],
    [*STREAM, "--kafka-config", "c"],
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "taken").touch()
    return tmp_path


@pytest.mark.parametrize("words", UNREADABLE, ids=" ".join)
def test_a_command_line_that_cannot_be_read_is_2_and_shows_the_usage(folder, words):
    ended = shh_here.shh(*words, cwd=folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.match(r"Usage: shh .*\n(.*\n)*\nError: [^\n]+\n\Z", ended.stderr), ended.stderr


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_is_refused_is_1_and_one_line(folder, words):
    ended = shh_here.shh(*words, cwd=folder)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"shh: [^\n]+\n", ended.stderr), ended.stderr


@pytest.mark.parametrize("words", [["--help"], ["show", "taken"]])
def test_in_this_process_a_command_says_and_does_what_it_does_in_one_of_its_own(folder, words):
    """What most tests of commands rely on."""
    here, process = (run.shh(*words, cwd=folder) for run in (shh_here, shh_process))
    assert (here.returncode, here.stdout, here.stderr) == (process.returncode, process.stdout, process.stderr)
    assert here.stdout + here.stderr


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(98, "Address already in use"), "OSError"), (BrokenPipeError(32, "Broken pipe"), "ConnectionError")],
)
def test_an_engine_that_fails_is_not_blamed_on_standard_output(folder, error, kind, monkeypatch):
    def start(*_):
        raise error

    monkeypatch.setattr(stream, "RunningPipeline", lambda _: None)
    monkeypatch.setattr(stream.StreamWatch, "to_the_end", start)
    ended = shh_here.shh(*STREAM, cwd=folder)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert re.match(rf"shh: failed with {kind} at \S+:\d+\. This should not happen, please report it", last), last
    assert "standard output" not in ended.stderr


def test_a_standard_output_that_is_full_is_named(folder):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        ended = shh_process.run_python("-m", "dp_transforms.cli.main", "plan", *BUDGET, cwd=folder, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "shh: cannot write to standard output: No space left on device.\n"


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
    words = ("replay", "log.parquet", *BUDGET, "--output", "report.avro")
    ended = shh_process.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, stdout=nowhere, stderr=nowhere)
    assert ended.returncode == 0
    assert (folder / "report.avro").exists()


def test_a_stream_goes_on_whoever_can_be_told(folder, nowhere):
    (folder / "logs").mkdir()
    write_log(folder / "logs" / "log.parquet")
    words = (*STREAM, "--once", "--idle-timeout", "30s", "--out-of-order", "0s", "--dead-letter", "bad")
    words = [{".": "logs"}.get(word, word) for word in words]
    ended = shh_process.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, stdout=nowhere)
    assert ended.returncode == 0, ended.stderr
    is_full = nowhere.name == "/dev/full"  # who closes a pipe knows
    assert ended.stderr.count("shh: warning: cannot write to standard output: ") == is_full
    _, reports, end = ReportFolder(str(folder / "reports")).read()
    assert reports
    assert end is not None


def test_what_commands_say_on_stderr_is_said_in_one_place():
    """Else a secret may get through. Others print in colours."""
    others = {"operator_log.py", "replay.py", "replay_run.py"}
    for path in pathlib.Path(show.__file__).parent.rglob("*.py"):
        if path.name not in others:
            assert not re.search(r"err=True|stderr=True|sys\.stderr", path.read_text()), path


def test_an_error_that_nobody_expected_shows_its_place_and_not_its_words(folder, monkeypatch):
    def read(*words):
        raise KeyError("a cell of the data")

    monkeypatch.setattr(show, "read_report", read)
    ended = shh_here.shh("show", "taken", cwd=folder)
    assert ended.returncode == 1
    assert re.match(r"shh: failed with KeyError at cli/\w+\.py:\d+\. This should not happen", ended.stderr)
    assert "cell of the data" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_folder_that_was_removed_is_no_fault_of_ours(folder):
    write_log(folder / "log.csv")
    program = (
        "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); from dp_transforms.cli.main import main;"
        " main()"
    )
    for words in (["plan", *BUDGET, "--output", "plan.json"], ["replay", "../log.csv", *BUDGET, "--output", "r.avro"]):
        ended = shh_process.run_python("-c", program, *words, cwd=folder)
        said = "shh: the current folder was removed. Change to one that is there.\n"
        assert (ended.returncode, ended.stderr) == (1, said)


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
