"""Replays on Flink: the report of a replay in process, whatever is cut and whatever dies on the way.

Of each mode: test_transcripts.py.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import subprocess
import time
from collections import Counter

import pytest

from dp_transforms.cli.replay_run import run_on_runner, run_replay
from dp_transforms.logs import EventFields, parquet, spread_chunks, text_files
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import read_report_file
from examples.engines.flink_cluster import are_at_work
from examples.engines.flink_rest import ENDED
from tests.engines import needs
from tests.engines.listening import end_all
from tests.helpers.crowded_logs import RANGE, SCHEDULE, replay_request, write_crowded_log, write_large_piece
from tests.helpers.modes import plan_of_mode
from tests.helpers.shh_process import python

# The threads of a worker end with an error when their engine goes away.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"), needs("flink")]
_BUDGET = ("--epsilon", "8", "--delta", "1e-6")
_MANY_EVENTS = 2_400_000
_SECONDS = 400


@functools.cache
def _plan(mode):
    return plan_of_mode(mode, epsilon=8, delta=1e-6, schedule=SCHEDULE)


def _counts(summary):
    return dataclasses.replace(summary, seconds=0)


@pytest.fixture(scope="module")
def large_log(tmp_path_factory):
    return write_crowded_log(tmp_path_factory.mktemp("large") / "log", _MANY_EVENTS, 100_000, files=12)


def test_large_pieces_that_are_cut_change_nothing_on_flink(key_path, tmp_path, monkeypatch):
    """A large file of JSON lines, one of CSV, and a large row group: the report, the dead letter and the counts of a
    replay in process, which reads each of them as a whole. This process cuts, so its limits can be small; they are
    joined by the workers, with the limits of the product."""
    monkeypatch.setattr(parquet, "_LEAST_ROWS_TO_CUT", 1000)
    monkeypatch.setattr(text_files, "_LEAST_BYTES", 1 << 15)
    log, fields = tmp_path / "log", EventFields(time_unit="s")
    log.mkdir()
    for name, rows in (("a.csv", 60_000), ("b.jsonl", 20_000), ("c.parquet", 20_000)):
        write_large_piece(log / name, rows, padding=60)
    here, there = (
        replay_request(
            log,
            _plan("looks"),
            tmp_path / f"{where}.jsonl",
            key_path,
            fields=fields,
            dead_letter=str(tmp_path / f"{where}-bad.jsonl"),
        )
        for where in ("here", "there")
    )
    parts = [chunk for joined in spread_chunks(there.chunks, 2) for chunk in joined.chunks]
    assert min(Counter(part.path for part in parts if part.span).values()) >= 2
    assert len({part.path for part in parts if part.span}) == 3
    expected = run_replay(here)
    summary = run_on_runner(there, ["--runner=FlinkRunner", "--parallelism=2"])
    assert _counts(summary) == _counts(expected)
    assert expected.events + expected.rejected == 100_000
    assert expected.rejected > 900
    assert len(list(read_report_file(there.output)[1])) > 3, "else nothing was compared"
    assert pathlib.Path(there.output).read_bytes() == pathlib.Path(here.output).read_bytes()
    assert (tmp_path / "there-bad.jsonl").read_bytes() == (tmp_path / "here-bad.jsonl").read_bytes()


def _words(cluster, log, output, key_path):
    """A replay on the cluster of two processes, with two Python workers."""
    words = ["-m", "dp_transforms.cli.main", "replay", log, *RANGE, *_BUDGET, "--output", output]
    words += ["--runner=FlinkRunner", f"--flink_master={cluster.flink.address}", "--parallelism=2"]
    words += ["--environment_type=EXTERNAL", f"--environment_config={cluster.pool.address}"]
    return [*words, "--sdk_worker_parallelism=2", "--noise-key-file", key_path]


def _finish(process):
    out, err = process.communicate(timeout=_SECONDS)
    return process.returncode, out, err


def _start(words):
    return python(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_until_read(cluster, job):
    """Until the log is read; the job must not be over by then."""
    deadline = time.monotonic() + 240
    while True:
        # As Beam names the stage that reads and hashes.
        reading = [stage for stage in cluster.flink.rest.stages(job) if "{ReadEvents, " in stage.name]
        assert reading, "no stage reads"
        if all(stage.state == "FINISHED" for stage in reading):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.flink.rest.job_state(job) == "RUNNING", "the job was over before it was killed"


def _wait_for_workers(cluster, job):
    """Until all workers have a bundle, and so will be missed (docs/engines.md)."""
    deadline = time.monotonic() + 240
    while not are_at_work(cluster.pool):
        assert cluster.flink.rest.job_state(job) not in ENDED, "the job was over before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _assert_report_of_process(log, output, key_path, tmp_path):
    """The report is, byte by byte, the one that a replay in process makes with the run id that it has."""
    header, reports = read_report_file(output)
    assert len(list(reports)) == SCHEDULE.horizon
    plan = Plan.for_contributions(epsilon=8, delta=1e-6, schedule=SCHEDULE)  # as the command chooses: rounds, too
    here = replay_request(log, plan, tmp_path / "here.jsonl", key_path, header.run_id)
    run_replay(here)
    assert output.read_bytes() == pathlib.Path(here.output).read_bytes()


@pytest.fixture
def job_of(cluster):
    """Starts words on the cluster; gives the process and the id of its job."""
    started: list[subprocess.Popen[str]] = []

    def start(words: list[object]) -> tuple[subprocess.Popen[str], str]:
        known = cluster.job_ids()
        started.append(_start(words))
        return started[-1], cluster.newest_job(known)

    yield start
    for process in started:
        end_all(process)
    for job in cluster.flink.rest.jobs():
        if job.state not in ENDED:
            cluster.cancel(job.job_id)


@pytest.mark.nightly
def test_killed_workers_and_task_managers_change_nothing(cluster, job_of, large_log, key_path, tmp_path):
    output = tmp_path / "report.jsonl"
    process, job = job_of(_words(cluster, large_log, output, key_path))
    _wait_for_workers(cluster, job)
    cluster.kill_worker()
    _wait_until_read(cluster, job)
    cluster.kill_task_manager()  # with what it has read
    code, _, err = _finish(process)
    assert code == 0, err
    assert f"Read {_MANY_EVENTS:,} rows" in err, "what was read twice must not count twice"
    assert len(cluster.flink.rest.failures(job)) >= 2
    _assert_report_of_process(large_log, output, key_path, tmp_path)
