"""Partitions of a log that grows, read by the product's own poller under a wall clock of the test's own."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pyarrow as pa

from dp_transforms.logs.streams.partition_poller import PartitionPoller, Step
from dp_transforms.logs.streams.partition_progress import StreamClock, TakenWindows
from dp_transforms.logs.streams.stream_source import Polled
from dp_transforms.monitor.counted_messages import ENDS
from dp_transforms.monitor.pairs import UserPairs
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, SECRET, START, settings_of, small_plan

PLAN = small_plan(8, sliding=2)
HELD = settings_of(PLAN)
KEYS = HELD.stream_keys(SECRET)
SHARDS = 2
OUT_OF_ORDER, LATENESS, AHEAD, SHOWN = 4, 7, 20, 9
CLOCKS = {
    "arrival": StreamClock("arrival", LATENESS, OUT_OF_ORDER, AHEAD, 15, SHOWN),
    "event": StreamClock("event", LATENESS, OUT_OF_ORDER, AHEAD, 10**6, SHOWN),  # no partition is idle before its end
}


@dataclasses.dataclass(frozen=True)
class Shown:
    """A record, and the moment from which the log shows it, in microseconds."""

    arrival: Arrival
    shown_at: int

    @property
    def is_of_x(self) -> bool:
        return self.arrival.event == BROKEN or self.arrival.event[0] == "x'"


def partition_of(source: random.Random, kind: str, number: int) -> list[Shown]:
    """Others have a user for each record. Arrivals step back by at most OUT_OF_ORDER, and the times of events that the
    clock believes by at most OUT_OF_ORDER + LATENESS; each record shows within SHOWN of its arrival."""
    bases = sorted(START + source.uniform(-30, 330) for _ in range(source.randrange(1, 40)))
    is_of_x = [source.random() < 0.4 for _ in bases]
    at = source.randrange(len(bases))  # many earlier rows of x'
    burst = source.choice((0, 0, 30))
    bases[at:at], is_of_x[at:at] = [bases[at]] * burst, [True] * burst
    records, shown = [], 0.0
    for row, base in enumerate(bases):
        shown = max(shown, base + source.uniform(-OUT_OF_ORDER, SHOWN - OUT_OF_ORDER))
        arrival = base - source.uniform(0, OUT_OF_ORDER)
        back = OUT_OF_ORDER + LATENESS if kind == "event" else 80
        time = base - source.uniform(0, back)
        is_stamp_far_ahead = is_of_x[row] and kind == "event" and source.random() < 0.3
        if is_stamp_far_ahead:
            arrival += 10**6  # of a producer
        elif source.random() < 0.1:
            time = arrival + AHEAD + source.uniform(1, 500)  # refused
        event = (f"u{number}.{row}", "item", round(time * MICROS))
        if is_of_x[row]:
            event = source.choice((("x'", f"item {row % 3}", event[2]), BROKEN))
        records.append(Shown(Arrival(event, round(arrival * MICROS)), round(shown * MICROS)))
    return records


def counted_by_rule(records: list[Shown], kind: str, stop_micros: int | None) -> set[tuple[int, int]]:
    """(window, user) of others, each record judged alone: written from docs/guarantee.md, not from the product."""
    schedule, found = PLAN.schedule, set()
    for (user, _, time), arrival in (one.arrival for one in records if not one.is_of_x):
        if stop_micros is not None and arrival > stop_micros:
            continue
        if time > arrival + AHEAD * MICROS or not START * MICROS <= time < schedule.end_seconds * MICROS:
            continue
        for window in range(schedule.horizon):
            low, high = schedule.window_start_micros(window), schedule.window_end_micros(window)
            if low <= time < high and (kind == "event" or arrival <= high + LATENESS * MICROS):
                found.add((window, hash_of(user)))
    return found


class Wall:
    now = (START - 60) * MICROS


class GrowingReader:
    """Shows what is there by the wall clock. Its hint of the end may be wrong, and time passes while it answers."""

    def __init__(self, records: list[Shown], wall: Wall, source: random.Random, most: int) -> None:
        self._records, self._wall, self._source, self._most = records, wall, source, most
        self._position, self._asked = 0, None

    def _shown(self) -> int:
        return sum(one.shown_at <= self._wall.now for one in self._records)

    def poll(self, position: str | None, *, max_records: int, max_seconds: float) -> Polled:
        if int(position or 0) != self._position:
            self._asked = None
        arrivals = tuple(one.arrival for one in self._records[: self._shown()])
        self._wall.now += self._source.choice((0, 0, MICROS // 5))
        polled = (
            MemoryPartition("p", arrivals, self._source.randrange(1, self._most + 1))
            .open()
            .poll(position, max_records=max_records, max_seconds=max_seconds)
        )
        self._position = int(polled.position)
        return dataclasses.replace(polled, is_at_end=polled.is_at_end or self._source.random() < 0.1)

    def confirm_end(self) -> bool:
        return self._source.random() < 0.9 and self._position >= self._shown()

    def confirm_passed(self) -> bool:
        if self._source.random() < 0.1:
            return False  # nobody answers just now
        if self._asked is None:
            self._asked = self._shown()
        return self._position >= self._asked

    def close(self) -> None:
        return


def pairs_of(steps: list[Step]) -> set[tuple[int, int]]:
    """(window, user) of all that the steps sent."""
    blobs = [message.blob for step in steps for _, message in step.messages if message.blob not in (b"", ENDS)]
    parts = [UserPairs.from_bytes(blob) for blob in blobs]
    return {
        (int(window), int(part.users[code]))
        for part in parts
        for window, code in zip(part.windows, part.codes, strict=True)
    }


def hash_of(user: str) -> int:
    return int(KEYS.hash_users(pa.array([user]))[0, 0])


X = hash_of("x'")


class Partition:
    """One partition and its reader, in a process that may die."""

    def __init__(
        self,
        records: list[Shown],
        kind: str,
        confirm: bool,
        wall: Wall,
        source: random.Random,
        taken: TakenWindows | None = None,
    ) -> None:
        self._records, self._wall, self._source, self._confirm = records, wall, source, confirm
        self._poller = PartitionPoller(HELD, KEYS, CLOCKS[kind], SHARDS, domain=None, confirm=confirm, taken=taken)
        self._most, self._stores = source.choice((1, 3, 10, 1000)), source.choice((0.3, 0.05))
        self._durable: list[Step] = []
        self._stored = self._poller.start().to_bytes()
        self._confirmed: set[str] = set()
        self.closed: dict[int, set[int]] = {}  # of others in each window that any attempt has closed
        self.ends: list[int] = []  # before which window any attempt has said that the part ends
        self._begin()

    def _begin(self) -> None:
        self.progress, self._steps, self._since = self._poller.restore(self._stored), [], self._wall.now
        self._reader = GrowingReader(self._records, self._wall, self._source, self._most)

    def step(self, find_stop: Callable[[], int | None]) -> None:
        intent = self.progress.intent
        is_confirmed = intent is not None and intent.name in self._confirmed
        step = self._poller.step(
            "p",
            self.progress,
            self._reader,
            self._wall.now,
            find_stop=find_stop,
            is_confirmed=is_confirmed,
            open_since_micros=self._since,
        )
        self._steps.append(step)
        announced = [(window, message.blob) for (window, _), message in step.messages if message.announced]
        self._compare({window for window, blob in announced if blob != ENDS})
        self.ends += sorted({window for window, blob in announced if blob == ENDS})
        if not self._confirm:
            self.progress = self._poller.restore(self.progress.to_bytes())
        elif self._source.random() < 0.1:
            self._begin()
        elif self._source.random() < self._stores:
            self._durable, self._steps, self._stored = [*self._durable, *self._steps], [], self.progress.to_bytes()
            self._confirmed |= {self.progress.intent.name} if self.progress.intent else set()

    def _compare(self, closed: set[int]) -> None:
        if closed:
            pairs = pairs_of([*self._durable, *self._steps])
            for window in closed:
                users = {user for of, user in pairs if of == window} - {X}
                assert self.closed.setdefault(window, users) == users, "a window has two contents"

    @property
    def counted(self) -> set[tuple[int, int]]:
        return {(window, user) for window, users in self.closed.items() for user in users}


def counted_by_run(
    partitions: list[list[Shown]], kind: str, confirm: bool, asked_micros: int | None, seed: int
) -> list[set[tuple[int, int]]]:
    """What counts of others in each partition, in a run whose moments and sizes the seed chooses."""
    return [partition.counted for partition in ended_run(partitions, kind, confirm, asked_micros, seed)]


def ended_run(
    partitions: list[list[Shown]],
    kind: str,
    confirm: bool,
    asked_micros: int | None,
    seed: int,
    taken: TakenWindows | None = None,
) -> list[Partition]:
    source, wall = random.Random(seed), Wall()
    stop_micros = None if asked_micros is None else CLOCKS[kind].stop_micros(asked_micros)
    run = [Partition(part, kind, confirm, wall, source, taken=taken) for part in partitions]
    for _ in range(3_000):
        going = [partition for partition in run if not partition.progress.is_over]
        if not going:
            return run
        going[source.randrange(len(going))].step(
            lambda: stop_micros if asked_micros is not None and wall.now >= asked_micros else None
        )
        wall.now += source.choice((0, MICROS // 10, MICROS, MICROS, 7 * MICROS))
    raise AssertionError("the run did not end")


def moment_to_stop(source: random.Random, log: list[list[Shown]], clock: StreamClock) -> int:
    """Any moment; or one when a record is just there; or such that the last that counts is a record's own."""
    any_moment = source.randrange((START - 40) * MICROS, (START + 340) * MICROS)
    of_others = [one for part in log for one in part if not one.is_of_x]
    if not of_others:
        return any_moment
    record, margin = source.choice(of_others), clock.stop_micros(0)
    own = record.arrival.micros - margin + source.choice((-1, 0, 0))
    return source.choice((any_moment, record.shown_at + source.randrange(2 * MICROS), own))


def case_of(seed: int, kind: str, is_stopped: bool) -> tuple[list[list[Shown]], int | None, list[set[tuple[int, int]]]]:
    """A log of two partitions, when a stop is asked for, and what of others must count."""
    source = random.Random(seed)
    log = [partition_of(source, kind, number) for number in range(2)]
    # Nothing but a stop ends a run by the clock of events here.
    asked = moment_to_stop(source, log, CLOCKS[kind]) if is_stopped or kind == "event" else None
    stop = None if asked is None else CLOCKS[kind].stop_micros(asked)
    return log, asked, [counted_by_rule(part, kind, stop) for part in log]
