"""Release: packed pairs of users -> reports, through the three stages of a run, by either driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.at_once import WithStarts, merge_pairs, run_at_once
from dp_transforms.beam.close_windows import KeyedCell
from dp_transforms.beam.threshold_monitor import MonitorContributions
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.run_part import RunPart
from dp_transforms.core.stage import AtOnceStep, GroupKey, Partitioning, Sharding, Stage
from dp_transforms.core.steps import RunStages, block_reports
from dp_transforms.core.window_report import WindowReport


class Released(NamedTuple):
    """reports: of `WindowReport`. blocks: reports of blocks, where they are asked for."""

    reports: beam.PCollection
    blocks: beam.PCollection | None = None


class ReleaseHits(beam.PTransform):
    """``((range, shard of users), packed UserContributions)`` -> `Released`, where users pay for hits:
    ThresholdMonitorEvolving under one key, the stream of the run. cut: `MonitorContributions.cut`.
    """

    def __init__(
        self, run: PlannedRun, noise_key: beam.Secret, cut: Sharding, public_items: PublicItemsSource | None = None
    ) -> None:
        super().__init__()
        self._stream = run.stream
        self._monitor = MonitorContributions(run, noise_key, cut, public_items=public_items, keys=(run.stream,))

    def expand(self, packed: beam.PCollection) -> Released:
        keyed = packed | "UnderKey" >> beam.Map(_under_key, self._stream).with_output_types(tuple[KeyedCell, bytes])
        monitored = keyed | "MonitorHeavyHitters" >> self._monitor
        return Released(monitored | "Reports" >> beam.Values().with_output_types(WindowReport))


def _under_key(packed: tuple[GroupKey, bytes], key: str) -> tuple[KeyedCell, bytes]:
    cell, blob = packed
    return (key, *cell), blob


class ReleaseAtOnce(beam.PTransform):
    """``((range, shard of users), packed pairs)`` -> `Released`; bounded input only.

    with_blocks: of a plan with rounds, also reports of its blocks.
    """

    def __init__(
        self, stages: RunStages, noise_key: beam.Secret, cuts: Partitioning, *, with_blocks: bool = False
    ) -> None:
        super().__init__()
        self._stages = stages
        self._noise_key = noise_key
        self._cuts = cuts
        self._with_blocks = with_blocks

    def expand(self, packed: beam.PCollection) -> Released:
        run, noise_key = self._stages.users.run, self._noise_key
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if run.plan.rounds is not None:
            users = merge_pairs(users, noise_key)
        in_first_round, found = self._found(users)
        groups = found | "GroupWindows" >> beam.GroupByKey()
        reports = groups | "Windows" >> beam.FlatMap(_reports, run).with_output_types(WindowReport)
        blocks = None
        if self._with_blocks:
            groups = in_first_round | "GroupBlocks" >> beam.GroupByKey()
            whole = RunPart.whole(run.plan.schedule)
            blocks = groups | "Blocks" >> beam.FlatMap(_reports, run, whole).with_output_types(WindowReport)
        return Released(reports, blocks)

    def _found(self, users: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        """What is found in the first round of tests; and in all of them, in ranges of windows. Where tests come in
        rounds, users and items of each get what the rounds before it named. So each round is over before the next one
        begins, and a step that is repeated sees the same names."""
        named: list[beam.PCollection] = []
        first = found = users
        rounds = list(self._stages.in_rounds())
        for number, (name, of_users, of_items) in enumerate(rounds, 1):
            found = self._round(users, name, of_users, of_items, named, is_last=number == len(rounds))
            first = found if number == 1 else first
            named = [*named[:1], found]  # what was named in blocks, and in windows
        return first, found

    def _round(
        self,
        groups: beam.PCollection,
        name: str,
        users: Stage,
        items: Stage,
        named: Sequence[beam.PCollection],
        *,
        is_last: bool,
    ) -> beam.PCollection:
        """All that a round names is read by each step of the next one, and so stays together; what the last one names
        goes to its windows."""
        cuts, key = self._cuts, self._noise_key
        to = Sharding((cuts.windows if is_last else cuts.users).windows_per_range, 1)
        sums = run_at_once(groups, f"Users{name}", AtOnceStep(users, cuts.users, cuts.users), key, named)
        find = AtOnceStep(items, cuts.users, to)
        # With rounds users wake all items, and are woken themselves: the local runner gets stuck with both, starts that
        # join and side inputs.
        if items.public_items is not None:
            sums = sums | f"AllShards{name}" >> WithStarts(find)
        return run_at_once(sums | f"GroupItems{name}" >> beam.GroupByKey(), f"Items{name}", find, key, named)


def _reports(
    group: tuple[GroupKey, Iterable[bytes]], run: PlannedRun, of_blocks: RunPart | None = None
) -> Iterator[TimestampedValue]:
    """At the maximal timestamp of their windows. of_blocks: what is named is named in blocks of this part."""
    named = NamedItems.of_messages(message for message in group[1] if message)
    reports = named.window_reports(run.plan, run.stream) if of_blocks is None else block_reports(run, of_blocks, named)
    for _, report in reports:
        yield TimestampedValue[WindowReport](report, Timestamp(micros=report.window_end - 1))
