"""Release: `ReleasePart`, one part of a run: a log and the state before it -> reports, and what the next part needs."""

from __future__ import annotations

import os
from typing import NamedTuple

import apache_beam as beam

from dp_transforms.beam.assign_windows import AssignWindows
from dp_transforms.beam.bound_contributions import BoundContributions
from dp_transforms.beam.draw_empty_items import DrawEmptyItems
from dp_transforms.beam.draw_zero_items import DrawZeroItems
from dp_transforms.beam.find_candidates import FindCandidates
from dp_transforms.beam.monitor_part import MonitorPart
from dp_transforms.beam.name_part import NamePart
from dp_transforms.beam.release_named import NAMED, ReleaseNamed
from dp_transforms.beam.set_up_workers import DomainSource, domain_of_plan, keep_bundles_whole, resolve_noise_key
from dp_transforms.beam.spend_part import SpendPart
from dp_transforms.beam.write_state import STATE
from dp_transforms.checks import check_names
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.run_settings import settings_of_plan
from dp_transforms.monitor.sharding import Sharding
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.runs.run_part import RunPart

_SHARDS = 8  # of users and of items; a divisor of `BUCKETS`, so that each bucket is in one shard


class PartOutput(NamedTuple):
    """What `ReleasePart` returns. reports: `WindowReport`, of the windows of the part. state: packed cells, what users
    and items of the part carry on, for `WriteState`."""

    reports: beam.PCollection
    state: beam.PCollection


class ReleasePart(beam.PTransform):
    """`EventBatch` -> `PartOutput`: the windows of one part of a run; bounded input only.

    Guarantee: the reports of all parts of a run together are those of `ShiftingHeavyHitters` for the whole range, with
    the same key, run id and plan; in release mode names, those of a stream, where each user spends its purse at its own
    pace. So they are (plan.epsilon, plan.delta)-DP together. Condition: each window is taken once, with one input, by
    the part that begins where the one before it ended (`runs` and `cli` see to it).

    plan, noise_key, run_id, stream, domain: as in `ShiftingHeavyHitters`, and the same in all parts; the key is a file.
    part: the windows, and the state before them. shards: results do not depend on it.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        part: RunPart,
        *,
        noise_key: beam.Secret | str | os.PathLike[str],
        run_id: str,
        stream: str = "events",
        shards: int | None = None,
        domain: ItemDomain | str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        check_names(stream=stream, run_id=run_id)
        if not 0 <= part.first < part.end <= plan.schedule.horizon:
            raise ValueError(f"windows {part.first} .. {part.end - 1} are not windows of the plan.")
        self._settings = settings_of_plan(plan, stream=stream, run_id=run_id)
        if isinstance(self._settings, NamingSettings) and self._settings.counts_for:
            raise ValueError(
                "counts_for cannot be used with a run that is taken in parts: counts are paid for when all names of the"
                " run are known. Make the plan without it."
            )
        self._part = part
        self._noise_key = noise_key
        self._domain = domain_of_plan(domain, plan)
        self._by_window = Sharding.of_windows(part.windows, shards)
        self._whole_run = Sharding(plan.schedule.horizon, shards or _SHARDS)

    def expand(self, batches: beam.PCollection) -> PartOutput:
        noise_key = resolve_noise_key(self._noise_key, batches.pipeline)
        keep_bundles_whole(batches.pipeline)
        settings, domain = self._settings, self._domain
        if isinstance(settings, NamingSettings):
            reports, *states = self._name(batches, settings, noise_key, domain)
        else:
            reports, *states = self._monitor(batches, settings, noise_key, domain)
        for state in states:
            state.element_type = bytes
        return PartOutput(reports, states | "AllState" >> beam.Flatten(pipeline=batches.pipeline))

    def _name(
        self, batches: beam.PCollection, settings: NamingSettings, noise_key: beam.Secret, domain: DomainSource | None
    ) -> tuple[beam.PCollection, ...]:
        """Release mode `names`: users pay for looks, and perhaps for hits."""
        part, whole_run = self._part, self._whole_run
        spent = (
            batches
            | "AssignWindows" >> AssignWindows(settings, noise_key, whole_run, True, domain, part)
            | "SpendPurses" >> SpendPart(settings, noise_key, whole_run, part)
        )
        held = spent.held
        if domain is not None:
            if settings.hits_per_user:
                drawn = DrawZeroItems(settings, noise_key, whole_run, True, domain, part)
            else:
                drawn = DrawEmptyItems(settings, noise_key, whole_run, domain, part)
            empty = batches.pipeline | "DrawEmptyItems" >> drawn
            held = (held, empty) | "WithEmptyItems" >> beam.Flatten()
        named = held | "NameItems" >> NamePart(settings, noise_key, whole_run, self._by_window, part)
        if settings.hits_per_user:
            monitored = named.found | "MonitorHeavyHitters" >> MonitorPart(settings, noise_key, part)
            return monitored.reports, spent[STATE], named[STATE], monitored[STATE]
        reports = {NAMED: named.found} | "ReleaseNamed" >> ReleaseNamed(settings, noise_key)
        return reports, spent[STATE], named[STATE]

    def _monitor(
        self, batches: beam.PCollection, settings: MonitorSettings, noise_key: beam.Secret, domain: DomainSource | None
    ) -> tuple[beam.PCollection, ...]:
        """The other modes: users pay for hits."""
        part, sharding = self._part, self._by_window
        cells = (
            batches
            | "AssignWindows" >> AssignWindows(settings, noise_key, sharding, True, domain, part)
            | "BoundContributions" >> BoundContributions(settings, noise_key, sharding)
        )
        if domain is not None:
            drawn = DrawZeroItems(settings, noise_key, sharding, True, domain, part)
            zero_items = batches.pipeline | "DrawZeroItems" >> drawn
            cells = (cells, zero_items) | "WithZeroItems" >> beam.Flatten()
        monitored = (
            cells
            | "FindCandidates" >> FindCandidates(settings, noise_key)
            | "MonitorHeavyHitters" >> MonitorPart(settings, noise_key, part)
        )
        return monitored.reports, monitored[STATE]
