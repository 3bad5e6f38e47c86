"""Draw: a known domain -> the items that are named although nobody adds to them, in all windows of a replay."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from dp_transforms.beam.set_up_workers import DomainSource, KeyedDoFn
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.item_sums import sum_messages
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.runs.run_part import RunPart


class DrawEmptyItems(beam.PTransform):
    """Start of a pipeline -> ``((0, shard of items), packed ItemSums)``, to be merged with those of the log.

    part: of its windows alone; None: of all windows of the run.
    """

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        domain: DomainSource,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        self._do_fn = DrawEmptyItemsDoFn(settings, noise_key, sharding, domain, part)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        return (
            begin
            | "Once" >> beam.Impulse()
            | "DrawForAllWindows" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
        )


class DrawEmptyItemsDoFn(KeyedDoFn):
    """Adapts `EmptyItems`, whose draws are the same whenever and wherever they are made."""

    _settings: NamingSettings

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        domain: DomainSource,
        part: RunPart | None = None,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._sharding = sharding
        self._part = part or RunPart.whole(settings.schedule)

    def process(self, once: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
        assert self._domain is not None
        empty_items = EmptyItems(self._domain, self._settings, self._keys)
        for shard, cells in empty_items.of_run(self._sharding.shards, self._part.first, self._part.end):
            for packed in sum_messages(cells):
                yield (0, shard), packed
