"""Name: batches of events of a whole log -> window reports, in release mode `names`.

Where users pay for looks alone no step is sequential: purses are cut by user, sums and known items by item. Where they
pay for hits too, one step is: the monitor of the other modes, behind candidates that are found by item.
"""

from __future__ import annotations

import apache_beam as beam

from dp_transforms.beam.assign_windows import AssignWindows
from dp_transforms.beam.count_holders import CountHolders
from dp_transforms.beam.draw_empty_items import DrawEmptyItems
from dp_transforms.beam.draw_zero_items import DrawZeroItems
from dp_transforms.beam.find_looks import FindLooks
from dp_transforms.beam.monitor_heavy_hitters import MonitorHeavyHitters
from dp_transforms.beam.name_items import NameItems
from dp_transforms.beam.release_named import HOLDERS, NAMED, ReleaseNamed
from dp_transforms.beam.run_steps import FetchColumnsDoFn
from dp_transforms.beam.set_up_workers import DomainSource
from dp_transforms.beam.weigh_users import WeighUsers
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.sharding import SHARDS_OF_RUN, Sharding


class NameHeavyHitters(beam.PTransform):
    """`EventBatch` -> `WindowReport`, at the maximal timestamp of its window; bounded input only.

    shards: into how many parts users and items are cut; None for a good number. Results do not depend on it.
    domain: of a plan with a known domain. pool: as in `run_step`.
    """

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int | None = None,
        domain: DomainSource | None = None,
        pool: str | None = None,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._settings = settings
        self._noise_key = noise_key
        self._by_window = Sharding.choose(settings.schedule, is_bounded=True, shards=shards)
        self._whole_run = Sharding(settings.schedule.horizon, shards or SHARDS_OF_RUN)
        self._domain = domain

    def expand(self, batches: beam.PCollection) -> beam.PCollection:
        settings, noise_key = self._settings, self._noise_key
        assign = AssignWindows(settings, noise_key, self._whole_run, True, self._domain, by_item=True)
        return self.name_packed(batches | "AssignWindows" >> assign)

    def name_packed(self, packed: beam.PCollection) -> beam.PCollection:
        """From what `AssignWindows` makes of the events."""
        settings, noise_key = self._settings, self._noise_key
        users = packed | "GroupByUserShard" >> beam.GroupByKey()
        weighed = users | "WeighUsers" >> WeighUsers(settings, noise_key, self._whole_run, self._pool)
        return self._monitor(weighed) if settings.hits_per_user else self._name(users, weighed)

    def _name(self, users: beam.PCollection, sums: beam.PCollection) -> beam.PCollection:
        """Users pay for looks, and for counts, but not for hits."""
        settings, noise_key = self._settings, self._noise_key
        if self._domain is not None:
            empty_items = sums.pipeline | "DrawEmptyItems" >> DrawEmptyItems(
                settings, noise_key, self._whole_run, self._domain
            )
            sums = (sums, empty_items) | "WithEmptyItems" >> beam.Flatten()
        named = sums | "NameItems" >> NameItems(settings, noise_key, self._by_window, self._pool)
        parts = {NAMED: named}
        if settings.counts_for:
            if self._pool is not None:
                users = users | "FetchColumns" >> beam.ParDo(FetchColumnsDoFn(self._pool))
            parts[HOLDERS] = users | "CountHolders" >> CountHolders(settings, noise_key, self._by_window, named)
        return parts | "ReleaseNamed" >> ReleaseNamed(settings, noise_key)

    def _monitor(self, held: beam.PCollection) -> beam.PCollection:
        """Users pay for hits too."""
        settings, noise_key = self._settings, self._noise_key
        if self._domain is not None:
            zero_items = held.pipeline | "DrawZeroItems" >> DrawZeroItems(
                settings, noise_key, self._whole_run, True, self._domain
            )
            held = (held, zero_items) | "WithZeroItems" >> beam.Flatten()
        return (
            held
            | "FindLooks" >> FindLooks(settings, noise_key, self._by_window, self._pool)
            | "MonitorHeavyHitters" >> MonitorHeavyHitters(settings, noise_key, self._by_window, is_bounded=True)
        )
