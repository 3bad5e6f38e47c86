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
from dp_transforms.beam.gather import GatherCountedDoFn, parts_of_shard, parts_of_window
from dp_transforms.beam.in_order import ENDED, AsItComesDoFn, InOrderDoFn, ReleaseInOrderDoFn
from dp_transforms.beam.poll_partitions import PollPartitions
from dp_transforms.beam.threshold_monitor import ThresholdMonitorEvolvingDoFn
from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.packed_arrays import unpack_arrays
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.user_budgets import UserBudgets
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.runs.state_cells import Kind, unpack_cell
from dp_transforms.stages.items import NameItems
from dp_transforms.stages.release_stages import stages_of
from dp_transforms.stages.windows import MonitorWindows
from tests.helpers.cells import cells_by_position
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret, Timer
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, START

CLOCK = StreamClock(allowed_lateness_seconds=10, out_of_order_seconds=5, idle_timeout_seconds=8)
SHARDS = 2
PARTITIONS = ("p0", "p1")
NEXT = {"users": "items", "items": "windows"}
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
    """settings: of a run in any release mode. pairs: of each window and shard of users."""

    def __init__(self, settings, seed, monkeypatch, confirm=True):
        self.settings, self.pairs = settings, {}
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
        stages = stages_of(self.settings, None)
        senders = {"users": len(PARTITIONS), "items": SHARDS, "windows": SHARDS}
        self.gathers = {place: GatherCountedDoFn(number) for place, number in senders.items()}
        self.columns = ItemSums if stages.items.work is NameItems else ItemHolders
        pays_hits = stages.windows.work is MonitorWindows
        last = ThresholdMonitorEvolvingDoFn if pays_hits else ReleaseInOrderDoFn
        self.cells = "counters" if pays_hits else "cells"
        self.steps = {
            "users": self.sending(stages.users, key, SHARDS),
            "items": self.sending(stages.items, key, 1),
            "windows": last(stages.windows, key, None),
        }
        return self.steps.values()

    @staticmethod
    def sending(stage, key, to):
        kind = InOrderDoFn if stage.work.takes_turns else AsItComesDoFn
        return kind(stage, key, SHARDS, to, None)

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

    def step(self, place, element):
        stage, _, has_turn = place.partition(" ")
        if has_turn:
            self.advance(stage, place, element)
            return
        held = self.state(stage, element[0], blobs=Bag, count=Cell)
        for group in self.gathers[stage].process(element, **held):
            if stage == "users":
                self.pairs[group[0]] = group[1]
            if stage == "items":
                self.compare(group[0], group[1])
            if isinstance(self.steps[stage], AsItComesDoFn):
                self.send(NEXT[stage], self.steps[stage].process(group))
            else:
                parts = parts_of_window(group, "events") if stage == "windows" else parts_of_shard(group)
                self.send(f"{stage} turn", parts)

    def advance(self, stage, place, element):
        bag = self.cells if stage == "windows" else "cells"
        held = self.state(place, element[0], **IN_ORDER, **{bag: Bag}, progress=Cell)
        outputs = self.steps[stage].process(element, **held)
        self.take(outputs) if stage == "windows" else self.send(NEXT[stage], outputs)

    def compare(self, key, blobs):
        """What a shard of a window holds, against what it ever held."""
        content_of = sums_by_item if self.columns is ItemSums else cells_by_position
        content = content_of(self.columns.merge([self.columns.from_bytes(blob) for blob in blobs])) if blobs else []
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

    def stored(self, kind, place, key):
        """The cells of this kind in the state of a step."""
        held = self.held.states[place, key]
        cells = map(unpack_cell, (held.get("cells") or held["counters"]).content)
        return [cell for kind_of_cell, _, cell in cells if kind_of_cell is kind]

    def purses(self, shard):
        """What is stored of the purses of a shard of users, and what it would be if nothing had died."""
        keys = self.settings.stream_keys(HeldSecret().get_secret_bytes())
        stored = Purses(self.settings, keys, self.stored(Kind.PURSES, "users turn", shard))
        paid_once = Purses(self.settings, keys)
        for (window, of_shard), blobs in sorted(self.pairs.items()):
            if of_shard == shard and blobs:
                paid_once.spend(UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs]), window)
        return stored.rewritten_cells(), paid_once.rewritten_cells()

    def most_hits(self):
        """Of any one user, by what is stored."""
        _, hits = unpack_arrays(*UserBudgets(self.stored(Kind.BUDGETS, "windows turn", "events")).to_blobs())
        return max(hits, default=0)


def sums_by_item(sums):
    labels = sums.table.labels.take(sums.items).to_pylist()
    return list(zip(sums.windows.tolist(), labels, sums.sums.tolist(), sums.digests.tolist(), strict=True))
