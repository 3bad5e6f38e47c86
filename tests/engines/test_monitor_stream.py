"""`MonitorStream` on engines, from Kafka: the oracle's answers, whoever is killed, after a savepoint, and when drained.

Every charge changes later reports, and so does what every window takes out of user budgets: so none was lost and none
was made twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import shutil
import time

import pytest
from confluent_kafka.admin import NewPartitions

from dp_transforms.reports import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from examples.engines import flink, prism
from tests.engines import on
from tests.engines.conftest import ROOT
from tests.engines.flink_questions import stop_with_savepoint
from tests.engines.running_jobs import TASK_MANAGER, WORKER, running
from tests.engines.stream_case import (
    CLOCK,
    STREAM,
    counted_events,
    history_case,
    plain_reports,
    submit,
    wait_for_end,
    wait_for_reports,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

BOTH_CHARGES = [pytest.param("hits-with-counts", marks=pytest.mark.nightly), "looks"]
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


@pytest.mark.parametrize(
    ("engine", "mode"), [on("flink", "hits"), on("prism", "hits-with-counts"), on("prism", "looks", is_long=True)]
)
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
    assert run.cluster.flink.rest.restarts(run.job) >= len(what)
    run.assert_answers()


@pytest.mark.parametrize("mode", BOTH_CHARGES)
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


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "number"), [("hits-with-counts", 1), ("hits-with-counts", 2), ("looks", 3)])
def test_many_kills_change_nothing(kafka, cluster, key_path, mode, number):
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
        for what in (WORKER, WORKER if wait < 19 else TASK_MANAGER):
            time.sleep(wait)
            run.kill(what)
        wait_for_end(run.sink)
        run.assert_answers()


def _changed_package(folder: pathlib.Path, mark: pathlib.Path) -> pathlib.Path:
    """A copy of the product with other internals: records are cut into other polls, a private attribute has another
    name. The states keep their format. Who imports it leaves a mark."""
    shutil.copytree(ROOT / "dp_transforms", folder / "dp_transforms", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")
    poller = folder / "dp_transforms" / "logs" / "streams" / "partition_poller.py"
    text = poller.read_text()
    for old, new in (("max_records=self._max_records, ", "max_records=70, "), ("self._stop_micros", "self._last")):
        assert old in text
        text = text.replace(old, new)
    poller.write_text(f"{text}\nopen({str(mark)!r}, 'a').close()\n")
    return folder


@pytest.mark.parametrize("mode", BOTH_CHARGES)
def test_other_code_goes_on_from_a_savepoint(kafka, cluster, key_path, tmp_path, mode):
    case = history_case(mode=mode)
    mark = tmp_path / "mark"
    changed = _changed_package(tmp_path / "changed", mark)
    half = len(case.rows) // 2
    with running(kafka, cluster, key_path, case, rows=case.rows[:half], seconds=6) as run:
        wait_for_reports(run.sink, 5)
        savepoint = stop_with_savepoint(cluster.flink.rest, run.job, cluster.flink.savepoints.as_uri())
        cluster.flink.rest.wait_for_state(run.job, ["FINISHED"])
        assert len(run.sink.read(run.case.header.run_id)[1]) < case.plan.schedule.horizon
        assert not mark.exists()
        run.feeder.join()
        # Partitions that were added meanwhile are not read: the run goes on with those that it was begun with.
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(run.source.topic, 3)])[run.source.topic].result(10)
        source = dataclasses.replace(run.source, first_partitions=case.partitions)
        known = cluster.job_ids()
        environment = {"PYTHONPATH": str(changed), "PYTHONSAFEPATH": "1"}  # not what lies where the tests are run
        with flink.WorkerPool(log_path=cluster.folder / "pool-2.log", env=environment) as pool:
            flags = cluster.options(savepoint=savepoint, worker_address=pool.address)
            submit(case, source, run.sink, flags, key_path, poll_seconds=0.3)
            run.job = cluster.newest_job(known)
            try:
                run.feed(case.rows[half:], 5).join()
                wait_for_end(run.sink)
            finally:
                cluster.cancel(run.job)
        assert mark.exists()
        assert cluster.flink.rest.checkpoints(run.job)["latest"]["restored"]["is_savepoint"]
        run.assert_answers()


def test_a_drain_and_the_numbers_for_the_operator(kafka, cluster, key_path, tmp_path):
    case = history_case(mode="looks")
    stop_file = tmp_path / "stop"
    with running(kafka, cluster, key_path, case, rows=case.open_rows, seconds=5, stop_file=str(stop_file)) as run:
        run.feeder.join()
        closed = case.plan.schedule.horizon - _OPEN_AT_THE_END
        wait_for_reports(run.sink, closed)
        _, rows = counted_events(case.open_rows, case.plan, case.partitions)
        wanted = {
            "records_read": len(case.open_rows),
            "events_read": rows["read"] + rows["from the future"],
            "events_rejected": rows["rejected"],
            "events_from_the_future": rows["from the future"],
            "events_late": rows["late"],
            "events_outside_range": rows["outside"],
            "windows_closed": closed,
        }
        gauges = {"clock_lag_seconds", "budget_state_bytes", "known_items"}
        deadline = time.monotonic() + 120
        while {name: (numbers := cluster.operator_numbers(run.job)).get(name) for name in wanted} != wanted:
            assert time.monotonic() < deadline, numbers
            time.sleep(1)
        assert {*gauges, "pairs_unpaid"} <= set(numbers)
        assert run.sink.read()[2] is None
        stop_file.touch()
        wait_for_end(run.sink)
        run.assert_answers()
    assert cluster.flink.rest.job_state(run.job) == "CANCELED"


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "what", "wait"), [("hits-with-counts", WORKER, 2.0), ("looks", TASK_MANAGER, 3.0)])
def test_kills_while_a_run_is_drained(kafka, cluster, key_path, tmp_path, mode, what, wait):
    case = history_case(mode=mode)
    stop_file = tmp_path / "stop"
    arguments = {"rows": case.open_rows, "seconds": 5, "checkpoint_seconds": 3, "stop_file": str(stop_file)}
    with running(kafka, cluster, key_path, case, **arguments) as run:
        run.feeder.join()
        wait_for_reports(run.sink, case.plan.schedule.horizon - _OPEN_AT_THE_END)
        assert run.sink.read()[2] is None
        stop_file.touch()
        time.sleep(wait)
        run.kill(what)
        wait_for_end(run.sink)
        run.assert_answers()
