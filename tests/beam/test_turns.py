"""`Turns` on state that the test holds: windows are whole, in order, once; and what waiting costs."""

import math
import random
from collections import defaultdict

import pytest

from dp_transforms.beam.turns import Progress, Turns, store
from dp_transforms.core.stage import Message, messages_of
from tests.helpers.do_fn_state import Bag, Cell, CountingBag


class CountingCell(Cell):
    most = 0

    def write(self, value):
        self.most = max(self.most, len(value))
        super().write(value)


class Shard:
    """The state of one shard, and what has come out of it: the blobs of each window, sorted."""

    def __init__(self, senders):
        self.senders = senders
        self.bags, self.stored = tuple(CountingBag() for _ in range(3)), CountingCell()
        self.windows, self.dropped = [], 0

    def take(self, messages):
        for message in messages:
            progress = Progress.read(self.stored)
            turns, first, found = Turns(progress, self.bags, self.senders), progress.next_window, defaultdict(list)
            for window, _, blob in turns.add(message):
                found[window].append(blob)
            self.windows += [(window, sorted(found[window])) for window in range(first, progress.next_window)]
            self.stored.write(progress.to_bytes())
            self.dropped += turns.dropped
        return self.windows

    @property
    def work(self):
        return sum(bag.read_entries + bag.writes for bag in self.bags)

    def held(self):
        return sum(len(bag.content) for bag in self.bags)


def announced(windows):
    """By one sender that has nothing else to say."""
    return [Message(window, 1, b"") for window in windows]


@pytest.mark.parametrize(("windows", "seeds"), [(1, 20), (40, 20), (700, 2)])
def test_whatever_the_order_a_window_has_its_turn_when_it_is_next_and_whole(windows, seeds):
    """Beside a model that holds everything."""
    for seed in range(seeds):
        source = random.Random(f"{seed} {windows}")
        senders = source.randrange(1, 5)
        sent = {
            (window, sender): [f"{window}.{sender}.{at}".encode() for at in range(source.randrange(4))]
            for window in range(windows)
            for sender in range(senders)
        }
        messages = [message for (window, _), blobs in sent.items() for message in messages_of(window, blobs)]
        source.shuffle(messages)
        if source.random() < 0.5:  # senders are not far apart
            messages.sort(key=lambda message: message.window + 20 * source.random())
        missing, expected = defaultdict(int), defaultdict(list)
        for (window, _), blobs in sent.items():
            missing[window] += len(blobs or [b""])
            expected[window] += blobs
        shard, next_window = Shard(senders), 0
        for message in messages:
            missing[message.window] -= 1
            while missing.get(next_window) == 0:
                next_window += 1
            assert len(shard.take([message])) == next_window
        assert shard.windows == [(window, sorted(expected[window])) for window in range(windows)]
        assert (shard.held(), shard.dropped) == (0, 0)


def test_what_comes_late_or_is_more_than_was_announced_is_dropped_and_counted():
    shard = Shard(1)
    assert shard.take([Message(0, 0, b"a"), Message(0, 0, b"b"), Message(0, 2, b"c")]) == []
    assert shard.dropped == 1, "the sender has said two and sent three"
    shard = Shard(2)
    assert shard.take([Message(1, 1, b"a"), Message(1, 1, b"b"), Message(1, 0, b"c"), Message(1, 1, b"d")]) == []
    assert shard.dropped == 2, "while the window waits for its turn"
    shard.take(announced([0, 0]))
    assert shard.windows == [(0, []), (1, [b"a", b"b"])]
    shard.take([*announced([0]), Message(1, 0, b"e")])
    assert (len(shard.windows), shard.dropped, shard.held()) == (2, 4, 0)


def test_a_window_that_comes_again_has_one_turn_and_a_blob_that_comes_twice_is_two_messages():
    """While it waits, near or far, and when it had its turn."""
    shard = Shard(1)
    shard.take(announced([2, 2, 1, 300, 300, 0, 0, 3, 1]))
    assert shard.windows == [(window, []) for window in range(4)]
    shard.take([*messages_of(301, [b"the same", b"the same"]), *announced(range(4, 300))])
    assert shard.windows == [*((window, []) for window in range(301)), (301, [b"the same", b"the same"])]
    assert (shard.dropped, shard.held()) == (4, 0)


@pytest.mark.parametrize(("windows", "most"), [(60, 12), (1_000, 20)])
def test_a_backlog_with_one_partition_behind_costs_as_its_messages(windows, most):
    """Two senders of four messages a window; the second one begins when the first has sent everything.

    most: how often a message is read or written.
    """
    shard = Shard(2)
    for blob in (b"ahead", b"behind"):
        for window in range(windows):
            shard.take(messages_of(window, [blob] * 4))
    assert shard.windows == [(window, [b"ahead"] * 4 + [b"behind"] * 4) for window in range(windows)]
    assert shard.work / (8 * windows) < most


def test_what_completes_nothing_writes_itself_and_counts_of_few_windows():
    """However many windows wait: no bag is read for it, and the value stays below 200 bytes."""
    shard = Shard(2)
    for window in [*range(1, 3_000), *range(2_999, 0, -7)]:
        shard.take([Message(window, 0, b"blob")])
    assert shard.work == shard.held() == 2_999 + math.ceil(2_999 / 7)
    assert shard.stored.most < 200


def test_what_is_carried_on_is_rewritten_when_it_has_grown_beyond_what_a_rewriting_left():
    bag, progress = Bag(), Progress()
    for number in range(1000):
        stored = list(bag.read())
        store(bag, stored, [b"%d" % number], lambda stored=stored: [b"whole", stored[-1]], progress)
        assert len(bag.content) <= 70
    assert progress.chunks == 2
    store(bag, list(bag.read()), [bytes(10_000_100)], lambda: [b"whole"], progress)
    assert bag.content == [b"whole"]
