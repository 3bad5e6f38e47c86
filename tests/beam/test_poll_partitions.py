"""`PollInTimersDoFn` on state that the test holds: its loop, its intents, and what it refuses."""

from __future__ import annotations

import apache_beam as beam
import pytest

from dp_transforms import poll_partitions
from dp_transforms.event_streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.poll_partitions import PollInTimersDoFn, PollPartitions
from tests.beam.test_monitor_do_fn import Cell, HeldSecret, Timer
from tests.memory_stream import Arrival, MemoryStream
from tests.pipeline_helpers import MICROS, START, settings_of, small_plan

SHARDS = 2
PLAN = small_plan(3)
CLOCK = StreamClock(idle_timeout_seconds=0.01)


class Loop:
    """One key of the DoFn, fired by hand: what it sent, and the intents that wait."""

    def __init__(self, source, **arguments):
        settled = {"domain": None, "driver": "timers", "confirm": True, "stop_file": None, "poll_seconds": 0.001}
        polling = PollPartitions(
            source.partitions(), settings_of(PLAN), HeldSecret(), CLOCK, SHARDS, **{**settled, **arguments}
        )
        self.do_fn = polling._do_fn
        assert isinstance(self.do_fn, PollInTimersDoFn)
        self.do_fn.setup()
        self.state = {"progress": Cell(), "partitions": Cell(), "poll": Timer()}
        self.do_fn.process(("partition-0", 0), **self.state)
        self.messages, self.intents = [], []

    def fire(self, times=1):
        for _ in range(times):
            assert self.state["poll"].at is not None
            self.state["poll"].at = None
            for output in self.do_fn.poll("partition-0", **self.state):
                if isinstance(output, beam.pvalue.TaggedOutput):
                    self.intents.append(output.value)
                else:
                    self.messages.append(output)
        return self

    @property
    def progress(self):
        return PartitionProgress.from_bytes(self.state["progress"].content, PLAN.schedule, CLOCK, SHARDS)


def events():
    return [Arrival((f"u{user}", "news", (START + user) * MICROS), (START + user) * MICROS) for user in range(100)]


def test_the_wall_clock_acts_only_after_the_engine_has_confirmed(monkeypatch):
    monkeypatch.setattr(poll_partitions, "_CONFIRMED", {})
    loop = Loop(MemoryStream.of([events()], 40)).fire(3)
    while not loop.intents:
        loop.fire()
    sent, waiting = len(loop.messages), loop.progress
    loop.fire(3)
    assert len(loop.messages) == sent
    assert loop.intents == [waiting.intent.name], "asked once"
    assert loop.state["progress"].content == waiting.to_bytes()
    first = poll_partitions._Confirmation(waiting.intent.name)
    first()
    first()
    loop.fire(3)
    assert len(loop.messages) == sent, "the first call may be for a checkpoint that began before"
    assert loop.intents == [waiting.intent.name] * 2, "asked again, once"
    poll_partitions._Confirmation(waiting.intent.name)()
    loop.fire()
    assert loop.state["poll"].at is None, "the loop has ended"
    assert loop.progress.is_over
    announced = [key for key, message in loop.messages if message.announced]
    assert sorted(announced) == [(window, shard) for window in range(3) for shard in range(SHARDS)]
    assert not poll_partitions._CONFIRMED


def test_without_confirmation_it_acts_at_once_and_asks_nobody():
    loop = Loop(MemoryStream.of([events()], 40), confirm=False)
    while loop.state["poll"].at is not None:
        loop.fire()
    assert loop.intents == []
    assert loop.progress.is_over
    loop.do_fn.teardown()


def test_a_source_with_other_partitions_is_refused():
    loop = Loop(MemoryStream.of([events()], 40))
    other = Loop(MemoryStream.of([events(), []], 40))
    other.state = loop.state
    with pytest.raises(StreamError, match="started with 1 partitions, and the source has 2 now"):
        other.fire()
