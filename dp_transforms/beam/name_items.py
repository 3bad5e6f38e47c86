"""Name: what all users add to some items in the whole run -> which of these items are named, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam import encode_elements
from dp_transforms.beam.assign_windows import Sharding, max_timestamp
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.known_items import KnownItems
from dp_transforms.monitoring.window_report import WindowReport
from dp_transforms.naming.item_namer import ItemNamer
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.named_items import NamedItems
from dp_transforms.naming.naming_settings import NamingSettings

encode_elements.register_coders()


class NameItems(beam.PTransform):
    """``((0, shard of items), packed ItemSums)`` -> `WindowReport`, at the maximal timestamp of its window.

    sharding: how the named items are cut by window on their way to the reports. No step sees all of them, and reports
    are in no particular order.
    """

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__()
        self._settings = settings
        self._noise_key = noise_key
        self._sharding = sharding

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawNoise"
            >> beam.ParDo(NameItemsDoFn(self._settings, self._noise_key, self._sharding)).with_output_types(
                tuple[int, bytes]
            )
            | "GroupByWindows" >> beam.GroupByKey()
            | "WriteWindows" >> beam.ParDo(WriteWindowsDoFn(self._settings)).with_output_types(WindowReport)
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


class WriteWindowsDoFn(beam.DoFn):
    """The named items of all shards in some windows -> their reports, in order."""

    def __init__(self, settings: NamingSettings) -> None:
        self._settings = settings

    def process(self, group: tuple[int, Iterable[bytes]]) -> Iterator[TimestampedValue]:
        _, blobs = group
        named = NamedItems.merge([NamedItems.from_bytes(blob) for blob in blobs])
        for window, report in named.window_reports(self._settings):
            yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
