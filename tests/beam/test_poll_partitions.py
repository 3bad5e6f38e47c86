"""`PollInTimersDoFn` on state that the test holds: its loop, its intents, and what it refuses."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import apache_beam as beam
import pytest

from dp_transforms.beam.monitor_stream import PollInLoopDoFn, PollInTimersDoFn
from dp_transforms.core.contributions import Contributions
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams import partition_poller
from dp_transforms.logs.streams.partition_poller import Polling
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from tests.helpers.do_fn_state import Cell, HeldSecret, Timer
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryPartition, MemoryReader, MemoryStream
from tests.helpers.small_runs import MICROS, SECRET, START, settings_of, small_plan

SHARDS = 2
PLAN = small_plan(3)
CLOCK = StreamClock(out_of_order_seconds=0, idle_timeout_seconds=0.01)


def polling_of(source, /, **arguments):
    partitions = {partition.name: partition for partition in source.partitions()}
    settled = {"clock": CLOCK, "source": "", "shards": SHARDS, "confirm": True, "stop_file": None}
    return Polling(partitions, settings_of(PLAN), **{**settled, "poll_seconds": 0.001, **arguments})


class Loop:
    """One key of the DoFn, fired by hand: what it sent, and the intents that wait."""

    def __init__(self, source, /, *, secret=SECRET, clock=CLOCK, shards=SHARDS, **arguments):
        polling = polling_of(source, clock=clock, shards=shards, **arguments)
        self.do_fn = PollInTimersDoFn(polling, HeldSecret(secret), None)
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


class Watched:
    """A source of one poll of so many records after the other. see: called with what its readers do, and to what:
    "open" and "close" with the name of the partition, "polled" with the position."""

    def __init__(self, partitions, records_per_poll, see):
        self._partitions = [
            WatchedPartition(f"partition-{number}", tuple(arrivals), records_per_poll, see)
            for number, arrivals in enumerate(partitions)
        ]

    def partitions(self):
        return self._partitions


@dataclasses.dataclass(frozen=True)
class WatchedPartition(MemoryPartition):
    see: Callable[[str, str | None], object]

    def open(self, since_micros=0):
        self.see("open", self.name)
        return WatchedReader(self, since_micros)


class WatchedReader(MemoryReader):
    def poll(self, position, **limits):
        polled = super().poll(position, **limits)
        self._partition.see("polled", position)
        return polled

    def close(self):
        self._partition.see("close", self._partition.name)


def events():
    return [Arrival((f"u{user}", "news", (START + user) * MICROS), (START + user) * MICROS) for user in range(100)]


def test_the_wall_clock_acts_only_after_the_engine_has_confirmed(monkeypatch):
    monkeypatch.setattr(partition_poller, "_CONFIRMED", {})
    loop = Loop(MemoryStream.of([events()], 40)).fire(3)
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
    announced = [(message.window, shard) for shard, message in loop.messages if message.announced]
    assert sorted(announced) == [(window, shard) for window in range(3) for shard in range(SHARDS)]
    assert not partition_poller._CONFIRMED


def test_a_source_with_other_partitions_is_refused():
    loop = Loop(MemoryStream.of([events()], 40))
    other = Loop(MemoryStream.of([events(), []], 40))
    other.state = loop.state
    with pytest.raises(StreamError, match="started with 1 partitions, and the source has 2 now"):
        other.fire()


def users_of(loop):
    """How many users each item has, in what was sent."""
    users = {}
    for _, message in loop.messages:
        if message.blob:
            pairs = Contributions.from_bytes(message.blob)
            codes, names = pairs.codes, pairs.table.labels.to_pylist()
            for item, code in zip(pairs.items.tolist(), codes.tolist(), strict=True):
                users.setdefault(names[item], set()).add(int(pairs.users[code]))
    return {item: len(found) for item, found in users.items()}


def test_earlier_records_of_one_user_push_nobody_out_of_a_drain(tmp_path, monkeypatch):
    """A backlog of more than a poll, without confirmation: all that arrived before the stop counts, wherever the poll
    was that came first."""
    others = [Arrival((f"u{user}", "news", START * MICROS), START * MICROS) for user in range(50_300)]
    seen, seconds = [], [time.time()]
    monkeypatch.setattr(partition_poller.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(partition_poller, "now_micros", lambda: round(seconds[0] * MICROS))
    for rows_of_x in (0, 1000):
        x = [Arrival(("x'", f"other {row}", START * MICROS), START * MICROS) for row in range(rows_of_x)]
        stop = tmp_path / f"stop {rows_of_x}"
        loop = Loop(MemoryStream.of([[*x, *others]], 10**6), confirm=False, stop_file=str(stop)).fire()
        assert loop.progress.position == "50000"
        stop.touch()
        for _ in range(10):
            seconds[0] += 10
            if loop.state["poll"].at is not None:
                loop.fire()
        assert loop.progress.is_over
        seen.append(users_of(loop)["news"])
    assert seen == [50_300, 50_300]


def test_a_stop_file_that_cannot_be_looked_for_ends_the_run(tmp_path):
    """Nobody knows then whether what was polled came before the stop."""
    (tmp_path / "file").touch()
    arrivals = [Arrival(("u", "news", START * MICROS), START * MICROS)]
    loop = Loop(MemoryStream.of([arrivals], 10), stop_file=str(tmp_path / "file" / "stop"), confirm=False)
    with pytest.raises(StreamError, match="cannot be known whether the stop file is there"):
        loop.fire()


def test_the_stop_is_when_the_file_came_and_is_one_for_all_partitions(tmp_path):
    """By the change time, which nobody can set: neither a copied file's time of writing nor a second touch counts."""
    arrivals = [Arrival((f"u{row}", "news", at), at) for row in range(40) for at in [(START + row) * MICROS]]
    stop = tmp_path / "stop"
    loop = Loop(MemoryStream.of([arrivals, arrivals], 10), stop_file=str(stop), confirm=False).fire()
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


def test_a_stop_is_looked_for_behind_each_poll_and_not_before_it(tmp_path):
    """The file comes while a poll runs: nothing of that poll is taken before the stop is known."""
    arrivals = [Arrival((f"u{row}", "news", START * MICROS), START * MICROS) for row in range(40)]
    stop = tmp_path / "stop"

    def see(deed, at):
        if deed == "polled" and at == "10":
            stop.touch()

    loop = Loop(Watched([arrivals], 10, see), stop_file=str(stop)).fire(2)
    assert (loop.progress.position, loop.progress.stop_micros) == ("10", None)
    assert loop.progress.intent.kind == "stop"


def test_a_reader_is_opened_anew_when_the_state_went_back():
    """It may have seen an end that lies before what another attempt has read."""
    seen = []
    loop = Loop(Watched([events()], 10, lambda deed, _: seen.append(deed))).fire()
    stored = loop.state["progress"].content
    loop.fire(2)
    assert seen.count("open") == 1
    loop.state["progress"].content = stored
    loop.fire()
    assert (seen.count("open"), loop.progress.position) == (2, "20")


@pytest.mark.parametrize(("started_with", "other"), [(2, 3), (10, 5), (100, 160)])
def test_a_run_keeps_its_shards(started_with, other):
    """Users would be in others, where their purses are full again."""
    loop = Loop(MemoryStream.of([events()], 40), shards=started_with).fire()
    resumed = Loop(MemoryStream.of([events()], 40), shards=other)
    resumed.state = loop.state
    with pytest.raises(StreamError, match=f"the run was started with shards={started_with}, got {other}"):
        resumed.fire()


def test_what_cannot_be_read_is_told_and_a_second_beginning_changes_nothing():
    loop = Loop(MemoryStream.of([[Arrival(BROKEN, START * MICROS), *events()]], 40)).fire()
    assert [(rejected.source, list(rejected.positions)) for rejected in loop.intents] == [("partition-0", [0])]
    loop.do_fn.process(("partition-0", 0), **loop.state)
    assert loop.progress.position == "40"


CLOSED = []  # partitions, by readers that were pickled with what notes it


def note_closed(deed, name):
    if deed == "close":
        CLOSED.append(name)


def test_a_loop_reads_one_partition_after_the_other_and_closes_each_reader():
    """The reader of a bundle that fails behind it is closed too."""
    CLOSED.clear()
    source = Watched([events(), events()], 40, note_closed)
    poll = PollInLoopDoFn(polling_of(source, confirm=False), HeldSecret(), None)
    poll.setup()

    def outputs():
        return poll.process(b"")

    announced = [(message.window, shard) for shard, message in outputs() if message.announced]
    assert sorted(announced) == sorted(2 * [(window, shard) for window in range(3) for shard in range(SHARDS)])
    assert CLOSED == ["partition-0", "partition-1"]
    begun = outputs()
    next(begun)
    begun.close()
    assert CLOSED == ["partition-0", "partition-1", "partition-0"]
