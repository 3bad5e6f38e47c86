"""Gather on state that the test holds: one complete group for each key, and windows that wait for their turn."""

import random

import pytest

from dp_transforms.beam.gather import GatherCountedDoFn, WaitingWindows, parts_of_shards, parts_of_window, take_turn
from dp_transforms.monitor.operator_counts import LATE_BATCHES, MOST_MESSAGE_BYTES, messages_of
from dp_transforms.monitor.pairs import UserPairs, pairs_of_events, shards_of
from tests.helpers.beam_pipelines import LocalCounter
from tests.helpers.do_fn_state import Bag, Cell
from tests.helpers.small_runs import SECRET, batch_of, random_log, settings_of, small_plan


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
        messages = [message for blobs in sent for message in messages_of(blobs)]
        source.shuffle(messages)
        gathered = Gathered(senders)
        assert gathered.take(messages[:-1]) == []
        ((key, blobs),) = gathered.take(messages[-1:])
        assert (key, sorted(blobs)) == ((0, 0), sorted(b for blobs in sent for b in blobs))
        assert (gathered.blobs.content, gathered.count.content) == ([], None)


def test_more_than_was_announced_is_counted_and_never_emitted(monkeypatch):
    counts = LocalCounter.install(monkeypatch)
    gathered = Gathered(1)
    assert gathered.take([(0, b"a"), (0, b"b"), (2, b"c")]) == []
    assert counts[LATE_BATCHES] == 1


class CountingBag(Bag):
    """Counts the entries that are read and written."""

    work = 0

    def read(self):
        self.work += len(self.content)
        return super().read()

    def add(self, value):
        self.work += 1
        super().add(value)


class Turns:
    """A step that takes windows in order, as far as waiting goes."""

    def __init__(self, bag=Bag):
        self.near, self.far, self.waiting, self.next_window, self.dropped = bag(), bag(), Cell(), 0, 0

    def take(self, part):
        turn = take_turn(part, self.next_window, self.near, self.far, self.waiting)
        self.next_window += len(turn.windows)
        self.dropped += turn.dropped
        return turn.windows

    def held(self):
        return [*self.near.content, *self.far.content]


@pytest.mark.parametrize("order", ["even ones first", "backwards", "shuffled"])
def test_windows_out_of_turn_wait_at_a_cost_that_hardly_grows_with_their_number(order):
    """Work is counted in entries of state that are read and written again: reading all of them at each turn would be
    a million here."""
    windows = list(range(2_000))
    if order == "even ones first":
        windows.sort(key=lambda window: window % 2)
    elif order == "backwards":
        windows.reverse()
    else:
        random.Random(3).shuffle(windows)
    turns, outputs = Turns(CountingBag), []
    for number, window in enumerate(windows):
        outputs += turns.take((window, 1, []))
        assert len(turns.held()) == len(set(windows[: number + 1])) - turns.next_window
    assert outputs == [(window, []) for window in range(2_000)]
    assert turns.held() == []
    assert turns.near.work + turns.far.work < 150_000


def test_a_window_that_comes_again_has_one_turn():
    """While it waits, and when it had its turn."""
    turns = Turns()
    outputs = [window for at in (2, 2, 1, 3, 0, 0, 3) for window, _ in turns.take((at, 1, []))]
    assert outputs == [0, 1, 2, 3]
    assert (turns.held(), turns.dropped) == ([], 3)


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


def test_a_window_with_large_blobs_that_came_twice_has_its_turn():
    """Two parts with one content count as one. So a source that delivers a batch twice could stop the run for ever."""
    blob, other = bytes([1]) * (MOST_MESSAGE_BYTES * 2 // 3), bytes([2]) * (MOST_MESSAGE_BYTES * 2 // 3)
    turns, windows = Turns(), []
    for _, part in parts_of_window(((0, 0), [blob, other, blob, other]), "events"):
        windows += turns.take(part)
    assert [(window, set(blobs)) for window, blobs in windows] == [(0, {blob, other})]


def test_a_group_falls_into_its_shards():
    """A purse is in the shard of its user: none may act elsewhere, and no shard waits for ever."""
    plan, groups, shards = small_plan(1), 3, 12
    keys, held, expected = settings_of(plan).stream_keys(SECRET), {}, set()
    for half in range(2):
        events = batch_of(random_log(plan, half, events=200))
        for _, group, pairs in pairs_of_events(events, plan.schedule, keys, windows_per_slab=1, shards=groups):
            held.setdefault(group, []).extend(pairs.messages())
            expected |= rows_of(pairs)
    assert len({user % shards for user, _ in expected}) == shards - 1, "one has nobody"
    found = set()
    for group in range(groups):
        seen = []
        for shard, (window, parts, blobs) in parts_of_shards(((0, group), held[group]), groups, shards):
            seen.append(shard)
            assert (window, parts) == (0, 1)
            pairs = UserPairs.of_messages(blobs)
            assert set(shards_of(pairs, shards).tolist()) <= {shard}
            found |= rows_of(pairs)
        assert seen == list(range(group, shards, groups))
        empty = list(parts_of_shards(((4, group), []), groups, shards))
        assert empty == [(shard, (4, 1, [])) for shard in seen]
    assert found == expected


def rows_of(pairs):
    return set(zip(pairs.users[pairs.codes].tolist(), pairs.table.hashes[pairs.items, 0].tolist(), strict=True))
