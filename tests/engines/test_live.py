"""A live stream by the clock of arrival: what came in time counts, whoever is killed, and reports follow soon."""

import dataclasses
import json
import math
import random
import statistics
import time
from collections import Counter

import pytest

from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports.topic_records import decode_record
from tests.engines.running_jobs import WORKER, running
from tests.engines.stream_case import Row, StreamCase, wait_for_end, wait_for_reports
from tests.helpers.looks_plans import looks_plan_of
from tests.helpers.small_runs import MICROS, RUN_ID

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

_WINDOW_SECONDS = 2
_CLOCK = StreamClock(
    "arrival", allowed_lateness_seconds=1, out_of_order_seconds=0.5, max_ahead_seconds=5, idle_timeout_seconds=3
)


def _plan(mode, start_seconds, seconds):
    schedule = WindowSchedule.fixed(start_seconds, start_seconds + seconds, _WINDOW_SECONDS)
    if mode == "looks":
        return looks_plan_of(schedule)
    return Plan.for_hits(
        epsilon=40,
        delta=0.1,
        schedule=schedule,
        hits_per_user=2,
        max_items_per_user=3,
        max_users=1000,
        max_items=1000,
    )


def _rows(seed, start_seconds, seconds):
    """Events in the order in which they are fed: most soon after they happened, some much too late."""
    source = random.Random(seed)
    rows = []
    for number in range(2600):
        at = number * seconds / 2600
        behind = 4.5 if source.random() < 0.05 else source.random() * 0.5
        user = f"user-{int(at / seconds * 200) + source.randrange(40)}"
        item = f"item-{min(int(source.expovariate(0.7)), 11)}"
        rows.append(Row(source.randrange(2), (user, item, int((start_seconds + at - behind) * MICROS))))
    return rows


def _in_time(kafka, topic, plan):
    """The events that came in time by the broker's times, and how many did not."""
    counted, late = [], 0
    low, high = plan.schedule.start_seconds * MICROS, plan.schedule.end_seconds * MICROS
    for record in kafka.records(topic):
        event = json.loads(record.value)
        if not low <= event["time"] < high:
            continue
        size = _WINDOW_SECONDS * MICROS
        end = event["time"] - (event["time"] - low) % size + size
        if record.timestamp_millis * 1000 > end + 1 * MICROS:
            late += 1
        else:
            counted.append((event["user"], event["item"], event["time"]))
    return counted, late


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "windows"), [("hits-with-counts", 8), ("hits-with-counts", 30), ("looks", 12)])
def test_a_live_stream_with_an_idle_partition(kafka, cluster, key_path, tmp_path, mode, windows):
    """The third partition is empty for ever: the wall clock closes its windows one by one."""
    stop_file = tmp_path / "stop"
    # The job needs some seconds before it reads, and the windows after the last event are closed by a stop.
    plan = _plan(mode, int(time.time()), 600)
    case = StreamCase(plan, 2, (), (), Counter())
    arguments = {"rows": [], "more_partitions": 1, "clock": _CLOCK, "stop_file": str(stop_file)}
    with running(kafka, cluster, key_path, case, **arguments) as run:
        start = math.ceil(time.time()) + 1
        time.sleep(max(0.0, start - time.time()))
        feeder = run.feed(_rows(windows, start, windows * _WINDOW_SECONDS), windows * _WINDOW_SECONDS)
        time.sleep(windows)
        run.kill(WORKER)
        feeder.join()
        counted, late = _in_time(kafka, run.source.topic, plan)
        assert late >= 20
        run.case = dataclasses.replace(case, counted=tuple(counted))
        expected = run.case.expected.reports
        assert len(expected) >= windows // 2  # a machine that stands still makes events late
        wait_for_reports(run.sink, len(expected))
        delays = [
            record.timestamp_millis / 1000 - decode_record(record.value)[1].window_end / MICROS
            for record in kafka.records(run.topic)
            if b'"window_end"' in record.value
        ]
        assert run.sink.read(RUN_ID)[2] is None
        stop_file.touch()
        wait_for_end(run.sink)
        run.assert_answers()
        print(f"{late} late; from the end of a window to its report: median {statistics.median(delays):.1f} s,")
        print(f"least {min(delays):.1f} s, most {max(delays):.1f} s; lateness and disorder are 1.5 s of it, idle 3 s")
