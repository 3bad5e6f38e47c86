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
from dp_transforms.reports.report_records import RunEnded
from examples.engines import flink, prism
from tests.engines import on, wait_for
from tests.engines.running_jobs import TASK_MANAGER, WORKER, running
from tests.engines.stream_case import (
    STREAM,
    counted_events,
    history_case,
    plain_reports,
    submit,
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


@pytest.mark.parametrize(("engine", "mode"), [on("flink", "hits"), on("prism", "looks")])
def test_a_topic_gives_the_reports_of_the_oracle(kafka, key_path, tmp_path, engine, mode):
    case = history_case(mode=mode)
    topic, sink = f"{engine}-{mode}", ReportFolder(str(tmp_path / "reports"))
    case.fill(kafka, topic)
    with _engine(engine, tmp_path) as (flags, driving):
        result = submit(case, case.kafka(kafka.bootstrap, topic), sink, flags, key_path, **driving)
        try:
            wait_for_end(sink)
        finally:
            with contextlib.suppress(Exception):
                result.cancel()
    _, reports, ended = sink.read()
    assert plain_reports(reports) == plain_reports(case.expected)
    assert ended == RunEnded(STREAM, case.plan.schedule.horizon, len(reports))


def _feed_and_kill(run, what, seconds):
    """Feeds the log in parts, and kills at a random moment of each but the last."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    source = random.Random(seed)
    rows, parts = run.case.rows, len(what) + 1
    for number, kind in enumerate([*source.sample(what, len(what)), None]):
        feeder = run.feed(rows[len(rows) * number // parts : len(rows) * (number + 1) // parts], seconds / parts)
        if kind is not None:
            time.sleep(source.uniform(0, seconds / parts))
            run.kill(kind)
        feeder.join()
    wait_for_end(run.sink)
    assert run.cluster.rest.restarts(run.job) >= len(what)
    run.assert_answers()


def test_kills_change_nothing_and_no_log_names_a_user_or_holds_a_record(kafka, cluster, key_path, tmp_path, capfd):
    """Records cannot be read, too, and everything that any process wrote is searched."""
    secret = "Zx9Qpersonal"
    case = history_case(mode="looks", prefix=secret)
    dead_letter = tmp_path / "rejected"
    with running(kafka, cluster, key_path, case, rows=[], dead_letter=str(dead_letter)) as run:
        _feed_and_kill(run, [WORKER, TASK_MANAGER], 16)
    written = capfd.readouterr()
    lists = [path for path in dead_letter.rglob("*") if path.is_file()]  # also what a worker had begun when it died
    texts = {str(path): path.read_bytes() for path in (*cluster.log_files(), *lists)}
    assert {pathlib.Path(name).name for name in texts} >= {"job_manager.log", "task_manager.log", "pool.log"}
    texts |= {"stdout": written.out.encode(), "stderr": written.err.encode()}
    assert [name for name, text in texts.items() if secret.encode() in text] == []
    found = sum(text.count(b'"reason"') for name, text in texts.items() if name.startswith(str(dead_letter)))
    assert found >= case.numbers["rejected"]


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "number"), [("hits-with-counts", 1), ("looks", 2)])
def test_many_kills_change_nothing(kafka, cluster, key_path, mode, number):
    case = history_case(2 + number, mode=mode, hits_per_user=2 + number % 2, partitions=1 + number)
    with running(kafka, cluster, key_path, case, rows=[]) as run:
        _feed_and_kill(run, [WORKER, TASK_MANAGER, WORKER, TASK_MANAGER, WORKER], 40)


def test_a_job_goes_on_from_a_savepoint(kafka, cluster, key_path):
    """Partitions that were added meanwhile are not read: the run goes on with those that it was begun with."""
    case = history_case(mode="looks")
    half = len(case.rows) // 2
    with running(kafka, cluster, key_path, case, rows=case.rows[:half], seconds=6) as run:
        wait_for_reports(run.sink, 5)
        savepoint = run.stop_with_savepoint()
        assert len(run.sink.read(run.case.header.run_id)[1]) < case.plan.schedule.horizon
        run.feeder.join()
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(run.source.topic, 3)])[run.source.topic].result(10)
        source, known = dataclasses.replace(run.source, first_partitions=case.partitions), cluster.job_ids()
        submit(case, source, run.sink, cluster.options(savepoint=savepoint), key_path, poll_seconds=0.3)
        run.job = cluster.newest_job(known)
        run.feed(case.rows[half:], 5).join()
        wait_for_end(run.sink)
        assert cluster.rest.checkpoints(run.job)["latest"]["restored"]["is_savepoint"]
        run.assert_answers()


def test_a_drain_and_the_numbers_for_the_operator(kafka, cluster, key_path, tmp_path):
    case = history_case(mode="looks")
    stop_file, rows = tmp_path / "stop", case.rows[: -case.partitions]  # what else would close the last windows
    with running(kafka, cluster, key_path, case, rows=rows, seconds=5, stop_file=str(stop_file)) as run:
        run.feeder.join()
        closed = case.plan.schedule.horizon - _OPEN_AT_THE_END
        wait_for_reports(run.sink, closed)
        _, counted = counted_events(rows, case.plan, case.partitions)
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
        gauges = {"clock_lag_seconds", "budget_state_bytes", "known_items"}
        assert {*gauges, "pairs_unpaid"} <= set(numbers())
        assert not run.ended
        stop_file.touch()
        wait_for_end(run.sink)
        run.assert_answers()
    assert cluster.rest.job_state(run.job) == "CANCELED"
