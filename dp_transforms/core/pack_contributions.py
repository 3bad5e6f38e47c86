"""Before the steps: events -> packed contributions, by range of windows and shard of users.

From here on users are keyed hashes, and items have one beside their label.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dp_transforms.core.contributions import Contributions, contributions_of_events
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.messages import MOST_MESSAGE_BYTES
from dp_transforms.core.operator_counts import EVENTS_OUTSIDE_DOMAIN, EVENTS_OUTSIDE_RANGE, EVENTS_READ
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import GroupKey, Sharding
from dp_transforms.plan.window_schedule import WindowSchedule

Packed = tuple[GroupKey, bytes]  # range of windows and shard of users; packed `Contributions`


@dataclasses.dataclass(frozen=True)
class PackContributions:
    """part: events outside of it are skipped, as those outside of the plan; None: the whole run."""

    schedule: WindowSchedule
    sharding: Sharding
    part: RunPart | None = None

    @property
    def run_part(self) -> RunPart:
        return self.part or RunPart.whole(self.schedule)

    def pack(
        self, batch: EventBatch, keys: IdKeys, public_items: PublicItemsTable | None, counts: Counter[str]
    ) -> Iterator[Packed]:
        """Events outside the declared range, and those of other than public items, are counted for the operator, and
        left out."""
        schedule, part, cut = self.schedule, self.run_part, self.sharding
        counts[EVENTS_READ] += len(batch)
        first_window = schedule.first_window(batch.time_micros)
        is_inside = (first_window >= 0) & (first_window < part.end)
        is_inside &= first_window + schedule.windows_per_event > part.first
        counts[EVENTS_OUTSIDE_RANGE] += int((~is_inside).sum())
        if public_items is not None:
            is_public = public_items.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()]
            counts[EVENTS_OUTSIDE_DOMAIN] += int((is_inside & ~is_public).sum())
            batch = batch.where(is_public)
        first_open = np.full(len(batch), part.first) if part.first else None
        for number, shard, of_users in contributions_of_events(
            batch,
            schedule,
            keys,
            windows_per_range=cut.windows_per_range,
            shards=cut.shards,
            first_open=first_open,
            end=part.end,
        ):
            yield (number, shard), of_users.to_bytes()


@dataclasses.dataclass(frozen=True)
class MergeContributions:
    """All packed contributions of some users -> the same merged, once for all steps that read them again.
    most_bytes: of a message; whoever reads several merges them anew."""

    most_bytes: int = MOST_MESSAGE_BYTES

    def start(self, secret: bytes) -> Callable[[tuple[GroupKey, Sequence[bytes]], Counter[str]], Iterator[Packed]]:
        most = self.most_bytes
        return lambda group, counts: (
            (group[0], packed) for packed in Contributions.of_messages(group[1]).messages(most)
        )
