"""What arrived too early to count may be passed over, and nobody can tell."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.logs.streams.partition_poller import PartitionPoller
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.monitor.pairs import UserPairs
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.memory_stream import Arrival, MemoryPartition
from tests.helpers.partition_records import CLOCKS, MICROS, RECORDS, SHARDS, START, oracle, pairs_of_taken, polled
from tests.helpers.small_runs import SECRET, settings_of, small_plan


@settings(max_examples=250, deadline=None)
@given(RECORDS, CLOCKS, st.sampled_from([10, 30]))
def test_a_partition_without_its_early_records_gives_the_same_pairs_and_closes_the_same_windows(records, clock, slide):
    schedule = WindowSchedule(START, START + 60, 30, slide)
    first = clock.first_arrival_micros(schedule) // MICROS
    begin = next((row for row, (_, arrival) in enumerate(records) if arrival >= first), len(records))
    whole, _, closed = oracle(records, clock, schedule)
    progress = PartitionProgress(schedule, clock, SHARDS)
    taken = progress.take(polled(records[begin:]), 0)
    assert {(begin + row, window) for row, window in pairs_of_taken(taken, schedule)} == whole
    assert progress.windows_due == closed


@pytest.mark.parametrize("max_ahead", [0, 20])
def test_one_second_later_would_be_too_late(max_ahead):
    """An event that arrives at the first moment counts, if it may be so far ahead."""
    schedule, clock = WindowSchedule(START, START + 60, 30, 30), StreamClock("arrival", 7, 3, max_ahead)
    first = clock.first_arrival_micros(schedule) // MICROS
    assert oracle([(START, first)], clock, schedule)[0] == {(0, 0)}
    assert oracle([(START, first - 1)], clock, schedule)[0] == set()
    assert oracle([(START - 1, first - 1)], clock, schedule)[0] == set()


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_all_that_is_sent_is_the_same(kind):
    plan = small_plan(12, sliding=3)
    held, clock = settings_of(plan), StreamClock(kind, 7, 3, 60, 15)
    first = clock.first_arrival_micros(plan.schedule)
    start = plan.schedule.start_seconds * MICROS
    source = random.Random(5)
    moments = sorted(start + source.randrange(-600 * MICROS, 400 * MICROS) for _ in range(3000))
    arrivals = [
        Arrival((f"u{source.randrange(50)}", "item", moment + source.randrange(-90 * MICROS, 70 * MICROS)), moment)
        for moment in moments
    ]

    def sent(since_micros):
        partition = MemoryPartition("p", tuple(arrivals), 500)
        poller = PartitionPoller(held, held.stream_keys(SECRET), clock, SHARDS, domain=None, confirm=False)
        progress, reader, blobs, read = poller.start(), partition.open(since_micros), {}, 0
        for _ in range(100):
            step = poller.step("p", progress, reader, start + 10**6 * MICROS)
            read += step.counts.get("records_read", 0)
            for key, message in step.messages:
                if message.blob:
                    blobs.setdefault(key, []).append(UserPairs.from_bytes(message.blob))
        assert progress.is_over
        return {key: UserPairs.merge(parts).to_bytes() for key, parts in blobs.items()}, read

    everything, read = sent(0)
    later, read_later = sent(first)
    assert later == everything
    assert len(everything) > 12
    assert 500 < read_later < read - 1000
