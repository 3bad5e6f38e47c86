"""Release: packed pairs of users -> reports, through the three stages of a run, by either driver. Of a replay with
counts also how many users hold the largest named items of each window, with noise (`CountNamed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import TimestampedValue
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.at_once import FetchColumnsDoFn, Sent, WithStarts, merge_pairs, run_at_once
from dp_transforms.beam.gather import GatherCounted
from dp_transforms.beam.in_order import ADVANCED, ENDED, REPORTS, InOrder, ReleaseInOrder, ReleaseInOrderDoFn
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.beam.threshold_monitor import MonitorHeavyHitters
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.counted_messages import EncodedMessage, Key, told
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_counts import count_holders, counted_rows, draw_counts
from dp_transforms.monitor.named_items import NOT_COUNTED, NamedItems
from dp_transforms.monitor.pairs import ItemPairs, groups_of_users
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.monitor.window_report import WindowReport
from dp_transforms.plan.records import Counts
from dp_transforms.runs.run_part import RunPart
from dp_transforms.stages.release_stages import Cuts, ReleaseStages
from dp_transforms.stages.rounds import ReleaseBlocks
from dp_transforms.stages.stage import AtOnceStep, Sharding, SlabKey, Stage, shards_of_items
from dp_transforms.stages.windows import MonitorWindows

_NAMED, _HOLDERS = "named", "holders"


class Released(NamedTuple):
    """reports: of `WindowReport`. states: what each stage hands over to the next part of a run. blocks: reports of
    blocks, where they are asked for."""

    reports: beam.PCollection
    states: tuple[beam.PCollection, ...]
    blocks: beam.PCollection | None = None


class ReleaseAtOnce(beam.PTransform):
    """``((slab, shard of users), packed pairs)`` -> `Released`; bounded input only.

    part: None for a whole run. pool: the token of a `ProcessPool` of this process, which then does the heavy steps.
    with_blocks: of a plan with rounds, also reports of its blocks.
    """

    def __init__(
        self,
        stages: ReleaseStages,
        noise_key: beam.Secret,
        cuts: Cuts,
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
        counts = run.plan.counts
        if run.plan.window_rounds is not None and part is not None:
            packed = packed | "AllUsers" >> WithStarts(AtOnceStep(stages.users, cuts.users, cuts.users, part))
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if run.plan.rounds is not None:
            step = AtOnceStep(stages.users, cuts.users, cuts.users, part)
            users = merge_pairs(users, noise_key, self._pool, step, facets=run.plan.facets)
        in_first_round, (found, states) = self._found(users)
        if stages.windows.work is MonitorWindows:
            monitored = found | "MonitorHeavyHitters" >> MonitorHeavyHitters(stages.windows, noise_key, part=part)
            return Released(monitored[REPORTS], (*states, monitored[STATE]))
        if counts is not None:
            if self._pool is not None:
                users = users | "FetchColumns" >> beam.ParDo(FetchColumnsDoFn(self._pool))
            return Released(found | "CountNamed" >> CountNamed(run, counts, noise_key, cuts.windows, users), states)
        release = AtOnceStep(stages.windows, Sharding(cuts.windows.windows_per_slab, 1), None, part)
        groups = found | "GroupWindows" >> beam.GroupByKey()
        blocks = self._blocks(in_first_round) if self._with_blocks else None
        return Released(run_at_once(groups, "Windows", release, noise_key).sent, states, blocks)

    def _blocks(self, named: beam.PCollection) -> beam.PCollection:
        """named: in the first of rounds over blocks."""
        whole = Sharding(self._cuts.users.windows_per_slab, 1)
        release = AtOnceStep(Stage(ReleaseBlocks, self._stages.windows.run), whole, None, self._part)
        return run_at_once(named | "GroupBlocks" >> beam.GroupByKey(), "Blocks", release, self._noise_key).sent

    def _found(self, users: beam.PCollection) -> tuple[beam.PCollection, Sent]:
        """What the second stage finds in the first round of looks; and in all of them, in slabs of windows, with what
        users and items hand over. Where looks come in rounds, users and items of each get what the rounds before it
        named. So each round is over before the next one begins, and a step that is repeated sees the same names."""
        plan = self._stages.users.run.plan
        keeps = 1 if plan.rounds is not None else 0  # what was named in blocks
        named: list[beam.PCollection] = []
        first: beam.PCollection | None = None
        states: tuple[beam.PCollection, ...] = ()
        rounds = list(self._stages.in_rounds())
        for number, (name, of_users, of_items) in enumerate(rounds, 1):
            found, more = self._round(users, name, of_users, of_items, named, is_last=number == len(rounds))
            first = found if first is None else first
            named, states = [*named[:keeps], found], (*states, *more)
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
        rereads = not is_last or users.run.plan.counts is not None
        to = Sharding((cuts.windows if is_last else cuts.users).windows_per_slab, 1)
        add = AtOnceStep(users, cuts.users, cuts.users, part, stores=True)
        find = AtOnceStep(items, cuts.users, to, part)
        added = run_at_once(groups, f"Users{name}", add, key, pool, rereads=rereads, named=named)
        sums = added.sent
        # With rounds users wake all items, and are woken themselves: the local runner gets stuck with both, starts that
        # join and side inputs.
        goes_on = part is not None and items.work.keeps_state and not name
        if items.domain is not None or goes_on:
            sums = sums | f"AllShards{name}" >> WithStarts(find)
        in_shards = sums | f"GroupItems{name}" >> beam.GroupByKey()
        found = run_at_once(in_shards, f"Items{name}", find, key, pool, named=named)
        return Sent(found.sent, (*added.states, *found.states))


class ReleasedInOrder(NamedTuple):
    """The same of a stream. ended: of `RunEnded`."""

    reports: beam.PCollection
    ended: beam.PCollection
    states: tuple[beam.PCollection, ...]


class ReleaseStagesInOrder(beam.PTransform):
    """``((window, group of users), message)`` -> `ReleasedInOrder`.

    Whoever says when a window is complete: the clocks of partitions, or a watermark.

    shards: of users, in `groups_of_users`; of items there are `shards_of_items`. Without purses a group is a shard.
    senders: how many senders each group has in each window. part: None for a whole run.
    """

    def __init__(
        self, stages: ReleaseStages, noise_key: beam.Secret, shards: int, senders: int, part: RunPart | None = None
    ) -> None:
        super().__init__()
        self._stages = stages
        self._noise_key = noise_key
        self._groups, self._of_items = groups_of_users(shards), shards_of_items(shards)
        self._shards = shards if stages.users.work.keeps_state else self._groups
        self._senders = senders
        self._part = part

    def expand(self, messages: beam.PCollection) -> ReleasedInOrder:
        stages, noise_key, part = self._stages, self._noise_key, self._part
        found, states = self._found(messages)
        if stages.windows.work is MonitorWindows:
            last: beam.PTransform = MonitorHeavyHitters(stages.windows, noise_key, self._of_items, part)
            released = found | "MonitorHeavyHitters" >> last
        else:
            last = ReleaseInOrder(ReleaseInOrderDoFn(stages.windows, noise_key, part), stages.windows.run.stream)
            released = found | "GatherWindows" >> GatherCounted(self._of_items) | "Windows" >> last
        if stages.windows.work.keeps_state:
            states.append(released[STATE])
        for state in states:
            state.element_type = convert_to_beam_type(tuple[Key, EncodedMessage])
        return ReleasedInOrder(released[REPORTS], released[ENDED], tuple(states))

    def _found(self, messages: beam.PCollection) -> tuple[beam.PCollection, list[beam.PCollection]]:
        """What the second stage finds, and what users and items hand over. Where looks come in rounds, each shard of
        items tells all users and items of the next one what is named so far: edges lead forward alone."""
        key, shards, groups, of_items, part = self._noise_key, self._shards, self._groups, self._of_items, self._part
        states: list[beam.PCollection] = []
        found: beam.PCollection | None = None
        for name, users, items in self._stages.in_rounds():
            come, tell = messages, 0
            if found is not None:
                # Flink cannot take what a stateful step and a Flatten share (apache/beam#34647): so a step between.
                again = beam.Map(_same).with_output_types(tuple[Key, EncodedMessage])
                come, tell = _told_too(messages | f"Again{name}" >> again, found, f"Users{name}", groups), of_items
            added = come | f"Users{name}" >> InOrder(users, key, shards, self._senders + tell, of_items, part, groups)
            sums = added[ADVANCED]
            if found is not None:
                sums = _told_too(sums, found, f"Items{name}", of_items)
            named = sums | f"Items{name}" >> InOrder(items, key, of_items, shards + tell, 1, part)
            states += [sent[STATE] for stage, sent in ((users, added), (items, named)) if stage.work.keeps_state]
            found = named[ADVANCED]
        return found, states


def _told_too(messages: beam.PCollection, found: beam.PCollection, name: str, shards: int) -> beam.PCollection:
    """What comes to so many shards, with what was named."""
    tell = beam.FlatMap(told, shards).with_output_types(tuple[Key, EncodedMessage])
    return (messages, found | f"Tell{name}" >> tell) | f"Told{name}" >> beam.Flatten()


def _same(message: Any) -> Any:
    return message


def state_senders(stages: ReleaseStages, shards: int) -> int:
    """How many shards of the stages of a stream hand over state."""
    of_items, windows = shards_of_items(shards), stages.windows.work.keeps_state
    return windows + sum(
        shards * users.work.keeps_state + of_items * items.work.keeps_state for _, users, items in stages.in_rounds()
    )


class CountNamed(beam.PTransform):
    """``((slab, 0), packed NamedItems)`` of all windows -> `WindowReport` with counts (`monitor.named_counts`).

    Each at the maximal timestamp of its window, in no particular order.

    users: ``((0, shard of users), all packed ItemPairs)``. What is counted, at most `Counts.items` a window, is
    sent to every shard of users. sharding: how the named items are cut by window.
    """

    def __init__(
        self, run: PlannedRun, counts: Counts, noise_key: beam.Secret, sharding: Sharding, users: beam.PCollection
    ) -> None:
        super().__init__()
        self._counts = counts
        self._count = CountHoldersDoFn(run, counts, noise_key, sharding)
        self._release = ReleaseCountedDoFn(run, counts, noise_key)
        self._users = users

    def expand(self, named: beam.PCollection) -> beam.PCollection:
        largest = (
            named
            | "GroupByWindows" >> beam.GroupByKey()
            | "ChooseLargest" >> beam.FlatMap(_largest, self._counts.items).with_output_types(bytes)
        )
        holders = self._users | "CountHolders" >> beam.ParDo(
            self._count, beam.pvalue.AsList(largest)
        ).with_output_types(tuple[SlabKey, bytes])
        return (
            {_NAMED: named, _HOLDERS: holders}
            | "WithHolders" >> beam.CoGroupByKey()
            | "WriteWindows" >> beam.ParDo(self._release).with_output_types(WindowReport)
        )


def _largest(group: tuple[SlabKey, Iterable[bytes]], most: int) -> Iterator[bytes]:
    _, blobs = group
    named = NamedItems.of_messages(blobs)
    yield named.select(counted_rows(named, most)).to_bytes()


class CountHoldersDoFn(KeyedDoFn):
    """Adapts `count_holders` to groups of users."""

    def __init__(self, run: PlannedRun, counts: Counts, noise_key: beam.Secret, sharding: Sharding) -> None:
        super().__init__(run, noise_key)
        self._counts = counts
        self._windows_per_slab = sharding.windows_per_slab

    def process(
        self, group: tuple[SlabKey, Iterable[bytes]], largest: Sequence[bytes]
    ) -> Iterator[tuple[SlabKey, bytes]]:
        _, blobs = group
        pairs = ItemPairs.of_messages(blobs)
        counted = NamedItems.of_messages(largest)
        holders = count_holders(pairs, counted, self._counts.per_user, self._keys)
        for slab, part in holders.by_slab(self._windows_per_slab):
            for packed in part.messages():
                yield (slab, 0), packed


class ReleaseCountedDoFn(KeyedDoFn):
    """What was named in some windows, and who holds the largest -> their reports, in order."""

    def __init__(self, run: PlannedRun, counts: Counts, noise_key: beam.Secret) -> None:
        super().__init__(run, noise_key)
        self._counts = counts

    def process(self, group: tuple[SlabKey, dict[str, Iterable[bytes]]]) -> Iterator[TimestampedValue]:
        _, parts = group
        named = NamedItems.of_messages(parts[_NAMED])
        holders = ItemSums.of_messages(parts[_HOLDERS])
        rows = counted_rows(named, self._counts.items)
        counts = np.full(len(named), NOT_COUNTED)
        counts[rows] = draw_counts(named.select(rows), holders, self._counts.noise, self._keys)
        for window, report in named.window_reports(self._run.plan, self._run.stream, counts):
            yield TimestampedValue[WindowReport](report, max_timestamp(self._run.plan.schedule, window))
