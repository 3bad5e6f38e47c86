"""Weigh: all pairs of some users in the whole run -> what these users add to their items, ordered by item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam.assign_windows import Sharding
from dp_transforms.beam.count_for_operator import PAIRS_UNPAID, operator_counter
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.counted_messages import holder_messages
from dp_transforms.monitoring.item_pairs import ItemPairs
from dp_transforms.naming.item_sums import sum_messages
from dp_transforms.naming.naming_settings import NamingSettings
from dp_transforms.naming.replay_weights import choose_replay, weigh_replay, weigh_replay_with_hits


class WeighUsers(beam.PTransform):
    """``((0, shard of users), all packed ItemPairs)`` -> ``((0, shard of items), packed ItemSums)``.

    Where users pay for hits, who holds what matters later: then it is packed `ItemHolders`.

    sharding: one slab of all windows, since a weight depends on all pairs of a user.
    """

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__()
        self._do_fn = WeighUsersDoFn(settings, noise_key, sharding)

    def expand(self, groups: beam.PCollection) -> beam.PCollection:
        return groups | "SpendPurses" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])


class WeighUsersDoFn(KeyedDoFn):
    """Adapts `weigh_replay` and `weigh_replay_with_hits` to groups."""

    _settings: NamingSettings

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(settings, noise_key)
        self._sharding = sharding
        self._unpaid = operator_counter(PAIRS_UNPAID)

    def process(self, group: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[tuple[tuple[int, int], bytes]]:
        (slab, _), blobs = group
        pairs = ItemPairs.merge([ItemPairs.from_bytes(blob) for blob in blobs])
        in_run = pairs.counts
        self._unpaid.inc(int((in_run - choose_replay(in_run, self._settings).looks).sum()))
        for shard, packed in self._packed(pairs):
            yield (slab, shard), packed

    def _packed(self, pairs: ItemPairs) -> Iterator[tuple[int, bytes]]:
        if self._settings.hits_per_user:
            cells = weigh_replay_with_hits(pairs, self._settings, self._keys)
            for shard, held in cells.shard_by_item(self._sharding.shards):
                yield from ((shard, packed) for packed in holder_messages(held))
            return
        for shard, sums in weigh_replay(pairs, self._settings, self._keys).shard_by_item(self._sharding.shards):
            yield from ((shard, packed) for packed in sum_messages(sums))
