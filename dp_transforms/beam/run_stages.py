"""Release: packed pairs of users -> reports, through the three stages of a run, by either driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type

from dp_transforms.beam.at_once import SENT, AtOnce, FetchColumnsDoFn, WithStarts
from dp_transforms.beam.count_named import CountNamed
from dp_transforms.beam.gather import GatherCounted
from dp_transforms.beam.in_order import ADVANCED, ENDED, REPORTS, InOrder, ReleaseInOrder, ReleaseInOrderDoFn
from dp_transforms.beam.threshold_monitor import MonitorHeavyHitters
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.counted_messages import EncodedMessage, Key
from dp_transforms.runs.run_part import RunPart
from dp_transforms.stages.release_stages import Cuts, ReleaseStages
from dp_transforms.stages.rounds import ReleaseBlocks
from dp_transforms.stages.stage import AtOnceStep, Sharding, Stage
from dp_transforms.stages.windows import MonitorWindows


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
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if run.plan.rounds is not None:
            return self._in_rounds(users, len(run.plan.rounds.units))
        add = AtOnceStep(stages.users, cuts.users, cuts.users, part, stores=True)
        added = users | "Users" >> AtOnce(add, noise_key, self._pool, rereads=counts is not None)
        by_window = Sharding(cuts.windows.windows_per_slab, 1)
        find = AtOnceStep(stages.items, cuts.users, by_window, part)
        sums = added[SENT]
        if stages.items.domain is not None or (part is not None and stages.items.work.keeps_state):
            sums = sums | "AllShards" >> WithStarts(find)
        found = sums | "GroupItems" >> beam.GroupByKey() | "Items" >> AtOnce(find, noise_key, self._pool)
        states = added[STATE], found[STATE]
        if stages.windows.work is MonitorWindows:
            monitored = found[SENT] | "MonitorHeavyHitters" >> MonitorHeavyHitters(stages.windows, noise_key, part=part)
            return Released(monitored[REPORTS], (*states, monitored[STATE]))
        if counts is not None:
            if self._pool is not None:
                users = users | "FetchColumns" >> beam.ParDo(FetchColumnsDoFn(self._pool))
            counted = found[SENT] | "CountNamed" >> CountNamed(run, counts, noise_key, cuts.windows, users)
            return Released(counted, states)
        return self._released(found[SENT], states)

    def _in_rounds(self, users: beam.PCollection, rounds: int) -> Released:
        """The users of each round of looks, and its items, get what the rounds before it named. So each round is over
        before the next one begins, and a step that is repeated sees the same names. users: ``((0, shard), packed)``."""
        found, state = self._round(users, 0, (), rereads=True)
        blocks = self._blocks(found) if self._with_blocks else None
        in_blocks, states = found | "InBlocks" >> beam.Values(), [state]
        before: list[beam.PCollection] = [in_blocks]
        for number in range(1, rounds):
            found, state = self._round(users, number, before, rereads=number < rounds - 1)
            before = [in_blocks, found | f"InWindows{number}" >> beam.Values()]
            states.append(state)
        return self._released(found, tuple(states))._replace(blocks=blocks)

    def _blocks(self, named: beam.PCollection) -> beam.PCollection:
        """named: in round 0."""
        whole = Sharding(self._cuts.users.windows_per_slab, 1)
        release = AtOnceStep(Stage(ReleaseBlocks, self._stages.windows.run), whole, None, self._part)
        reports = named | "GroupBlocks" >> beam.GroupByKey() | "Blocks" >> AtOnce(release, self._noise_key)
        return reports[SENT]

    def _round(
        self, users: beam.PCollection, number: int, named: Sequence[beam.PCollection], *, rereads: bool
    ) -> tuple[beam.PCollection, beam.PCollection]:
        """What is named in blocks, in round 0, or in windows up to this round; and what users hand over."""
        stages, cuts, part = self._stages, self._cuts, self._part
        add = AtOnceStep(stages.users, cuts.users, cuts.users, part, stores=True, round=number)
        to = Sharding(cuts.windows.windows_per_slab if number else cuts.users.windows_per_slab, 1)
        name = AtOnceStep(stages.items, cuts.users, to, part, round=number)
        added = users | f"Users{number}" >> AtOnce(add, self._noise_key, self._pool, rereads=rereads, named=named)
        groups = added[SENT] | f"GroupItems{number}" >> beam.GroupByKey()
        found = groups | f"Items{number}" >> AtOnce(name, self._noise_key, self._pool, named=named)
        return found[SENT], added[STATE]

    def _released(self, named: beam.PCollection, states: tuple[beam.PCollection, ...] = ()) -> Released:
        """named: what the second stage found in slabs of windows."""
        by_window = Sharding(self._cuts.windows.windows_per_slab, 1)
        release = AtOnceStep(self._stages.windows, by_window, None, self._part)
        released = named | "GroupWindows" >> beam.GroupByKey() | "Windows" >> AtOnce(release, self._noise_key)
        return Released(released[SENT], states)


class ReleasedInOrder(NamedTuple):
    """The same of a stream. ended: of `RunEnded`."""

    reports: beam.PCollection
    ended: beam.PCollection
    states: tuple[beam.PCollection, ...]


class ReleaseStagesInOrder(beam.PTransform):
    """``((window, shard of users), message)`` -> `ReleasedInOrder`.

    Whoever says when a window is complete: the clocks of partitions, or a watermark.

    shards: of users, and of items. senders: how many senders each shard of users has in each window. part: None for a
    whole run.
    """

    def __init__(
        self, stages: ReleaseStages, noise_key: beam.Secret, shards: int, senders: int, part: RunPart | None = None
    ) -> None:
        super().__init__()
        self._stages = stages
        self._noise_key = noise_key
        self._shards = shards
        self._senders = senders
        self._part = part

    def expand(self, messages: beam.PCollection) -> ReleasedInOrder:
        stages, noise_key, shards, part = self._stages, self._noise_key, self._shards, self._part
        added = messages | "Users" >> InOrder(stages.users, noise_key, shards, self._senders, shards, part)
        found = added[ADVANCED] | "Items" >> InOrder(stages.items, noise_key, shards, shards, 1, part)
        if stages.windows.work is MonitorWindows:
            last: beam.PTransform = MonitorHeavyHitters(stages.windows, noise_key, shards, part)
            released = found[ADVANCED] | "MonitorHeavyHitters" >> last
        else:
            last = ReleaseInOrder(ReleaseInOrderDoFn(stages.windows, noise_key, part), stages.windows.run.stream)
            released = found[ADVANCED] | "GatherWindows" >> GatherCounted(shards) | "Windows" >> last
        states = tuple(
            sent[STATE] for stage, sent in zip(stages, (added, found, released), strict=True) if stage.work.keeps_state
        )
        for state in states:
            state.element_type = convert_to_beam_type(tuple[Key, EncodedMessage])
        return ReleasedInOrder(released[REPORTS], released[ENDED], states)


def state_senders(stages: ReleaseStages, shards: int) -> int:
    """How many shards of the stages of a stream hand over state."""
    return sum(of_stage * stage.work.keeps_state for stage, of_stage in zip(stages, (shards, shards, 1), strict=True))
