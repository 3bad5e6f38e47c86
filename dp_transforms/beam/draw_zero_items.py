"""Draw: a known domain -> the items that are published although nobody holds them, in all windows.

They join the cells of the log before the candidates are found; there a cell with holders replaces its zero item. So
only the published result shows whether a window holds any event.
"""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from dp_transforms.beam.assign_windows import for_shard, window_per_slide
from dp_transforms.beam.set_up_workers import DomainSource, KeyedDoFn
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.monitor.zero_items import draw_zero_items
from dp_transforms.runs.run_part import RunPart


class DrawZeroItems(beam.PTransform):
    """Start of a pipeline -> ``((slab, shard of items), packed ItemHolders)``, windowed as `AssignWindows` does.

    part: of its windows alone; None: of all windows of the run.
    """

    def __init__(
        self,
        settings: MonitorSettings | NamingSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        is_bounded: bool,
        domain: DomainSource,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        self._do_fn = DrawZeroItemsDoFn(settings, noise_key, sharding, stamp=not is_bounded, domain=domain, part=part)
        self._schedule = settings.schedule
        self._is_bounded = is_bounded

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        drawn = (
            begin
            | "Once" >> beam.Impulse()
            | "DrawForAllWindows" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
        )
        return drawn if self._is_bounded else drawn | "OneCellPerWindow" >> window_per_slide(self._schedule)


class DrawZeroItemsDoFn(KeyedDoFn):
    """Adapts `draw_zero_items`, which has the same result whenever and wherever it runs."""

    _settings: MonitorSettings | NamingSettings

    def __init__(
        self,
        settings: MonitorSettings | NamingSettings,
        noise_key: beam.Secret,
        sharding: Sharding,
        *,
        stamp: bool,
        domain: DomainSource,
        part: RunPart | None = None,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._sharding = sharding
        self._stamp = stamp
        self._part = part or RunPart.whole(settings.schedule)

    def process(self, once: bytes) -> Iterator[object]:
        assert self._domain is not None
        for slab, shard, cells in draw_zero_items(
            self._domain,
            self._settings,
            self._keys,
            windows_per_slab=self._sharding.windows_per_slab,
            shards=self._sharding.shards,
            first=self._part.first,
            end=self._part.end,
        ):
            yield for_shard(self._settings.schedule, slab, shard, cells.to_bytes(), stamp=self._stamp)
