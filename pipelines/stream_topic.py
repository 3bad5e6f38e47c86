"""Checks the topic that is read, before a run begins: who sets the times of records, and whether it keeps all."""

from __future__ import annotations

from collections.abc import Callable

from dp_transforms.event_streams.kafka_topic import KafkaTopic
from dp_transforms.event_streams.partition_progress import ARRIVAL, StreamClock
from dp_transforms.pipelines.options import UserError


def check_topic(source: KafkaTopic, clock: StreamClock, tell: Callable[[str], None]) -> None:
    """Warns, by `tell`, of what is unknown or was allowed. Raises UserError for a topic that cannot be used, and
    StreamError if no broker answers."""
    settings, topic = source.settings(), source.topic
    if settings.is_compacted:
        raise UserError(
            f"the topic {topic} is compacted (cleanup.policy): old events vanish from it, so a restart would count"
            " other events. Set cleanup.policy=delete, or copy it to another topic."
        )
    if clock.kind != ARRIVAL:
        return
    if not source.append_times_only:
        tell(
            f"--producer-times: who writes a record to {topic} also sets its arrival, so one writer can close windows"
            " and make the events of others late. The guarantee assumes that no single user can do that."
        )
    elif settings.append_times is False:
        raise UserError(
            f"producers set the times of records in the topic {topic}, so that one of them could close windows for all."
            f" Let the broker do it: kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config"
            " message.timestamp.type=LogAppendTime (the records that are there already are then rejected). If no"
            " producer is a user's device, give --producer-times."
        )
    elif settings.append_times is None:
        tell(f"The broker does not say who sets the times in {topic}. Records with a producer's time are rejected.")
