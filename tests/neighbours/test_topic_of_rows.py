"""`ReadHeavyHittersOfTopic`, whole, on a broker in memory: one record of x' does not decide which of others count."""

from __future__ import annotations

import json

import pytest

from dp_transforms.beam.release_rows import ReadHeavyHittersOfTopic
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic, TopicSettings
from tests.helpers.beam_pipelines import Collected, local_pipeline
from tests.neighbours.broker import CREATE_TIME, Brokers, Message, Partition
from tests.neighbours.logs import ADDED_USER
from tests.neighbours.stepped import WallClock

START = 1_577_836_800  # 2020-01-01
USERS = 300
BUDGET = {"epsilon": 8, "delta": 1e-6, "start": "2020-01-01", "end": "2020-01-01T03:00:00Z", "window": "1h"}
NEVER_ASKED = TopicSettings(None, None)  # what a broker says who allows nobody to see its settings


def message(offset: int, stamp: int, user: str, time: int, **more: int) -> Message:
    event = {"user": user, "item": "news", "timestamp": time}
    return Message(offset, (START + stamp) * 1000, json.dumps(event).encode(), **more)


def rows_of(monkeypatch: pytest.MonkeyPatch, messages: list[Message], clock: str) -> list[tuple[str, str]]:
    brokers = Brokers(monkeypatch)
    brokers.partitions["clicks"] = Partition(messages, WallClock(2**60))
    monkeypatch.setattr(KafkaTopic, "settings", lambda topic: NEVER_ASKED)
    pipeline, found = local_pipeline(), Collected()
    read = ReadHeavyHittersOfTopic("b:1", "clicks", **BUDGET, time_unit="s", clock=clock, idle_timeout=1)
    _ = pipeline | read | found.sink()
    pipeline.run().wait_until_finish()
    return sorted((row.window_start, row.item) for row in found.values)


@pytest.mark.parametrize("clock", ["arrival", "event"])
def test_a_producers_stamp_far_ahead_makes_nobody_late(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """The 300 others are missed with a probability below 1e-9."""
    others = [message(1 + user, user, f"u{user}", START + user) for user in range(USERS)]
    added = message(0, 3 * 3600, ADDED_USER, START, kind=CREATE_TIME)
    alone = rows_of(monkeypatch, others, clock)
    assert alone == [("2020-01-01T00:00:00Z", "news")]
    assert rows_of(monkeypatch, [added, *others], clock) == alone


@pytest.mark.parametrize("clock", ["arrival", "event"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (TopicSettings(append_times=False, is_compacted=False), "producers set the times of records"),
        (TopicSettings(append_times=True, is_compacted=True), r"is compacted \(cleanup.policy\)"),
    ],
)
def test_a_topic_that_cannot_keep_users_apart_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: TopicSettings, words: str, clock: str, caplog: pytest.LogCaptureFixture
) -> None:
    Brokers(monkeypatch).partitions["clicks"] = Partition([], WallClock(2**60))
    monkeypatch.setattr(KafkaTopic, "settings", lambda topic: settings)
    read = ReadHeavyHittersOfTopic("b:1", "clicks", **BUDGET, clock=clock)
    if clock == "event" and not settings.is_compacted:  # the times of records decide nothing
        _ = local_pipeline() | read
    else:
        with pytest.raises(StreamError, match=words) as refused:
            _ = local_pipeline() | read
        assert "--producer-times" not in str(refused.value)
    assert ("one event far ahead closes windows for everybody" in caplog.text) is (clock == "event")
