"""At once: bounded input through the steps of `dp_transforms.core`, each on all that belongs to a range of windows and
a shard of users or items. An engine waits for all of a group before it hands it out, so one step is over before the
next begins: group by shard of users, the users' step; group by shard of items, the items' step; again in each round;
report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import KeyedCell, with_starts
from dp_transforms.beam.workers import add_counts
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.pack_contributions import MergeContributions
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.stage import AtOnceStep, Partitioning, Sharding, WorkerStep
from dp_transforms.core.stages import RunStages
from dp_transforms.core.window_report import WindowReport

_Named = Sequence[tuple[KeyedCell, bytes]] | None  # in earlier rounds


class ReleaseAtOnce(beam.PTransform):
    """``(KeyedCell, packed Contributions)`` under the stream of the run -> `WindowReport`, where users pay
    for contributions; bounded input only."""

    def __init__(self, stages: RunStages, noise_key: beam.Secret, cuts: Partitioning) -> None:
        super().__init__()
        self._stages, self._noise_key, self._cuts = stages, noise_key, cuts

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        """Users and items of a later round get what the rounds before it named, in blocks and in windows. So each round
        is over before the next one begins, and a step that is repeated sees the same names."""
        key, cut, run = self._noise_key, self._cuts.users, self._stages.users.run
        if run.plan.rounds is not None and self._stages.items.public_items is not None:
            packed = packed | "AllShards" >> with_starts(run.plan.schedule, cut, [run.stream])
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if run.plan.rounds is not None:  # else each round would sort them again
            merged = users | "MergeContributions" >> run_step(MergeContributions(), key)
            users = merged | "GroupMerged" >> beam.GroupByKey()
        named: list[beam.PCollection] = []
        rounds = list(self._stages.in_rounds())
        for number, (name, of_users, of_items) in enumerate(rounds, 1):
            # What the last round names goes to its windows; each step of the next one reads all that a round names.
            to = self._cuts.windows if number == len(rounds) else cut
            sums = users | f"Users{name}" >> run_step(AtOnceStep(of_users, cut, cut), key, named)
            if of_items.public_items is not None and not name:  # in rounds users send to all shards
                sums = sums | f"AllShards{name}" >> with_starts(run.plan.schedule, cut, [run.stream])
            items = sums | f"GroupItems{name}" >> beam.GroupByKey()
            find = AtOnceStep(of_items, cut, Sharding(to.windows_per_range, 1))
            found = items | f"Items{name}" >> run_step(find, key, named)
            named = [*named[:1], found]
        report = beam.FlatMap(_reports, run).with_output_types(WindowReport)
        return found | "GroupWindows" >> beam.GroupByKey() | "Windows" >> report


def _reports(group: tuple[KeyedCell, Iterable[bytes]], run: PlannedRun) -> Iterator[TimestampedValue]:
    """At the maximal timestamp of their windows."""
    for _, report in NamedItems.of_messages(group[1]).window_reports(run.plan, run.stream):
        yield TimestampedValue[WindowReport](report, Timestamp(micros=report.window_end - 1))


def run_step(step: WorkerStep, noise_key: beam.Secret, named: Sequence[beam.PCollection] = ()) -> beam.ParDo:
    """Groups ``(KeyedCell, all packed columns)`` -> packed columns by `KeyedCell` for the next step.

    named: for every group of a later round, what was named, packed `NamedItems` by key, as `Step.process` takes
    them; each of one step alone, since not every engine waits for all that were flattened.
    """
    names = map(beam.pvalue.AsList, named)
    return beam.ParDo(_RunStepDoFn(step, noise_key), *names).with_output_types(tuple[KeyedCell, bytes])


class _RunStepDoFn(beam.DoFn):
    def __init__(self, step: WorkerStep, noise_key: beam.Secret) -> None:
        self._step, self._noise_key = step, noise_key

    def setup(self) -> None:
        self._work = self._step.start(self._noise_key.get_secret_bytes())

    # Beam does not type the side inputs of ``*named``.
    def process(self, group: Any, first: _Named = None, second: _Named = None) -> Iterator[Any]:
        named = [[blob for _, blob in each] for each in (first, second) if each is not None]
        counts: Counter[str] = Counter()
        yield from self._work((*group, *named), counts)
        add_counts(counts)
