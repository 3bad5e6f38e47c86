"""Counted messages, as their sender makes them. How they are gathered: tests/beam/test_turns.py."""

from dp_transforms.monitor.operator_counts import Message, messages_of


def test_the_last_message_announces_all_and_none_is_one_without_content():
    assert messages_of(7, []) == [Message(7, 1, b"")]
    assert messages_of(7, [b"a", b"b", b"c"]) == [Message(7, 0, b"a"), Message(7, 0, b"b"), Message(7, 3, b"c")]
