"""Bound: all pairs of some users in some windows -> at most L items per user and window, ordered by item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.utils.windowed_value import PaneInfo

from dp_transforms.beam.drop_late_panes import is_late
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.run_steps import RunInPoolDoFn, RunStepDoFn
from dp_transforms.beam.set_up_workers import KeyedDoFn, operator_counter
from dp_transforms.monitor.contributions import bound_contributions
from dp_transforms.monitor.counted_messages import (
    ENDS,
    Group,
    Key,
    Sent,
    ending_messages,
    holder_messages,
    messages_of,
)
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.workers.groups import BoundUsersStep


class BoundContributions(beam.PTransform):
    """``((slab, shard of users), packed UserPairs)`` -> ``((slab, shard of items), packed ItemHolders)``.

    pool: as in `run_step`; bounded input only.
    """

    def __init__(
        self, settings: MonitorSettings, noise_key: beam.Secret, sharding: Sharding, pool: str | None = None
    ) -> None:
        super().__init__()
        if pool is None:
            self._do_fn: beam.DoFn = BoundContributionsDoFn(settings, noise_key, sharding)
        else:
            self._do_fn = RunInPoolDoFn(BoundUsersStep(settings, sharding), pool)

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByUserShard" >> beam.GroupByKey()
            | "BoundUsers" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
        )


class BoundContributionsCounted(beam.PTransform):
    """The same with counted messages; from ``((window, shard of users), message)`` to the same by shard of items.

    senders: how many senders each shard of users has. Each shard of users sends to every shard of items of its window,
    even if it has nothing. So each shard of items has as many senders as there are shards.
    """

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, shards: int, senders: int) -> None:
        super().__init__()
        self._do_fn = BoundContributionsCountedDoFn(settings, noise_key, shards)
        self._senders = senders

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return (
            messages
            | "GatherUserShard" >> GatherCounted(self._senders)
            | "BoundUsers" >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent])
        )


class BoundContributionsDoFn(RunStepDoFn):
    """Adapts `bound_contributions` to groups; only the pane on time counts."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(BoundUsersStep(settings, sharding), noise_key)
        self._late = operator_counter(LATE_BATCHES)

    def process(
        self,
        group: tuple[tuple[int, int], Iterable[bytes]],
        pane: PaneInfo = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        if is_late(pane):
            self._late.inc(sum(1 for _ in group[1]))
            return
        yield from super().process(group)


class BoundContributionsCountedDoFn(KeyedDoFn):
    """Adapts `bound_contributions` to complete groups of messages."""

    _settings: MonitorSettings

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, shards: int) -> None:
        super().__init__(settings, noise_key)
        self._shards = shards

    def process(self, group: Group) -> Iterator[tuple[Key, Sent]]:
        (window, _), blobs = group
        if ENDS in blobs:
            yield from ending_messages(window, self._shards)
            return
        parts: dict[int, ItemHolders] = {}
        if blobs:
            pairs = UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs])
            bounded = bound_contributions(pairs, self._settings.max_items_per_user, self._keys)
            parts = dict(ItemHolders.of_pairs(bounded).shard_by_item(self._shards))
        for shard in range(self._shards):
            packed = list(holder_messages(parts[shard])) if shard in parts else []
            for message in messages_of(packed):
                yield (window, shard), message
