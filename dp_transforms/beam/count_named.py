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
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.records import Counts
from dp_transforms.stages.stage import Sharding, SlabKey

_NAMED, _HOLDERS = "named", "holders"


class CountNamed(beam.PTransform):
    """``((slab, 0), packed NamedItems)`` of all windows -> `WindowReport` with counts (`monitor.named_counts`).

    Each at the maximal timestamp of its window, in no particular order.

    users: ``((0, shard of users), all packed ItemPairs)``. What is counted, at most `Counts.items` a window, is
    sent to every shard of users. sharding: how the named items are cut by window.
    """

    def __init__(
        self, run: PlannedRun, counts: Counts, noise_key: beam.Secret, sharding: Sharding, users: beam.PCollection
    ) -> None:
        super().__init__()
        self._counts = counts
        self._count = CountHoldersDoFn(run, counts, noise_key, sharding)
        self._release = ReleaseCountedDoFn(run, counts, noise_key)
        self._users = users

    def expand(self, named: beam.PCollection) -> beam.PCollection:
        largest = (
            named
            | "GroupByWindows" >> beam.GroupByKey()
            | "ChooseLargest" >> beam.FlatMap(_largest, self._counts.items).with_output_types(bytes)
        )
        holders = self._users | "CountHolders" >> beam.ParDo(
            self._count, beam.pvalue.AsList(largest)
        ).with_output_types(tuple[SlabKey, bytes])
        return (
            {_NAMED: named, _HOLDERS: holders}
            | "WithHolders" >> beam.CoGroupByKey()
            | "WriteWindows" >> beam.ParDo(self._release).with_output_types(WindowReport)
        )


def _largest(group: tuple[SlabKey, Iterable[bytes]], most: int) -> Iterator[bytes]:
    _, blobs = group
    named = NamedItems.of_messages(blobs)
    yield named.select(counted_rows(named, most)).to_bytes()


class CountHoldersDoFn(KeyedDoFn):
    """Adapts `count_holders` to groups of users."""

    def __init__(self, run: PlannedRun, counts: Counts, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(run, noise_key)
        self._counts = counts
        self._windows_per_slab = sharding.windows_per_slab

    def process(
        self, group: tuple[SlabKey, Iterable[bytes]], largest: Sequence[bytes]
    ) -> Iterator[tuple[SlabKey, bytes]]:
        _, blobs = group
        pairs = ItemPairs.of_messages(blobs)
        counted = NamedItems.of_messages(largest)
        holders = count_holders(pairs, counted, self._counts.per_user, self._keys)
        for slab, part in holders.by_slab(self._windows_per_slab):
            for packed in part.messages():
                yield (slab, 0), packed


class ReleaseCountedDoFn(KeyedDoFn):
    """What was named in some windows, and who holds the largest -> their reports, in order."""

    def __init__(self, run: PlannedRun, counts: Counts, noise_key: beam.Secret) -> None:
        super().__init__(run, noise_key)
        self._counts = counts

    def process(self, group: tuple[SlabKey, dict[str, Iterable[bytes]]]) -> Iterator[TimestampedValue]:
        _, parts = group
        named = NamedItems.of_messages(parts[_NAMED])
        holders = ItemSums.of_messages(parts[_HOLDERS])
        rows = counted_rows(named, self._counts.items)
        counts = np.full(len(named), NOT_COUNTED)
        counts[rows] = draw_counts(named.select(rows), holders, self._counts.noise, self._keys)
        for window, report in named.window_reports(self._run.plan, self._run.stream, counts):
            yield TimestampedValue(report, max_timestamp(self._run.plan.schedule, window))
