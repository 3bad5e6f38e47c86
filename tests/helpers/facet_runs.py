"""The stages of rounds with facets, or with amounts, run in this process over small logs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection

import numpy as np

from dp_transforms import WindowReport
from dp_transforms.mechanisms.priced_weights import PURSE_UNITS
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import ItemPairs, item_pairs_of_events, kind_of_pairs
from dp_transforms.plan.facets import Facets
from dp_transforms.runs.run_part import RunPart
from dp_transforms.stages.rounds import NameRound, WeighRound
from dp_transforms.stages.stage import Span
from tests.helpers.rounds_runs import trial_with_rounds
from tests.helpers.small_runs import SECRET, batch_of
from tests.helpers.trial_plan import TrialPlan

Event = tuple[str, str, int, tuple[int, ...]]  # user, item, time and what it has in each column of facets
PERCENTS = (16, 8, 16, 40)
OF_FACETS = len(PERCENTS)  # the number of their round


def trial_of_labels(
    labels: tuple[str, ...],
    *,
    threshold: int = 25,
    false_names: float = 40,
    sliding: int = 1,
    percents: tuple[int, ...] = PERCENTS,
) -> TrialPlan:
    """Of rounds over blocks of 40 seconds; the facets take a fifth of each purse."""
    facets = Facets(labels=labels, units=PURSE_UNITS * 20 // 100)
    return trial_with_rounds(
        sliding=sliding, threshold=threshold, percents=percents, false_names=false_names, facets=facets
    )


def pairs_of(log: Collection[Event], trial: TrialPlan, part: RunPart) -> ItemPairs:
    kind = kind_of_pairs(trial.facets)
    if not log:
        return kind.none()
    batch = dataclasses.replace(
        batch_of([event[:3] for event in log]), facets=np.array([event[3] for event in log], dtype=np.int64)
    )
    firsts = np.full(len(batch), part.first)
    keys = trial.stream_keys(SECRET)
    found = item_pairs_of_events(batch, trial.schedule, keys, 2, firsts, part.end, kind)
    return kind.merge([pairs for _, pairs in found])


class Run:
    """The stages of all rounds, in this process. told: what is named, whatever is added here; of it, too, `found`."""

    def __init__(
        self, log: Collection[Event], trial: TrialPlan, shards: int = 1, *, told: list[NamedItems] | None = None
    ) -> None:
        part, keys, counts = RunPart.whole(trial.schedule), trial.stream_keys(SECRET), Counter[str]()
        pairs, self.sums, self.found = pairs_of(log, trial, part), list[ItemSums](), list[NamedItems]()
        self.drawn = 0
        for number in range(OF_FACETS + 1):
            weigh, name = WeighRound(trial, keys, None, number), NameRound(trial, keys, None, number)
            before = (self.found if told is None else told)[:number]
            names = [before[0], before[-1] if number > 1 else NamedItems.none()] if number else []
            blobs, whole = [[each.to_bytes()] for each in names], Span(0, part.end)
            come = weigh.columns([pairs.to_bytes()], *blobs)
            self.sums.append(weigh.advance(weigh.load(part, come, whole), come, whole, counts))
            if number == OF_FACETS:
                self.drawn = come.facets(trial, whole, keys)[0].drawn
            parts = []
            for shard in range(shards):
                here = dataclasses.replace(whole, shard=shard, shards=shards)
                of_items = name.told(self.sums[-1].of_shard(shard, shards), *blobs)
                parts.append(name.advance(None, of_items, here, counts))
            self.found.append(NamedItems.merge(parts))

    def reports(self, trial: TrialPlan) -> list[WindowReport]:
        packed = NamedItems.of_messages(self.found[-1].messages(2000))
        return [report for _, report in packed.window_reports(trial, "events")]


def by_hash(sums: ItemSums) -> Counter[bytes]:
    return Counter({hashes.tobytes(): int(added) for hashes, added in zip(sums.hashes, sums.sums, strict=True)})
