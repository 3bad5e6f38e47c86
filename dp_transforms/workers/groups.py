"""Packed groups -> packed groups: the heavy steps between the reading of a log and its reports, without a state.

A group is a key, which names a slab of windows and a shard of users or items, with all packed columns of that key.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.contributions import bound_contributions
from dp_transforms.monitor.counted_messages import holder_messages
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.item_sums import ItemSums, sum_messages
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.look_candidates import LookCandidates
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import PAIRS_UNPAID
from dp_transforms.monitor.replay_weights import choose_replay, weigh_replay, weigh_replay_with_hits
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.workers.step import Work

Key = tuple[int, int]
Group = tuple[Key, Iterable[bytes]]


class GroupStep:
    """A step whose elements are groups."""

    stores: ClassVar[bool] = True

    def fetched(self, element: Group, get: Callable[[bytes], bytes]) -> Group:
        key, blobs = element
        return key, [get(blob) for blob in blobs]


@dataclasses.dataclass(frozen=True)
class WeighUsersStep(GroupStep):
    """All `ItemPairs` of some users in the whole run -> what they add to their items, by shard of items."""

    settings: NamingSettings
    sharding: Sharding

    def start(self, secret: bytes) -> Work:
        keys = self.settings.stream_keys(secret)
        settings, shards = self.settings, self.sharding.shards

        def weigh(group: Group, counts: Counter[str]) -> Iterator[tuple[Key, bytes]]:
            (slab, _), blobs = group
            pairs = ItemPairs.merge([ItemPairs.from_bytes(blob) for blob in blobs])
            in_run = pairs.counts
            counts[PAIRS_UNPAID] += int((in_run - choose_replay(in_run, settings).looks).sum())
            if settings.hits_per_user:
                for shard, held in weigh_replay_with_hits(pairs, settings, keys).shard_by_item(shards):
                    yield from (((slab, shard), packed) for packed in holder_messages(held))
                return
            for shard, sums in weigh_replay(pairs, settings, keys).shard_by_item(shards):
                yield from (((slab, shard), packed) for packed in sum_messages(sums))

        return weigh


@dataclasses.dataclass(frozen=True)
class NameItemsStep(GroupStep):
    """All `ItemSums` of some items in the whole run -> what is named, by slab of windows."""

    settings: NamingSettings
    windows_per_slab: int
    stores: ClassVar[bool] = False  # the reports are written from it

    def start(self, secret: bytes) -> Work:
        keys = self.settings.stream_keys(secret)
        namer = ItemNamer(self.settings, keys)

        def name(group: Group, counts: Counter[str]) -> Iterator[tuple[int, bytes]]:
            _, blobs = group
            sums = ItemSums.merge([ItemSums.from_bytes(blob) for blob in blobs])
            named = namer.name_windows(sums, KnownItems.none(), 0, self.settings.schedule.horizon)
            for slab, part in named.by_slab(self.windows_per_slab):
                yield slab, part.to_bytes()

        return name


@dataclasses.dataclass(frozen=True)
class FindLooksStep(GroupStep):
    """All `ItemHolders` of some items in the whole run -> their candidates, where users pay for hits."""

    settings: NamingSettings
    windows_per_slab: int
    stores: ClassVar[bool] = False

    def start(self, secret: bytes) -> Work:
        keys = self.settings.stream_keys(secret)
        candidates_of = LookCandidates(self.settings, keys)

        def find(group: Group, counts: Counter[str]) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
            (_, shard), blobs = group
            cells = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs])
            candidates = candidates_of.find(cells, KnownItems.none(), 0, self.settings.schedule.horizon)
            for slab, part in candidates.by_slab(self.windows_per_slab):
                yield self.settings.stream, (slab, shard, part.to_bytes())

        return find


@dataclasses.dataclass(frozen=True)
class BoundUsersStep(GroupStep):
    """All `UserPairs` of some users in some windows -> at most L items per user and window, by shard of items."""

    settings: MonitorSettings
    sharding: Sharding

    def start(self, secret: bytes) -> Work:
        keys = self.settings.stream_keys(secret)

        def bound(group: Group, counts: Counter[str]) -> Iterator[tuple[Key, bytes]]:
            (slab, _), blobs = group
            pairs = UserPairs.merge([UserPairs.from_bytes(blob) for blob in blobs])
            bounded = bound_contributions(pairs, self.settings.max_items_per_user, keys)
            for shard, cells in ItemHolders.of_pairs(bounded).shard_by_item(self.sharding.shards):
                yield (slab, shard), cells.to_bytes()

        return bound


@dataclasses.dataclass(frozen=True)
class FindCandidatesStep(GroupStep):
    """All `ItemHolders` of some items in some windows -> the candidates among them."""

    settings: MonitorSettings
    stores: ClassVar[bool] = False

    def start(self, secret: bytes) -> Work:
        keys = self.settings.stream_keys(secret)

        def find(group: Group, counts: Counter[str]) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
            (slab, shard), blobs = group
            cells = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs])
            candidates = find_candidates(cells, self.settings, keys)
            if len(candidates):
                yield self.settings.stream, (slab, shard, candidates.to_bytes())

        return find
