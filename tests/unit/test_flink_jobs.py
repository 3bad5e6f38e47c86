"""What commands ask Flink about their job, over HTTP: answers as Flink 1.19.3 gives them."""

import pytest
from apache_beam.runners.runner import PipelineResult, PipelineState

from dp_transforms.beam.set_up_workers import NAMESPACE
from dp_transforms.cli import flink_jobs
from dp_transforms.cli.flink_jobs import (
    FlinkProgress,
    FlinkStart,
    FlinkWatch,
    JobNumbers,
    JobProgress,
    ReplayWatch,
    StartedJob,
)
from dp_transforms.engines.flink_rest import FlinkRest, beam_metric_name
from dp_transforms.errors import UserError
from dp_transforms.monitor.operator_counts import counts_and_gauges
from tests.helpers.flink_answers import FlinkAnswers, serving
from tests.helpers.page_reports import header_of, hourly_plan

OF_PIPELINE = (
    "java.lang.RuntimeException: Error received from SDK harness for instruction 4: "
    "Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in process\n'
    "dp_transforms.logs.log_chunk.EventFileError: a.parquet cannot be read.\n"
)
OF_MACHINE = (
    "java.lang.IllegalStateException: Stream for instruction 4 is closed: the worker is gone.\n\tat x.y(Z.java)\n"
)
# Taken from a job on Flink 1.19.3 with two parallel parts.
POLL, WRITE = "[2]MonitorStream/PollPartitions/{Poll__Confirm}", "[7]{MonitorStream__WriteReportStream}"
METRICS = {
    "a1": {
        "0.buffers.inPoolUsage": "0.0",
        "0.numRecordsIn": "12",
        f"0.{POLL}.shh_operator_intents": "2",
        f"1.{POLL}.shh_operator_intents": "4",
        f"0.{POLL}.shh_operator_events_read": "722",
        f"1.{POLL}.shh_operator_events_read": "679",
        f"0.{POLL}.shh_operator_clock_lag_seconds_0": "1",
        f"0.{POLL}.shh_operator_clock_lag_seconds_1": "4",
        f"1.{POLL}.shh_operator_clock_lag_seconds_2": "2",
        f"0.{POLL}.shh_operator_windows_sent_0": "9",
        f"0.{POLL}.shh_operator_windows_sent_1": "6",
        f"1.{POLL}.shh_operator_windows_sent_2": "8",
        f"1.{POLL}.shh_operator_partition_state_bytes": "261",
        f"0.{POLL}.shh_operator_partition_state_bytes": "272",
        f"0.{POLL}.numRecordsOutPerSecond": "NaN",
    },
    "b2": {
        f"0.{WRITE}.shh_operator_windows_answered": "6",
        f"0.{WRITE}.shh_operator_windows_closed": "6",
        f"0.{WRITE}.other_operator_windows_closed": "999",
    },
    "c3": {},
}
COUNTERS = {"intents": 6, "events_read": 1401, "windows_closed": 6}
GAUGES = {"clock_lag_seconds": 4, "partition_state_bytes": 272, "pending_windows": 3}
HEADER = header_of(hourly_plan())
NOBODY = FlinkRest("localhost:9")
EARLIER = ("old", "mine", "FINISHED")


@pytest.fixture
def says():
    jobs = [("old", "mine", "CANCELED"), ("new", "mine", "RUNNING"), ("x", "mine-too", "FAILED")]
    jobs += [("left", "ended", "RUNNING"), ("last", "ended", "FINISHED")]
    return FlinkAnswers("new", [jobs], {"a1": "FINISHED", "b2": "RUNNING", "c3": "CREATED"}, metrics=METRICS)


@pytest.fixture
def flink(says):
    with serving(says) as found:
        yield found


def test_all_is_about_the_newest_job_of_the_name_while_it_runs(flink):
    assert ReplayWatch(flink, "mine").look() == JobProgress("new", flink.address, done=1, stages=3)
    assert FlinkWatch(flink, "mine", 10).numbers(0.0) == JobNumbers(COUNTERS, GAUGES, 0.0, restarts=0, heap=0.5)
    for rest, name in ((flink, "nobody's"), (flink, "ended"), (NOBODY, "mine")):
        assert ReplayWatch(rest, name).look() is None
        watch = FlinkWatch(rest, name, 10)
        assert [watch.numbers(now) for now in (0.0, 1e6, 2e6)] == [JobNumbers({}, {})] * 3
        ReplayWatch(rest, name).cancel(5)


def test_a_job_that_another_command_has_started_is_over_when_flink_says_so(flink, says):
    job = StartedJob(flink, "mine")
    assert not job.is_over
    assert not StartedJob(NOBODY, "mine").is_over, "it does not answer"
    says.looks = [[("new", "mine", "FINISHED")]]
    assert job.is_over
    job.raise_error()
    says.looks, says.failures = [[("new", "mine", "FAILED")]], (OF_PIPELINE, OF_MACHINE)
    with pytest.raises(RuntimeError, match=r"a\.parquet cannot be read"):
        job.raise_error()


def test_a_job_is_cancelled_unless_it_is_over(flink, says):
    watch = ReplayWatch(flink, "mine")
    for _ in range(2):
        watch.cancel(5)
    assert says.cancelled == ["/jobs/new?mode=cancel"]
    assert watch.look() is None


# --- A job that is submitted, and a replay


@pytest.mark.parametrize("taken", ["RUNNING", "FINISHED"])
def test_the_id_is_told_when_flink_runs_the_job_and_is_never_that_of_an_earlier_one(flink, says, taken):
    says.looks = [[EARLIER]]
    start = FlinkStart(flink, "mine")
    says.looks = [[EARLIER], [EARLIER, ("new", "mine", "RESTARTING")], [EARLIER, ("new", "mine", taken)]]
    assert start.wait_until_running(PipelineResult(PipelineState.RUNNING)) == "new"
    assert len(says.looks) == 1


@pytest.mark.parametrize("jobs", [[EARLIER], [EARLIER, ("new", "mine", "FAILED")], [("x", "mine-too", "RUNNING")]])
def test_a_job_that_ends_before_or_is_never_taken_is_an_error(flink, says, jobs, monkeypatch):
    says.looks = [[EARLIER]]
    start = FlinkStart(flink, "mine")
    says.looks = [jobs]
    with pytest.raises(UserError, match="the job is FAILED, and Flink does not run it"):
        start.wait_until_running(PipelineResult(PipelineState.FAILED))
    monkeypatch.setattr(flink_jobs, "_SECONDS_TO_START", 0)
    with pytest.raises(UserError, match="the job is RUNNING, and Flink does not run it"):
        start.wait_until_running(PipelineResult(PipelineState.RUNNING))


def test_a_cluster_that_does_not_answer_is_told_before_anything_begins():
    with pytest.raises(UserError, match=r"does not answer: [^\n]* Is the cluster up\? Nothing was started\."):
        FlinkStart(NOBODY, "mine")


@pytest.mark.parametrize(
    ("text", "says_why"),
    [
        (OF_PIPELINE, r"a\.parquet cannot be read"),
        ("java.lang.Exception: an error\nCaused by: java.lang.OutOfMemoryError: Java heap space\n", "heap space"),
        ("Caused by: The record exceeds the maximum size of a sort buffer\n", "sort buffer"),
    ],
)
def test_a_failure_that_would_come_again_ends_the_run_and_those_of_machines_do_not(flink, says, text, says_why):
    watch = ReplayWatch(flink, "mine")
    says.failures = (text, *(OF_MACHINE,) * 30, text)
    progress = watch.look()
    assert progress is not None
    assert progress.failures == 32
    says.failures = (text, *says.failures)
    with pytest.raises(RuntimeError, match=says_why):
        watch.look()


def test_where_the_job_is_and_that_it_begins_again_is_told_once(capsys):
    with FlinkProgress() as shown:
        for failures in (0, 4, 5, 6):
            shown.show(JobProgress("new", "localhost:1", done=1, stages=3, failures=failures))
        shown.show(None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "http://localhost:1/#/job/new" in lines[0]
    assert "again and again" in lines[1]


# --- A stream


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (f"0.{POLL}.shh_operator_clock_lag_seconds", "clock_lag_seconds"),
        (f"11.{WRITE}.shh_operator_windows_closed", "windows_closed"),
        ("0.a.b.shh_operator_events_read", "events_read"),
        ("0.[1]x.xshh_operator_events_read", None),
        ("0.[1]x.shh_operator_", None),
        ("0.numRecordsIn", None),
    ],
)
def test_names_as_flink_gives_them(name, short):
    assert beam_metric_name(name, "shh.operator") == short


def test_more_metrics_than_one_address_can_name_are_asked_for_in_parts(flink, says):
    says.metrics = {"a1": {f"{part}.{POLL}.shh_operator_intents": "1" for part in range(50)}, "b2": {}, "c3": {}}
    assert counts_and_gauges(flink.beam_metrics("new", NAMESPACE)) == ({"intents": 50}, {})


@pytest.mark.parametrize(
    ("sent", "answered", "pending"),
    [
        ([5, 5], [5], 0),
        ([9, 6], [6], 3),  # one partition holds the others up, before the monitor
        ([9, 9], [6], 3),  # the monitor does
        ([3, 0], [], 3),  # nothing was ever answered
        ([9, 6], [], 3),  # nothing since a restart: no more than the partitions say
    ],
)
def test_windows_wait_from_the_first_partition_that_closes_them_to_their_answer(sent, answered, pending):
    values = {f"windows_sent_{number}": [windows] for number, windows in enumerate(sent)}
    found = counts_and_gauges(values | ({"windows_answered": answered} if answered else {}))
    assert found == ({}, {"pending_windows": pending})


OF_LOG = OF_PIPELINE.replace("logs.log_chunk.EventFileError", "errors.LastingError")
OF_MEMORY = "Caused by: java.lang.OutOfMemoryError: Java heap space"
OF_BROKER = OF_PIPELINE.replace("logs.log_chunk.EventFileError", "errors.StreamError")


@pytest.mark.parametrize(
    ("failures", "failed_at", "completed_at", "is_told"),
    [
        ((OF_LOG, OF_BROKER, OF_LOG, OF_LOG), (9000, 6000, 3000, 500), None, True),
        ((OF_MEMORY,) * 3, (9000, 8000, 7000), 6999, True),
        ((OF_LOG, OF_LOG, *[OF_BROKER] * 9, *[OF_MACHINE] * 9), (9000,), None, False),
        ((OF_MEMORY,) * 3, (9000, 8000, 7000), 7001, False),  # it went on between them
        ((OF_LOG,) * 16, (9000,), 9001, False),  # it has recovered
        ((OF_LOG,) * 3, (9000, 8000, 100), None, False),  # one was before anybody watched
    ],
)
@pytest.mark.parametrize(("heap", "full"), [((5e8, 1e9), 0.5), (None, None), ((5e8, 0.0), None), ((5e8, -1.0), None)])
def test_a_failure_that_no_restart_changes_ends_a_stream_if_no_checkpoint_comes_between(
    flink, says, failures, failed_at, completed_at, is_told, heap, full
):
    """What the heap is changes nothing."""
    watch = FlinkWatch(flink, "mine", 10)
    says.now, says.heap = 200, heap
    assert watch.numbers(0.0).failure == ""
    says.now, says.failures, says.failed_at, says.completed_at = 9010, failures, failed_at, completed_at
    says.restarts = 7
    numbers = watch.numbers(1.0)
    assert numbers.failure == (failures[0] if is_told else "")
    assert (numbers.restarts, numbers.heap, numbers.counts) == (7, full, COUNTERS)


def test_who_watches_a_job_again_does_not_end_it_for_what_failed_before(flink, says):
    says.now, says.failures, says.failed_at = 4000, (OF_LOG,) * 3, (3999, 3900, 3800)
    watch = FlinkWatch(flink, "mine", 10)
    assert [watch.numbers(now).failure for now in (0.0, 5.0)] == ["", ""]
    says.failed_at = (4010, 4005, 4001)
    assert watch.numbers(10.0).failure == OF_LOG


def test_who_waits_long_for_a_checkpoint_is_told_so(flink, says):
    watch = FlinkWatch(flink, "mine", 10)
    # (now, checkpoints that have completed, whether a warning comes, seconds without another checkpoint)
    for now, completed, is_warned, age in (
        (1000.0, 0, False, 0),
        (1159.9, 0, False, 159.9),
        (1160.0, 0, True, 160),
        (1170.0, 0, False, 170),  # a warning comes once in so many seconds; the age goes on
        (1320.0, 0, True, 320),
        (1480.0, 1, False, 0),
        (1639.0, 1, False, 159),
        (1640.0, 2, False, 0),
        (1799.0, 2, False, 159),
        (1800.0, 2, True, 160),
    ):
        says.completed = completed
        numbers = watch.numbers(now)
        words = numbers.warning
        assert bool(words) == is_warned, now
        assert numbers.seconds_without_checkpoint == pytest.approx(age)
        if words:
            assert "no checkpoint for 160 s; its job is RUNNING" in words
            assert f"http://{flink.address}/#/job/new" in words
