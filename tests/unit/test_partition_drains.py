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
from dp_transforms.logs.streams.partition_progress import TakenWindows
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
    counted_by_rule,
    counted_by_run,
    ended_run,
    partition_of,
)
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.small_runs import MICROS, START


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["arrival", "event"]), st.booleans(), st.booleans())
def test_what_counts_of_others_is_the_same_with_and_without_one_user(
    seed: int, kind: str, confirm: bool, is_stopped: bool
) -> None:
    log, asked, expected = case_of(seed, kind, is_stopped)
    without = [[one for one in part if not one.is_of_x] for part in log]
    assert counted_by_run(log, kind, confirm, asked, seed) == expected
    assert counted_by_run(without, kind, confirm, asked, seed + 1) == expected


@pytest.mark.parametrize("kind", ["arrival", "event"])
@pytest.mark.parametrize("seed", range(10))
def test_no_window_has_two_contents_whatever_the_log_shows_and_when(kind: str, seed: int) -> None:
    """Records show much later than was declared, stamps are in any order, and the stop file goes away and comes again
    at another time. A step asserts that no window has two contents."""
    source, wall = random.Random(seed), Wall()
    log = [partition_of(source, kind, number) for number in range(2)]
    late_from = source.randrange(30)
    for part in log:
        for at, one in enumerate(part):
            late = 60 * MICROS * (at > late_from)
            stamp = one.arrival.micros - source.randrange(100 * MICROS)
            part[at] = Shown(Arrival(one.arrival.event, stamp), one.shown_at + late)
    run = [Partition(part, kind, True, wall, source) for part in log]
    begin, stop = (START + source.randrange(300)) * MICROS, None
    for _ in range(3_000):
        going = [partition for partition in run if not partition.progress.is_over]
        if not going:
            return
        if wall.now >= begin and source.random() < 0.1:
            stop = None if stop else CLOCKS[kind].stop_micros(wall.now)
        going[source.randrange(len(going))].step(lambda: stop)  # noqa: B023
        wall.now += source.choice((0, MICROS // 10, MICROS, MICROS, 7 * MICROS))
    raise AssertionError("the run did not end")


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


@pytest.mark.parametrize("kind", ["arrival", "event"])
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 90))])
def test_a_stop_leaves_open_windows_whole_to_the_next_part(seed: int, kind: str) -> None:
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
    for partitions, own_seed, confirm in ((log, seed, seed % 2 > 0), (without, seed + 1, seed % 2 == 0)):
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
