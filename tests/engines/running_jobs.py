"""A job on the cluster that reads a topic and writes a folder, and what is done to it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.reports import ReportFolder
from dp_transforms.reports.report_records import RunEnded
from examples.engines.flink_rest import ENDED
from tests.engines import wait_for
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
        before = self.cluster.rest.restarts(self.job)
        if what == WORKER:
            self.cluster.kill_worker()
        else:
            self.cluster.flink.kill_task_manager()
        wait_for(
            f"the job runs again after the {what} died, or has ended",
            lambda: self.ended or self.cluster.is_restarted(self.job, before),
        )
        if not self.ended:
            self.cluster.wait_for_checkpoint(self.job)

    @property
    def ended(self) -> RunEnded | None:
        return self.sink.read(RUN_ID)[2]

    def stop_with_savepoint(self) -> str:
        """Ends the job with a savepoint and returns its path.

        Flink does not advance watermarks here: a drain by Flink would look like the end of the stream.
        """
        rest, job = self.cluster.rest, self.job
        body = json.dumps({"targetDirectory": self.cluster.flink.savepoints.as_uri(), "drain": False}).encode()
        request = urllib.request.Request(
            f"http://{rest.address}/jobs/{job}/stop", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            place = f"/jobs/{job}/savepoints/{json.load(answer)['request-id']}"
        wait_for("a savepoint", lambda: rest.get(place)["status"]["id"] == "COMPLETED")
        rest.wait_for_state(job, ["FINISHED"])
        return str(rest.get(place)["operation"]["location"])

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
    rows: Sequence[Row],
    seconds: float = 0,
    **driving: Any,
) -> Iterator[Run]:
    """While the block runs, the job does, and its log is fed over some seconds. driving: as for `submit`."""
    name = uuid.uuid4().hex[:8]
    source_topic, sink = f"in-{name}", ReportFolder(str(cluster.folder / f"out-{name}"))
    kafka.create_topic(source_topic, case.partitions)
    known = cluster.job_ids()
    source = case.kafka(kafka.bootstrap, source_topic)
    submit(case, source, sink, cluster.options(), key_path, **driving)
    job = cluster.newest_job(known)
    run = None
    try:
        cluster.wait_for_checkpoint(job)
        run = Run(kafka, cluster, case, source, sink, job, Feeder(kafka.bootstrap, source_topic, rows, seconds))
        yield run
        run.feeder.join()
    finally:
        job = job if run is None else run.job  # a later one, from a savepoint
        if cluster.rest.job_state(job) not in ENDED:
            cluster.cancel(job)
