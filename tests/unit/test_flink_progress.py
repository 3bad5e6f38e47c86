"""What a replay asks Flink while its job runs, over HTTP; answers as Flink 1.19.3 gives them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dp_transforms.cli.flink_jobs import FlinkProgress, JobProgress, ReplayWatch
from dp_transforms.engines.flink_rest import FlinkRest
from tests.helpers.flink_answers import FlinkAnswers, overview, serving

OF_PIPELINE = (
    "java.lang.RuntimeException: Error received from SDK harness for instruction 4: "
    "Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in process\n'
    "dp_transforms.logs.log_chunk.EventFileError: a.parquet cannot be read.\n"
)
OF_MACHINE = (
    "java.lang.IllegalStateException: Stream for instruction 4 is closed: the worker is gone.\n\tat x.y(Z.java)\n"
)


class _Flink(FlinkAnswers):
    """Two jobs of one name. The newer one has three stages."""

    state = "RUNNING"
    stages = ("FINISHED", "RUNNING", "CREATED")
    failures: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()

    def get(self) -> object:
        if self.path == "/jobs/overview":
            return overview(
                [("old", "mine", "CANCELED"), ("new", "mine", type(self).state), ("x", "mine-too", "FAILED")]
            )
        if self.path == "/jobs/new":
            vertices = [{"id": s, "name": s, "status": s} for s in self.stages]
            return {"state": type(self).state, "vertices": vertices}
        if self.path == "/jobs/new/exceptions":
            return {"exceptionHistory": {"entries": [{"stacktrace": text} for text in self.failures]}}
        return None

    def patch(self) -> object:
        type(self).cancelled = (*self.cancelled, self.path)
        type(self).state = "CANCELED"
        return {}


@pytest.fixture
def says() -> type[_Flink]:
    """What this Flink says can be changed by test."""
    return type("Says", (_Flink,), {})


@pytest.fixture
def flink(says: type[_Flink]) -> Iterator[FlinkRest]:
    with serving(says) as found:
        yield found


def test_progress_is_of_the_newest_job_of_the_name(flink: FlinkRest) -> None:
    assert ReplayWatch(flink, "mine").look() == JobProgress("new", flink.address, done=1, stages=3)
    assert ReplayWatch(flink, "nobody's").look() is None
    assert ReplayWatch(FlinkRest("localhost:9"), "mine").look() is None


def test_a_failure_of_the_pipeline_that_comes_again_ends_the_run(flink: FlinkRest, says: type[_Flink]) -> None:
    watch = ReplayWatch(flink, "mine")
    says.failures = (OF_PIPELINE, OF_MACHINE, OF_PIPELINE)
    assert watch.look() is not None
    says.failures = (OF_PIPELINE, *says.failures)
    with pytest.raises(RuntimeError, match=r"a\.parquet cannot be read"):
        watch.look()


@pytest.mark.parametrize(
    "text", ["java.lang.OutOfMemoryError: Java heap space", "The record exceeds the maximum size of a sort buffer"]
)
def test_want_of_memory_comes_again_too(flink: FlinkRest, says: type[_Flink], text: str) -> None:
    says.failures = (f"java.lang.Exception: caused an error\nCaused by: {text}\n",) * 3
    with pytest.raises(RuntimeError, match=text):
        ReplayWatch(flink, "mine").look()


def test_machines_may_fail_as_often_as_the_cluster_allows(flink: FlinkRest, says: type[_Flink]) -> None:
    says.failures = (OF_MACHINE,) * 30
    progress = ReplayWatch(flink, "mine").look()
    assert progress is not None
    assert progress.failures == 30


def test_where_the_job_is_and_that_it_begins_again_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with FlinkProgress() as shown:
        for failures in (0, 4, 5, 6):
            shown.show(JobProgress("new", "localhost:1", done=1, stages=3, failures=failures))
        shown.show(None)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "http://localhost:1/#/job/new" in lines[0]
    assert "again and again" in lines[1]


def test_a_job_is_cancelled_unless_it_is_over(flink: FlinkRest, says: type[_Flink]) -> None:
    watch = ReplayWatch(flink, "mine")
    for _ in range(2):
        watch.cancel(5)
    assert says.cancelled == ("/jobs/new?mode=cancel",)
    assert watch.look() is None
    ReplayWatch(FlinkRest("localhost:9"), "mine").cancel(5)
