"""`MonitorCounted` on state that the test holds: windows are closed in order, in whatever order they come."""

from __future__ import annotations

import random

import pytest

from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.beam.gather_in_order import WaitingWindows, parts_of_window
from dp_transforms.beam.monitor_counted import CountedMonitorDoFn
from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.contributions import bound_contributions
from dp_transforms.monitor.counted_messages import holder_messages, messages_of
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.monitor.user_pairs import pairs_of_events
from dp_transforms.monitor.window_report import RunEnded
from tests.helpers.beam_pipelines import LocalCounter
from tests.helpers.do_fn_state import Bag, Cell, HeldSecret
from tests.helpers.oracle import oracle_transcript
from tests.helpers.small_runs import SECRET, batch_of, ordered_log, settings_of, small_plan


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
            for _, part in parts_of_window(((window, 0), group), "events"):
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


def test_a_part_that_comes_twice_takes_the_place_of_no_other():
    near, far = Bag(), Bag()
    queue = WaitingWindows(near, far, None)
    first, second = (0, 2, [b"A"]), (0, 2, [b"B"])
    for part in (first, first):
        queue.add(part)
        assert queue.take_from(0) == []
    queue.add(second)
    assert queue.take_from(0) == [[first, second]]
    assert (queue.dropped, len(queue)) == (1, 0)


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
            for message in messages_of(blobs):
                yield (window, 0), message


@pytest.mark.parametrize("most_bytes", [10**6, 1])
@pytest.mark.parametrize("order", ["in order", "backwards", "shuffled", "the first window last"])
def test_the_monitor_closes_windows_in_order_whatever_order_their_parts_have(order, most_bytes, monkeypatch):
    monkeypatch.setattr("dp_transforms.beam.gather_in_order.MOST_MESSAGE_BYTES", most_bytes)
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
