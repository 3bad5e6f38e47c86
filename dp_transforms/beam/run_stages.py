"""Release: packed pairs of users -> reports, through the three stages of a run, by either driver.

And `ReleasePart`, one part of a run: a log and the state before it -> reports, and what the next part needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import assign_windows
from dp_transforms.beam.at_once import Sent, WithStarts, merge_pairs, run_at_once
from dp_transforms.beam.close_windows import KeyedCell
from dp_transforms.beam.keys import resolve_noise_key
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.threshold_monitor import REPORTS as KEYED_REPORTS
from dp_transforms.beam.threshold_monitor import MonitorContributions
from dp_transforms.beam.write_state import STATE
from dp_transforms.checks import check_names
from dp_transforms.core.contributions import ItemContributions
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.pack_contributions import PackContributions
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import AtOnceStep, GroupKey, Partitioning, Sharding, Stage
from dp_transforms.core.steps import RunStages, block_reports, stages_of
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.plan import Plan


class Released(NamedTuple):
    """reports: of `WindowReport`. states: what each stage hands over to the next part of a run. blocks: reports of
    blocks, where they are asked for."""

    reports: beam.PCollection
    states: tuple[beam.PCollection, ...]
    blocks: beam.PCollection | None = None


class ReleaseHits(beam.PTransform):
    """``((range, shard of users), packed UserContributions)`` -> `Released`, where users pay for hits:
    ThresholdMonitorEvolving
    under one key, the stream of the run.

    cut: `MonitorContributions.cut`. part, pool: as in `ReleaseAtOnce`.
    """

    def __init__(
        self,
        run: PlannedRun,
        noise_key: beam.Secret,
        cut: Sharding,
        public_items: PublicItemsSource | None = None,
        *,
        part: RunPart | None = None,
        pool: str | None = None,
    ) -> None:
        super().__init__()
        self._stream = run.stream
        self._monitor = MonitorContributions(
            run, noise_key, cut, public_items=public_items, keys=(run.stream,), part=part, pool=pool
        )

    def expand(self, packed: beam.PCollection) -> Released:
        keyed = packed | "UnderKey" >> beam.Map(_under_key, self._stream).with_output_types(tuple[KeyedCell, bytes])
        monitored = keyed | "MonitorHeavyHitters" >> self._monitor
        reports = monitored[KEYED_REPORTS] | "Reports" >> beam.Values().with_output_types(WindowReport)
        return Released(reports, (monitored[STATE],))


def _under_key(packed: tuple[GroupKey, bytes], key: str) -> tuple[KeyedCell, bytes]:
    cell, blob = packed
    return (key, *cell), blob


class ReleaseAtOnce(beam.PTransform):
    """``((range, shard of users), packed pairs)`` -> `Released`; bounded input only.

    part: None for a whole run. pool: the token of a `ProcessPool` of this process, which then does the heavy steps.
    with_blocks: of a plan with rounds, also reports of its blocks.
    """

    def __init__(
        self,
        stages: RunStages,
        noise_key: beam.Secret,
        cuts: Partitioning,
        part: RunPart | None = None,
        pool: str | None = None,
        *,
        with_blocks: bool = False,
    ) -> None:
        super().__init__()
        self._stages = stages
        self._noise_key = noise_key
        self._cuts = cuts
        self._part = part
        self._pool = pool
        self._with_blocks = with_blocks

    def expand(self, packed: beam.PCollection) -> Released:
        stages, cuts, noise_key, part = self._stages, self._cuts, self._noise_key, self._part
        run = stages.users.run
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if run.plan.rounds is not None:
            step = AtOnceStep(stages.users, cuts.users, cuts.users, part)
            users = merge_pairs(users, noise_key, self._pool, step)
        in_first_round, (found, states) = self._found(users)
        groups = found | "GroupWindows" >> beam.GroupByKey()
        reports = groups | "Windows" >> beam.FlatMap(_reports, run).with_output_types(WindowReport)
        blocks = None
        if self._with_blocks:
            of_part = part or RunPart.whole(run.plan.schedule)
            in_blocks = in_first_round | "GroupBlocks" >> beam.GroupByKey()
            blocks = in_blocks | "Blocks" >> beam.FlatMap(_reports, run, of_part).with_output_types(WindowReport)
        return Released(reports, states, blocks)

    def _found(self, users: beam.PCollection) -> tuple[beam.PCollection, Sent]:
        """What the second stage finds in the first round of looks; and in all of them, in ranges of windows, with what
        users and items hand over. Where looks come in rounds, users and items of each get what the rounds before it
        named. So each round is over before the next one begins, and a step that is repeated sees the same names."""
        named: list[beam.PCollection] = []
        first: beam.PCollection | None = None
        states: tuple[beam.PCollection, ...] = ()
        rounds = list(self._stages.in_rounds())
        for number, (name, of_users, of_items) in enumerate(rounds, 1):
            found, more = self._round(users, name, of_users, of_items, named, is_last=number == len(rounds))
            first = found if first is None else first
            named, states = [*named[:1], found], (*states, *more)  # what was named in blocks, and in windows
        return first, Sent(found, states)

    def _round(
        self,
        groups: beam.PCollection,
        name: str,
        users: Stage,
        items: Stage,
        named: Sequence[beam.PCollection],
        *,
        is_last: bool,
    ) -> Sent:
        """All that a round names is read by each step of the next one, and so stays together; what the last one names
        goes to its windows."""
        cuts, key, pool, part = self._cuts, self._noise_key, self._pool, self._part
        to = Sharding((cuts.windows if is_last else cuts.users).windows_per_range, 1)
        add = AtOnceStep(users, cuts.users, cuts.users, part, stores=True)
        find = AtOnceStep(items, cuts.users, to, part)
        added = run_at_once(groups, f"Users{name}", add, key, pool, rereads=not is_last, named=named)
        sums = added.sent
        # With rounds users wake all items, and are woken themselves: the local runner gets stuck with both, starts that
        # join and side inputs.
        goes_on = part is not None and items.step.KIND is not None and not name
        if items.public_items is not None or goes_on:
            sums = sums | f"AllShards{name}" >> WithStarts(find)
        in_shards = sums | f"GroupItems{name}" >> beam.GroupByKey()
        found = run_at_once(in_shards, f"Items{name}", find, key, pool, named=named)
        return Sent(found.sent, (*added.states, *found.states))


def _reports(
    group: tuple[GroupKey, Iterable[bytes]], run: PlannedRun, of_blocks: RunPart | None = None
) -> Iterator[TimestampedValue]:
    """At the maximal timestamp of their windows. of_blocks: what is named is named in blocks of this part."""
    named = NamedItems.of_messages(message for message in group[1] if message)
    reports = named.window_reports(run.plan, run.stream) if of_blocks is None else block_reports(run, of_blocks, named)
    for _, report in reports:
        yield TimestampedValue[WindowReport](report, Timestamp(micros=report.window_end - 1))


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
        self._domain = PublicItemsSource.of_plan(public_items, plan)
        self._stages = stages_of(self._run, self._domain, is_part=True)
        pays_looks = self._run.plan.looks is not None
        self._cuts = Partitioning.of(plan.schedule, pays_looks=pays_looks, shards=shards, part=part)

    def expand(self, batches: beam.PCollection) -> PartOutput:
        noise_key = resolve_noise_key(self._noise_key, batches.pipeline)
        keep_bundles_whole(batches.pipeline)
        by_item = self._stages.users.step.TAKES is ItemContributions
        step = PackContributions(self._run.plan.schedule, self._cuts.users, self._part, by_item=by_item)
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
