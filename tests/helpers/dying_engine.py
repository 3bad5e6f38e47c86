"""An engine that dies between any two steps, and the real DoFns of a stream on it.

The engine does to them what Flink does at its worst: it delivers messages in any order, dies between any two steps,
goes back to the newest snapshot that is complete, with or without the process, and calls finalizers when a snapshot is
complete, also those of bundles that ended behind it. What has reached the sink stays there. The log grows meanwhile,
records show late, and the operator may end the run, or seem to.
"""

from __future__ import annotations

import copy
import dataclasses
import random

import apache_beam as beam

from dp_transforms.beam import poll_partitions
from dp_transforms.beam.bound_contributions import BoundContributionsCountedDoFn
from dp_transforms.beam.find_candidates import FindCandidatesCountedDoFn
from dp_transforms.beam.find_looks import FindLooksCountedDoFn
from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.beam.gather_in_order import parts_of_shard, parts_of_window
from dp_transforms.beam.monitor_counted import ENDED, CountedMonitorDoFn
from dp_transforms.beam.name_counted import NameCountedDoFn
from dp_transforms.beam.poll_partitions import PollPartitions
from dp_transforms.beam.release_counted import ReleaseCountedDoFn
from dp_transforms.beam.spend_purses import SpendPursesDoFn
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.packed_arrays import unpack_arrays
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.user_budgets import UserBudgets
from dp_transforms.monitor.user_pairs import UserPairs
from tests.helpers.cells import cells_by_position
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret, Timer
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, START

CLOCK = StreamClock(allowed_lateness_seconds=10, out_of_order_seconds=5, idle_timeout_seconds=8)
SHARDS = 2
PARTITIONS = ("p0", "p1")
IN_ORDER = {"near": Bag, "far": Bag, "waiting": Cell}


class Log:
    """A partition that grows: records are there from a moment on that is not that of their stamp."""

    def __init__(self, name, source):
        self.name = name
        told = sorted(source.randrange(START, START + 200) for _ in range(40))
        # A record shows late, and with it all behind it: an idle clock may have passed it by.
        self.arrivals, self.shown_at, shows = [], [], 0
        for at in told:
            users = source.randrange(25), source.choice("ab"), (at - source.randrange(12)) * MICROS
            shows = max(shows, at + source.choice((0, 0, 40)))
            self.arrivals.append(Arrival((f"u{users[0]}", *users[1:]), at * MICROS))
            self.shown_at.append(shows)
        self.now_seconds, self.most = START, 100

    def open(self, since_micros):
        self.since_micros, self.asked = since_micros, None
        return self

    def shown(self):
        return sum(shows <= self.now_seconds for shows in self.shown_at)

    def poll(self, position, **limits):
        partition = MemoryPartition(self.name, tuple(self.arrivals[: self.shown()]), self.most)
        polled = partition.open(self.since_micros).poll(position, **limits)
        self.position = int(polled.position)
        return polled

    def confirm_end(self):
        return True  # it is asked within the step that has polled, and shows nothing more meanwhile

    def confirm_passed(self):
        self.asked = self.shown() if self.asked is None else self.asked
        return self.position >= self.asked

    def close(self):
        pass


@dataclasses.dataclass
class Stored:
    """All that a snapshot holds: states, timers, and messages under way."""

    states: dict
    messages: list


class Engine:
    """settings: of a run whose users pay for hits."""

    def __init__(self, settings, seed, monkeypatch, confirm=True):
        self.settings = settings
        self.source = random.Random(seed)
        self.logs = {name: Log(name, self.source) for name in PARTITIONS}
        self.confirm = confirm
        self.now = float(START)
        monkeypatch.setattr(poll_partitions, "_now_micros", lambda: round(self.now * MICROS))
        monkeypatch.setattr(poll_partitions.time, "monotonic", lambda: self.now)
        self.monkeypatch = monkeypatch
        self.stops_at = self.source.choice((None, None, START + 60, START + 100))
        self.stop_micros = None
        self.held = Stored({}, [("poll", (name, number)) for number, name in enumerate(PARTITIONS)])
        self.complete, self.taken = copy.deepcopy(self.held), None
        self.finalizers, self.contents, self.answers, self.ends, self.deaths = [], {}, {}, set(), 0
        self.start(new_process=True)

    def start(self, *, new_process):
        if new_process:
            self.monkeypatch.setattr(poll_partitions, "_CONFIRMED", {})
            self.monkeypatch.setattr(poll_partitions, "_ASKED", {})
        arguments = {"domain": None, "driver": "timers", "confirm": self.confirm, "stop_file": None}
        self.poll = PollPartitions(
            list(self.logs.values()), self.settings, HeldSecret(), CLOCK, SHARDS, poll_seconds=1, **arguments
        )._poll.dofn
        for do_fn in (self.poll, *self.make_steps(HeldSecret())):
            do_fn.setup()
        self.poll._open._find_stop = lambda: self.stop_micros

    def make_steps(self, key):
        """Makes the DoFns behind the poll, and returns those that are to be set up."""
        self.stages = {
            "users": (
                GatherCountedDoFn(len(PARTITIONS)),
                BoundContributionsCountedDoFn(self.settings, key, SHARDS),
                "items",
            ),
            "items": (
                GatherCountedDoFn(SHARDS),
                FindCandidatesCountedDoFn(self.settings, key, SHARDS, None),
                "windows",
            ),
            "windows": (GatherCountedDoFn(SHARDS), None, "monitor"),
        }
        self.monitor = CountedMonitorDoFn(self.settings, key)
        return self.stages["users"][1], self.stages["items"][1], self.monitor

    def state(self, stage, key, **kinds):
        return self.held.states.setdefault((stage, key), {name: kind() for name, kind in kinds.items()})

    def send(self, to, elements):
        self.held.messages += [(to, element) for element in elements]

    def deliver(self):
        stage, element = self.held.messages.pop(self.source.randrange(len(self.held.messages)))
        if stage == "poll":
            self.poll.process(element, **self.poll_state(element[0]))
        else:
            self.step(stage, element)

    def step(self, stage, element):
        if stage == "monitor":
            self.take(
                self.monitor.process(element, **self.state("monitor", "", **IN_ORDER, budgets=Bag, progress=Cell))
            )
            return
        _, do_fn, to = self.stages[stage]
        for group in self.gather(stage, element):
            if stage == "items":
                self.compare(group[0], cells_by_position, ItemHolders, group[1])
            self.send(to, do_fn.process(group) if do_fn else parts_of_window(group, "events"))

    def gather(self, stage, element):
        return self.stages[stage][0].process(element, **self.state(stage, element[0], blobs=Bag, count=Cell))

    def compare(self, key, content_of, columns, blobs):
        """What a shard of a window holds, against what it ever held."""
        content = content_of(columns.merge([columns.from_bytes(blob) for blob in blobs])) if blobs else []
        assert self.contents.setdefault(key, content) == content, "a window has two contents"

    def take(self, outputs):
        for output in outputs:
            if isinstance(output, beam.pvalue.TaggedOutput):
                assert output.tag == ENDED
                self.ends.add(output.value)
            else:
                report = output.value
                assert self.answers.setdefault(report.window_start, report) == report, "a window has two answers"

    def poll_state(self, name):
        return self.state("poll", name, progress=Cell, partitions=Cell, poll=Timer)

    def fire(self):
        name = self.source.choice(PARTITIONS)
        held = self.poll_state(name)
        if held["poll"].at is None:
            return
        held["poll"].at = None
        self.logs[name].now_seconds, self.logs[name].most = self.now, self.source.randrange(1, 40)
        for output in self.poll.poll(name, **held):
            if not isinstance(output, beam.pvalue.TaggedOutput):
                self.send("users", [output])
            elif output.tag == poll_partitions._INTENTS:
                self.finalizers.append(poll_partitions.Confirmation(output.value))

    def checkpoint(self):
        """Takes a snapshot, or completes the one that was taken."""
        if self.taken is None:
            self.taken = copy.deepcopy(self.held)
            return
        self.complete, self.taken = self.taken, None
        called, self.finalizers = self.finalizers, []
        for confirmed in called:
            confirmed()

    def die(self):
        self.deaths += 1
        self.held, self.taken, self.finalizers = copy.deepcopy(self.complete), None, []
        self.start(new_process=self.source.random() < 0.5)

    def run(self):
        actions, weights = (self.deliver, self.fire, self.checkpoint, self.die, self.wait), (60, 20, 5, 3, 6)
        for _ in range(20_000):
            (action,) = self.source.choices(actions, weights)
            if action == self.deliver and not self.held.messages:
                action = self.fire
            action()
            if self.deaths > 12:  # towards the end
                weights = (60, 20, 5, 0, 6)
            if self.is_over():
                if self.source.random() < 0.5 or self.deaths > 12:
                    return
                self.die()  # what was written must be what comes again
        raise AssertionError("the run did not end")

    def is_empty(self):
        """Whether nothing waits for the rest of its group or for its turn."""
        kinds = ("blobs", "count", "near", "far")
        return not any(held[kind].content for held in self.held.states.values() for kind in kinds if kind in held)

    def is_over(self):
        """Whether nothing is under way and all loops have ended."""
        loops = [held["poll"].at for (stage, _), held in self.held.states.items() if stage == "poll"]
        return loops == [None] * len(PARTITIONS) and not self.held.messages

    def wait(self):
        self.now += self.source.choice((1, 5, 20))
        if self.stops_at is not None and self.now > self.stops_at:
            # Also a file that goes away again, and comes at another time.
            came = self.stop_micros or CLOCK.stop_micros(round(self.now * MICROS))
            self.stop_micros = came if self.source.random() < 0.6 else None


class NamesEngine(Engine):
    """settings: of a run whose users pay for looks. pairs: of each window and shard of users."""

    def __init__(self, *arguments):
        self.pairs = {}
        super().__init__(*arguments)

    def make_steps(self, key):
        settings = self.settings
        self.keys = settings.stream_keys(key.get_secret_bytes())
        self.stages = {
            "users": (GatherCountedDoFn(len(PARTITIONS)), "spend"),
            "items": (GatherCountedDoFn(SHARDS), "name"),
            "windows": (GatherCountedDoFn(SHARDS), "release"),
        }
        self.spend = SpendPursesDoFn(settings, key, SHARDS)
        self.name = NameCountedDoFn(settings, key, SHARDS, None)
        self.release = ReleaseCountedDoFn(settings)
        return self.spend, self.name, self.release

    def step(self, stage, element):
        if stage == "spend":
            held = self.state(stage, element[0], **IN_ORDER, purses=Bag, progress=Cell)
            self.send("items", self.spend.process(element, **held))
        elif stage == "name":
            held = self.state(stage, element[0], **IN_ORDER, known=Bag, next_window=Cell)
            self.send("windows", self.name.process(element, **held))
        elif stage == "release":
            self.take(self.release.process(element, **self.state(stage, "", **IN_ORDER, progress=Cell)))
        else:
            for group in self.gather(stage, element):
                if stage == "items":
                    self.compare(group[0], sums_by_item, ItemSums, group[1])
                if stage == "users":
                    self.pairs[group[0]] = group[1]
                to = self.stages[stage][1]
                self.send(to, parts_of_window(group, "events") if stage == "windows" else parts_of_shard(group))

    def purses(self, shard):
        """What is stored of the purses of a shard of users, and what it would be if nothing had died."""
        stored = Purses(self.settings, self.keys, self.held.states["spend", shard]["purses"].content)
        paid_once = Purses(self.settings, self.keys)
        for (window, of_shard), blobs in sorted(self.pairs.items()):
            if of_shard == shard and blobs:
                paid_once.spend(UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs]), window)
        return stored.rewritten_cells(), paid_once.rewritten_cells()


class HitsEngine(NamesEngine):
    """settings: of a run whose users pay for looks and for hits."""

    def make_steps(self, key):
        super().make_steps(key)
        self.stages["windows"] = (GatherCountedDoFn(SHARDS), "monitor")
        self.find = FindLooksCountedDoFn(self.settings, key, SHARDS, None)
        self.monitor = CountedMonitorDoFn(self.settings, key)
        return self.spend, self.find, self.monitor

    def step(self, stage, element):
        if stage == "name":
            held = self.state(stage, element[0], **IN_ORDER, known=Bag, next_window=Cell)
            self.send("windows", self.find.process(element, **held))
        elif stage == "monitor":
            held = self.state(stage, "", **IN_ORDER, budgets=Bag, progress=Cell, known=Bag)
            self.take(self.monitor.process(element, **held))
        elif stage == "items":
            for group in self.gather(stage, element):
                self.compare(group[0], cells_by_position, ItemHolders, group[1])
                self.send("name", parts_of_shard(group))
        else:
            super().step(stage, element)

    def most_hits(self):
        """Of any one user, by what is stored."""
        _, hits = unpack_arrays(*UserBudgets(self.held.states["monitor", ""]["budgets"].content).to_blobs())
        return max(hits, default=0)


def sums_by_item(sums):
    labels = sums.table.labels.take(sums.items).to_pylist()
    return list(zip(sums.windows.tolist(), labels, sums.sums.tolist(), sums.digests.tolist(), strict=True))
