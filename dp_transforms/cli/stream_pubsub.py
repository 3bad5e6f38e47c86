"""A Pub/Sub subscription as input. Its messages cannot be read again by position, so this is not a `StreamSource`.

Two things decide in which window a message counts: when Pub/Sub received it, and the watermark of the runner, which
follows these times. No user can change either. Only Dataflow reads Pub/Sub from Python.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import apache_beam as beam

from dp_transforms.beam.release_heavy_hitters import ReleaseOutput, ShiftingHeavyHitters
from dp_transforms.checks import how_to_install
from dp_transforms.logs import EventFields
from dp_transforms.logs.json_lines import LineParser
from dp_transforms.logs.streams.record_formats import BROKEN_RECORD, NO_VALUE
from dp_transforms.logs.text_files import BLANKS
from dp_transforms.monitor.event_ids import BadIdError

_NAME = re.compile(r"projects/[^/\s]+/subscriptions/[^/\s]+")


@dataclasses.dataclass(frozen=True)
class PubSubSubscription:
    """name: ``projects/P/subscriptions/S``. fields: of the JSON object that a message is."""

    name: str
    fields: EventFields

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"--pubsub-subscription must be projects/P/subscriptions/S, got {self.name!r}.")


def monitor_subscription(
    begin: beam.pvalue.PBegin, subscription: PubSubSubscription, monitor: ShiftingHeavyHitters
) -> ReleaseOutput:
    """Applies `monitor`, made for `user_of` and `item_of`, to the messages of a subscription.

    Raises ValueError without the extra [gcp].
    """
    from apache_beam.io.gcp import pubsub

    if pubsub.pubsub is None:
        raise ValueError(f"--pubsub-subscription needs Google's client. {how_to_install('gcp')}")
    messages = (
        begin
        | "ReadFromPubSub" >> beam.io.ReadFromPubSub(subscription=subscription.name)
        | "UserAndItem" >> beam.Map(user_and_item, subscription.fields).with_output_types(Any)
    )
    heavy_hitters = messages | "ShiftingHeavyHitters" >> monitor
    assert isinstance(heavy_hitters, ReleaseOutput)
    return heavy_hitters


def user_and_item(message: bytes, fields: EventFields) -> tuple[Any, Any] | str:
    """The cells of a message, which is read as a line of JSON lines; a reason, if it is not such a line."""
    line = message.strip(BLANKS + b"\n")
    if not line:
        return NO_VALUE
    event = _parser(fields).parse(line)
    return BROKEN_RECORD if event is None else (event.get(fields.user), event.get(fields.item))


def user_of(read: tuple[Any, Any] | str) -> Any:
    """Raises BadIdError with the reason."""
    if isinstance(read, str):
        raise BadIdError(read)
    return read[0]


def item_of(read: tuple[Any, Any]) -> Any:
    """After `user_of`."""
    return read[1]


@functools.cache
def _parser(fields: EventFields) -> LineParser:
    return LineParser(fields)
