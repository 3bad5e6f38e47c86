"""Weigh: all pairs of some users in the whole run -> what these users add to their items, ordered by item."""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam.run_steps import run_step
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.workers.groups import WeighUsersStep


class WeighUsers(beam.PTransform):
    """``((0, shard of users), all packed ItemPairs)`` -> ``((0, shard of items), packed ItemSums)``.

    Where users pay for hits, who holds what matters later: then it is packed `ItemHolders`.

    sharding: one slab of all windows, since a weight depends on all pairs of a user. pool: as in `run_step`.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, sharding: Sharding, pool: str | None = None
    ) -> None:
        super().__init__()
        step = WeighUsersStep(settings, sharding)
        self._do_fn = run_step(step, noise_key, pool, rereads=bool(settings.counts_for))

    def expand(self, groups: beam.PCollection) -> beam.PCollection:
        return groups | "SpendPurses" >> beam.ParDo(self._do_fn).with_output_types(tuple[tuple[int, int], bytes])
