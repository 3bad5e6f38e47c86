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
from collections.abc import Callable

import apache_beam as beam
import pytest

from dp_transforms import (
    EventFields,
    Plan,
    ReadEvents,
    ReportFolder,
    ReportHeader,
    ShiftingHeavyHitters,
    WindowSchedule,
    find_log_chunks,
)
from dp_transforms.beam.write_reports import WriteReports
from dp_transforms.cli.stream import stop_file_of
from dp_transforms.reports import read_report_file
from tests.cli.stream_words import CLUSTER, FOLDER, HISTORY, HOURS, KEY, PLAN, START, run, write_log_and_key
from tests.helpers import shh_process

_PATIENCE_SECONDS = 300  # a run takes some seconds of a machine that has nothing else to do


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder: a log of three files in logs/, a noise key, and the files that errors are about."""
    monkeypatch.chdir(tmp_path)
    write_log_and_key(tmp_path)
    (tmp_path / "open.key").write_bytes(os.urandom(32))
    (tmp_path / "open.key").chmod(0o644)
    (tmp_path / "stopped.stop").touch()
    (tmp_path / "a.file").touch()
    return tmp_path


OUT = ["--output", "reports"]
KAFKA = ["--input", "kafka://localhost:9/t"]


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ([*FOLDER, *OUT, *CLUSTER], ["--noise-key-file", "head -c 32", "--runner"]),
        ([*FOLDER, *OUT, "--noise-key-file", "open.key"], ["chmod 600"]),
        (["--input", "nowhere", *OUT, *KEY], ["--input", "nowhere"]),
        ([*FOLDER, "--output", "a.file", *KEY], ["--output", "is a file"]),
        ([*FOLDER, "--output", "logs", *KEY], ["the folder", "other files"]),
        ([*FOLDER, "--output", "kafka://h:1/t", *KEY], ["--output: URLs kafka://... are not known"]),
        ([*FOLDER, *OUT, "--dead-letter", "reports/bad", *KEY], ["--dead-letter", "outside"]),
        ([*FOLDER, "--output", "stopped", *KEY], ["stopped.stop exists", "Remove it"]),
        ([*FOLDER, *OUT, *KEY, "--allowed-lateness", "9999d"], ["--allowed-lateness"]),
        ([*FOLDER, *OUT, *KEY, "--flink_master=jobs:1"], ["--flink_master is an option of Beam", "--runner"]),
        ([*FOLDER, *OUT, *KEY, *CLUSTER, "--savepoint_path=/s"], ["--run-id must be given for a run that is resumed"]),
        (
            [*KAFKA, "--output", "s3://bucket/r", *KEY, *CLUSTER, "--once"],
            ["--once needs a path as --output"],
        ),
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(folder, words, messages, capsys):
    before = sorted(folder.iterdir())
    code, out, err = run([*words, *PLAN], capsys)
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1, err
    for part in messages:
        assert part in err
    assert sorted(folder.iterdir()) == before


def test_a_run_goes_on_with_its_own_plan_and_stream_and_from_what_its_runner_stored_alone(folder, capsys):
    ReportFolder("a").open(ReportHeader("run-1", "events", "guarantee", {"epsilon": 3}))
    ReportFolder("b").open(ReportHeader("run-1", "other", "guarantee", {}))
    (folder / "b.stop").touch()  # of a drain that was broken off
    resumed = [*CLUSTER, "--savepoint_path=/savepoint"]
    for output, words, said in (
        ("a", resumed, "another plan"),
        ("b", resumed, "its stream is 'other'"),
        ("a", CLUSTER, "holds run 'run-1' already. Resume it with --savepoint_path=PATH, or start a new run"),
        ("a", [], "holds run 'run-1' already. Start a new run: without --run-id, and with another --output"),
    ):
        code, _, err = run([*FOLDER, "--output", output, *KEY, *PLAN, *words, "--run-id", "run-1"], capsys)
        assert (code, said in err) == (1, True), err


def replay(output):
    """Of logs/ by the key and name of the streams here, as the command would not: it wants a fresh name."""
    fields = EventFields(time_unit="s")
    plan = Plan.for_hits(
        epsilon=8, delta=1e-6, counts=True, schedule=WindowSchedule.fixed(START, START + 3600 * HOURS, 3600)
    )
    header = ReportHeader.of_plan(plan, run_id="run-1", stream="events")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        batches, _ = pipeline | ReadEvents(find_log_chunks(["logs"], fields), fields)
        heavy = batches | ShiftingHeavyHitters(plan, noise_key="noise.key", run_id="run-1", stream="events")
        _ = heavy.reports | WriteReports(output, header)


def test_a_folder_gives_the_reports_of_a_replay(folder, capsys):
    replay("report.jsonl")
    account = ["--ledger", "ledger.db", "--population", "news", "--caps", "8", "1e-6"]
    words = [*FOLDER, *PLAN, *KEY, *OUT, *account, "--run-id", "run-1"]
    code, out, err = run([*words, *HISTORY], capsys)
    assert code == 0, err
    assert "Without --runner this process alone reads the stream, and shows its reports when all windows are" in err
    assert "the run cannot be resumed, and a new one pays its budget again" in err
    _, expected = read_report_file("report.jsonl")
    header, reports, ended = ReportFolder("reports").read()
    assert reports == list(expected)
    assert [report.heavy_hitters[0].item for report in reports] == [f"heavy-{hour}" for hour in (0, 1, 3, 5)]
    assert header is not None
    assert header.run_id == "run-1"
    assert ended is not None
    assert (ended.windows, ended.reports) == (HOURS, 4)
    assert [json.loads(line)["heavy_hitters"][0]["item"] for line in out.splitlines()] == [
        report.heavy_hitters[0].item for report in reports
    ]
    assert "The declared range is over (6 windows); nothing more is answered." in err
    # The same place again, with the name of this run or with another.
    for again in (words, words[:-2]):
        code, _, err = run(again, capsys)
        assert (code, "which has ended" in err) == (1, True)


@pytest.mark.parametrize("engine", [[], ["--runner=FlinkRunner", "--flink_master=localhost:1"]], ids=["here", "flink"])
def test_a_name_begins_no_run_with_a_key_unless_a_ledger_knows_it(folder, capsys, engine):
    """Two folders that differ in one user would give reports whose first difference is where that user is."""
    named = [*FOLDER, *PLAN, *KEY, *engine, "--output", "reports", "--run-id", "nightly"]
    before = sorted(folder.iterdir())
    code, out, err = run(named, capsys)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "--run-id cannot be used with --noise-key-file: if both were used again on a log that has changed" in err
    assert "would draw the same noise, and the two reports would show what changed. Leave --run-id out" in err
    assert "With --ledger, which knows the names, a run may be named" in err
    assert sorted(folder.iterdir()) == before


Start = Callable[..., subprocess.Popen[str]]
ENDLESS = ["--start", "2020-01-01", "--end", "2099-01-01", "--window", "3650d", *PLAN[6:]]


def started(folder, *words, start=shh_process.python):
    """A run whose range is not over when all is read, once it says that it drains at a stop."""
    command = ("-m", "dp_transforms.cli.main", "stream", *FOLDER, *KEY, *ENDLESS, *OUT, *words)
    process = start(*command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    while "Ctrl-C" not in (line := process.stderr.readline()):
        assert line, process.wait()
    return process


def test_a_signal_drains_the_run(folder):
    clock = ["--clock", "event", "--idle-timeout", "1h", "--out-of-order", "0s"]
    with started(folder, *clock) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert re.search(r"Draining: what arrives by \S+ UTC counts; all windows then close, in about [12] s", err)
    assert "A stop was asked for: all 8 windows are closed; nothing more is answered." in err
    assert "declared range is over" not in err
    _, _, ended = ReportFolder(str(folder / "reports")).read()
    assert ended is not None
    assert ended.windows == 8
    assert not (folder / "reports.stop").exists()


@pytest.mark.parametrize("is_empty", [True, False])
def test_once_reads_what_is_there_and_ends(folder, is_empty, capsys):
    """Also a folder without files, of a run whose range goes on for decades."""
    (folder / "empty").mkdir()
    clock = ["--clock", "event", "--idle-timeout", "30s", "--out-of-order", "0s"]
    logs = ["--input", "empty"] if is_empty else ["--input", "logs", "--time-format", "s"]
    code, out, err = run([*logs, *KEY, *ENDLESS, *OUT, *clock, "--once"], capsys)
    assert code == 0, err
    assert re.search(r"Draining: what arrives by \S+ UTC counts; all windows then close, in about [123] s", err)
    assert "A stop was asked for: all 8 windows are closed" in err
    assert (not out) == is_empty
    assert not (folder / "reports.stop").exists()


def test_a_second_signal_stops_at_once(folder):
    words = ["--clock", "event", "--idle-timeout", "1h"]
    with started(folder, *words, start=shh_process.python) as process:  # whose parent is this process
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it has stopped: both signals are there when it goes on
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode in (130, 143), err
    assert "Ended at once" in err
    assert "Traceback" not in err
    assert not (folder / "reports.stop").exists()


def test_a_job_that_fails_says_why_in_one_line(folder):
    with started(folder, "--clock", "event", "--idle-timeout", "1h") as process:
        shutil.rmtree(folder / "logs")
        _, err = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("shh: ")
    assert str(folder / "logs") in err.splitlines()[-1]


def test_a_stop_file_is_beside_the_reports_or_where_nobody_else_can_make_one(tmp_path, monkeypatch):
    """A run id can be guessed, so a file in the temporary folder itself could be made by anybody."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    options = {"once": False, "is_resumed": False}
    assert stop_file_of("/x/reports", is_here=False, **options) == "/x/reports.stop"
    assert stop_file_of("s3://b/reports", is_here=False, **options) is None
    assert list(tmp_path.iterdir()) == []
    before = os.umask(0)
    try:
        path, other = (pathlib.Path(str(stop_file_of("s3://b/r", is_here=True, **options))) for _ in range(2))
    finally:
        os.umask(before)
    assert path.parent.parent == tmp_path
    assert stat.S_IMODE(path.parent.lstat().st_mode) == 0o700
    assert not path.exists()
    assert other != path
