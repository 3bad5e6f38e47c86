"""At once: bounded input through the steps of `dp_transforms.core`, each on all that belongs to a range of windows and
a shard of users or items. An engine waits for all of a group before it hands it out, so one step is over before the
next begins: group by shard of users, the users' step; group by shard of items, the items' step; again in each round;
report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.close_windows import InClosingWindows, KeyedCell
from dp_transforms.beam.metrics import add_counts
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.pack_contributions import MergeContributions
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.stage import AtOnceStep, GroupKey, Partitioning, Sharding, WorkerStep
from dp_transforms.core.steps import RunStages, block_reports
from dp_transforms.core.window_report import WindowReport

_Named = Sequence[tuple[GroupKey, bytes]] | None  # in earlier rounds


class Released(NamedTuple):
    """reports: of `WindowReport`. blocks: reports of blocks, where they are asked for."""

    reports: beam.PCollection
    blocks: beam.PCollection | None


class ReleaseAtOnce(beam.PTransform):
    """``((range of windows, shard of users), packed Contributions)`` -> `Released`, where users pay for
    contributions; bounded input only. with_blocks: of a plan with rounds, also reports of its blocks."""

    def __init__(
        self, stages: RunStages, noise_key: beam.Secret, cuts: Partitioning, *, with_blocks: bool = False
    ) -> None:
        super().__init__()
        self._stages, self._noise_key, self._cuts, self._with_blocks = stages, noise_key, cuts, with_blocks

    def expand(self, packed: beam.PCollection) -> Released:
        """Users and items of a later round get what the rounds before it named, in blocks and in windows. So each round
        is over before the next one begins, and a step that is repeated sees the same names."""
        stages, key, cut = self._stages, self._noise_key, self._cuts.users
        users = packed | "GroupUsers" >> beam.GroupByKey()
        if stages.users.run.plan.rounds is not None:  # else each round would sort them again
            merged = users | "MergeContributions" >> run_step(MergeContributions(), key)
            users = merged | "GroupMerged" >> beam.GroupByKey()
        named: list[beam.PCollection] = []
        blocks, rounds = None, list(stages.in_rounds())
        for number, (name, of_users, of_items) in enumerate(rounds, 1):
            # What the last round names goes to its windows; each step of the next one reads all that a round names.
            to = self._cuts.windows if number == len(rounds) else cut
            find = AtOnceStep(of_items, cut, Sharding(to.windows_per_range, 1))
            sums = users | f"Users{name}" >> run_step(AtOnceStep(of_users, cut, cut), key, named)
            if of_items.public_items is not None:  # never in rounds: FnApiRunner gets stuck with starts and side inputs
                sums = sums | f"AllShards{name}" >> WithStarts(find)
            items = sums | f"GroupItems{name}" >> beam.GroupByKey()
            found = items | f"Items{name}" >> run_step(find, key, named)
            if number == 1 and self._with_blocks:
                blocks = self._reports(found, "Blocks", RunPart.whole(stages.users.run.plan.schedule))
            named = [*named[:1], found]
        return Released(self._reports(found, "Windows"), blocks)

    def _reports(self, found: beam.PCollection, name: str, of_blocks: RunPart | None = None) -> beam.PCollection:
        report = beam.FlatMap(_reports, self._stages.users.run, of_blocks).with_output_types(WindowReport)
        return found | f"Group{name}" >> beam.GroupByKey() | name >> report


def _reports(
    group: tuple[GroupKey, Iterable[bytes]], run: PlannedRun, of_blocks: RunPart | None
) -> Iterator[TimestampedValue]:
    """At the maximal timestamp of their windows. of_blocks: what is named is named in blocks of this part."""
    named = NamedItems.of_messages(group[1])
    reports = named.window_reports(run.plan, run.stream) if of_blocks is None else block_reports(run, of_blocks, named)
    for _, report in reports:
        yield TimestampedValue[WindowReport](report, Timestamp(micros=report.window_end - 1))


def run_step(
    step: WorkerStep, noise_key: beam.Secret, named: Sequence[beam.PCollection] = (), *, of_keys: bool = False
) -> beam.ParDo:
    """Groups -> packed columns by key for the next step. A group is ``(key, all packed columns)``; a key has a range of
    windows and a shard. of_keys: with the key of a monitor before them.

    named: for every group of a later round, what was named, packed `NamedItems` by key, as `Step.process` takes
    them; each of one step alone, since not every engine waits for all that were flattened.
    """
    sent: Any = tuple[KeyedCell, bytes] if of_keys else tuple[GroupKey, bytes]
    return beam.ParDo(_RunStepDoFn(step, noise_key), *map(beam.pvalue.AsList, named)).with_output_types(sent)


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


class WithStarts(beam.PTransform):
    """Packed columns by key, and an empty blob for each key that there may be: those to which nothing comes act, too.

    Followed items, and public ones, are tested in every window. names: for columns by key, range of windows and shard,
    the keys. On a stream the starts of all windows are put in at the beginning, before the watermark can pass one.
    """

    def __init__(self, step: AtOnceStep, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self._step, self._names = step, names

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        once = packed.pipeline | "Once" >> beam.Impulse()
        starts = once | "Starts" >> beam.FlatMap(_starts, self._step, self._names)
        starts.element_type = packed.element_type
        if not packed.is_bounded:
            starts = starts | "ByWatermark" >> InClosingWindows(self._step.stage.run.plan.schedule)
        return (packed, starts) | "Join" >> beam.Flatten()


def _starts(once: bytes, step: AtOnceStep, names: Sequence[str] | None) -> Iterator[tuple[Any, bytes]]:
    cut, windows = step.cut, step.whole_or_part
    ranges = range(windows.first // cut.windows_per_range, -(-windows.end // cut.windows_per_range))
    for cell in ((number, shard) for number in ranges for shard in range(cut.shards)):
        yield from [(cell, b"")] if names is None else (((name, *cell), b"") for name in names)
