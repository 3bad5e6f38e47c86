"""Verb: all holders of some items in some windows -> the candidates among them (docs/guarantee.md, section 5.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.utils.windowed_value import PaneInfo

from dp_transforms.monitoring.candidates import find_candidates
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.settings import MonitorSettings
from dp_transforms.operator_counters import LATE_BATCHES, operator_counter
from dp_transforms.stage import KeyedStageDoFn, is_late


class FindCandidates(beam.PTransform):
    """``((slab, shard of items), packed ItemHolders)`` -> ``(stream, (slab, shard, packed candidates))``."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__()
        self._settings = settings
        self._noise_key = noise_key

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawPassBits"
            >> beam.ParDo(FindCandidatesDoFn(self._settings, self._noise_key)).with_output_types(
                tuple[str, tuple[int, int, bytes]]
            )
        )


class FindCandidatesDoFn(KeyedStageDoFn):
    """Adapts `find_candidates` to groups; only the pane on time counts."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__(settings, noise_key)
        self._late = operator_counter(LATE_BATCHES)

    def process(
        self,
        group: tuple[tuple[int, int], Iterable[bytes]],
        pane: PaneInfo = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
        (slab, shard), blobs = group
        if is_late(pane):
            self._late.inc(sum(1 for _ in blobs))
            return
        cells = ItemHolders.merge([ItemHolders.from_bytes(blob) for blob in blobs])
        candidates = find_candidates(cells, self._settings, self._keys)
        if len(candidates):
            yield self._settings.stream, (slab, shard, candidates.to_bytes())
