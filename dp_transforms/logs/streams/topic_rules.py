"""Whose clock closes windows, and whether a topic keeps all records: refused, or said, before a run begins."""

from __future__ import annotations

from collections.abc import Callable

from dp_transforms.errors import StreamError
from dp_transforms.logs.streams.kafka_topic import KafkaTopic
from dp_transforms.logs.streams.partition_progress import ARRIVAL, StreamClock


def check_clock(clock: StreamClock, tell: Callable[[str], None]) -> None:
    """Warns, by `tell`, of a clock that one user can move."""
    if clock.kind != ARRIVAL:
        tell(
            "The clock event is for history: one event far ahead closes windows for everybody, and then what is"
            " published about others depends on one user. For live streams use the clock arrival."
        )


def check_topic(source: KafkaTopic, clock: StreamClock, tell: Callable[[str], None], *, allow: str = "") -> None:
    """Warns, by `tell`, of what is unknown or was allowed. Raises StreamError for a topic that cannot be used, and if
    no broker answers.

    allow: the option by which an operator lets producers set the times of records; empty where there is none.
    """
    settings, topic = source.settings(), source.topic
    if settings.is_compacted:
        raise StreamError(
            f"the topic {topic} is compacted (cleanup.policy): old events vanish from it, so a restart would count"
            " other events. Set cleanup.policy=delete, or copy it to another topic."
        )
    if clock.kind != ARRIVAL:
        return
    if not source.append_times_only:
        tell(
            f"{allow or 'append_times_only=False'}: who writes a record to {topic} also sets its arrival, so one writer"
            " can close windows and make the events of others late. The guarantee assumes that no single user can do"
            " that."
        )
    elif settings.append_times is False:
        raise StreamError(
            f"producers set the times of records in the topic {topic}, so that one of them could close windows for all."
            f" Let the broker do it: kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config"
            " message.timestamp.type=LogAppendTime (the records that are there already are then rejected)."
            + (f" If no producer is a user's device, give {allow}." if allow else "")
        )
    elif settings.append_times is None:
        tell(f"The broker does not say who sets the times in {topic}. Records with a producer's time are rejected.")
