"""One partition against an oracle that goes record by record: clocks, lateness, closings, and what a restart keeps."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.partition_progress import CLOCK_BEGIN, CLOCK_END, PartitionProgress, StreamClock
from dp_transforms.logs.streams.stream_source import Polled, passed_arrivals
from dp_transforms.plan.window_schedule import WindowSchedule
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
            if clock.clock == "event":
                continue
        own = arrival if clock.clock == "arrival" else min(time, arrival)
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
    for window, _, pairs in contributions_of_events(
        taken.batch, schedule, keys, windows_per_range=1, shards=SHARDS, first_open=taken.first_open
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


SLIDING = WindowSchedule(START, START + 60, 30, 10)  # windows end at 1010, 1020, .. 1080
HORIZON = 8


@given(RECORDS, CLOCKS, st.lists(st.integers(0, 40), max_size=5), st.sampled_from([10, 30]))
@example([(1000, 1017), (1009, 1020), (1000, 1018), (1059, 1021)], StreamClock("arrival", 7, 3), [2], 10)
def test_every_cut_into_polls_is_the_oracle(records, clock, cuts, slide):
    schedule = WindowSchedule(START, START + 60, 30, slide)
    expected_pairs, expected_refused, expected_closed = oracle(records, clock, schedule)
    progress = PartitionProgress(schedule, clock, SHARDS)
    bounds = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    found, refused, closed, late = set(), [], [], 0
    for low, high in itertools.pairwise(bounds):
        taken = progress.take(polled(records[low:high], str(high)), 0)
        # Ids are those of the poll: tell them by row.
        found |= {(low + row, window) for row, window in pairs_of_taken(taken, schedule)}
        refused += (taken.from_the_future // MICROS).tolist()
        late += taken.late
        closed += [window for window, _ in progress.close_windows(100)]
        progress = PartitionProgress.from_bytes(progress.to_bytes(), schedule, clock, SHARDS)
        assert progress.position == str(high)
    assert found == expected_pairs
    assert refused == expected_refused
    assert closed == list(range(expected_closed))
    read = [(row, *record) for row, record in enumerate(records) if record[0] is not None]
    accepted = [row for row, time, arrival in read if time <= arrival + clock.max_ahead_seconds]
    full = {
        row: sum(schedule.first_window(np.array([records[row][0] * MICROS])) >= 0) * schedule.windows_per_event
        for row in accepted
    }
    assert late == sum(sum(r == row for r, _ in found) < full[row] for row in accepted)


def test_what_was_sent_is_announced_once_and_windows_close_a_few_at_a_time():
    progress = PartitionProgress(SLIDING, CLOCK, SHARDS)
    progress.sent(0, 2, 5)
    progress.sent(0, 2, 1)
    progress.sent(3, 0, 2)
    progress.take(polled([(1059, 1200)]), 0)
    assert progress.is_read
    assert progress.close_windows(2) == [(0, [0, 0, 6]), (1, [0, 0, 0])]
    assert not progress.is_over
    again = PartitionProgress.from_bytes(progress.to_bytes(), SLIDING, CLOCK, SHARDS)
    for one in (progress, again):
        assert one.close_windows(100)[:2] == [(2, [0, 0, 0]), (3, [2, 0, 0])]
        assert one.is_over
        assert one.close_windows(100) == []


@pytest.mark.parametrize("hostile", [-(2**63), 2**63 - 1])
@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_times_at_the_limits_of_64_bits_do_not_wrap_around(kind, hostile):
    progress = PartitionProgress(SLIDING, StreamClock(kind), SHARDS)
    batch = batch_of([("u", "i", hostile), ("v", "i", (START + 1) * MICROS)])
    taken = progress.take(Polled(batch, np.array([hostile, START * MICROS]), "2", 2, True), 0)
    assert taken.from_the_future.tolist() == [hostile] * (hostile > 0)
    is_far = hostile > 0 and kind == "arrival"  # an arrival is believed
    assert (progress.windows_due, taken.late, taken.outside) == (HORIZON * is_far, is_far, hostile < 0)


def test_the_wall_clock_is_asked_only_when_idle_for_long_enough_and_when_it_would_close_something():
    progress, nothing = PartitionProgress(SLIDING, CLOCK, SHARDS), polled([], is_at_end=True)
    progress.take(polled([(1001, 1001)]), at(1001))

    def wanted(now, since=CLOCK_BEGIN, of=nothing):
        return progress.wanted_clock_micros(of, now, since)

    first_close = 1010 + 7 + 3 + 15  # its end, lateness, disorder and the idle timeout
    assert wanted(at(first_close)) is None
    assert wanted(at(first_close) + 1) == at(1020) + 1
    assert wanted(at(first_close) + 1, at(first_close) - at(15) + 2) is None, "opened too lately"
    for brings in (polled([(1002, 1002)], is_at_end=True), polled([])):
        assert wanted(at(first_close) + 1, of=brings) is None, "it is not idle"
    progress.take(polled([(1002, 1002)]), at(first_close))  # read just now
    assert wanted(at(first_close) + 1) is None
    assert wanted(at(first_close + 15)) == at(first_close)
    # After a stop the log is given the time that it needs to show what arrived before.
    progress.intend("stop", at(1020))
    progress.act()
    assert wanted(at(1020 + 15) - 1) is None
    assert wanted(at(1020 + 15)) == CLOCK_END
    shorter = PartitionProgress(SLIDING, StreamClock("arrival", 7, 3, 20, 15, 4), SHARDS)
    shorter.stop_micros = at(1020)
    assert [shorter.wanted_clock_micros(nothing, at(1024) - early, 0) for early in (1, 0)] == [None, CLOCK_END]


@pytest.mark.parametrize("kind", ["arrival", "event"])
def test_what_arrived_after_the_stop_counts_nowhere_and_makes_nobody_late(kind):
    """(time, arrival): the third and the fifth arrived later than 1020, and would close all windows."""
    clock = StreamClock(kind, 27, 3, 1000)
    rows = [(1001, 1001), (None, 1018), (1059, 1500), (None, 1600), (1058, 1020.000001), (1002, 1020), (1003, 1019)]
    counted = {row for row, (time, arrival) in enumerate(rows) if time is not None and arrival <= 1020}
    for cut in range(len(rows) + 1):
        progress = PartitionProgress(SLIDING, clock, SHARDS)
        progress.intend("stop", at(1020))
        assert progress.stop_micros is None, "it acts when it is confirmed"
        progress.act()
        found, after = set(), 0
        for low, high in ((0, cut), (cut, len(rows))):
            progress = PartitionProgress.from_bytes(progress.to_bytes(), SLIDING, clock, SHARDS)
            taken = progress.take(polled(rows[low:high]), 0)
            found |= {(low + row, window) for row, window in pairs_of_taken(taken, SLIDING)}
            after += taken.after_stop
        assert {row for row, _ in found} == counted
        assert found == {(row, window) for row in counted for window in range(3)}
        assert (after, taken.late) == (2, 0)
        assert progress.clock_micros == (at(1020) if kind == "arrival" else at(1003)), "the same however it is cut"
        assert progress.windows_due == 0


def test_a_stop_allows_for_what_clocks_differ():
    assert StreamClock(out_of_order_seconds=3).stop_micros(at(1020)) == at(1024)
    assert StreamClock(out_of_order_seconds=0).stop_micros(at(1020)) == at(1021)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":3', b'"version":2'),
        (b'"position":null', b'"position":7'),
        (b'"clock_micros":-', b'"clock_micros":-9'),
        (b'"next_window":1', b'"next_window":9'),
        (b'"kind":"stop"', b'"kind":"all"'),
        (b'"3":[2,0,0]', b'"3":[2,0]'),
        (b'"3":[2,0,0]', b'"3":[-2,0,0]'),
        (b'"3":[2,0,0]', b'"8":[2,0,0]'),
        (b"}", b""),
        (b'"position":null', b'"position":' + b"[" * 100_000),
        (b'"clock_micros"', b'"clocmicros"'),
        (b'"next_window":1', b'"next_window":-4294967296'),
        (b'"intent":{', b'"intent":{"a":null,'),
    ],
)
def test_a_state_that_nobody_wrote_is_refused(old, new):
    progress = PartitionProgress(SLIDING, CLOCK, SHARDS)
    progress.next_window = 1
    progress.sent(3, 0, 2)
    progress.intend("stop", 5)
    data = progress.to_bytes()
    assert PartitionProgress.from_bytes(data, SLIDING, CLOCK, SHARDS).to_bytes() == data
    assert old in data
    with pytest.raises(StreamError, match="damaged, or of another release"):
        PartitionProgress.from_bytes(data.replace(old, new), SLIDING, CLOCK, SHARDS)
    with pytest.raises(StreamError, match=r"started with shards=3, got 4\. Give the same"):
        PartitionProgress.from_bytes(data, SLIDING, CLOCK, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clock": "wall"}, "'arrival' or 'event', got 'wall'"),
        ({"allowed_lateness_seconds": -1}, "allowed_lateness_seconds must be from 0"),
        ({"out_of_order_seconds": math.nan}, "out_of_order_seconds must be from 0"),
        ({"idle_timeout_seconds": 0}, "idle_timeout_seconds must be > 0"),
        ({"idle_timeout_seconds": True}, "got True"),
        ({"shown_within_seconds": 61}, r"at most the idle timeout \(60\), got 61"),
    ],
)
def test_clocks_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StreamClock(**arguments)


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
