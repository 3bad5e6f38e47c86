"""Numbers for the operator out of what Flink's REST interface calls them: answers of a real cluster, over HTTP."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator

import pytest

from dp_transforms.beam.set_up_workers import NAMESPACE
from dp_transforms.cli.flink_jobs import FlinkWatch, JobNumbers
from dp_transforms.engines.flink_rest import FlinkRest, beam_metric_name
from dp_transforms.monitor.operator_counts import STREAM_GAUGES
from tests.helpers.flink_answers import FlinkAnswers, overview, serving

# Taken from a job on Flink 1.19.3 with two parallel parts.
POLL, WRITE = "[2]MonitorStream/PollPartitions/{Poll__Confirm}", "[7]{MonitorStream__WriteReportStream}"
VERTICES = {
    "a1": {
        "0.buffers.inPoolUsage": "0.0",
        "0.numRecordsIn": "12",
        f"0.{POLL}.shh_operator_intents": "2",
        f"1.{POLL}.shh_operator_intents": "4",
        f"0.{POLL}.shh_operator_records_read": "722",
        f"1.{POLL}.shh_operator_records_read": "679",
        f"0.{POLL}.shh_operator_clock_lag_seconds": "1",
        f"1.{POLL}.shh_operator_clock_lag_seconds": "4",
        f"1.{POLL}.shh_operator_partition_state_bytes": "261",
        f"0.{POLL}.shh_operator_partition_state_bytes": "272",
        f"1.{POLL}.shh_operator_events_late": "32",
        f"0.{POLL}.numRecordsOutPerSecond": "NaN",
    },
    "b2": {
        f"0.{WRITE}.shh_operator_pending_windows": "0",
        f"0.{WRITE}.shh_operator_late_batches_dropped": "0",
        f"0.{WRITE}.shh_operator_budget_state_bytes": "408",
        f"0.{WRITE}.shh_operator_windows_closed": "6",
        f"0.{WRITE}.other_operator_windows_closed": "999",
    },
}
COUNTERS = {"intents": 6, "records_read": 1401, "events_late": 32, "late_batches_dropped": 0, "windows_closed": 6}
CHECKPOINTS = {"completed": 0}
GAUGES = {"clock_lag_seconds": 4, "partition_state_bytes": 272, "pending_windows": 0, "budget_state_bytes": 408}


class _Answers(FlinkAnswers):
    """Says what the cluster said, by path."""

    def get(self) -> object:
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        if url.path == "/jobs/overview":
            jobs = [("old", "mine", "CANCELED"), ("job-1", "mine", "RUNNING"), ("job-2", "mine-too", "RUNNING")]
            return overview([*jobs, ("left", "ended", "RUNNING"), ("last", "ended", "FINISHED")])
        if parts[0] == "jobs" and len(parts) == 2:
            assert parts[1] == "job-1"
            return {"vertices": [{"id": vertex, "name": vertex, "status": "RUNNING"} for vertex in VERTICES]}
        if parts[2] == "checkpoints":
            assert parts[1] == "job-1"
            return {"counts": CHECKPOINTS}
        metrics = VERTICES[parts[3]]
        wanted = urllib.parse.parse_qs(url.query).get("get", [""])[0]
        if wanted:
            return [{"id": name, "value": metrics[name]} for name in wanted.split(",")]
        return [{"id": name} for name in metrics]


@pytest.fixture
def flink() -> Iterator[FlinkRest]:
    with serving(_Answers) as found:
        yield found


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
def test_names_as_flink_gives_them(name: str, short: str | None) -> None:
    assert beam_metric_name(name, "shh.operator") == short


def test_counters_are_summed_and_of_gauges_the_largest_is_given(flink: FlinkRest) -> None:
    assert flink.beam_metrics("job-1", NAMESPACE, STREAM_GAUGES) == (COUNTERS, GAUGES)


def test_the_job_that_runs_under_the_name_is_asked(flink: FlinkRest) -> None:
    assert FlinkWatch(flink, "mine", 10).numbers(0.0) == JobNumbers(COUNTERS, GAUGES, 0.0)
    assert FlinkWatch(flink, "nobody's", 10).numbers(0.0) == JobNumbers({}, {})
    assert FlinkWatch(flink, "ended", 10).numbers(0.0) == JobNumbers({}, {}), "the newest of the name is over"
    assert FlinkWatch(FlinkRest("localhost:9"), "mine", 10).numbers(0.0) == JobNumbers({}, {})


def test_who_waits_long_for_a_checkpoint_is_told_so(flink: FlinkRest, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = FlinkWatch(flink, "mine", 10)

    def warning(now: float, completed: int) -> str:
        monkeypatch.setitem(CHECKPOINTS, "completed", completed)
        return watch.numbers(now).warning

    assert [warning(now, 0) for now in (1000.0, 1100.0, 1159.9)] == [""] * 3
    words = warning(1160.0, 0)
    assert "no checkpoint for 160 s; its job is RUNNING" in words
    assert f"http://{flink.address}/#/job/job-1" in words
    assert warning(1170.0, 0) == "", "once in so many seconds"
    assert warning(1320.0, 0)
    assert [warning(1480.0, 1), warning(1639.0, 1), warning(1640.0, 2), warning(1799.0, 2)] == [""] * 4, (
        "checkpoints complete"
    )
    assert warning(1800.0, 2)


def test_the_age_of_the_newest_checkpoint_grows_until_another_is_there(
    flink: FlinkRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also past a warning, which comes again only after a while."""
    watch = FlinkWatch(flink, "mine", 10)
    ages = []
    for now, completed in ((1000.0, 0), (1159.0, 0), (1161.0, 0), (1170.0, 0), (1180.0, 1), (1185.0, 1)):
        monkeypatch.setitem(CHECKPOINTS, "completed", completed)
        ages.append(watch.numbers(now).seconds_without_checkpoint)
    assert ages == [0, 159, 161, 170, 0, 5]


def test_without_an_answer_nobody_is_warned(flink: FlinkRest) -> None:
    for watch in (FlinkWatch(flink, "nobody's", 10), FlinkWatch(FlinkRest("localhost:9"), "mine", 10)):
        assert [watch.numbers(now) for now in (0.0, 1e6, 2e6)] == [JobNumbers({}, {})] * 3
