"""A stop is an arrival time: what counts of others does not depend on one user's rows, nor on where reading was.

Partitions are read by the product's own poller out of a log that grows, under a wall clock of the test's own: polls of
any size, records that show late, restarts from stored bytes with steps done again, and a stop at any moment. What
counts is compared with a rule that looks at one record alone, and so with and without all rows of one user.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.event_streams.partition_poller import PartitionPoller, Step
from dp_transforms.event_streams.partition_progress import CLOCK_END, PartitionProgress, StreamClock, TakenWindows
from dp_transforms.event_streams.stream_source import Polled
from dp_transforms.monitoring.counted_messages import ENDS
from dp_transforms.monitoring.user_pairs import UserPairs
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
        for window, code in zip(part.windows, part.user_codes(), strict=True)
    }


def hash_of(user: str) -> int:
    return int(KEYS.hash_users(pa.array([user]))[0, 0])


X = hash_of("x'")


class Partition:
    """One partition and its reader, in a process that may die. hasty: a kind of intents that does not wait."""

    def __init__(
        self,
        records: list[Shown],
        kind: str,
        confirm: bool,
        wall: Wall,
        source: random.Random,
        hasty: str = "",
        taken: TakenWindows | None = None,
    ) -> None:
        self._records, self._wall, self._source, self._confirm, self._hasty = records, wall, source, confirm, hasty
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
        is_confirmed = intent is not None and (intent.name in self._confirmed or intent.kind == self._hasty)
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


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["arrival", "event"]), st.booleans(), st.booleans())
def test_what_counts_of_others_is_the_same_with_and_without_one_user(
    seed: int, kind: str, confirm: bool, is_stopped: bool
) -> None:
    log, asked, expected = case_of(seed, kind, is_stopped)
    without = [[one for one in part if not one.is_of_x] for part in log]
    assert counted_by_run(log, kind, confirm, asked, seed) == expected
    assert counted_by_run(without, kind, confirm, asked, seed + 1) == expected


def test_this_test_finds_an_end_at_the_boundary_of_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was once: all windows close with what was read."""
    monkeypatch.setattr(PartitionProgress, "intend_stop", lambda self, micros: self.intend_clock(CLOCK_END))
    cases = [(seed, case_of(seed, "arrival", True)) for seed in range(50)]
    found = [counted_by_run(log, "arrival", False, asked, seed) == expected for seed, (log, asked, expected) in cases]
    assert found.count(False) >= 5


def check_handover(seed: int, kind: str, confirm: bool) -> None:
    """A stop in a part of a run: what its windows hold is what they would hold without it, with and without x', and by
    the clock of arrival all partitions end before the same window, the first that a clock at the stop leaves open."""
    log, asked, _ = case_of(seed, kind, True)
    assert asked is not None
    stop = CLOCKS[kind].stop_micros(asked)
    first = seed % 3
    taken = TakenWindows(first, PLAN.schedule.horizon - seed % 2, hands_over=True)
    by_stop = sum(PLAN.schedule.window_end_micros(n) < stop - 11 * MICROS for n in range(PLAN.schedule.horizon))
    by_stop = min(max(by_stop, first), taken.end)
    without = [[one for one in part if not one.is_of_x] for part in log]
    for partitions, own_seed in ((log, seed), (without, seed + 1)):
        run = ended_run(partitions, kind, confirm, asked, own_seed, taken)
        assert all(set(partition.ends) == {partition.progress.next_window} for partition in run)
        ends = {partition.progress.next_window for partition in run}
        assert min(ends) >= by_stop
        assert kind == "event" or ends == {by_stop}
        for partition, part in zip(run, log, strict=True):
            expected = counted_by_rule(part, kind, stop if kind == "event" else None)
            assert {pair for pair in partition.counted if pair[0] < min(ends)} == {
                pair for pair in expected if first <= pair[0] < min(ends)
            }


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_a_stop_leaves_open_windows_whole_to_the_next_part(kind: str) -> None:
    for seed in range(12):
        check_handover(seed, kind, confirm=bool(seed % 2))


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["arrival", "event"]), st.booleans())
def test_a_stop_at_any_moment_leaves_open_windows_whole(seed: int, kind: str, confirm: bool) -> None:
    check_handover(seed, kind, confirm)


def is_contradicted(seed: int, kind: str, hasty: str = "") -> bool:
    """Whether a window has two contents where records show much later than was declared, stamps are in any order, and
    the stop file goes away and comes again at another time."""
    source, wall = random.Random(seed), Wall()
    log = [partition_of(source, kind, number) for number in range(2)]
    late_from = source.randrange(30)
    for part in log:
        for at, one in enumerate(part):
            late = 60 * MICROS * (at > late_from)
            stamp = one.arrival.micros - source.randrange(100 * MICROS)
            part[at] = Shown(Arrival(one.arrival.event, stamp), one.shown_at + late)
    run = [Partition(part, kind, True, wall, source, hasty) for part in log]
    begin, stop = (START + source.randrange(300)) * MICROS, None
    for _ in range(3_000):
        going = [partition for partition in run if not partition.progress.is_over]
        if not going:
            return False
        if wall.now >= begin and source.random() < 0.1:
            stop = None if stop else CLOCKS[kind].stop_micros(wall.now)
        try:
            going[source.randrange(len(going))].step(lambda: stop)  # noqa: B023
        except AssertionError:
            return True
        wall.now += source.choice((0, MICROS // 10, MICROS, MICROS, 7 * MICROS))
    raise AssertionError("the run did not end")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_no_window_has_two_contents_whatever_the_log_shows_and_when(kind: str) -> None:
    assert not any(is_contradicted(seed, kind) for seed in range(60))


def test_this_test_finds_an_end_that_does_not_wait() -> None:
    assert any(is_contradicted(seed, "arrival", "clock") for seed in range(60))


def poller_of(kind: str, *, confirm: bool = False) -> PartitionPoller:
    return PartitionPoller(HELD, KEYS, CLOCKS[kind], SHARDS, domain=None, confirm=confirm)


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_records_that_come_for_ever_do_not_put_off_the_end(kind: str) -> None:
    """Ten come with every poll, and nobody ever sees the end of this log."""
    wall, source, stop = Wall(), random.Random(1), (START + 30) * MICROS
    records = [
        Shown(Arrival((f"u{n}", "item", at), at), at) for n in range(2000) for at in [(START * 10 + n) * MICROS // 10]
    ]
    reader = GrowingReader(records, wall, source, 10)
    poller = poller_of(kind)
    progress, after = poller.start(), 0
    while not progress.is_over:
        wall.now = max(wall.now, records[int(progress.position or 0)].shown_at) + MICROS
        assert wall.now < (START + 100) * MICROS
        after += poller.step("p", progress, reader, wall.now, find_stop=lambda: stop).counts["events_after_stop"]
    assert wall.now >= stop + SHOWN * MICROS
    assert after == int(progress.position or 0) - 301
    assert after > 50


def test_a_stop_and_the_end_behind_it_are_each_stored_before_they_act() -> None:
    """The last two of ten records arrived after the stop. Nobody is asked for it again, whatever the file says then."""
    arrivals = tuple(Arrival((f"u{n}", "item", START * MICROS), (START + n) * MICROS) for n in range(10))
    reader, poller = MemoryPartition("p", arrivals, 4).open(), poller_of("arrival", confirm=True)
    progress, stop, now = poller.start(), (START + 7) * MICROS, (START + 60) * MICROS
    poller.step("p", progress, reader, now)
    stopped = poller.step("p", progress, reader, now, find_stop=lambda: stop)
    assert (stopped.messages, progress.position, progress.stop_micros) == ([], "4", None), (
        "what was polled is not taken"
    )
    progress = poller.restore(progress.to_bytes())
    again = poller.step("p", progress, reader, now, find_stop=lambda: stop + 5 * MICROS)
    assert (again.marker, again.messages, progress.position) == (stopped.marker, [], "4")
    poller.step("p", progress, reader, now, is_confirmed=True)
    assert progress.stop_micros == stop
    steps = [poller.step("p", progress, reader, now, find_stop=lambda: stop + 5 * MICROS) for _ in range(3)]
    assert [step.counts["events_after_stop"] for step in steps] == [0, 2, 0]
    assert (progress.position, progress.next_window, progress.is_read) == ("10", 0, False)
    assert steps[1].marker == steps[2].marker != stopped.marker
    progress = poller.restore(progress.to_bytes())
    last = poller.step("p", progress, reader, now, is_confirmed=True)
    assert progress.is_over
    assert len([message for _, message in last.messages if message.announced]) == SHARDS * PLAN.schedule.horizon


def test_who_counted_what_arrived_after_a_stop_before_it_saw_the_stop_says_so() -> None:
    """Clocks that differ by more than was declared, or a stop file that shows late: the operator must know."""
    arrivals = tuple(Arrival((f"u{n}", "item", START * MICROS), (START + n) * MICROS) for n in range(10))
    for second, seen_late in ((9, 0), (8, 1)):
        reader, poller, stop = MemoryPartition("p", arrivals, 100).open(), poller_of("arrival"), START + second
        progress = poller.start()
        poller.step("p", progress, reader, START * MICROS)
        step = poller.step("p", progress, reader, START * MICROS, find_stop=lambda stop=stop: stop * MICROS)
        assert step.counts["stops_seen_late"] == seen_late
