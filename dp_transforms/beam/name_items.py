"""Name: what all users add to some items in the whole run -> which of these items are named, window by window."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam.run_steps import run_step
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.workers.groups import NameItemsStep


class NameItems(beam.PTransform):
    """``((0, shard of items), packed ItemSums)`` -> ``(slab, packed NamedItems)``: what is named, without counts.

    sharding: how the named items are cut by window on their way to the reports. No step sees all of them. pool: as in
    `run_step`.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, pool: str | None = None
    ) -> None:
        super().__init__()
        self._do_fn = run_step(NameItemsStep(settings, sharding.windows_per_slab), noise_key, pool)

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawNoise" >> beam.ParDo(self._do_fn).with_output_types(tuple[int, bytes])
        )
