"""`PollInTimersDoFn` on state that the test holds: its loop, its intents, and what it refuses."""

from __future__ import annotations

import apache_beam as beam
import pytest

from dp_transforms import poll_partitions
from dp_transforms.event_streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.poll_partitions import PollInTimersDoFn, PollPartitions
from tests.beam.test_monitor_do_fn import Cell, HeldSecret, Timer
from tests.memory_stream import BROKEN, Arrival, MemoryStream
from tests.pipeline_helpers import MICROS, SECRET, START, settings_of, small_plan

SHARDS = 2
PLAN = small_plan(3)
CLOCK = StreamClock(out_of_order_seconds=0, idle_timeout_seconds=0.01)


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


def test_reading_begins_where_an_arrival_can_count():
    """The clock of the plan lets events be so far ahead of their arrival, and no further."""
    first = (START - CLOCK.max_ahead_seconds) * MICROS
    early = [Arrival(("u", "news", first), first - 1) for _ in range(25)]
    loop = Loop(MemoryStream.of([[*early, Arrival(("u", "news", first), first), *events()]], 10)).fire()
    assert loop.progress.position == str(25 + 10)


def test_a_source_with_other_partitions_is_refused():
    loop = Loop(MemoryStream.of([events()], 40))
    other = Loop(MemoryStream.of([events(), []], 40))
    other.state = loop.state
    with pytest.raises(StreamError, match="started with 1 partitions, and the source has 2 now"):
        other.fire()


def test_a_drain_first_reads_what_an_attempt_that_died_may_have_read(tmp_path, monkeypatch):
    """Another process has closed a window at a later position. Its messages are out, its state is lost."""
    now = [(START + 300) * MICROS]
    monkeypatch.setattr(poll_partitions, "_now_micros", lambda: now[0])
    arrivals = [Arrival((f"u{row}", "news", at), at) for row in range(40) for at in [(START + 4 * row) * MICROS]]
    stop = tmp_path / "stop"
    stop.touch()
    for reads_on, positions in ((False, ["10", "20", "30", "40"]), (True, ["10", "10"])):
        loop = Loop(MemoryStream.of([arrivals], 10), stop_file=str(stop), max_records=10)
        if reads_on:  # the reader was open when the last record came, long ago
            loop.do_fn._stop_is_asked = lambda: False
            now[0] = (START - 100) * MICROS
            loop.fire()
            del loop.do_fn._stop_is_asked
            now[0] = (START + 300) * MICROS
        seen = [loop.progress.position] if reads_on else []
        while not loop.intents:
            loop.fire()
            seen.append(loop.progress.position)
        assert seen == positions
        loop.do_fn.teardown()


def test_a_reader_that_was_open_before_the_state_went_back_counts_as_new(tmp_path, monkeypatch):
    now = [(START - 100) * MICROS]
    monkeypatch.setattr(poll_partitions, "_now_micros", lambda: now[0])
    arrivals = [Arrival((f"u{row}", "news", at), at) for row in range(40) for at in [(START + 4 * row) * MICROS]]
    stop = tmp_path / "stop"
    loop = Loop(MemoryStream.of([arrivals], 10), stop_file=str(stop), max_records=10).fire()
    stored = loop.state["progress"].content
    loop.fire(2)
    loop.state["progress"].content = stored
    now[0] = (START + 300) * MICROS
    loop.do_fn._is_draining = True
    loop.fire()
    assert loop.intents == [], "it goes on to where it had been"
    assert loop.progress.position == "20"


def test_the_state_of_a_run_with_another_key_or_clock_is_refused(monkeypatch):
    """Under another key all users would be strangers, with budgets of their own."""
    loop = Loop(MemoryStream.of([events()], 40)).fire()
    before = loop.state["progress"].content
    for other in ({"secret": bytes(32)}, {"clock": StreamClock(allowed_lateness_seconds=61)}):
        monkeypatch.setattr(HeldSecret, "get_secret_bytes", lambda self, other=other: other.get("secret", SECRET))
        monkeypatch.setattr("tests.beam.test_poll_partitions.CLOCK", other.get("clock", CLOCK))
        changed = Loop(MemoryStream.of([events()], 40))
        changed.state = loop.state
        with pytest.raises(StreamError, match="another plan, clock, stream, run id, noise key"):
            changed.fire()
        loop.state["poll"].at = 0
    assert loop.state["progress"].content == before
    monkeypatch.undo()
    same = Loop(MemoryStream.of([events()], 40))
    same.state = loop.state
    assert same.fire().progress.position == "80"


def test_a_run_keeps_its_shards(monkeypatch):
    loop = Loop(MemoryStream.of([events()], 40)).fire()
    monkeypatch.setattr("tests.beam.test_poll_partitions.SHARDS", SHARDS + 1)
    other = Loop(MemoryStream.of([events()], 40))
    other.state = loop.state
    with pytest.raises(StreamError, match="the run was started with 2 shards, got 3"):
        other.fire()


def test_what_cannot_be_read_is_told_and_a_second_beginning_changes_nothing():
    loop = Loop(MemoryStream.of([[Arrival(BROKEN, START * MICROS), *events()]], 40)).fire()
    assert [(told.source, list(told.positions)) for told in loop.intents] == [("partition-0", [0])]
    loop.do_fn.process(("partition-0", 0), **loop.state)
    assert loop.progress.position == "40"


def test_only_the_clock_of_arrival_says_that_a_moment_has_passed():
    for kind, seconds, expected in (("arrival", 14, False), ("arrival", 15, True), ("event", 99, False)):
        clock = StreamClock(kind, out_of_order_seconds=5, idle_timeout_seconds=10)
        progress = PartitionProgress(PLAN.schedule, clock, SHARDS)
        progress.intend((START + seconds) * MICROS)
        progress.act()
        assert progress.has_passed(START * MICROS) == expected
