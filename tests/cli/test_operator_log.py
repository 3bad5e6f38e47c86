"""``shh --log-format json``: all that a command says on stderr, as one JSON object a line. Also ``shh completion``."""

import datetime
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

from dp_transforms.cli import main as cli
from dp_transforms.cli import operator_log, stream_status
from tests.helpers import shh_process
from tests.helpers.shh_here import shh

LOG = "user,item,timestamp\n" + "".join(f"u{n},i,2026-01-01T00:00:00Z\n" for n in range(300)) + "u,i,soon\n"
RANGE = ("--start", "2026-01-01", "--end", "2026-01-02", "--window", "1h", "--epsilon", "20", "--delta", "1e-5")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    return tmp_path


def lines_of(text):
    """All lines of stderr, each with the fields that all have."""
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert line["level"] in ("status", "progress", "warning", "error")
        assert isinstance(line["message"], str)
        assert line["message"]
        assert datetime.datetime.fromisoformat(str(line["time"])).tzinfo is not None
    return lines


def test_a_replay_says_the_same_in_both_formats(folder):
    text = shh("replay", "log.csv", *RANGE, "--output", "text.avro", cwd=folder)
    said = shh("--log-format", "json", "replay", "log.csv", *RANGE, "--output", "json.avro", cwd=folder)
    assert (text.returncode, said.returncode) == (0, 0)
    for ended in (text, said):  # what may be published stays as it is
        assert ended.stdout.startswith("Everything published is (20, 1e-05)-differentially private")
        assert ".avro; see all with: shh show" in ended.stdout
    warning, *others = lines_of(said.stderr)
    assert warning["level"] == "warning"
    assert f"shh: warning: {warning['message']}\n" in text.stderr
    *_, progress, read = [line for line in others if "delta" not in str(line["message"])]
    assert (progress["level"], progress["rows"]) == ("progress", 301)
    assert progress["bytes"] == progress["total_bytes"] == len(LOG)
    assert (read["level"], read["command"], read["events"], read["rejected"]) == ("status", "replay", 300, 1)
    assert "Read 301 rows in" in text.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["show", "missing.avro"], 1, "missing.avro"),
        (["plan", "--epsilon", "two"], 2, "'two' is not a valid float"),
        (["plan"], 2, "Missing --epsilon"),
        (["nothing"], 2, "No such command 'nothing'"),
        (["repaly"], 2, "No such command 'repaly'. Do you mean replay?"),
        (["replay", "log.csv"], 2, "the options of a budget are missing"),
    ],
)
def test_every_error_is_an_object_with_its_exit_code(folder, words, code, said):
    for option in (["--log-format", "json"], ["--log-format=json"]):
        ended = shh(*option, *words, cwd=folder)
        assert (ended.returncode, ended.stdout) == (code, "")
        *_, error = lines_of(ended.stderr)
        assert error["level"] == "error"
        assert said in str(error["message"])
        assert not str(error["message"]).startswith("shh: ")
        assert error.get("exit_code", code) == code
    assert not shh(*words, cwd=folder).stderr.startswith("{"), "the next command of a process has its own format"


def test_a_stream_tells_its_counts(monkeypatch, capsys):
    operator_log.use_format(operator_log.JSON, "stream")
    try:
        status = stream_status.StreamStatus()
        status.tell("Run r on prism.")
        status.show_operator_line({"events_read": 7}, {"clock_lag_seconds": 3})
        status.show_operator_line({"events_read": 8}, {})
    finally:
        operator_log.use_format(operator_log.TEXT, "")
    begun, counted = lines_of(capsys.readouterr().err)
    assert (begun["message"], begun["command"]) == ("Run r on prism.", "stream")
    assert (counted["level"], counted["counts"], counted["gauges"]) == (
        "progress",
        {"events_read": 7},
        {"clock_lag_seconds": 3},
    )


def test_a_signal_says_so_in_the_same_format(folder):
    command = ("-m", "dp_transforms.cli.main", "--log-format", "json", "simulate", "--events", "100000000")
    with shh_process.python(*command, "--output", "log.jsonl", cwd=folder, stderr=subprocess.PIPE) as process:
        while not list(folder.glob(".log.jsonl*")):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert json.loads(err.splitlines()[-1]) == {"level": "error", "command": "simulate", "message": "stopped."}


def test_what_commands_say_on_stderr_is_said_in_one_place():
    """Else it would be missing in one of the formats. Others have a branch for each format."""
    with_both = {"operator_log.py", "replay.py", "replay_runs.py", "stream_status.py", "subcommands.py"}
    for path in pathlib.Path(cli.__file__).parent.rglob("*.py"):
        if path.name not in with_both and not path.name.startswith("demo"):
            assert not re.search(r"err=True|stderr=True|sys\.stderr", path.read_text()), path


def completed(words):
    """What bash gets for the last word."""
    ended = shh(_SHH_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    assert ended.returncode == 0
    return ended.stdout.splitlines()


def test_commands_options_values_and_files_are_completed():
    assert completed("shh si") == ["plain,simulate"]
    assert "plain,--epsilon" in completed("shh plan --ep")
    assert completed("shh plan --mode lo") == ["plain,looks"]
    assert completed("shh doctor cl") == ["file,cl"]
    assert completed("shh audit --plan p") == ["file,p"]
    assert completed("shh --config s") == ["file,s"]


def test_each_shell_has_its_script(tmp_path):
    for shell in ("zsh", "fish"):
        made = shh("completion", shell, cwd=tmp_path)
        assert (made.returncode, "_SHH_COMPLETE" in made.stdout) == (0, True)


def test_bash_completes_with_the_script(tmp_path):
    """In a real bash, as far as there is one."""
    if shutil.which("bash") is None:
        pytest.skip("this machine has no bash")
    (tmp_path / "script").write_text(shh("completion", "bash", cwd=tmp_path).stdout)
    python = pathlib.Path(sys.executable).parent
    code = (
        f"PATH={python}:$PATH; source ./script; COMP_WORDS=(shh expl); COMP_CWORD=1; _shh_completion shh;"
        ' echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["explain"], ended.stderr
