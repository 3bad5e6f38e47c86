"""`GatherCounted` on state that the test holds: one complete group for each key, in any order of arrival."""

from __future__ import annotations

import random

from dp_transforms.beam.gather_counted import GatherCountedDoFn
from dp_transforms.monitor.counted_messages import messages_of
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from tests.helpers.beam_pipelines import LocalCounter
from tests.helpers.do_fn_state import Bag, Cell


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
    monkeypatch.setattr("dp_transforms.beam.gather_counted.operator_counter", LocalCounter)
    LocalCounter.counts.clear()
    gathered = Gathered(1)
    assert gathered.take([(0, b"a"), (0, b"b"), (2, b"c")]) == []
    assert LocalCounter.counts[LATE_BATCHES] == 1
