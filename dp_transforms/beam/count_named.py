"""Count: how many users hold the largest named items of each window of a replay, with noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_counts import count_holders, counted_rows, draw_counts
from dp_transforms.monitor.named_items import NOT_COUNTED, NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.stages.stage import Key, Sharding

_NAMED, _HOLDERS = "named", "holders"


class CountNamed(beam.PTransform):
    """``((slab, 0), packed NamedItems)`` of all windows -> `WindowReport` with counts (`monitor.named_counts`).

    Each at the maximal timestamp of its window, in no particular order.

    users: ``((0, shard of users), all packed ItemPairs)``. What is counted, at most `counts_for` items a window, is
    sent to every shard of users. sharding: how the named items are cut by window.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, users: beam.PCollection
    ) -> None:
        super().__init__()
        self._settings = settings
        self._count = CountHoldersDoFn(settings, noise_key, sharding)
        self._release = ReleaseCountedDoFn(settings, noise_key)
        self._users = users

    def expand(self, named: beam.PCollection) -> beam.PCollection:
        largest = (
            named
            | "GroupByWindows" >> beam.GroupByKey()
            | "ChooseLargest" >> beam.FlatMap(_largest, self._settings.counts_for).with_output_types(bytes)
        )
        holders = self._users | "CountHolders" >> beam.ParDo(
            self._count, beam.pvalue.AsList(largest)
        ).with_output_types(tuple[Key, bytes])
        return (
            {_NAMED: named, _HOLDERS: holders}
            | "WithHolders" >> beam.CoGroupByKey()
            | "WriteWindows" >> beam.ParDo(self._release).with_output_types(WindowReport)
        )


def _largest(group: tuple[Key, Iterable[bytes]], most: int) -> Iterator[bytes]:
    _, blobs = group
    named = NamedItems.of_messages(blobs)
    yield named.select(counted_rows(named, most)).to_bytes()


class CountHoldersDoFn(KeyedDoFn):
    """Adapts `count_holders` to groups of users."""

    _settings: NamingSettings

    def __init__(self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(settings, noise_key)
        self._windows_per_slab = sharding.windows_per_slab

    def process(self, group: tuple[Key, Iterable[bytes]], largest: Sequence[bytes]) -> Iterator[tuple[Key, bytes]]:
        _, blobs = group
        pairs = ItemPairs.of_messages(blobs)
        counted = NamedItems.of_messages(largest)
        holders = count_holders(pairs, counted, self._settings, self._keys)
        for slab, part in holders.by_slab(self._windows_per_slab):
            for packed in part.messages():
                yield (slab, 0), packed


class ReleaseCountedDoFn(KeyedDoFn):
    """What was named in some windows, and who holds the largest -> their reports, in order."""

    _settings: NamingSettings

    def process(self, group: tuple[Key, dict[str, Iterable[bytes]]]) -> Iterator[TimestampedValue]:
        _, parts = group
        named = NamedItems.of_messages(parts[_NAMED])
        holders = ItemSums.of_messages(parts[_HOLDERS])
        rows = counted_rows(named, self._settings.counts_for)
        counts = np.full(len(named), NOT_COUNTED)
        counts[rows] = draw_counts(named.select(rows), holders, self._settings, self._keys)
        for window, report in named.window_reports(self._settings, counts):
            yield TimestampedValue(report, max_timestamp(self._settings.schedule, window))
