"""Workers and task managers are killed at random moments, and the answers are those of a run without kills.

Every charge changes later reports, and so does what every window takes out of purses (test_stream_case.py): so none was
lost and none was made twice.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import signal
import time

import pytest

from examples.engines.flink_cluster import worker_pids
from tests.engines.running_jobs import TASK_MANAGER, WORKER, running
from tests.engines.stream_case import CLOCK, history_case, wait_for_end, wait_for_reports

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def _feed_and_kill(run, what, seconds):
    """Feeds the log in parts, and kills at a random moment of each but the last."""
    seed = random.randrange(10**6)
    source = random.Random(seed)
    print(f"seed {seed}, kills {source.sample(what, len(what))}")
    source = random.Random(seed)
    rows, parts = run.case.rows, len(what) + 1
    for number, kind in enumerate([*source.sample(what, len(what)), None]):
        part = rows[len(rows) * number // parts : len(rows) * (number + 1) // parts]
        feeder = run.feed(part, seconds / parts)
        if kind is not None:
            time.sleep(source.uniform(0, seconds / parts))
            begin = time.monotonic()
            run.kill(kind)
            print(f"  {kind} killed, a checkpoint is complete after {time.monotonic() - begin:.1f} s")
        feeder.join()
    wait_for_end(run.sink)
    assert run.cluster.flink.rest.restarts(run.job) >= len(what)
    print(f"  restarts: {run.cluster.flink.rest.restarts(run.job)}")
    run.assert_answers()


@pytest.mark.parametrize("mode", [pytest.param("hits-with-counts", marks=pytest.mark.nightly), "looks"])
def test_kills_change_nothing_and_no_log_names_a_user_or_holds_a_record(
    kafka, cluster, key_path, tmp_path, capfd, mode
):
    """Records cannot be read, too, and everything that any process wrote is searched."""
    secret = "Zx9Qpersonal"
    case = history_case(mode=mode, prefix=secret)
    dead_letter = tmp_path / "rejected"
    with running(kafka, cluster, key_path, case, rows=[], dead_letter=str(dead_letter)) as run:
        _feed_and_kill(run, [WORKER, TASK_MANAGER], 16)
    written = capfd.readouterr()
    texts = {str(path): path.read_bytes() for path in (*cluster.log_files(), *dead_letter.iterdir())}
    assert {pathlib.Path(name).name for name in texts} >= {"job_manager.log", "task_manager.log", "pool.log"}
    texts |= {"stdout": written.out.encode(), "stderr": written.err.encode()}
    assert [name for name, text in texts.items() if secret.encode() in text] == []
    found = sum(text.count(b'"reason"') for name, text in texts.items() if name.startswith(str(dead_letter)))
    assert found >= case.numbers["rejected"]
    # The twin: the search would find a name if one were there.
    (dead_letter / "planted").write_bytes(b"rejected: " + case.rows[0].json())
    assert any(secret.encode() in path.read_bytes() for path in dead_letter.iterdir())


@pytest.mark.nightly
def test_a_worker_that_hangs_is_missed(kafka, cluster, key_path):
    """It is stopped: every connection stays, no bundle ends, and the checkpoint that waits for it times out. Flink then
    restarts the job, as soon as nothing waits for the worker any more."""
    with running(kafka, cluster, key_path, history_case(), seconds=6) as run:
        wait_for_reports(run.sink, 3)
        before = cluster.flink.rest.restarts(run.job)
        workers = worker_pids(cluster.pool)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 120
        while not any("tolerable failure threshold" in cause for cause in cluster.flink.rest.failures(run.job)):
            assert time.monotonic() < deadline, cluster.flink.rest.failures(run.job)
            time.sleep(0.5)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        wait_for_end(run.sink)
        assert cluster.flink.rest.restarts(run.job) > before
        run.assert_answers()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "number"), [*(("hits-with-counts", number) for number in range(4)), ("looks", 0), ("looks", 3)]
)
def test_many_kills_change_nothing(kafka, cluster, key_path, mode, number):
    """Thirty kills over six runs; together with the other tests of this suite more than forty."""
    case = history_case(2 + number, mode=mode, hits_per_user=2 + number % 2, partitions=1 + number)
    with running(kafka, cluster, key_path, case, rows=[]) as run:
        _feed_and_kill(run, [WORKER, TASK_MANAGER, WORKER, TASK_MANAGER, WORKER], 40)


@pytest.mark.nightly
@pytest.mark.parametrize("wait", [15.0, 16.5, 18.0, 19.5, 21.0, 22.5])
def test_a_worker_that_dies_around_a_decision_of_the_wall_clock(kafka, cluster, key_path, wait):
    clock = dataclasses.replace(CLOCK, idle_timeout_seconds=15)
    case = history_case()
    arguments = {"rows": case.open_rows, "seconds": 4, "checkpoint_seconds": 3, "more_partitions": 1, "clock": clock}
    with running(kafka, cluster, key_path, case, **arguments) as run:
        time.sleep(wait)
        run.kill(WORKER)
        time.sleep(wait)
        run.kill(WORKER if wait < 19 else TASK_MANAGER)
        wait_for_end(run.sink)
        run.assert_answers()
