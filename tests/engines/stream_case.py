"""One stream that all tests on engines share: its log, what must come out, and a job on the cluster that reads it from
a topic and writes a folder, and what is done to that job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.write_reports import WriteRejectedFolder, WriteReportStream
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import SecondTest
from dp_transforms.reports import ReportFolder, ReportHeader
from dp_transforms.reports.report_records import RunEnded
from examples.engines.flink_rest import ENDED
from tests.engines import wait_for
from tests.helpers.contributions_plans import small_contributions_plan
from tests.helpers.small_runs import MICROS, MINUTE, RUN_ID, small_plan
from tests.reference.log import Event
from tests.reference.run import reference

STREAM, PARTITIONS = "events", 2
WORKER, TASK_MANAGER = "worker", "task manager"
# Nothing is idle here. A drain takes 26 seconds: also on a busy machine a record is shown 15 seconds after its stamp.
CLOCK = {"clock": "event", "idle_timeout_seconds": 3600, "shown_within_seconds": 15}
_DISORDER_SECONDS = 40  # an event is in the log at most so long after others of its time: less than the lateness
_SHOUTED_LATER_SECONDS = 300  # far beyond the lateness
_FAR_FUTURE = 4_102_444_800 * MICROS  # 2100
_BROKEN = (
    b'{"user": "half',
    b"",
    b'{"user": "u", "item": "i"}',
    b'{"user": null, "item": "i", "time": 1}',
    b"\xff\xfe",
)
_LIVING_USERS = 40
_BURST_ITEMS, _BURST_USERS, _BURST_WINDOW = 24, 12, 3


@dataclasses.dataclass(frozen=True)
class Row:
    """A record of the log. event: None for one that cannot be read, whose bytes are in ``broken`` then."""

    partition: int
    event: Event | None
    broken: bytes = b""

    def json(self) -> bytes:
        if self.event is None:
            return self.broken
        return json.dumps(dict(zip(("user", "item", "time"), self.event, strict=True))).encode()


@dataclasses.dataclass(frozen=True)
class StreamCase:
    """rows: the log in its order. counted: the events that must count. numbers: what the operator must see."""

    plan: Plan
    rows: tuple[Row, ...]
    counted: tuple[Event, ...]
    numbers: Counter[str]

    @functools.cached_property
    def expected(self) -> list[tuple]:
        """By the slow reference."""
        return plain_reports(reference(self.counted, self.plan, in_order=True))

    def assert_answers(self, sink: ReportFolder) -> None:
        """A second answer for a window would have been refused: the job fails by it for ever."""
        header, reports, ended = sink.read(RUN_ID)
        assert header == ReportHeader.of_plan(self.plan, RUN_ID, STREAM)
        assert plain_reports(reports) == self.expected
        assert ended == RunEnded(STREAM, self.plan.schedule.horizon, len(reports))


def plain_reports(reports: Sequence[WindowReport]) -> list[tuple]:
    """Comparable whatever types they were decoded to."""
    return sorted((*report[:3], [tuple(found) for found in report[3]], *report[4:]) for report in reports)


@functools.lru_cache(maxsize=8)
def history_case(mode: str, prefix: str = "") -> StreamCase:
    """History by the clock of its events. Users come and go, so that each window charges some that had nothing to pay,
    and in mode contributions, with two tests, some still have a full budget, and others an empty one. There many items
    are named in one window and never held again: noise alone names each in one of the four windows after it with a
    probability of 40 %, and none of them with one of 5e-6.

    Among the events are repeated ones, some of other partitions too; some before the range; some from the future, which
    must move no clock; some that are late in every partition; records that cannot be read. The last event of each
    partition lies so far behind the range that it closes all windows. prefix: of all users and items.
    """
    source = random.Random(3)  # one of those for which each lost or doubled charge shows
    if mode == "contributions":
        once: Plan = small_contributions_plan(24, most_tests=24, forget_after=4, known_error=0.06)
        plan = dataclasses.replace(once, second_test=SecondTest(units=(4 * 10**11, 6 * 10**11)))
    else:
        plan = small_plan(24, mode=mode, hits_per_user=2)
    low, high = plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS
    placed: list[tuple[int, Row]] = []  # when the row is in the log, by the clock of events

    def place(at: int, event: Event | None, broken: bytes = b"") -> None:
        placed.append((at, Row(source.randrange(PARTITIONS), event, broken)))

    def jittered(time_micros: int) -> int:
        return time_micros + source.randrange(_DISORDER_SECONDS * MICROS)

    for _ in range(2600):
        time_micros = source.randrange(low, high)
        passed = (time_micros - low) / (high - low)
        user = f"{prefix}user-{int(passed * (240 - _LIVING_USERS)) + source.randrange(_LIVING_USERS)}"
        item = f"{prefix}item-{(min(int(source.expovariate(0.7)), 11) + int(passed * 3)) % 12}"
        place(jittered(time_micros), (user, item, time_micros))
        chance = source.random()
        if chance < 0.1:  # again in the same window
            window_low = time_micros - (time_micros - low) % (MINUTE * MICROS)
            again = source.randrange(window_low, window_low + MINUTE * MICROS)
            place(jittered(again), (user, item, again))
        elif chance < 0.13:
            place(jittered(time_micros), (user, item, low - 1 - source.randrange(MICROS)))
        elif chance < 0.16:
            place(jittered(time_micros), (user, item, _FAR_FUTURE))
        elif chance < 0.19 and time_micros + _SHOUTED_LATER_SECONDS * MICROS < high:
            place(time_micros + _SHOUTED_LATER_SECONDS * MICROS, (f"{prefix}late-{user}", item, time_micros))
        elif chance < 0.22:
            place(jittered(time_micros), None, prefix.encode() + source.choice(_BROKEN))
    if plan.contributions is not None:
        for number in range(_BURST_ITEMS * _BURST_USERS):
            time_micros = low + _BURST_WINDOW * MINUTE * MICROS + source.randrange(MINUTE * MICROS)
            event = (f"{prefix}burst-{number}", f"{prefix}burst-{number % _BURST_ITEMS}", time_micros)
            place(jittered(time_micros), event)
    placed.sort(key=lambda entry: entry[0])
    rows = [row for _, row in placed]
    rows += [Row(number, (f"{prefix}last", f"{prefix}last", high + 600 * MICROS)) for number in range(PARTITIONS)]
    counted, numbers = counted_events(rows, plan)
    return StreamCase(plan, tuple(rows), tuple(counted), numbers)


def counted_events(rows: Sequence[Row], plan: Plan) -> tuple[list[Event], Counter[str]]:
    """Row by row what the clock of events says: written from the rule, not from the product."""
    low, high = plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS
    latest = [-(10**18)] * PARTITIONS
    counted, numbers = [], Counter[str]()
    for row in rows:
        if row.event is None:
            numbers["rejected"] += 1
            continue
        time_micros = row.event[2]
        if time_micros == _FAR_FUTURE:
            numbers["from the future"] += 1
            continue
        numbers["read"] += 1
        end = time_micros - (time_micros - low) % (MINUTE * MICROS) + MINUTE * MICROS
        if not low <= time_micros < high:
            numbers["outside"] += 1
        elif latest[row.partition] - 10 * MICROS > end + 60 * MICROS:
            numbers["late"] += 1
        else:
            counted.append(row.event)
        latest[row.partition] = max(latest[row.partition], time_micros)
    return counted, numbers


def feed(bootstrap: str, topic: str, rows: Sequence[Row], seconds: float = 0) -> None:
    """Sends rows to a topic, evenly over some seconds."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0})
    for row in rows:
        producer.produce(topic, row.json(), partition=row.partition)
        producer.poll(0)
        time.sleep(seconds / len(rows))
    assert producer.flush(120) == 0, "the broker did not take all records in 120 s"


def topic_of(kafka: Any, name: str) -> KafkaTopic:
    """A new one."""
    kafka.create_topic(name, PARTITIONS)
    return KafkaTopic(kafka.bootstrap, name, EventFields("user", "item", "time", "us"))


def submit(
    case: StreamCase,
    source: KafkaTopic,
    sink: ReportFolder,
    flags: Sequence[str],
    key_path: str,
    *,
    dead_letter: str | None = None,
    **driving: Any,
) -> Any:
    """Runs the stream as users do; returns the result at once. driving: of `MonitorStream`."""
    driving = {"poll_seconds": 0.1, "shards": 2, **driving}
    pipeline = beam.Pipeline(options=PipelineOptions(list(flags)))
    output = pipeline | "MonitorStream" >> MonitorStream(
        source, case.plan, noise_key=key_path, run_id=RUN_ID, stream=STREAM, **CLOCK, **driving
    )
    write = WriteReportStream(sink.path, case.plan, run_id=RUN_ID, stream=STREAM)
    _ = (output.reports, output.ended) | "WriteReportStream" >> write
    if dead_letter is not None:
        _ = output.rejected | "WriteRejected" >> WriteRejectedFolder(dead_letter)
    return pipeline.run()


def wait_for_end(sink: ReportFolder) -> None:
    """Until the folder says that the run has ended."""
    wait_for("the end of the run", lambda: sink.read(RUN_ID)[2])


def wait_for_reports(sink: ReportFolder, count: int) -> None:
    wait_for(f"{count} reports", lambda: len(sink.read(RUN_ID)[1]) >= count)


@dataclasses.dataclass
class Run:
    """A job on the cluster that reads a topic and writes a folder."""

    cluster: Any
    source: KafkaTopic
    sink: ReportFolder
    job: str
    feeder: ThreadPoolExecutor

    def feed(self, rows: Sequence[Row], seconds: float) -> Future:
        """While the test goes on. Its result: None, when the broker has all of them."""
        return self.feeder.submit(feed, self.source.bootstrap_servers, self.source.topic, rows, seconds)

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


@contextlib.contextmanager
def running(kafka: Any, cluster: Any, key_path: str, case: StreamCase, **driving: Any) -> Iterator[Run]:
    """While the block runs, the job does. driving: as for `submit`."""
    name, known = uuid.uuid4().hex[:8], cluster.job_ids()
    source, sink = topic_of(kafka, f"in-{name}"), ReportFolder(str(cluster.folder / f"out-{name}"))
    submit(case, source, sink, cluster.options(), key_path, **driving)
    run = Run(cluster, source, sink, cluster.newest_job(known), ThreadPoolExecutor(1))
    try:
        cluster.wait_for_checkpoint(run.job)
        yield run
    finally:
        run.feeder.shutdown()
        if cluster.rest.job_state(run.job) not in ENDED:  # a later one, from a savepoint
            cluster.cancel(run.job)
