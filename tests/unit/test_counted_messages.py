"""Counted messages, as their sender makes them. How they are gathered: tests/beam/test_turns.py."""

from dp_transforms.core.messages import Message, batches_of_blobs, messages_of


def test_the_last_message_announces_all_and_none_is_one_without_content():
    assert messages_of(7, []) == [Message(7, 1, b"")]
    assert messages_of(7, [b"a", b"b", b"c"]) == [Message(7, 0, b"a"), Message(7, 0, b"b"), Message(7, 3, b"c")]


def test_blobs_are_batched_in_order_and_never_cut():
    blobs = [b"aaa", b"bb", b"c", b"dddddd", b"e"]
    assert batches_of_blobs(blobs, 5) == [[b"aaa", b"bb"], [b"c"], [b"dddddd"], [b"e"]]
    assert batches_of_blobs(blobs, 100) == [blobs]
    assert batches_of_blobs(blobs, 1) == [[blob] for blob in blobs]
    assert batches_of_blobs([], 5) == [[]]
