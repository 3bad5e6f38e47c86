"""Messages that are gathered by counting: cut small, announced, and complete when all have come."""

from dp_transforms.monitor.operator_counts import GatheredCount, Message, batches_of_blobs, messages_of


def test_the_last_message_announces_all_and_none_is_one_without_content():
    assert messages_of([]) == [Message(1, b"")]
    assert messages_of([b"a", b"b", b"c"]) == [Message(0, b"a"), Message(0, b"b"), Message(3, b"c")]


def test_a_count_is_complete_when_all_senders_announced_and_all_messages_came():
    """Two senders of 3 and 1 messages, in an order in which the announcements come early."""
    count = GatheredCount()
    for announcement, is_complete in ((0, False), (1, False), (3, False), (0, True)):
        count = GatheredCount(count.to_bytes())
        count.add(announcement)
        assert (count.is_complete(2), count.has_too_many(2)) == (is_complete, False)
    assert count.has_too_many(1), "there is one sender more than expected"
    count.add(0)
    assert count.has_too_many(2), "one message more than was announced"
    assert not count.is_complete(2)
    assert len(count.to_bytes()) == GatheredCount.SIZE


def test_blobs_are_batched_in_order_and_never_cut():
    blobs = [b"aaa", b"bb", b"c", b"dddddd", b"e"]
    assert batches_of_blobs(blobs, 5) == [[b"aaa", b"bb"], [b"c"], [b"dddddd"], [b"e"]]
    assert batches_of_blobs(blobs, 100) == [blobs]
    assert batches_of_blobs(blobs, 1) == [[blob] for blob in blobs]
    assert batches_of_blobs([], 5) == [[]]
