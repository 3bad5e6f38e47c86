"""A replay on this machine: a driver of the steps of `dp_transforms.core` without an engine, beside the two of Beam.

Workers read the chunks of a log, pack the contributions, and run the steps (`pool`). This process groups what a step
puts out by range of windows and shard of users or items, and hands the groups to the next step; it knows only where
their contents lie. The step of users and the step of items take turns, once or in rounds; each is over before the next
begins. Last, what was found is reported, window by window.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dp_transforms.core.contribution_counters import ContributionCounters
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, candidates_in_order
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.operator_counts import EVENTS_REJECTED
from dp_transforms.core.pack_contributions import MergeContributions, PackContributions
from dp_transforms.core.planned_run import PlannedRun, RunPart
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.stage import AtOnceStep, GroupKey, Partitioning, Sharding, StateChunk, Work, WorkerStep
from dp_transforms.core.stages import stages_of
from dp_transforms.core.state_chunks import Kind, hit_bound_chunk, pack_by_bucket
from dp_transforms.core.window_report import WindowReport
from dp_transforms.local.pool import Blob, Done, ThisProcess, faults_of_steps
from dp_transforms.logs import EventFields, JoinedChunks, read_joined
from dp_transforms.logs.rejected_events import RejectedEvents

Groups = dict[GroupKey, list[Blob]]
Progress = Callable[[str, int, int], None]
"""Is told what is done, and how many tasks of how many are over."""


@dataclasses.dataclass
class Replayed:
    """What a replay has made. reports: in order. rejected, counts: for the operator. handed_over: what a part of
    a run hands to the next one, packed by `state_chunks.pack_chunk`."""

    reports: list[WindowReport] = dataclasses.field(default_factory=list)
    rejected: list[RejectedEvents] = dataclasses.field(default_factory=list)
    handed_over: list[bytes] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True)
class ReadContributionsStep:
    """`JoinedChunks` of a log with these fields, or an `EventBatch` -> packed contributions, and `RejectedEvents`.
    public_items: of a plan with public items."""

    packing: PackContributions
    fields: EventFields
    public_items: PublicItemsSource | None = None

    def start(self, secret: bytes) -> Work:
        keys = IdKeys(secret)
        public_items = None if self.public_items is None else self.public_items.all_items(keys)

        def read(source: JoinedChunks | EventBatch, counts: Counter[str]) -> Iterator[Any]:
            if isinstance(source, EventBatch):
                yield from self.packing.pack(source, keys, public_items, counts)
                return
            for block in read_joined(source, self.fields):
                for rejected in block.rejected:
                    counts[EVENTS_REJECTED] += len(rejected.positions)
                    yield rejected
                if len(block.batch):
                    yield from self.packing.pack(block.batch, keys, public_items, counts)

        return read


class LocalReplay:
    """All windows of a run, or of one part of it, on this machine.

    Guarantee: the reports are those of `ShiftingHeavyHitters` for the same run, and together with all that is published
    of its other parts they are (plan.epsilon, plan.delta)-DP. With the same key, run id, plan and `RunPart.draws_as`
    they are the same reports. Condition: each window is taken once, with one input, by the part that begins where the
    one before it ended (`runs` and `cli` see to it).

    public_items: of a plan with public items. part: None for the whole run. shards: into how many parts users and items
    are cut; None for a good number; results do not depend on it.
    """

    def __init__(
        self,
        run: PlannedRun,
        workers: ThisProcess,
        *,
        public_items: PublicItemsSource | None = None,
        part: RunPart | None = None,
        shards: int | None = None,
        progress: Progress = lambda *_: None,
    ) -> None:
        plan = run.plan
        self._windows = part or RunPart.whole(plan.schedule)
        if not 0 <= self._windows.first < self._windows.end <= plan.schedule.horizon:
            raise ValueError(f"windows {self._windows.first} .. {self._windows.end - 1} are not windows of the plan.")
        self._run, self._workers, self._public_items, self._part = run, workers, public_items, part
        self._progress, self._made = progress, Replayed()
        self._stages = stages_of(run, public_items, is_replay=part is None, is_part=part is not None)
        self._cuts = Partitioning.of(plan.schedule, pays_tests=plan.contributions is not None, shards=shards, part=part)

    def take(self, sources: Sequence[JoinedChunks | EventBatch], fields: EventFields | None = None) -> Replayed:
        """Of events in memory, or of a log with these fields. Once. Raises EventFileError, StateError, PoolError and
        StepFaultError."""
        with faults_of_steps():
            found = self._found(self._read(sources, fields or EventFields()))
            reports = self._reports(found) if self._run.plan.hits is None else self._close_windows(found)
        self._made.reports = sorted(reports, key=lambda report: report.window_start)
        return self._made

    def _read(self, sources: Sequence[JoinedChunks | EventBatch], fields: EventFields) -> Groups:
        """Packed contributions by range of windows and shard of users."""
        packing = PackContributions(self._run.plan.schedule, self._cuts.users, self._part)
        groups: Groups = defaultdict(list)
        step = ReadContributionsStep(packing, fields, self._public_items)
        for output in self._outputs("reading", step, sources, len(sources)):
            if isinstance(output, RejectedEvents):
                self._made.rejected.append(output)
            else:
                groups[output[0]].append(output[1])
        return dict(groups)

    def _found(self, users: Groups) -> Groups:
        """What items come to, by range of windows, after all rounds: candidates, or named items. Users and items of a
        later round are told what those before it have named, in blocks and in windows."""
        plan, cuts, part = self._run.plan, self._cuts, self._part
        rounds = list(self._stages.in_rounds())
        if plan.rounds is not None:
            users = self._step(MergeContributions(sys.maxsize), users)  # each round reads them again
        named: list[list[Blob]] = []
        found = Groups()
        for number, (_, of_users, of_items) in enumerate(rounds, 1):
            is_last = number == len(rounds)
            sums = self._step(AtOnceStep(of_users, cuts.users, cuts.users, part), users, named)
            if is_last:
                users.clear()
            if of_items.public_items is not None or (part is not None and of_items.step.KIND is not None):
                for key in self._all_keys():  # shards to which nothing comes act, too
                    sums.setdefault(key, [])
            to = Sharding((cuts.windows if is_last else cuts.users).windows_per_range, 1)
            found = self._step(AtOnceStep(of_items, cuts.users, to, part), sums, named)
            sums.clear()
            named = [*named[:1], [blob for blobs in found.values() for blob in blobs]]
        return found

    def _step(self, step: WorkerStep, groups: Groups, named: Sequence[Sequence[Blob]] = ()) -> Groups:
        sent: Groups = defaultdict(list)
        elements = ((key, groups[key], *named) for key in sorted(groups))
        for output in self._outputs("finding heavy items", step, elements, len(groups)):
            if isinstance(output, StateChunk):
                self._made.handed_over.append(output.packed)
            else:
                sent[output[0]].append(output[1])
        return dict(sent)

    def _outputs(self, what: str, step: WorkerStep, elements: Iterable[Any], number: int) -> Iterator[Any]:
        """In the order of the elements."""
        over: list[Done] = []
        for done in self._workers.run(step, elements):
            over.append(done)
            self._progress(what, len(over), number)
            self._made.counts += done.counts
        return itertools.chain.from_iterable(done.outputs for done in sorted(over, key=lambda done: done.number))

    def _all_keys(self) -> list[GroupKey]:
        part, cut = self._windows, self._cuts.users
        ranges = range(part.first // cut.windows_per_range, -(-part.end // cut.windows_per_range))
        return [(number, shard) for number in ranges for shard in range(cut.shards)]

    def _reports(self, found: Groups) -> list[WindowReport]:
        named = NamedItems.of_messages(bytes(blob) for key in sorted(found) for blob in found[key])
        return [report for _, report in named.window_reports(self._run.plan, self._run.stream)]

    def _close_windows(self, found: Groups) -> list[WindowReport]:
        """Tests the candidates of all windows in order, and charges the users who hold a hit: what
        `ThresholdMonitorEvolvingDoFn` does, under one key, the stream of the run."""
        part, workers = self._windows, self._workers
        candidates = [ItemHolders.from_bytes(bytes(blob)) for key in sorted(found) for blob in found[key] if blob]
        state = MonitorState(part.first, part.hit_bound, ContributionCounters(part.entries(Kind.HITS)))
        monitor = HeavyHitterMonitor(self._run.plan, self._run.stream_keys(workers.secret))
        reports = [report for _, report in monitor.close_windows(candidates_in_order(candidates), state)]
        if self._part is not None:
            charged = ((Kind.HITS, chunk) for chunk in state.budgets.delta())
            self._made.handed_over += pack_by_bucket([(Kind.HIT_BOUND, hit_bound_chunk(state.hit_bound)), *charged])
        return reports
