"""A Pub/Sub subscription as input. Its messages cannot be read again by position, so this is not a `StreamSource`.

Two things decide in which window a message counts: when Pub/Sub received it, and the watermark of the runner, which
follows these times. No user can change either. Only Dataflow reads Pub/Sub from Python.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import apache_beam as beam

from dp_transforms.beam.release_heavy_hitters import ReleaseOutput, ShiftingHeavyHitters
from dp_transforms.checks import how_to_install

_NAME = re.compile(r"projects/[^/\s]+/subscriptions/[^/\s]+")


@dataclasses.dataclass(frozen=True)
class PubSubSubscription:
    """name: ``projects/P/subscriptions/S``. user_field, item_field: fields of the JSON object that a message is."""

    name: str
    user_field: str
    item_field: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"--pubsub-subscription must be projects/P/subscriptions/S, got {self.name!r}.")


def monitor_subscription(
    begin: beam.pvalue.PBegin, subscription: PubSubSubscription, monitor: ShiftingHeavyHitters
) -> ReleaseOutput:
    """Applies `monitor`, made for pairs (user, item), to the messages of a subscription.

    Raises ValueError without the extra [gcp].
    """
    from apache_beam.io.gcp import pubsub

    if pubsub.pubsub is None:
        raise ValueError(f"--pubsub-subscription needs Google's client. {how_to_install('gcp')}")
    pairs = (
        begin
        | "ReadFromPubSub" >> beam.io.ReadFromPubSub(subscription=subscription.name)
        | "UserAndItem"
        >> beam.Map(user_and_item, subscription.user_field, subscription.item_field).with_output_types(tuple[Any, Any])
    )
    heavy_hitters = pairs | "ShiftingHeavyHitters" >> monitor
    assert isinstance(heavy_hitters, ReleaseOutput)
    return heavy_hitters


def user_and_item(message: bytes, user_field: str, item_field: str) -> tuple[Any, Any]:
    """The pair in a message; (None, None) if it has none, which then counts as rejected."""
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        return None, None
    return (fields.get(user_field), fields.get(item_field)) if isinstance(fields, dict) else (None, None)
