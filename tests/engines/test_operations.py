"""What an operator does with a run: goes on with other code, drains it, sees its numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
import time

import pytest
from apache_beam.runners.runner import PipelineState
from confluent_kafka.admin import NewPartitions

from examples.engines import flink
from examples.engines.flink_rest import ENDED
from tests.engines.conftest import ROOT
from tests.engines.flink_questions import stop_with_savepoint
from tests.engines.running_jobs import TASK_MANAGER, WORKER, running
from tests.engines.stream_case import (
    CLOCK,
    StreamCase,
    counted_events,
    history_case,
    submit,
    wait_for_end,
    wait_for_reports,
)
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, settings_of
from tests.reference.budgets import stream_weights
from tests.reference.log import items_by_window_and_user

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

_OPEN_AT_THE_END = 2  # windows that the clock of events leaves open when the last rows are missing


def _changed_package(folder: pathlib.Path, mark: pathlib.Path) -> pathlib.Path:
    """A copy of the product with other internals: records are cut into other polls, a private attribute has another
    name, a function is new. The states keep their format. Who imports it leaves a mark."""
    shutil.copytree(ROOT / "dp_transforms", folder / "dp_transforms", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")
    poller = folder / "dp_transforms" / "logs" / "streams" / "partition_poller.py"
    _replace(poller, "max_records=self._max_records, ", "max_records=70, ")
    _replace(poller, "self._stop_micros", "self._last_arrival")
    function = f"\n\ndef _leave_mark():\n    open({str(mark)!r}, 'a').close()\n\n\n_leave_mark()\n"
    poller.write_text(poller.read_text() + function)
    return folder


def _of_closed_windows(case: StreamCase) -> dict[str, int]:
    """Contributions that a purse could not pay for, before the stop."""
    settings = settings_of(case.plan)
    closed = settings.schedule.end_seconds - _OPEN_AT_THE_END * settings.schedule.slide_seconds
    came = [event for event in case.counted if event[2] < closed * MICROS]
    pairs = sum(len(items) for users in items_by_window_and_user(came, settings).values() for items in users.values())
    paid = sum(map(len, stream_weights(came, settings, settings.stream_keys(SECRET)).values()))
    assert 0 < paid < pairs
    return {"pairs_unpaid": pairs - paid, "windows_closed": settings.schedule.horizon - _OPEN_AT_THE_END}


def _replace(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("mode", ["looks", pytest.param("hits-with-counts", marks=pytest.mark.nightly)])
def test_other_code_goes_on_from_a_savepoint(kafka, cluster, key_path, tmp_path, mode):
    case = history_case(mode=mode)
    mark = tmp_path / "mark"
    changed = _changed_package(tmp_path / "changed", mark)
    half = len(case.rows) // 2
    with running(kafka, cluster, key_path, case, rows=case.rows[:half], seconds=6) as run:
        wait_for_reports(run.sink, 5)
        begin = time.monotonic()
        savepoint = stop_with_savepoint(cluster.flink.rest, run.job, cluster.flink.savepoints.as_uri())
        cluster.flink.rest.wait_for_state(run.job, ["FINISHED"])
        print(f"stopped with a savepoint in {time.monotonic() - begin:.1f} s")
        before = len(run.sink.read(run.case.header.run_id)[1])
        assert before < case.plan.schedule.horizon
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


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["hits-with-counts", "looks"])
def test_a_run_goes_on_with_more_parallelism_and_not_with_1(kafka, cluster, key_path, mode):
    """Begun with 2. With 1 Flink chains other operators, whose states a savepoint does not have."""
    case = history_case(mode=mode)
    half = len(case.rows) // 2
    with running(kafka, cluster, key_path, case, rows=case.rows[:half], seconds=6) as run:
        wait_for_reports(run.sink, 5)
        savepoint = stop_with_savepoint(cluster.flink.rest, run.job, cluster.flink.savepoints.as_uri())
        cluster.flink.rest.wait_for_state(run.job, ["FINISHED"])
        refused = submit(case, run.source, run.sink, cluster.options(savepoint=savepoint, parallelism=1), key_path)
        with contextlib.suppress(RuntimeError):
            refused.wait_until_finish(240_000)
        assert refused.state == PipelineState.FAILED
        assert {job.state for job in cluster.flink.rest.jobs()} <= set(ENDED)
        run.feeder.join()
        known = cluster.job_ids()
        submit(case, run.source, run.sink, cluster.options(savepoint=savepoint, parallelism=4), key_path)
        run.job = cluster.newest_job(known)
        run.feed(case.rows[half:], 5).join()
        wait_for_end(run.sink)
        run.assert_answers()


@pytest.mark.parametrize("mode", [pytest.param("hits-with-counts", marks=pytest.mark.nightly), "looks"])
def test_drain_and_numbers_for_the_operator(kafka, cluster, key_path, tmp_path, mode):
    case = history_case(mode=mode)
    stop_file = tmp_path / "stop"
    with running(kafka, cluster, key_path, case, rows=case.open_rows, seconds=5, stop_file=str(stop_file)) as run:
        run.feeder.join()
        wait_for_reports(run.sink, case.plan.schedule.horizon - _OPEN_AT_THE_END)
        _, rows = counted_events(case.open_rows, case.plan, case.partitions)
        wanted = {
            "records_read": len(case.open_rows),
            "events_read": rows["read"] + rows["from the future"],
            "events_rejected": rows["rejected"],
            "events_from_the_future": rows["from the future"],
            "events_late": rows["late"],
            "events_outside_range": rows["outside"],
        }
        gauges = {"clock_lag_seconds", "pending_windows", "partition_state_bytes"}
        if mode == "looks":
            wanted |= _of_closed_windows(case)
            gauges |= {"budget_state_bytes", "known_items"}
        deadline = time.monotonic() + 120
        while True:
            numbers = cluster.operator_numbers(run.job)
            if {name: numbers.get(name) for name in wanted} == wanted:
                break
            assert time.monotonic() < deadline, numbers
            time.sleep(1)
        print(numbers)
        assert gauges <= set(numbers)
        assert run.sink.read(RUN_ID)[2] is None
        stop_file.touch()
        print(f"drained in {wait_for_end(run.sink):.1f} s")
        run.assert_answers()
    assert cluster.flink.rest.job_state(run.job) == "CANCELED"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "what", "wait"),
    [
        *(("hits-with-counts", WORKER, wait) for wait in (0.5, 2.0, 4.0)),
        ("hits-with-counts", TASK_MANAGER, 1.5),
        ("looks", WORKER, 1.0),
        ("looks", TASK_MANAGER, 3.0),
    ],
)
def test_kills_while_a_run_is_drained(kafka, cluster, key_path, tmp_path, mode, what, wait):
    case = history_case(mode=mode)
    stop_file = tmp_path / "stop"
    with running(
        kafka, cluster, key_path, case, rows=case.open_rows, seconds=5, checkpoint_seconds=3, stop_file=str(stop_file)
    ) as run:
        run.feeder.join()
        wait_for_reports(run.sink, case.plan.schedule.horizon - _OPEN_AT_THE_END)
        assert run.sink.read(RUN_ID)[2] is None
        stop_file.touch()
        time.sleep(wait)
        run.kill(what)
        wait_for_end(run.sink)
        run.assert_answers()


@pytest.mark.nightly
def test_kills_while_a_run_is_drained_in_the_middle(kafka, cluster, key_path, tmp_path):
    """The log goes on meanwhile. What arrived by the stop counts, by the times of the records, and nothing else."""
    case = history_case()
    stop_file = tmp_path / "stop"
    arguments = {"rows": case.open_rows, "seconds": 50, "checkpoint_seconds": 3, "stop_file": str(stop_file)}
    with running(kafka, cluster, key_path, case, **arguments) as run:
        wait_for_reports(run.sink, 8)
        assert run.sink.read(RUN_ID)[2] is None
        stop_file.touch()
        stop_micros = CLOCK.stop_micros(stop_file.stat().st_ctime_ns // 1000)
        time.sleep(2)
        run.kill(WORKER)
        wait_for_end(run.sink)
        run.feeder.join()
        rows = sorted(case.open_rows, key=lambda row: row.partition)
        stored = zip(rows, kafka.records(run.source.topic), strict=True)
        came = [row for row, record in stored if record.timestamp_millis * 1000 <= stop_micros]
        assert len(came) < len(rows), "the stop fell into the log"
        counted, _ = counted_events(came, case.plan, case.partitions)
        print(f"{len(came)} of {len(case.open_rows)} records arrived by the stop")
        run.case = dataclasses.replace(case, counted=tuple(counted))
        run.assert_answers()
