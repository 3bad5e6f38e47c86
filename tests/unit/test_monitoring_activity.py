"""How active the users of a log are, against a count by sets."""

import collections
import random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.monitor.activity import ActivityCounter
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import MICROS, batches_of

SECRET = bytes(range(32))


def counted(log, schedule, size=100):
    counter = ActivityCounter(schedule, SECRET)
    for batch in batches_of(log, size):
        counter.add(batch)
    return sorted(counter.pairs_of_users().tolist())


def by_sets(log, schedule):
    """Each window on its own."""
    pairs = collections.defaultdict(set)
    for user, item, time in log:
        if not schedule.start_seconds * MICROS <= time < schedule.end_seconds * MICROS:
            continue
        for window in range(schedule.horizon):
            if schedule.window_start_micros(window) <= time < schedule.window_end_micros(window):
                pairs[user].add((window, item))
    return sorted(len(found) for found in pairs.values())


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(-5, 45)), max_size=40),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 15),
)
def test_pairs_are_counted_as_sets_count_them(rows, overlap, size):
    schedule = WindowSchedule(0, 40, 10, 10 // overlap)
    log = [(user, item, second * MICROS) for user, item, second in rows]
    assert counted(log, schedule, size) == by_sets(log, schedule)


def test_many_users():
    source = random.Random(3)
    schedule = WindowSchedule.sliding(0, 1000, 50, 25)
    log = [
        (f"u{int(source.expovariate(0.02))}", f"i{source.randrange(20)}", source.randrange(-100, 1100) * MICROS)
        for _ in range(3000)
    ]
    assert counted(log, schedule, 700) == by_sets(log, schedule)


def test_the_order_of_batches_and_repeated_labels_change_nothing():
    schedule = WindowSchedule.fixed(0, 100, 10)
    again = EventBatch(
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), pa.array(["u", "u"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["i", "i"])),
        np.array([0, 1, 15 * MICROS]),
    )
    counter = ActivityCounter(schedule, SECRET)
    counter.add(again)
    counter.add(again)
    assert counter.pairs_of_users().tolist() == [2]


def test_events_outside_the_windows_are_left_out_and_counted():
    counter = ActivityCounter(WindowSchedule.fixed(0, 100, 10), SECRET)
    for batch in batches_of([("u", "i", -1), ("u", "i", 100 * MICROS), ("v", "i", 2**62)], 2):
        counter.add(batch)
    assert counter.outside == 3
    assert counter.pairs_of_users().tolist() == []
