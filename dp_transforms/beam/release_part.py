"""Release: `ReleasePart`, one part of a run: a log and the state before it -> reports, and what the next part needs."""

from __future__ import annotations

import os
from typing import NamedTuple

import apache_beam as beam

from dp_transforms.beam.assign_windows import assign_windows
from dp_transforms.beam.run_stages import ReleaseAtOnce, ReleaseHits
from dp_transforms.beam.set_up_workers import domain_of_plan, keep_bundles_whole, resolve_noise_key
from dp_transforms.checks import check_names
from dp_transforms.monitor.item_domain import PublicItems
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.run_part import RunPart
from dp_transforms.stages.read_pairs import PackPairs
from dp_transforms.stages.release_stages import Cuts, stages_of


class PartOutput(NamedTuple):
    """What `ReleasePart` returns. reports: `WindowReport`, of the windows of the part. state: packed cells, what users
    and items of the part carry on, for `WriteState`. blocks: reports of blocks, if asked for."""

    reports: beam.PCollection
    state: beam.PCollection
    blocks: beam.PCollection | None = None


class ReleasePart(beam.PTransform):
    """`EventBatch` -> `PartOutput`: the windows of one part of a run; bounded input only.

    Guarantee: the reports of all parts of a run together have the law of those of `ShiftingHeavyHitters` for the whole
    range; of contributions, of those of a stream, where each user spends its budget at its own pace. With the same key,
    run id and plan, and without `RunPart.draws_as`, they are the same reports. So they are together (plan.epsilon,
    plan.delta)-DP. Condition: each window is taken once, with one input, by the part that begins where the one before
    it ended (`runs` and `cli` see to it).

    plan, noise_key, run_id, stream, public_items: as in `ShiftingHeavyHitters`, and the same in all parts; the key is
        a file.
    part: the windows, and the state before them. shards: results do not depend on it. with_blocks: as there, too.
    """

    def __init__(
        self,
        plan: Plan,
        part: RunPart,
        *,
        noise_key: beam.Secret | str | os.PathLike[str],
        run_id: str,
        stream: str = "events",
        shards: int | None = None,
        public_items: PublicItems | str | os.PathLike[str] | None = None,
        with_blocks: bool = False,
    ) -> None:
        super().__init__()
        self._with_blocks = with_blocks
        check_names(stream=stream, run_id=run_id)
        if not 0 <= part.first < part.end <= plan.schedule.horizon:
            raise ValueError(f"windows {part.first} .. {part.end - 1} are not windows of the plan.")
        self._run = PlannedRun(plan=plan, stream=stream, run_id=run_id, part=part.draws_as)
        self._part = part
        self._noise_key = noise_key
        self._domain = domain_of_plan(public_items, plan)
        self._stages = stages_of(self._run, self._domain, is_part=True)
        pays_looks = self._run.plan.looks is not None
        self._cuts = Cuts.of(plan.schedule, pays_looks=pays_looks, shards=shards, part=part)

    def expand(self, batches: beam.PCollection) -> PartOutput:
        noise_key = resolve_noise_key(self._noise_key, batches.pipeline)
        keep_bundles_whole(batches.pipeline)
        by_item = self._stages.users.work.TAKES is ItemPairs
        step = PackPairs(self._run.plan.schedule, self._cuts.users, self._part, by_item=by_item)
        release: beam.PTransform
        if self._run.plan.hits is not None:
            release = ReleaseHits(self._run, noise_key, self._cuts.users, self._domain, part=self._part)
        else:
            release = ReleaseAtOnce(self._stages, noise_key, self._cuts, self._part, with_blocks=self._with_blocks)
        assign = assign_windows(self._run, noise_key, step, self._domain)
        released = batches | "AssignWindows" >> assign | "Release" >> release
        for state in released.states:
            state.element_type = bytes
        states = released.states | "AllState" >> beam.Flatten(pipeline=batches.pipeline)
        return PartOutput(released.reports, states, released.blocks)
