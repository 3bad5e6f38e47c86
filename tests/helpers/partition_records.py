"""Records of one partition, and an oracle that takes them one by one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from dp_transforms.logs.streams.partition_progress import StreamClock
from dp_transforms.logs.streams.stream_source import Polled, passed_arrivals
from dp_transforms.monitor.pairs import pairs_of_events
from tests.helpers.small_runs import SECRET, batch_of, settings_of, small_plan

MICROS = 1_000_000
START = 1_000
SHARDS = 3
CLOCK = StreamClock("arrival", 7, 3, 20, 15)


def polled(records, position="0", is_at_end=False):
    """records: (time, arrival) in seconds; time None for one that cannot be read."""
    log = [(f"u{row}", f"i{row}", round(time * MICROS)) for row, (time, _) in enumerate(records) if time is not None]
    arrivals = np.array([round(arrival * MICROS) for _, arrival in records], dtype=np.int64)
    rows = np.flatnonzero([time is not None for time, _ in records])
    passed = passed_arrivals(arrivals, rows)
    return Polled(batch_of(log), arrivals[rows], position, len(records), is_at_end, passed_micros=passed)


def oracle(records, clock, schedule):
    """Record by record, in seconds: windows of each record, what is refused, and how many windows are closed."""
    ends = [schedule.start_seconds + schedule.slide_seconds * (window + 1) for window in range(schedule.horizon)]
    value, closed, pairs, refused = -math.inf, 0, set(), []
    for row, (time, arrival) in enumerate(records):
        is_refused = time is None or time > arrival + clock.max_ahead_seconds
        if is_refused:
            refused += [] if time is None else [time]
            if clock.kind == "event":
                continue
        own = arrival if clock.kind == "arrival" else min(time, arrival)
        for window, end in enumerate(ends if not is_refused else ()):
            is_inside = schedule.start_seconds <= time < schedule.end_seconds
            in_window = end - schedule.window_seconds <= time < end
            is_late = own > end + clock.allowed_lateness_seconds or window < closed
            if is_inside and in_window and not is_late:
                pairs.add((row, window))
        value = max(value, own)
        for window, end in enumerate(ends):
            if value - clock.out_of_order_seconds > end + clock.allowed_lateness_seconds:
                closed = window + 1
    return pairs, refused, closed


def pairs_of_taken(taken, schedule):
    """(row, window) of all pairs that the poll makes: row by the name of its user."""
    keys = settings_of(small_plan()).stream_keys(SECRET)
    names = dict(
        zip(keys.hash_items(taken.batch.item.dictionary)[:, 0], taken.batch.item.dictionary.to_pylist(), strict=True)
    )
    found = set()
    for window, _, pairs in pairs_of_events(
        taken.batch, schedule, keys, windows_per_slab=1, shards=SHARDS, first_open=taken.first_open
    ):
        assert (pairs.windows == window).all()
        found |= {(int(names[pairs.table.hashes[item, 0]][1:]), window) for item in pairs.items}
    return found


SECONDS = st.integers(START - 60, START + 150)
RECORDS = st.lists(st.tuples(SECONDS | st.none(), SECONDS), max_size=40)
CLOCKS = st.builds(
    StreamClock,
    st.sampled_from(["arrival", "event"]),
    st.sampled_from([0, 1, 7, 40]),
    st.sampled_from([0, 1, 5, 30]),
    st.sampled_from([0, 20, 1000]),
)


def at(seconds):
    """In microseconds."""
    return seconds * MICROS
