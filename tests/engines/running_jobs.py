"""A job on the cluster that reads a topic and writes a folder, and what is done to it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.reports import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from examples.engines.flink_rest import ENDED
from tests.engines.flink_questions import wait_for_checkpoints
from tests.engines.stream_case import STREAM, Feeder, Row, StreamCase, plain_reports, submit
from tests.helpers.small_runs import RUN_ID

WORKER, TASK_MANAGER = "worker", "task manager"


@dataclasses.dataclass
class Run:
    """A job on the cluster that reads a topic and writes a folder."""

    kafka: Any
    cluster: Any
    case: StreamCase
    source: KafkaTopic
    sink: ReportFolder
    result: Any
    job: str
    feeder: Feeder

    def feed(self, rows: Sequence[Row], seconds: float) -> Feeder:
        """More rows, evenly over some seconds."""
        return Feeder(self.kafka.bootstrap, self.source.topic, rows, seconds)

    def kill(self, what: str) -> None:
        """Returns when Flink has restarted the job and a checkpoint is complete, or when the run had ended before.

        A worker that dies before it has told Flink that it is there is never missed (docs/engines.md): so none is
        killed before a checkpoint shows that all are.
        """
        before = self.cluster.flink.rest.restarts(self.job)
        if what == WORKER:
            self.cluster.kill_worker()
        else:
            self.cluster.kill_task_manager()
        deadline = time.monotonic() + 180
        while (
            self.cluster.flink.rest.restarts(self.job) <= before
            or self.cluster.flink.rest.job_state(self.job) != "RUNNING"
        ):
            if self.sink.read(RUN_ID)[2] is not None:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job was not restarted in 180 s after the {what} was killed.")
        wait_for_checkpoints(self.cluster.flink.rest, self.job)

    def assert_answers(self) -> None:
        """They are the oracle's. A second answer for a window would have been refused: the job fails by it for ever."""
        header, reports, ended = self.sink.read(RUN_ID)
        assert header == self.case.header
        assert plain_reports(reports) == plain_reports(self.case.expected)
        assert ended == RunEnded(STREAM, self.case.plan.schedule.horizon, len(reports))


@contextlib.contextmanager
def running(
    kafka: Any,
    cluster: Any,
    key_path: str,
    case: StreamCase,
    *,
    rows: Sequence[Row] | None = None,
    seconds: float = 25,
    checkpoint_seconds: float = 1,
    more_partitions: int = 0,
    **arguments: Any,
) -> Iterator[Run]:
    """While the block runs, the job does, and its log is fed over some seconds."""
    name = uuid.uuid4().hex[:8]
    source_topic, sink = f"in-{name}", ReportFolder(str(cluster.folder / f"out-{name}"))
    kafka.create_topic(source_topic, case.partitions + more_partitions)
    known = cluster.job_ids()
    flags = cluster.options(checkpointing_interval_seconds=checkpoint_seconds)
    source = case.kafka(kafka.bootstrap, source_topic)
    result = submit(case, source, sink, flags, key_path, **arguments)
    job = cluster.newest_job(known)
    try:
        wait_for_checkpoints(cluster.flink.rest, job)
    except BaseException:
        cluster.cancel(job)
        raise
    feeder = Feeder(kafka.bootstrap, source_topic, case.rows if rows is None else rows, seconds)
    run = Run(kafka, cluster, case, source, sink, result, job, feeder)
    try:
        yield run
        feeder.join()
    finally:
        if cluster.flink.rest.job_state(run.job) not in ENDED:
            cluster.cancel(run.job)
