"""The entrance of `shh`: exit codes, and what it says of errors that nobody expected or that are of its own output."""

import os
import re
import resource
import subprocess
import sys

import pytest

from dp_transforms.cli import show, stream_job
from dp_transforms.errors import reason_of_machine
from dp_transforms.reports.report_folder import ReportFolder
from tests.helpers import forked, option_tables, shh_here, shh_process
from tests.helpers.replay_logs import BUDGET, write_log

STREAM = [*("stream", "--input", ".", "--output", "reports", "--engine", "in-process", "--clock", "event"), *BUDGET]
UNREADABLE = [
    ["--no-such-option"],
    ["no-such-command"],
    ["show"],
    ["plan", "--epsilon", "two"],
    ["plan", *BUDGET[:6]],
    ["plan", *BUDGET, "--window", "1 hour"],
    ["plan", *BUDGET, "--start", "tomorrow"],
    ["audit"],
    ["replay", "log.csv", *BUDGET],
    ["simulate", "--events", "0", "--output", "log.csv"],
    ["stream", "--engine", "spark"],
    ["stream", *BUDGET],
]
REFUSED = [
    ["plan", *BUDGET, "--most-looks", "0"],
    ["plan", *BUDGET, "--output", "taken"],
    ["audit", "--plan", "missing.json"],
    ["show", "missing.avro"],
    ["replay", "missing.csv", *BUDGET, "--output", "report.avro"],
    ["replay", "taken", *BUDGET, "--output", "report.avro", "--run-id", "r", "--noise-key-file", "k"],
    ["simulate", "--output", "log.txt"],
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


def test_alone_it_says_what_to_do_next(folder):
    """With commands and options that there are."""
    ended = shh_here.shh(cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.partition("   ")[0].split() for line in ended.stdout.splitlines() if line.startswith("  shh ")]
    assert {"doctor", "replay", "simulate", "show", "explain"} == {words[1] for words in lines}
    found = option_tables.commands()
    for _, name, *words in lines:
        assert {word for word in words if word.startswith("--")} <= {
            name for option in found[name].params for name in option.opts
        }


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_is_refused_is_1_and_one_line(folder, words):
    ended = shh_here.shh(*words, cwd=folder)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"shh: [^\n]+\n", ended.stderr), ended.stderr


@pytest.mark.parametrize("words", [["--help"], ["show", "taken"]])
def test_in_this_process_and_in_a_forked_one_a_command_says_and_does_what_it_does_in_one_of_its_own(folder, words):
    """What most tests of commands rely on."""
    here, fork, process = (run.shh(*words, cwd=folder) for run in (shh_here, forked, shh_process))
    assert (here.returncode, here.stdout, here.stderr) == (process.returncode, process.stdout, process.stderr)
    assert (fork.returncode, fork.stdout, fork.stderr) == (process.returncode, process.stdout, process.stderr)
    assert here.stdout + here.stderr


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(98, "Address already in use"), "OSError"), (BrokenPipeError(32, "Broken pipe"), "ConnectionError")],
)
def test_an_engine_that_fails_is_not_blamed_on_standard_output(folder, error, kind, monkeypatch):
    def start(*_):
        raise error

    monkeypatch.setattr(stream_job, "_start", start)
    ended = shh_here.shh(*STREAM, cwd=folder)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert re.match(rf"shh: failed with {kind} at \S+:\d+\. This should not happen, please report it", last), last
    assert "standard output" not in ended.stderr


@pytest.mark.parametrize("words", [["plan", *BUDGET], ["--version"]], ids=" ".join)
def test_a_standard_output_that_is_full_is_named(folder, words):
    """What rich prints, and what click does."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        ended = forked.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "shh: cannot write to standard output: No space left on device.\n"


@pytest.fixture(params=["full", "closed"])
def nowhere(request):
    """A standard output that takes nothing: of a full disk, or a pipe whose reader has gone."""
    if request.param == "full" and not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    if request.param == "closed":
        reads, writes = os.pipe()
        os.close(reads)
    with open("/dev/full" if request.param == "full" else writes, "w") as file:
        yield file


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_report_that_is_published_is_success_whoever_can_be_told(folder, stream, nowhere):
    """Exit code 1 means that nothing was published: who reads it replays again, and pays again."""
    write_log(folder / "log.parquet")
    words = ("replay", "log.parquet", *BUDGET, "--output", "report.avro")
    ended = forked.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, **{stream: nowhere})
    assert ended.returncode == 0
    assert (folder / "report.avro").exists()
    is_said = stream == "stdout" and nowhere.name == "/dev/full"  # who closes a pipe knows
    if stream == "stdout":
        assert ("shh: warning: cannot write to standard output: " in ended.stderr.splitlines()[-1]) == is_said


def test_a_stream_goes_on_whoever_can_be_told(folder, nowhere):
    (folder / "logs").mkdir()
    write_log(folder / "logs" / "log.parquet")
    words = (*STREAM, "--once", "--idle-timeout", "30s", "--out-of-order", "0s", "--dead-letter", "bad")
    words = [{".": "logs"}.get(word, word) for word in words]
    ended = forked.run_python("-m", "dp_transforms.cli.main", *words, cwd=folder, stdout=nowhere)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("Warning: cannot write to standard output: ") == 1
    _, reports, end = ReportFolder(str(folder / "reports")).read()
    assert reports
    assert end is not None


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
        ended = forked.run_python("-c", program, *words, cwd=folder)
        said = "shh: the current folder was removed. Change to one that is there.\n"
        assert (ended.returncode, ended.stderr) == (1, said)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to a limit on addresses")
def test_too_few_addresses_are_said_before_a_library_waits_for_more(folder):
    """OpenBLAS asked without end, and no signal ended it."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (400_000_000,) * 2);"
        " from dp_transforms.cli.main import main; main()"
    )
    with shh_process.python("-c", program, "plan", *BUDGET, cwd=folder, stderr=subprocess.PIPE) as process:
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    allowed = "there was not enough memory, of which ulimit -v allows 400 MB. Allow more, or give less to do at once."
    assert (process.returncode, said) == (1, f"shh: {allowed}\n")


@pytest.mark.parametrize(
    ("text", "is_of_memory"),
    [
        ("Traceback\npyarrow.lib.ArrowMemoryError: malloc of size 9 failed\n", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 2.0 MiB", True),
        ("RuntimeError: can't start new thread", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("ValueError: a cell says MemoryError: 1\n", False),
        ("SystemError: returned NULL without setting an exception", False),  # without a limit on memory
    ],
)
def test_errors_of_memory_are_known_by_their_kind(text, is_of_memory):
    assert (reason_of_machine(text) is not None) == is_of_memory


@pytest.mark.parametrize(
    ("text", "is_of_memory"),
    [
        ("SystemError: returned NULL without setting an exception", True),
        ("TypeError: Got unexpected argument type <class 'int'> for compute function", True),
        ("TypeError: 'int' object is not iterable", False),
    ],
)
def test_under_a_limit_these_are_errors_of_memory_too(text: str, is_of_memory: bool) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, before[1]))
    try:
        assert (reason_of_machine(text) is not None) == is_of_memory
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
