"""Name: what all users add to some items in the whole run -> which of these items are named, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam

from dp_transforms.beam.assign_windows import Sharding
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.known_items import KnownItems
from dp_transforms.naming.item_namer import ItemNamer
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.naming_settings import NamingSettings


class NameItems(beam.PTransform):
    """``((0, shard of items), packed ItemSums)`` -> ``(slab, packed NamedItems)``: what is named, without counts.

    sharding: how the named items are cut by window on their way to the reports. No step sees all of them.
    """

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__()
        self._do_fn = NameItemsDoFn(settings, noise_key, sharding)

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawNoise" >> beam.ParDo(self._do_fn).with_output_types(tuple[int, bytes])
        )


class NameItemsDoFn(KeyedDoFn):
    """Adapts `ItemNamer` to groups, each with all windows of a shard of items."""

    _settings: NamingSettings

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab
        self._namer: ItemNamer

    def setup(self) -> None:
        super().setup()
        self._namer = ItemNamer(self._settings, self._keys)

    def process(self, group: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[tuple[int, bytes]]:
        _, blobs = group
        sums = ItemSums.merge([ItemSums.from_bytes(blob) for blob in blobs])
        named = self._namer.name_windows(sums, KnownItems.none(), 0, self._settings.schedule.horizon)
        for slab, part in named.by_slab(self._windows_per_slab):
            yield slab, part.to_bytes()
