"""`MonitorStream`: its loop of timers on state that the test holds, its intents, how it is stopped, and what it leaves
out and refuses. Whole logs: tests/conformance."""

from __future__ import annotations

import os
import time
from collections import defaultdict

import apache_beam as beam
import pytest

from dp_transforms.beam import monitor_stream
from dp_transforms.beam.monitor_stream import MonitorStream, PollInLoopDoFn, PollInTimersDoFn
from dp_transforms.core.public_items import PublicItems
from dp_transforms.errors import StreamError
from dp_transforms.logs import EventFields
from dp_transforms.logs.streams import partition_poller
from dp_transforms.logs.streams.log_folder import LogFolder
from dp_transforms.logs.streams.partition_poller import Polling
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from tests.helpers.beam_pipelines import local_pipeline
from tests.helpers.do_fn_state import Cell, HeldSecret, Timer
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryPartition, MemoryReader, MemoryStream
from tests.helpers.small_runs import MICROS, RUN_ID, SECRET, START, settings_of, small_plan

SHARDS = 2
PLAN = small_plan(3)
CLOCK = StreamClock(out_of_order_seconds=0, idle_timeout_seconds=0.01)


# --- One key of the DoFn, fired by hand


def polling_of(source, /, **arguments):
    partitions = {partition.name: partition for partition in source.partitions()}
    settled = {"clock": CLOCK, "source": "", "shards": SHARDS, "confirm": True, "stop_file": None}
    return Polling(partitions, settings_of(PLAN), **{**settled, "poll_seconds": 0.001, **arguments})


class Loop:
    """What a key sent, and the intents that wait."""

    def __init__(self, source, /, **arguments):
        self.do_fn = PollInTimersDoFn(polling_of(source, **arguments), HeldSecret(SECRET), None)
        self.do_fn.setup()
        self.messages, self.intents = [], []
        self.turn_to(0)

    def turn_to(self, number):
        """A partition that was not read yet."""
        self.name, self.state = f"partition-{number}", {"progress": Cell(), "partitions": Cell(), "poll": Timer()}
        self.do_fn.process((self.name, number), **self.state)

    def fire(self, times=1):
        for _ in range(times):
            assert self.state["poll"].at is not None
            self.state["poll"].at = None
            for output in self.do_fn.poll(self.name, **self.state):
                if isinstance(output, beam.pvalue.TaggedOutput):
                    self.intents.append(output.value)
                else:
                    self.messages.append(output)
        return self

    @property
    def progress(self):
        return PartitionProgress.from_bytes(self.state["progress"].content, PLAN.schedule, CLOCK, SHARDS)


def arrivals(users, seconds_apart=0):
    """Of one item, which comes when it happens."""
    times = ((START + user * seconds_apart) * MICROS for user in range(users))
    return [Arrival((f"u{user}", "news", at), at) for user, at in enumerate(times)]


EVENTS = arrivals(100, seconds_apart=1)
ALL_SHARDS = [(window, shard) for window in range(3) for shard in range(SHARDS)]


def announced(messages):
    return sorted((message.window, shard) for shard, message in messages if message.announced)


def test_the_wall_clock_acts_only_after_the_engine_has_confirmed(monkeypatch):
    monkeypatch.setattr(partition_poller, "_QUESTIONS", defaultdict(partition_poller._Question))
    loop = Loop(MemoryStream.of([EVENTS], 40)).fire(3)
    while not loop.intents:
        loop.fire()
    sent, waiting = len(loop.messages), loop.progress
    loop.fire(3)
    assert len(loop.messages) == sent
    assert loop.intents == [waiting.intent.name], "asked once"
    assert loop.state["progress"].content == waiting.to_bytes()
    first = partition_poller.Confirmation(waiting.intent.name)
    first()
    first()
    loop.fire(3)
    assert len(loop.messages) == sent, "the first call may be for a checkpoint that began before"
    assert loop.intents == [waiting.intent.name] * 2, "asked again, once"
    partition_poller.Confirmation(waiting.intent.name)()
    loop.fire()
    assert loop.state["poll"].at is None, "the loop has ended"
    assert loop.progress.is_over
    assert announced(loop.messages) == ALL_SHARDS
    assert not partition_poller._QUESTIONS


@pytest.mark.parametrize(
    ("source", "shards", "message"),
    [
        (MemoryStream.of([EVENTS, []], 40), SHARDS, "started with 1 partitions, and the source has 2 now"),
        (MemoryStream.of([EVENTS], 40), 3, "the run was started with shards=2, got 3"),
    ],
)
def test_a_run_keeps_its_partitions_and_shards(source, shards, message):
    """No window would be complete; users would be in other shards, where their budgets are full again."""
    loop, resumed = Loop(MemoryStream.of([EVENTS], 40)).fire(), Loop(source, shards=shards)
    resumed.state = loop.state
    with pytest.raises(StreamError, match=message):
        resumed.fire()


def test_a_stop_file_that_cannot_be_looked_for_ends_the_run(tmp_path):
    """Nobody knows then whether what was polled came before the stop."""
    (tmp_path / "file").touch()
    loop = Loop(MemoryStream.of([arrivals(1)]), stop_file=str(tmp_path / "file" / "stop"), confirm=False)
    with pytest.raises(StreamError, match="cannot be known whether the stop file is there"):
        loop.fire()


def test_the_stop_is_when_the_file_came_and_is_one_for_all_partitions(tmp_path):
    """By the change time, which nobody can set: neither a copied file's time of writing nor a second touch counts."""
    stop, log = tmp_path / "stop", arrivals(40, seconds_apart=1)
    loop = Loop(MemoryStream.of([log, log], 10), stop_file=str(stop), confirm=False).fire()
    assert loop.progress.stop_micros is None
    stop.touch()
    os.utime(stop, (0, 0))
    came = os.stat(stop).st_ctime_ns // 1000
    assert loop.fire().progress.stop_micros == CLOCK.stop_micros(came)
    while os.stat(stop).st_ctime_ns // 1000 == came:
        time.sleep(0.01)
        stop.touch()
    loop.turn_to(1)
    assert loop.fire().progress.stop_micros == CLOCK.stop_micros(came)
    stop.unlink()
    assert loop.fire().progress.stop_micros == CLOCK.stop_micros(came)


def test_a_stop_is_looked_for_behind_each_poll_and_not_before_it(tmp_path, monkeypatch):
    """The file comes while a poll runs: nothing of that poll is taken before the stop is known."""
    stop, poll = tmp_path / "stop", MemoryReader.poll

    def poll_and_stop(reader, position, **limits):
        if position == "10":
            stop.touch()
        return poll(reader, position, **limits)

    monkeypatch.setattr(MemoryReader, "poll", poll_and_stop)
    loop = Loop(MemoryStream.of([arrivals(40)], 10), stop_file=str(stop)).fire(2)
    assert (loop.progress.position, loop.progress.stop_micros) == ("10", None)
    assert loop.progress.intent.kind == "stop"


@pytest.fixture
def deeds(monkeypatch):
    """What was opened and closed, by readers that were pickled too."""
    found, opened = [], MemoryPartition.open
    monkeypatch.setattr(MemoryPartition, "open", lambda it, since: found.append(f"open {it.name}") or opened(it, since))
    monkeypatch.setattr(MemoryReader, "close", lambda reader: found.append(f"close {reader.name}"))
    return found


def test_a_reader_is_opened_anew_when_the_state_went_back(deeds):
    """It may have seen an end that lies before what another attempt has read."""
    loop = Loop(MemoryStream.of([EVENTS], 10)).fire()
    stored = loop.state["progress"].content
    loop.fire(2)
    assert deeds == ["open partition-0"]
    loop.state["progress"].content = stored
    loop.fire()
    assert (deeds, loop.progress.position) == (["open partition-0", "close partition-0", "open partition-0"], "20")


def test_what_cannot_be_read_is_told_and_a_second_beginning_changes_nothing():
    loop = Loop(MemoryStream.of([[Arrival(BROKEN, START * MICROS), *EVENTS]], 40)).fire()
    assert [(rejected.source, list(rejected.positions)) for rejected in loop.intents] == [("partition-0", [0])]
    loop.do_fn.process(("partition-0", 0), **loop.state)
    assert loop.progress.position == "40"


def test_a_loop_reads_one_partition_after_the_other_and_closes_each_reader(deeds):
    """The reader of a bundle that fails behind it is closed too."""
    source = MemoryStream.of([EVENTS, EVENTS], 40)
    poll = PollInLoopDoFn(polling_of(source, confirm=False), HeldSecret(), None)
    poll.setup()
    assert announced(poll.process(b"")) == sorted(2 * ALL_SHARDS)
    begun = poll.process(b"")
    next(begun)
    begun.close()
    closed = [deed for deed in deeds if deed.startswith("close")]
    assert closed == ["close partition-0", "close partition-1", "close partition-0"]


# --- The transform


def test_the_state_of_a_run_knows_its_source_by_its_fingerprint(tmp_path, monkeypatch):
    """So it is refused for records that are read otherwise."""
    made, keep = [], monitor_stream.Polling
    monkeypatch.setattr(monitor_stream, "Polling", lambda *fields: made.append(keep(*fields)) or made[-1])
    source = LogFolder(str(tmp_path), EventFields("mail", "item", "timestamp"))
    _ = local_pipeline() | MonitorStream(source, small_plan(4), run_id=RUN_ID)
    assert made[0].source == source.fingerprint() != LogFolder(str(tmp_path), EventFields()).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run_id": None}, "run_id must be given"),
        ({"run_id": ""}, "run_id must be printable text"),
        ({"driver": "magic"}, "'timers' or 'loop'"),
        ({"clock": "wall"}, "clock must be 'arrival' or 'event', got 'wall'"),
        ({"poll_seconds": 0}, "poll_seconds must be > 0"),
        ({"stop_file": "gs://bucket/stop"}, "stop_file must be a path"),
        ({"shards": 0}, "shards must be"),
        ({"public_items": PublicItems.of_ids(["a", "b"])}, "no public items"),
        ({"source": MemoryStream.of([])}, "must have partitions"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message):
    usual = {"source": MemoryStream.of([[]]), "plan": small_plan(4), "run_id": RUN_ID}
    with pytest.raises((ValueError, StreamError), match=message):
        _ = local_pipeline() | MonitorStream(**{**usual, **arguments})
