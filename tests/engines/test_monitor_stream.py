"""`MonitorStream` on engines, from Kafka: the oracle's answers, whoever is killed, after a savepoint, and when drained.

Every charge changes later reports, and so does what every window takes out of user budgets: so none was lost and none
was made twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import time

import pytest
from confluent_kafka.admin import NewPartitions

from dp_transforms.beam.workers import NAMESPACE, counts_and_gauges
from dp_transforms.reports import ReportFolder
from examples.engines import flink, prism
from tests.engines import on, wait_for
from tests.engines.stream_case import (
    PARTITIONS,
    TASK_MANAGER,
    WORKER,
    counted_events,
    feed,
    history_case,
    running,
    submit,
    topic_of,
    wait_for_end,
    wait_for_reports,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

_OPEN_AT_THE_END = 2  # windows that the clock of events leaves open when the last rows are missing


@contextlib.contextmanager
def _engine(name, folder):
    """The options of a pipeline on it, and of its stream."""
    if name == "prism":
        with prism.Prism() as engine:
            yield prism.options(engine.endpoint), {"confirm": False}
    else:
        with flink.JobServer() as server:
            yield flink.options(server.endpoint, checkpointing_interval_seconds=1, checkpoint_dir=str(folder)), {}
        assert list(folder.glob("**/chk-*/_metadata")), "the job has ended, and a checkpoint stays"


@pytest.mark.parametrize(("engine", "mode"), [on("flink", "hits"), on("prism", "contributions")])
def test_a_topic_gives_the_reports_of_the_oracle(kafka, key_path, tmp_path, engine, mode):
    case, source, sink = history_case(mode), topic_of(kafka, engine), ReportFolder(str(tmp_path / "reports"))
    feed(kafka.bootstrap, source.topic, case.rows)
    with _engine(engine, tmp_path) as (flags, driving):
        result = submit(case, source, sink, flags, key_path, **driving)
        try:
            wait_for_end(sink)
        finally:
            with contextlib.suppress(Exception):
                result.cancel()
    case.assert_answers(sink)


def test_kills_change_nothing_and_no_log_names_a_user_or_holds_a_record(kafka, cluster, key_path, tmp_path, capfd):
    """A worker and a task manager die, each at a random moment of a third of the log. Records cannot be read, too, and
    everything that any process wrote is searched."""
    secret, seed = "Zx9Qpersonal", random.randrange(10**6)
    print(f"seed {seed}")
    source, case, dead_letter = random.Random(seed), history_case("contributions", secret), tmp_path / "rejected"
    third = len(case.rows) // 3
    with running(kafka, cluster, key_path, case, dead_letter=str(dead_letter)) as run:
        for part, kind in enumerate(source.sample([WORKER, TASK_MANAGER], 2)):
            fed = run.feed(case.rows[third * part : third * (part + 1)], 5)
            time.sleep(source.uniform(0, 5))
            run.kill(kind)
            fed.result()
        run.feed(case.rows[third * 2 :], 5).result()
        wait_for_end(run.sink)
        assert cluster.rest.restarts(run.job) >= 2
        case.assert_answers(run.sink)
    written = capfd.readouterr()
    lists = [path for path in dead_letter.rglob("*") if path.is_file()]  # also what a worker had begun when it died
    texts = {str(path): path.read_bytes() for path in (*cluster.log_files(), *lists)}
    assert {pathlib.Path(name).name for name in texts} >= {"job_manager.log", "task_manager.log", "pool.log"}
    texts |= {"stdout": written.out.encode(), "stderr": written.err.encode()}
    assert [name for name, text in texts.items() if secret.encode() in text] == []
    found = sum(text.count(b'"reason"') for name, text in texts.items() if name.startswith(str(dead_letter)))
    assert found >= case.numbers["rejected"]


def test_a_job_goes_on_from_a_savepoint(kafka, cluster, key_path):
    """Partitions that were added meanwhile are not read: the run goes on with those that it was begun with."""
    case = history_case("contributions")
    half = len(case.rows) // 2
    with running(kafka, cluster, key_path, case) as run:
        fed = run.feed(case.rows[:half], 6)
        wait_for_reports(run.sink, 5)
        savepoint = run.stop_with_savepoint()
        assert not run.ended
        fed.result()
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(run.source.topic, 3)])[run.source.topic].result(10)
        source, known = dataclasses.replace(run.source, first_partitions=PARTITIONS), cluster.job_ids()
        submit(case, source, run.sink, cluster.options(savepoint=savepoint), key_path, poll_seconds=0.3)
        run.job = cluster.newest_job(known)
        run.feed(case.rows[half:], 5).result()
        wait_for_end(run.sink)
        assert cluster.rest.checkpoints(run.job)["latest"]["restored"]["is_savepoint"]
        case.assert_answers(run.sink)


def test_a_drain_and_the_numbers_for_the_operator(kafka, cluster, key_path, tmp_path):
    case = history_case("contributions")
    stop_file, rows = tmp_path / "stop", case.rows[:-PARTITIONS]  # without what else would close the last windows
    with running(kafka, cluster, key_path, case, stop_file=str(stop_file)) as run:
        run.feed(rows, 5).result()
        closed = case.plan.schedule.horizon - _OPEN_AT_THE_END
        wait_for_reports(run.sink, closed)
        _, counted = counted_events(rows, case.plan)
        wanted = {
            "records_read": len(rows),
            "events_read": counted["read"] + counted["from the future"],
            "events_rejected": counted["rejected"],
            "events_from_the_future": counted["from the future"],
            "events_late": counted["late"],
            "events_outside_range": counted["outside"],
            "windows_closed": closed,
        }

        def numbers():
            counters, gauges = counts_and_gauges(cluster.rest.beam_metrics(run.job, NAMESPACE))
            return {**counters, **gauges}

        wait_for("the operator's numbers", lambda: wanted.items() <= numbers().items())
        gauges = {"clock_lag_seconds", "budget_state_bytes", "followed_items"}
        assert {*gauges, "contributions_unpaid"} <= set(numbers())
        assert not run.ended
        stop_file.touch()
        wait_for_end(run.sink)
        case.assert_answers(run.sink)
    assert cluster.rest.job_state(run.job) == "CANCELED"
