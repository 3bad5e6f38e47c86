"""`shh stream` as its users run it: what is refused before anything starts, and runs from a folder to their end."""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import tempfile

import apache_beam as beam
import pytest

from dp_transforms import EventFields, Plan, ReadEvents, ShiftingHeavyHitters, WindowSchedule
from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.cli import stream_watch
from dp_transforms.cli.stream import stop_file_of
from dp_transforms.reports import ReportFolder, ReportHeader, read_report_file
from tests.helpers.pages import Page
from tests.helpers.shh_here import shh
from tests.helpers.shh_process import python

_PATIENCE_SECONDS = 300  # a run takes some seconds of a machine that has nothing else to do
START, HOURS = 1_577_836_800, 6  # 2020-01-01
HEAVY = {hour: f"heavy-{hour}\x1b[2J\u202e" for hour in (0, 1, 3, 5)}  # writes on a terminal
PLAN = [
    *("--start", "2020-01-01", "--end", "2020-01-01T06:00:00Z", "--window", "1h"),
    *("--epsilon", "8", "--delta", "1e-6", "--charge", "hits", "--counts"),
]
FOLDER = ["--input", "logs", "--time-format", "s"]
KEY = ["--noise-key-file", "noise.key"]
OUT = ["--output", "reports"]
# The log is older than its windows need, so that they close as soon as nothing new comes.
HISTORY = ["--clock", "event", "--out-of-order", "10m", "--idle-timeout", "1s"]
CLUSTER = (
    "--runner=FlinkRunner --flink_master=localhost:8081"
    " --environment_type=EXTERNAL --environment_config=localhost:50000"
)
RESUMED = f"{CLUSTER} --noise-key-file noise.key --savepoint_path=/savepoint"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder: three old files in logs/, with an item of many users in each hour but two, and a key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    rows = []
    for hour, heavy in HEAVY.items():
        rows += [(f"user-{n}", heavy, START + 3600 * hour + n) for n in range(300)]
        rows += [(f"user-{n}", "light", START + 3600 * hour + 60 + n) for n in range(5)]
    third = -(-len(rows) // 3)
    for part in range(3):
        lines = (json.dumps({"user": u, "item": i, "timestamp": t}) for u, i, t in rows[part * third :][:third])
        (tmp_path / "logs" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        os.utime(tmp_path / "logs" / f"{part}.jsonl", (START + 86_400 + part, START + 86_400 + part))
    for name, mode in (("noise.key", 0o600), ("open.key", 0o644)):
        (tmp_path / name).write_bytes(os.urandom(32))
        (tmp_path / name).chmod(mode)
    (tmp_path / "stopped.stop").touch()
    (tmp_path / "a.file").touch()
    return tmp_path


WRONG = f"""
    {CLUSTER}: FlinkRunner runs workers outside this process, which need one noise key: give noise_key=PATH
    --noise-key-file open.key: chmod 600
    --input nowhere: --input
    --output a.file: cannot be written. Name a folder
    --output logs: other files
    --output kafka://h:1/t: --output: a URL must begin with s3://
    --dead-letter reports/bad: outside
    --output stopped: stopped.stop exists, so the run would end at once. Remove it
    --allowed-lateness 9999d: --allowed-lateness
    --flink_master=jobs:1: --flink_master is an option of Beam, and needs --runner
    {RESUMED}: --run-id must be given for a run that is resumed
    --noise-key-file noise.key --run-id nightly: show what changed. Leave --run-id out
    --noise-key-file noise.key --run-id nightly {CLUSTER}: With --ledger, which knows the names, a run may be
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines(), ids=str.strip)
def test_what_is_wrong_is_told_before_anything_starts(folder, line):
    words, _, said = line.strip().partition(": ")
    before = sorted(folder.iterdir())
    done = shh("stream", *FOLDER, *OUT, *words.split(), *PLAN)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert said in done.stderr
    assert sorted(folder.iterdir()) == before


def test_a_plan_in_rounds_is_for_replays_and_one_of_two_tests_for_streams(folder):
    """Whose budget is not spent by the mistake."""
    for use, output in (((), "plan.json"), (("stream",), "stream.json")):
        made = shh("plan", *use, *PLAN[:-3], "--usual-contributions", 1, 10, "--output", output)
        assert made.returncode == 0
    assert "--plan is for a replay" in shh("stream", *FOLDER, *OUT, "--plan", "plan.json").stderr
    ledger = ("--ledger", "l", "--population", "p", "--caps", 9, 1e-3)
    for more, made_by in (((), "`shh plan`"), (("--state", "state", *KEY), "`shh plan parts`")):
        refused = shh("replay", "clicks.csv", "--plan", "stream.json", "--output", "r.avro", *ledger, *more)
        assert re.search(f"--plan is for a stream.*{made_by}", refused.stderr), refused.stderr
    assert not (folder / "l").exists()


def test_a_run_goes_on_with_its_own_plan_and_stream_and_from_what_its_runner_stored_alone(folder):
    ReportFolder("a").open(ReportHeader("run-1", "events", "guarantee", {"epsilon": 3}))
    ReportFolder("b").open(ReportHeader("run-1", "other", "guarantee", {}))
    (folder / "b.stop").touch()  # of a drain that was broken off
    for output, words, said in (
        ("a", f"{RESUMED} --run-id run-1", "another plan"),
        ("b", f"{RESUMED} --run-id run-1", "its stream is 'other'"),
        ("a", CLUSTER, "for a new run or, with --savepoint_path=PATH --run-id run-1, resume that one."),
        ("a", "", "holds run 'run-1'. Name another --output for a new run."),
    ):
        done = shh("stream", *FOLDER, "--output", output, *KEY, *PLAN, *words.split())
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def replay(output):
    """Of logs/ by the key and name of the streams here, as the command would not: it wants a fresh name."""
    fields = EventFields(time_unit="s")
    schedule = WindowSchedule.fixed(START, START + 3600 * HOURS, 3600)
    plan = Plan.for_hits(epsilon=8, delta=1e-6, counts=True, schedule=schedule)
    header = ReportHeader.of_plan(plan, run_id="run-1", stream="events")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches, _ = pipeline | ReadEvents("logs", fields)
        heavy = batches | ShiftingHeavyHitters(plan, noise_key="noise.key", run_id="run-1", stream="events")
        _ = heavy.reports | WriteReports(output, header)


def test_a_folder_gives_the_reports_of_a_replay_and_a_page(folder):
    replay("report.jsonl")
    (folder / "titles.csv").write_text(f"item,title\n{HEAVY[0]},The first hour\n")
    account = ["--ledger", "ledger.db", "--population", "news", "--caps", "8", "1e-6"]
    words = ["stream", *FOLDER, *PLAN, *KEY, *OUT, *account, "--run-id", "run-1"]
    done = shh(*words, *HISTORY, "--html", "page.html", "--titles", "titles.csv")
    assert done.returncode == 0, done.stderr
    assert "Without --runner this process alone reads the stream" in done.stderr
    _, expected = read_report_file("report.jsonl")
    header, reports, ended = ReportFolder("reports").read()
    assert reports == list(expected)
    assert [report.heavy_hitters[0].item for report in reports] == [*HEAVY.values()]
    assert (header.run_id, ended.windows, ended.reports) == ("run-1", HOURS, 4)
    shown = [json.loads(line)["heavy_hitters"][0]["item"] for line in done.stdout.splitlines()]
    assert shown == [*HEAVY.values()]
    assert done.stdout.replace("\n", "").isprintable()
    assert done.stdout.isascii()
    assert "The run is over: all 6 windows are closed; nothing more is answered." in done.stderr
    page = Page((folder / "page.html").read_text())
    assert "The first hour" in page.data["columns"]["titles"]
    assert "The run has ended" in " ".join(page.texts)
    again = shh(*words)
    assert (again.returncode, "which has ended" in again.stderr) == (1, True)


ENDLESS = ["--start", "2020-01-01", "--end", "2099-01-01", "--window", "3650d", *PLAN[6:]]


def started(folder, *words, stdout=subprocess.PIPE):
    """A run whose range is not over when all is read, once it says that it drains at a stop."""
    command = ("-m", "dp_transforms.cli.main", "stream", *FOLDER, *KEY, *ENDLESS, *OUT, "--clock", "event", *words)
    process = python(*command, cwd=folder, stdout=stdout, stderr=subprocess.PIPE)
    while "Ctrl-C" not in (line := process.stderr.readline()):
        assert line, process.wait()
    return process


def test_a_signal_drains_the_run(folder):
    """Also where nobody reads what it prints any more."""
    reads, writes = os.pipe()
    os.close(reads)
    with started(folder, "--idle-timeout", "1h", "--out-of-order", "0s", stdout=writes) as process:
        os.close(writes)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert re.search(r"Draining: what has come by the stop counts\. All windows close in about [12] s", err)
    assert "The run is over: all 8 windows are closed; nothing more is answered." in err
    _, reports, ended = ReportFolder(str(folder / "reports")).read()
    assert reports
    assert ended.windows == 8
    assert not (folder / "reports.stop").exists()


def test_once_reads_what_is_there_and_ends(folder):
    """A folder without files, of a run whose range goes on for decades. With files: docs/tutorial.md."""
    (folder / "empty").mkdir()
    clock = ["--clock", "event", "--idle-timeout", "30s", "--out-of-order", "0s"]
    done = shh("stream", "--input", "empty", *KEY, *ENDLESS, *OUT, *clock, "--once")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "The run is over: all 8 windows are closed" in done.stderr
    assert not (folder / "reports.stop").exists()


def test_a_second_signal_stops_at_once(folder):
    with started(folder, "--idle-timeout", "1h") as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it has stopped: both signals are there when it goes on
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode in (130, 143), err
    assert "Ended at once" in err
    assert "Traceback" not in err
    assert not (folder / "reports.stop").exists()


def test_a_job_that_fails_says_why_in_one_line(folder, monkeypatch):
    """Its folder goes away once it runs."""

    def tell_and_remove(text):
        tell(text)
        if "Ctrl-C" in text:
            shutil.rmtree(folder / "logs")

    tell = stream_watch.tell
    monkeypatch.setattr(stream_watch, "tell", tell_and_remove)
    done = shh("stream", *FOLDER, *KEY, *ENDLESS, *OUT, "--clock", "event", "--idle-timeout", "1h")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("shh: ")
    assert str(folder / "logs") in done.stderr.splitlines()[-1]


def test_a_stop_file_is_beside_the_reports_or_where_nobody_else_can_make_one(tmp_path, monkeypatch):
    """A run id can be guessed, so a file in the temporary folder itself could be made by anybody."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert stop_file_of("/x/reports", is_here=False) == "/x/reports.stop"
    assert stop_file_of("s3://b/reports", is_here=False) is None
    path, other = (pathlib.Path(stop_file_of("s3://b/reports", is_here=True)) for _ in range(2))
    assert path.parent.parent == tmp_path
    assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()
    assert other != path
