"""Name: what all users add to some items in a part of a run -> which items are named, or are candidates, and what is
known afterwards.

Known items are looked at in every window, held or not: so each shard of items has its turn, also one that nobody
adds to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import apache_beam as beam

from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.hit_settings import are_followed
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.known_items import Cells, KnownItems
from dp_transforms.monitor.look_candidates import LookCandidates
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, known_cells, pack_cell

_NOTHING = b""


class NamePart(beam.PTransform):
    """``((0, shard of items), packed ItemSums)`` -> ``(slab, packed NamedItems)``, and packed cells tagged `STATE`: the
    known items.

    Where users pay for hits: packed `ItemHolders` -> ``(stream, (slab, shard, packed candidates))``, and the items that
    passed.

    whole_run: how the items are cut on the way here. by_window: how the result is cut on its way on.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, whole_run: Sharding, by_window: Sharding, part: RunPart
    ) -> None:
        super().__init__()
        has_hits = settings.hits_per_user > 0
        step = FindPartLooksDoFn if has_hits else NamePartDoFn
        self._do_fn = step(settings, noise_key, whole_run, by_window, part)
        self._found = tuple[str, tuple[int, int, bytes]] if has_hits else tuple[int, bytes]
        self._shards = whole_run.shards

    def expand(self, packed: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        starts = (
            packed.pipeline
            | "Once" >> beam.Impulse()
            | "StartShards" >> beam.FlatMap(_starts, self._shards).with_output_types(tuple[tuple[int, int], bytes])
        )
        return (
            (starts, packed)
            | "WithStarts" >> beam.Flatten()
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawNoise" >> beam.ParDo(self._do_fn).with_output_types(self._found).with_outputs(STATE, main="found")
        )


class _Found(Cells, Protocol):
    def __len__(self) -> int: ...


class _PartDoFn(KeyedDoFn):
    """What both steps share: what is known before the part, and after it."""

    KIND: Kind

    _settings: NamingSettings

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, whole_run: Sharding, by_window: Sharding, part: RunPart
    ) -> None:
        super().__init__(settings, noise_key)
        self._shards = whole_run.shards
        self._windows_per_slab = by_window.windows_per_slab
        self._part = part

    def _known(self, shard: int) -> KnownItems:
        is_followed = are_followed(self._settings)
        return self._part.known(self.KIND, shard, self._shards) if is_followed else KnownItems.none()

    def _handed_over(self, before: KnownItems, found: _Found) -> Iterator[beam.pvalue.TaggedOutput]:
        if not are_followed(self._settings):
            return
        after = before.after(found, self._part.end, self._settings.forget_after)
        for bucket, cell in known_cells(after):
            yield beam.pvalue.TaggedOutput(STATE, pack_cell(self.KIND, bucket, cell))


class NamePartDoFn(_PartDoFn):
    """Adapts `ItemNamer` to groups, each with all windows of a shard of items."""

    KIND = Kind.KNOWN

    def setup(self) -> None:
        super().setup()
        self._namer = ItemNamer(self._settings, self._keys)

    def process(self, group: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[object]:
        (_, shard), blobs = group
        sums = ItemSums.merge([ItemSums.from_bytes(blob) for blob in blobs if blob])
        known = self._known(shard)
        named: NamedItems = self._namer.name_windows(sums, known, self._part.first, self._part.end)
        for slab, of_slab in named.by_slab(self._windows_per_slab):
            yield slab, of_slab.to_bytes()
        yield from self._handed_over(known, named)


class FindPartLooksDoFn(_PartDoFn):
    """Adapts `LookCandidates` to groups, each with all windows of a shard of items."""

    KIND = Kind.PASSED

    def setup(self) -> None:
        super().setup()
        self._candidates = LookCandidates(self._settings, self._keys)

    def process(self, group: tuple[tuple[int, int], Iterable[bytes]]) -> Iterator[object]:
        (_, shard), blobs = group
        parts = [ItemHolders.from_bytes(blob) for blob in blobs if blob]
        cells = ItemHolders.merge(parts) if parts else ItemHolders.none()
        known = self._known(shard)
        found = self._candidates.find(cells, known, self._part.first, self._part.end)
        for slab, of_slab in found.by_slab(self._windows_per_slab):
            yield self._settings.stream, (slab, shard, of_slab.to_bytes())
        yield from self._handed_over(known, found)


def _starts(once: bytes, shards: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    for shard in range(shards):
        yield (0, shard), _NOTHING
