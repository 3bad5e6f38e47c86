"""A stop is an arrival time: what counts of others does not depend on one user's rows, nor on where reading was.

Partitions are read by the product's own poller out of a log that grows, under a wall clock of the test's own: polls of
any size, records that show late, restarts from stored bytes with steps done again, and a stop at any moment. What
counts is compared with a rule that looks at one record alone, and so with and without all rows of one user.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.partition_progress import CLOCK_END, PartitionProgress
from tests.helpers.growing_partitions import (
    CLOCKS,
    HELD,
    KEYS,
    PLAN,
    SHARDS,
    SHOWN,
    GrowingReader,
    Partition,
    Shown,
    Wall,
    case_of,
    counted_by_run,
    partition_of,
)
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, START


@settings(max_examples=40, deadline=None)
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


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_no_window_has_two_contents_whatever_the_log_shows_and_when(kind: str) -> None:
    assert not any(is_contradicted(seed, kind) for seed in range(20))


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
