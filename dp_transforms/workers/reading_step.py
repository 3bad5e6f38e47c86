"""The step that reads the log of a replay: known before the plan is, of whose budget it does not depend."""

from __future__ import annotations

from dp_transforms.logs import EventFields
from dp_transforms.monitor.item_domain import DomainFile
from dp_transforms.monitor.sharding import SHARDS_OF_RUN, Sharding
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.workers.pack_pairs import PackPairs
from dp_transforms.workers.read_pairs import ReadPairsStep


def reading_step(
    schedule: WindowSchedule,
    release: str,
    fields: EventFields,
    shards: int | None,
    domain: DomainFile | None = None,
) -> ReadPairsStep:
    """For a replay of the whole schedule. release: the release mode."""
    if release == "names":
        packing = PackPairs(schedule, Sharding(schedule.horizon, shards or SHARDS_OF_RUN), by_item=True)
    else:
        packing = PackPairs(schedule, Sharding.choose(schedule, is_bounded=True, shards=shards))
    return ReadPairsStep(packing, fields, domain)
