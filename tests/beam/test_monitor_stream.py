"""`MonitorStream` publishes what `ShiftingHeavyHitters` publishes over the events in time, however the stream comes."""

from __future__ import annotations

import random
import time

import pytest

from dp_transforms.beam.count_for_operator import LATE_BATCHES
from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.beam.monitor_heavy_hitters import CountedMonitorDoFn, _with_key
from dp_transforms.beam.monitor_stream import MonitorStream
from dp_transforms.event_streams.partition_poller import announced
from dp_transforms.event_streams.partition_progress import StreamClock
from dp_transforms.event_streams.stream_source import StreamError
from dp_transforms.item_domain import ItemDomain
from dp_transforms.monitoring.candidates import find_candidates
from dp_transforms.monitoring.contributions import bound_contributions
from dp_transforms.monitoring.counted_messages import holder_messages, pair_messages
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.user_pairs import UserPairs, pairs_of_events
from dp_transforms.monitoring.window_report import RunEnded
from tests.helpers.beam_pipelines import LocalCounter, local_pipeline
from tests.helpers.cells import cells_by_position
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret
from tests.helpers.memory_stream import BROKEN, Arrival, MemoryStream
from tests.helpers.oracle import oracle_reports, oracle_transcript
from tests.helpers.small_runs import (
    MICROS,
    RUN_ID,
    SECRET,
    START,
    batch_of,
    random_log,
    settings_of,
    small_plan,
)
from tests.helpers.stream_runs import CLOCK, Ran

DOMAIN = (*(f"item-{number}" for number in range(0, 12, 2)), *(f"nobody's-{number}" for number in range(30)))


def ordered_log(plan, seed, events=1000):
    """In the order of time, within the declared range or just before it."""
    end = plan.schedule.end_seconds * MICROS
    return sorted((e for e in random_log(plan, seed, events) if 0 < e[2] < end), key=lambda e: e[2])


def arrivals_of(log, delay_seconds=0):
    return [Arrival(event, event[2] + delay_seconds * MICROS) for event in log]


def spread(arrivals, partitions):
    return [arrivals[number::partitions] for number in range(partitions)]


def test_the_transcript_is_that_of_the_log_however_the_stream_is_cut(tmp_path):
    """Partitions, sizes of polls, shards, order in a partition below the lateness, and events that come twice."""
    plan = small_plan(9, sliding=3, release="labels", max_items_per_user=1, hits_per_user=2)
    log = ordered_log(plan, 5, 700)
    source = random.Random(2)
    in_disorder = [Arrival(event, event[2] + source.randrange(20 * MICROS)) for event in log]
    in_disorder.sort(key=lambda arrival: arrival.micros)
    twice = sorted([*in_disorder, *in_disorder], key=lambda arrival: arrival.micros)
    ran = Ran(
        tmp_path,
        {
            "one partition": (MemoryStream.of([arrivals_of(log)], 10**6), plan, {}),
            "five, tiny polls": (MemoryStream.of(spread(arrivals_of(log), 5), 17), plan, {"shards": 3}),
            "disorder": (MemoryStream.of(spread(in_disorder, 2)), plan, {"shards": 1}),
            "one is empty": (MemoryStream.of([[], in_disorder]), plan, {}),
            "twice": (MemoryStream.of(spread(twice, 3)), plan, {}),
        },
    )
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert expected.bounded
    assert expected.kept_out > 0
    for name, reports in ran.reports.items():
        assert reports == expected.reports, name
        assert ran.stamps[name] == [report.window_end - 1 for report in expected.reports]
        assert ran.ended[name] == [RunEnded("events", plan.schedule.horizon, reports=len(expected.reports))]
        assert not ran.rejected[name]
    assert ran.counts["windows_closed"] == 5 * plan.schedule.horizon
    assert ran.counts["events_read"] == 6 * len(log)
    assert "events_late" not in ran.counts
    assert not ran.counts.get(LATE_BATCHES)


def test_both_clocks_leave_out_what_is_late_and_say_so(tmp_path):
    """30 holders of an item come too late for the first window; in sliding windows in time for the next ones."""
    for sliding, first_windows_missed in ((1, 1), (3, 3)):
        plan = small_plan(12, sliding=sliding, hits_per_user=3, window_seconds=60)
        slide = 60 // sliding
        early = (START + 1) * MICROS
        missed_end = START + slide * first_windows_missed
        in_time = [(f"u{user}", "news", early) for user in range(30)]
        late = [(f"u{user}", "news", early) for user in range(30, 60)]
        busy = [(f"u{user}", "sport", (missed_end + 1) * MICROS) for user in range(40)]
        for kind in ("arrival", "event"):
            clock = StreamClock(kind, 20, 0, 10**6, 0.2)
            tip = ("tip", "tip", (missed_end + 21) * MICROS)
            told = [*arrivals_of(in_time), *arrivals_of(busy), Arrival(tip, tip[2])]
            told += [Arrival(event, (missed_end + 20) * MICROS + 1) for event in late]
            ran = Ran(tmp_path, {"stream": (MemoryStream.of([told], 7), plan, {"clock": clock})})
            assert ran.reports["stream"] == oracle_reports([*in_time, *busy, tip], settings_of(plan), SECRET)
            assert ran.counts["events_late"] == 30


def test_an_event_that_misses_some_windows_counts_in_the_others(tmp_path):
    plan = small_plan(12, sliding=3, hits_per_user=3)
    end = (START + 20) * MICROS  # of the first of the three windows that hold these events
    log = [(f"u{user}", "news", (START + 1) * MICROS) for user in range(30)]
    ran = Ran(
        tmp_path, {"stream": (MemoryStream.of([[Arrival(event, end + 20 * MICROS + 1) for event in log]]), plan, {})}
    )
    everywhere = oracle_reports(log, settings_of(plan), SECRET)
    assert [report.window_end for report in everywhere] == [end, end + 20 * MICROS, end + 40 * MICROS]
    assert [report.window_end for report in ran.reports["stream"]] == [end + 20 * MICROS, end + 40 * MICROS]
    assert ran.counts["events_late"] == 30


def test_events_from_the_future_and_broken_rows_are_refused_and_told(tmp_path):
    plan = small_plan(6)
    log = [(f"u{user}", "news", (START + 10) * MICROS) for user in range(30)]
    future = [(f"u{user}", "news", (START + 311) * MICROS) for user in range(30)]
    told = [*arrivals_of(log), Arrival(BROKEN, 0), *(Arrival(event, (START + 10) * MICROS) for event in future)]
    ran = Ran(tmp_path, {"stream": (MemoryStream.of([told], 8), plan, {})})
    assert ran.reports["stream"] == oracle_reports(log, settings_of(plan), SECRET)
    broken, *refused = ran.rejected["stream"]
    assert (broken.source, list(broken.positions), broken.reason) == ("partition-0", [30], "broken")
    assert sorted(time for rows in refused for time in rows.positions) == [event[2] for event in future]
    assert (ran.counts["events_from_the_future"], ran.counts["events_rejected"]) == (30, 1)


@pytest.mark.parametrize(("release", "threshold"), [("labels", 2), ("kms21", 100)])
def test_a_known_domain_and_windows_without_events(tmp_path, release, threshold):
    plan = small_plan(release=release, sliding=3, threshold=threshold, domain=DOMAIN, hits_per_user=2)
    log = ordered_log(plan, 5)
    ran = Ran(
        tmp_path,
        {
            "busy": (MemoryStream.of(spread(arrivals_of(log), 3)), plan, {"shards": 3}),
            "no event": (MemoryStream.of([[]]), plan, {}),
        },
        domain=ItemDomain.of_ids(DOMAIN),
    )
    for name, events in (("busy", log), ("no event", [])):
        expected = oracle_transcript(events, settings_of(plan), SECRET, DOMAIN)
        assert expected.false_reports > 5
        assert ran.reports[name] == expected.reports, name
        assert len(ran.ended[name]) == 1
    assert ran.counts["events_outside_domain"] > 0


def test_a_stop_file_ends_the_run_with_what_arrived_before_it(tmp_path):
    """Half of the records are stamped with a moment after it. Nothing but the file ends this run."""
    plan = small_plan(4)
    log = [(f"u{user}", "news", (START + 1) * MICROS) for user in range(30)]
    stop = tmp_path / "stop"
    stop.touch()
    never = StreamClock("event", 20, 0, idle_timeout_seconds=366 * 86_400, shown_within_seconds=0.1)
    later = [(f"u{user}", "sport", (START + 2) * MICROS) for user in range(30)]
    far = (int(time.time()) + 10**6) * MICROS
    source = MemoryStream.of([[*arrivals_of(log), *(Arrival(event, far) for event in later)]], 7)
    ran = Ran(tmp_path, {"stream": (source, plan, {"clock": never, "stop_file": str(stop)})})
    expected = oracle_reports(log, settings_of(plan), SECRET)
    assert expected
    assert ran.reports["stream"] == expected
    assert ran.ended["stream"] == [RunEnded("events", 4, reports=len(expected))]
    assert (ran.counts["events_after_stop"], "stops_seen_late" in ran.counts) == (30, False)


def test_arguments_that_cannot_be_used_are_refused(tmp_path):
    plan, source = small_plan(4), MemoryStream.of([[]])
    for arguments, message in (
        ({"run_id": None}, "run_id must be given"),
        ({"run_id": ""}, "run_id must be a printable"),
        ({"driver": "magic"}, "'timers' or 'loop'"),
        ({"clock": 60}, "clock must be a StreamClock"),
        ({"poll_seconds": 0}, "poll_seconds must be > 0"),
        ({"stop_file": "gs://bucket/stop"}, "stop_file must be a path"),
        ({"shards": 0}, "shards must be"),
        ({"domain": ItemDomain.of_ids(DOMAIN)}, "open domain"),
    ):
        with pytest.raises(ValueError, match=message):
            MonitorStream(source, plan, **{"clock": CLOCK, "run_id": RUN_ID, **arguments})
    with pytest.raises(StreamError, match="must have partitions"):
        _ = local_pipeline() | MonitorStream(MemoryStream.of([]), plan, clock=CLOCK, run_id=RUN_ID)


# ---------------------------------------------------------------------------------------------------------------------
# Gathering by count
# ---------------------------------------------------------------------------------------------------------------------


class Gathered:
    """One key of `GatherCountedDoFn`."""

    def __init__(self, senders):
        self.do_fn, self.blobs, self.count = GatherCountedDoFn(senders), Bag(), Cell()

    def take(self, messages):
        return [
            group for message in messages for group in self.do_fn.process(((0, 0), message), self.blobs, self.count)
        ]


def test_a_group_is_complete_when_all_that_was_announced_has_come_in_any_order():
    for seed in range(200):
        source = random.Random(seed)
        senders = source.randrange(1, 5)
        sent = [[f"{sender}.{at}".encode() for at in range(source.randrange(4))] for sender in range(senders)]
        messages = [message for blobs in sent for message in announced(blobs)]
        source.shuffle(messages)
        gathered = Gathered(senders)
        assert gathered.take(messages[:-1]) == []
        ((key, blobs),) = gathered.take(messages[-1:])
        assert (key, sorted(blobs)) == ((0, 0), sorted(b for blobs in sent for b in blobs))
        assert (gathered.blobs.content, gathered.count.content) == ([], None)


def test_more_than_was_announced_is_counted_and_never_emitted(monkeypatch):
    monkeypatch.setattr("dp_transforms.beam.gather_counted.operator_counter", LocalCounter)
    LocalCounter.counts.clear()
    gathered = Gathered(1)
    assert gathered.take([(0, b"a"), (0, b"b"), (2, b"c")]) == []
    assert LocalCounter.counts[LATE_BATCHES] == 1


class Monitored:
    """`GatherCountedDoFn` by window and `CountedMonitorDoFn` behind it."""

    def __init__(self, plan, shards):
        self.gather, self.monitor, self.groups = (
            GatherCountedDoFn(shards),
            CountedMonitorDoFn(settings_of(plan), HeldSecret()),
            {},
        )
        self.monitor.setup()
        self.state = {"near": Bag(), "far": Bag(), "waiting": Cell(), "budgets": Bag(), "progress": Cell()}

    def take(self, message):
        for (window, _), group in self.gather.process(message, *self.groups.setdefault(message[0], (Bag(), Cell()))):
            for _, part in _with_key(((window, 0), group), "events"):
                yield from self.close(part)

    def close(self, part):
        return self.monitor.process(("events", part), **self.state)

    @property
    def closed(self):
        """How many windows are closed: the first number of the progress."""
        return int.from_bytes((self.state["progress"].content or bytes(8))[:8], "little")

    @property
    def waiting(self):
        return [*self.state["near"].content, *self.state["far"].content]


@pytest.mark.parametrize("order", ["even ones first", "backwards", "shuffled"])
def test_windows_out_of_turn_wait_at_a_cost_that_hardly_grows_with_their_number(order):
    """Work is counted in entries of state that are read and written again: reading all of them at each turn would be
    a million here."""
    plan, source = small_plan(2_000), random.Random(3)
    windows = list(range(2_000))
    if order == "even ones first":
        windows.sort(key=lambda window: window % 2)
    elif order == "backwards":
        windows.reverse()
    else:
        source.shuffle(windows)
    monitor = Monitored(plan, 1)
    monitor.state["near"], monitor.state["far"] = bags = CountingBag(), CountingBag()
    outputs = []
    for turn, window in enumerate(windows):
        outputs += list(monitor.close((window, 1, [])))
        assert len(monitor.waiting) == len(set(windows[: turn + 1])) - monitor.closed
    assert [output.value for output in outputs] == [RunEnded("events", 2_000)]
    assert monitor.waiting == []
    assert sum(bag.work for bag in bags) < 150_000


def test_a_window_that_waits_twice_is_closed_once(monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    monitor = Monitored(small_plan(4), 1)
    outputs = [output for window in (2, 2, 1, 3, 0) for output in monitor.close((window, 1, []))]
    assert [output.value for output in outputs] == [RunEnded("events", 4)]
    assert (monitor.waiting, counts[LATE_BATCHES]) == ([], 1)


class CountingBag(Bag):
    """Counts the entries that are read and written."""

    work = 0

    def read(self):
        self.work += len(self.content)
        return super().read()

    def add(self, value):
        self.work += 1
        super().add(value)


def messages_to_the_monitor(plan, log, shards):
    """What the item shards of all windows send to the monitor, in order."""
    settings, keys = settings_of(plan), settings_of(plan).stream_keys(SECRET)
    cells = {}
    for window, _, pairs in pairs_of_events(batch_of(log), plan.schedule, keys, windows_per_slab=1, shards=1):
        bounded = bound_contributions(pairs, plan.max_items_per_user, keys)
        for shard, part in ItemHolders.of_pairs(bounded).shard_by_item(shards):
            cells[window, shard] = find_candidates(part, settings, keys)
    for window in range(plan.schedule.horizon):
        for shard in range(shards):
            blobs = list(holder_messages(cells[window, shard], 200)) if (window, shard) in cells else []
            for message in announced(blobs):
                yield (window, 0), message


@pytest.mark.parametrize("most_bytes", [10**6, 1])
@pytest.mark.parametrize("order", ["in order", "backwards", "shuffled", "the first window last"])
def test_the_monitor_closes_windows_in_order_whatever_order_their_parts_have(order, most_bytes, monkeypatch):
    monkeypatch.setattr("dp_transforms.beam.monitor_heavy_hitters.MOST_MESSAGE_BYTES", most_bytes)
    plan = small_plan(30, sliding=3, release="labels", max_items_per_user=1, hits_per_user=2)
    log = ordered_log(plan, 8)
    messages = list(messages_to_the_monitor(plan, log, 3))
    assert len(messages) > 3 * plan.schedule.horizon, "some were cut"
    if order == "backwards":
        messages.reverse()
    elif order == "shuffled":
        random.Random(1).shuffle(messages)
    elif order == "the first window last":
        messages.sort(key=lambda message: message[0][0] == 0)
    monitor = Monitored(plan, 3)
    outputs = [output for message in messages for output in monitor.take(message)]
    expected = oracle_transcript(log, settings_of(plan), SECRET)
    assert expected.kept_out > 0
    end = RunEnded("events", plan.schedule.horizon, reports=len(expected.reports))
    assert [output.value for output in outputs] == [*expected.reports, end]
    assert monitor.waiting == []
    assert not any(blobs.content for blobs, _ in monitor.groups.values())
    for window in (5, plan.schedule.horizon - 1):
        assert list(monitor.close((window, 1, []))) == [], "a window that is closed stays closed"
        assert monitor.waiting == []


def test_messages_stay_under_their_limit_and_add_up_to_the_whole():
    plan = small_plan(6, sliding=3)
    keys = settings_of(plan).stream_keys(SECRET)
    batch = batch_of(
        [(f"u{number % 50}", f"item {number % 9} {'x' * 90}", (START + number) * MICROS) for number in range(99)]
    )
    ((_, _, pairs),) = pairs_of_events(batch, plan.schedule, keys, windows_per_slab=100, shards=1)
    for limit in (200, 1500, 10**6):
        blobs = list(pair_messages(pairs, limit))
        assert (max(map(len, blobs)) <= limit) == (limit > 200), "a row alone can be larger"
        assert UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs]).to_bytes() == pairs.to_bytes()
    cells = ItemHolders.of_pairs(pairs)
    for limit in (265, 1500, 10**6):
        blobs = list(holder_messages(cells, limit))
        assert max(map(len, blobs)) <= limit
        assert (len(blobs) > len(cells)) == (limit == 265), "cells were cut too"
        merged = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs])
        assert cells_by_position(merged) == cells_by_position(cells)
