"""One stream that all tests on engines share: its log, what must come out, and how it is fed, submitted and read."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.beam.write_reports import WriteRejectedFolder, WriteReportStream
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.plan.plan import Plan
from dp_transforms.reports import ReportFolder, ReportHeader
from tests.engines import wait_for
from tests.helpers.looks_plans import small_looks_plan
from tests.helpers.small_runs import MICROS, MINUTE, RUN_ID, SECRET, settings_of, small_plan
from tests.reference.budgets import stream_weights
from tests.reference.contributions import oracle_names, reports_of
from tests.reference.hits import oracle_reports
from tests.reference.log import Event

STREAM = "events"
FIELDS = EventFields("user", "item", "time", "us")
# Nothing is idle here. A drain takes 26 seconds: also on a busy machine a record is shown 15 seconds after its stamp.
CLOCK = StreamClock(
    "event", allowed_lateness_seconds=60, out_of_order_seconds=10, idle_timeout_seconds=3600, shown_within_seconds=15
)
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
    partitions: int
    rows: tuple[Row, ...]
    counted: tuple[Event, ...]
    numbers: Counter[str]

    @functools.cached_property
    def expected(self) -> list[WindowReport]:
        """By the slow reference."""
        settings = settings_of(self.plan)
        if self.plan.contributions is None:
            return oracle_reports(self.counted, settings, SECRET)
        keys = settings.stream_keys(SECRET)
        return reports_of(oracle_names(stream_weights(self.counted, settings, keys), settings, keys), settings)

    @property
    def header(self) -> ReportHeader:
        return ReportHeader.of_plan(self.plan, RUN_ID, STREAM)

    def fill(self, server: Any, topic: str) -> None:
        """Makes the topic and puts the whole log there at once."""
        server.create_topic(topic, self.partitions)
        for number in range(self.partitions):
            rows = [row for row in self.rows if row.partition == number]
            server.produce(topic, [row.json() for row in rows], number)

    def kafka(self, bootstrap: str, topic: str) -> KafkaTopic:
        return KafkaTopic(bootstrap, topic, FIELDS)


@functools.lru_cache(maxsize=8)
def history_case(
    seed: int = 3,  # one of those for which each lost or doubled charge shows
    *,
    mode: str = "hits-with-counts",
    hits_per_user: int = 2,
    partitions: int = 2,
    prefix: str = "",
) -> StreamCase:
    """History by the clock of its events. Users come and go, so that each window charges some that had nothing to pay,
    and in mode looks some still have a full purse, and others an empty one. There many items are named in one
    window and never held again: noise alone names each in one of the four windows after it with a probability of 40 %,
    and none of them with one of 5e-6.

    Among the events are repeated ones, some of other partitions too; some before the range; some from the future, which
    must move no clock; some that are late in every partition; records that cannot be read. The last event of each
    partition lies so far behind the range that it closes all windows. prefix: of all users and items.
    """
    source = random.Random(seed)
    if mode == "looks":
        plan: Plan = small_looks_plan(24, most_tests=8, forget_after=4, known_error=0.12)
    else:
        plan = small_plan(24, mode=mode, hits_per_user=hits_per_user)
    low, high = plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS
    placed: list[tuple[int, Row]] = []  # when the row is in the log, by the clock of events

    def place(at: int, event: Event | None, broken: bytes = b"") -> None:
        placed.append((at, Row(source.randrange(partitions), event, broken)))

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
    rows += [Row(number, (f"{prefix}last", f"{prefix}last", high + 600 * MICROS)) for number in range(partitions)]
    counted, numbers = counted_events(rows, plan, partitions)
    return StreamCase(plan, partitions, tuple(rows), tuple(counted), numbers)


def counted_events(rows: Sequence[Row], plan: Plan, partitions: int) -> tuple[list[Event], Counter[str]]:
    """Row by row what the clock of events says: written from the rule, not from the product."""
    low, high = plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS
    latest = [-(10**18)] * partitions
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


class Feeder:
    """Sends rows to a topic, evenly over some seconds, in a thread. `join` raises what went wrong."""

    def __init__(self, bootstrap: str, topic: str, rows: Sequence[Row], seconds: float) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 0}
        self._topic = topic
        self._values = [(row.partition, row.json()) for row in rows]
        self._seconds = seconds
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Producer

        try:
            producer = Producer(self._settings)
            begin = time.monotonic()
            for number, (partition, value) in enumerate(self._values):
                due = begin + self._seconds * number / len(self._values)
                if (wait := due - time.monotonic()) > 0.005:
                    producer.poll(0)
                    time.sleep(wait)
                producer.produce(self._topic, value, partition=partition)
                if number % 1000 == 0:
                    producer.poll(0)
            if producer.flush(120) != 0:
                raise TimeoutError("the broker did not take all records in 120 s.")
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def submit(
    case: StreamCase,
    source: Any,
    sink: ReportFolder,
    flags: Sequence[str],
    key_path: str,
    *,
    dead_letter: str | None = None,
    **driving: Any,
) -> Any:
    """Runs the stream as users do; returns the result at once. driving: of `MonitorStream`."""
    driving.setdefault("poll_seconds", 0.1)
    driving.setdefault("shards", 2)
    pipeline = beam.Pipeline(options=PipelineOptions(list(flags)))
    output = pipeline | "MonitorStream" >> MonitorStream(
        source, case.plan, clock=CLOCK, noise_key=key_path, run_id=RUN_ID, stream=STREAM, **driving
    )
    _ = (output.reports, output.ended) | "WriteReportStream" >> WriteReportStream(sink, case.header)
    if dead_letter is not None:
        _ = output.rejected | "WriteRejected" >> WriteRejectedFolder(dead_letter)
    return pipeline.run()


def wait_for_end(sink: ReportFolder) -> None:
    """Until the folder says that the run has ended."""
    wait_for("the end of the run", lambda: sink.read(RUN_ID)[2])


def wait_for_reports(sink: ReportFolder, count: int) -> None:
    wait_for(f"{count} reports", lambda: len(sink.read(RUN_ID)[1]) >= count)


def plain_reports(reports: Sequence[WindowReport]) -> list[tuple]:
    """Comparable whatever types they were decoded to."""
    return sorted((*report[:3], [tuple(found) for found in report[3]], *report[4:]) for report in reports)
