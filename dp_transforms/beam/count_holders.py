"""Count: all pairs of some users in the whole run, and what is named -> who of them holds the largest named items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam

from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.item_sums import sum_messages
from dp_transforms.monitor.named_counts import count_holders, counted_rows
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding


class CountHolders(beam.PTransform):
    """``((0, shard of users), all packed ItemPairs)`` -> ``(slab, packed ItemSums)``, with sums of users.

    named: ``(slab, packed NamedItems)``, of all windows. Those that are counted, at most `counts_for` a window, are
    sent to every shard of users.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, named: beam.PCollection
    ) -> None:
        super().__init__()
        self._settings = settings
        self._do_fn = CountHoldersDoFn(settings, noise_key, sharding)
        self._named = named

    def expand(self, groups: beam.PCollection) -> beam.PCollection:
        largest = (
            self._named
            | "GroupByWindows" >> beam.GroupByKey()
            | "ChooseLargest" >> beam.FlatMap(_largest, self._settings.counts_for).with_output_types(bytes)
        )
        return groups | "CountHolders" >> beam.ParDo(self._do_fn, beam.pvalue.AsList(largest)).with_output_types(
            tuple[int, bytes]
        )


def _largest(group: tuple[int, Iterable[bytes]], most: int) -> Iterator[bytes]:
    _, blobs = group
    named = NamedItems.merge([NamedItems.from_bytes(blob) for blob in blobs])
    yield named.select(counted_rows(named, most)).to_bytes()


class CountHoldersDoFn(KeyedDoFn):
    """Adapts `count_holders` to groups of users."""

    _settings: NamingSettings

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab

    def process(
        self, group: tuple[tuple[int, int], Iterable[bytes]], largest: Sequence[bytes]
    ) -> Iterator[tuple[int, bytes]]:
        _, blobs = group
        pairs = ItemPairs.merge([ItemPairs.from_bytes(blob) for blob in blobs])
        counted = NamedItems.merge([NamedItems.from_bytes(blob) for blob in largest])
        holders = count_holders(pairs, counted, self._settings, self._keys)
        for slab, part in holders.by_slab(self._windows_per_slab):
            for packed in sum_messages(part):
                yield slab, packed
