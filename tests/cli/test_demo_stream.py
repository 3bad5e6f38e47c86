"""What the demo of streams says at its end, and the stream that it simulates."""

import json
from collections import Counter

import numpy as np
import pytest

from dp_transforms.monitor.window_report import HeavyHitter, RunEnded, WindowReport
from dp_transforms.reports.topic_records import encode_record
from examples.demos.demo_stream import Outcome, outcome
from examples.demos.simulated_stream import LiveStream, live_events
from examples.engines.kafka_server import StoredRecord
from tests.helpers.small_runs import MICROS

RUN = "run-1"


def report(start, item="a"):
    found = [HeavyHitter(item, "above", None)]
    answer = WindowReport("events", start * MICROS, (start + 10) * MICROS, found, 2.0, 1e-9, 1.0)
    return StoredRecord(f"{RUN}|{start}".encode(), encode_record(answer, RUN, "json"), 0)


def end():
    return StoredRecord(b"end", encode_record(RunEnded("events", 6), RUN, "json"), 0)


def test_each_window_once():
    assert outcome([report(0), report(10), end()]) == Outcome(2, 2, 6, 0, 0)


def test_a_second_answer_is_seen_and_the_same_one_again_is_none():
    assert outcome([report(0), report(0), end()]) == Outcome(1, 1, 6, 0, 1)
    assert outcome([report(0), report(0, "b"), report(0), end()]) == Outcome(1, 1, 6, 1, 1)


@pytest.mark.parametrize("records", [[report(0)], []])
def test_a_run_that_did_not_end(records):
    assert outcome(records).windows is None


def test_a_live_stream_has_items_of_many_users_that_change():
    stream = LiveStream(events_per_second=1000, users=20_000, partitions=2)
    random = np.random.default_rng(1)

    def holders(passed):
        events = [
            (partition, json.loads(value))
            for partition, value in live_events(stream, passed, 10_000, 1_700_000_000.25, random)
        ]
        assert {partition for partition, _ in events} == {0, 1}
        assert {event["timestamp"] for _, event in events} == {"2023-11-14T22:13:20.250Z"}
        return Counter(item for item, _ in {(event["item"], event["user"]) for _, event in events})

    early, late = holders(5.0), holders(45.0)
    assert early.most_common(1)[0][1] > 1000
    assert early.most_common(1)[0][0] != late.most_common(1)[0][0]
