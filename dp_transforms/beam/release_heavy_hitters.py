"""Release: `ShiftingHeavyHitters`, the transform that users import for logs and for streams that Beam reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import apache_beam as beam

from dp_transforms.beam.assign_windows import assign_windows, check_windows
from dp_transforms.beam.at_once import ReleaseAtOnce
from dp_transforms.beam.in_order import ReleaseStagesInOrder, counted_by_watermark
from dp_transforms.beam.read_events import CollectEvents, Getter
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.threshold_monitor import MonitorContributions
from dp_transforms.beam.workers import resolve_noise_key
from dp_transforms.checks import check_names
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import Partitioning, Sharding
from dp_transforms.core.stages import stages_of
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.plan import Plan


class ReleaseOutput(NamedTuple):
    """What `ShiftingHeavyHitters` returns.

    reports: PCollection of `WindowReport`, one per window with heavy items, at the maximal timestamp of its window, in
        the GlobalWindow. They have no order, as in every PCollection. In which one an engine gives them may depend on
        data that are not released, so do not publish it: sort what you write, as `WriteReports` does. rejected:
        PCollection of `RejectedEvents`, for the operator alone.
    """

    reports: beam.PCollection
    rejected: beam.PCollection


class ShiftingHeavyHitters(beam.PTransform):
    """Which items are held by many users in each window, under user-level differential privacy over the whole run.

    Guarantee: all reports together are (plan.epsilon, plan.delta)-DP for adding or removing one user with all its
    events, however many windows of the plan's schedule are published (docs/guarantee.md). With public items this
    holds if the list of items is public and was not made from the log. ``rejected`` and Beam's metrics are for the
    operator and are not covered.

    plan: a `Plan`; its schedule declares the windows. Events outside its range are skipped and counted.
    user, item: names of the fields of the elements (with a schema, or NamedTuples, rows and mappings without one), or
        functions of an element; several names of the item make one label. Not used for plain tuples, which are pairs
        (user, item), nor for `EventBatch`.
    time: the same for the event time; None: the element's timestamp. Its values are datetimes (UTC unless they have a
        zone), Beam's timestamps, ISO 8601 text, or numbers in the ``time_unit``: ``s``, ``ms`` or ``us`` since 1970
        UTC. Only for bounded input: the windows of a stream close by the timestamps that its source sets. An
        `EventBatch` has its own times. Elements without a timestamp, and events outside the plan's range, are skipped,
        counted and warned of once.
    noise_key: a path to a private file of at least 32 bytes, a `beam.Secret`, or None for a key drawn for this run,
        which is allowed only where the run stays in this process.
    run_id: new for every run; None draws one each time the transform is applied. Reuse it only to resume the same run
        over the same input. A pipeline object or template that runs twice repeats its noise: build it again.
    stream: name in the reports. The budgets of streams that share users add up.
    shards: how many parts large windows are cut into; results do not depend on it. A stream that continues from
        stored state must have the same number, else it stops: users would have full budgets in other shards.
    public_items: of a plan with public items, these: the path of their file, which every worker must be able to read,
        or `PublicItems` of at most 5 MB, which travel in the job graph. Events with other items are left out
        and counted.

    The watermark of a stream must not follow the event times of a single user (docs/guarantee.md, "Which events of a
    stream are in time").

    Where users pay for contributions, bounded input and a stream give different reports: a stream does not know what a
    user will do later, so each spends its budget at its own pace (`core.user_budgets`), as in `MonitorStream`. Plans
    with rounds are for bounded input; a stream refuses them (``use="stream"``).

    Input is in the GlobalWindow or in the windows of the plan. In sliding windows each element is read, and counted for
    the operator, once for each of its windows. Raises ValueError for other windows, and without a usable key.
    """

    def __init__(
        self,
        plan: Plan,
        user: str | Getter = "user",
        item: str | Sequence[str] | Getter = "item",
        noise_key: beam.Secret | str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        stream: str = "events",
        shards: int | None = None,
        public_items: PublicItems | str | os.PathLike[str] | None = None,
        time: str | Getter | None = None,
        time_unit: str | None = None,
    ) -> None:
        super().__init__()
        self._collect = CollectEvents(user, item, time, time_unit)
        check_names(stream=stream, run_id=run_id)
        self._plan, self._noise_key, self._shards = plan, noise_key, shards
        self._public_items = PublicItemsSource.of_plan(public_items, plan)
        self._run_id, self._stream = run_id, stream

    def expand(self, events: beam.PCollection) -> ReleaseOutput:
        check_windows(events.windowing.windowfn, self._plan.schedule)
        noise_key = resolve_noise_key(self._noise_key, events.pipeline)
        keep_bundles_whole(events.pipeline)
        # Drawn here and not in __init__: a transform that is applied twice must not repeat its noise over other data.
        run_id = self._run_id or fresh_run_id()
        run = PlannedRun(plan=self._plan, stream=self._stream, run_id=run_id)
        batches, rejected = events | "CollectEvents" >> self._collect
        if self._plan.hits is not None:
            reports = self._by_hits(batches, run, noise_key)
        elif events.is_bounded:
            reports = self._at_once(batches, run, noise_key)
        else:
            reports = self._in_order(batches, run, noise_key)
        return ReleaseOutput(reports, rejected)

    def _by_hits(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> beam.PCollection:
        """`ThresholdMonitorEvolving` under one key, the stream of the run."""
        cut = MonitorContributions.cut(run.plan.schedule, self._shards, is_bounded=batches.is_bounded)
        packed = batches | "AssignWindows" >> assign_windows(run, noise_key, cut, self._public_items)
        monitor = MonitorContributions(run, noise_key, cut, public_items=self._public_items, keys=(run.stream,))
        return packed | "Release" >> monitor | "Reports" >> beam.Values().with_output_types(WindowReport)

    def _at_once(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> beam.PCollection:
        cuts = Partitioning.of(run.plan.schedule, pays_tests=True, shards=self._shards)
        packed = batches | "AssignWindows" >> assign_windows(run, noise_key, cuts.users, self._public_items)
        stages = stages_of(run, self._public_items, is_replay=True)
        return packed | "Release" >> ReleaseAtOnce(stages, noise_key, cuts)

    def _in_order(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> beam.PCollection:
        cut, stages = Sharding.of_stream(self._shards), stages_of(run, self._public_items)
        packed = batches | "AssignWindows" >> assign_windows(run, noise_key, cut, self._public_items)
        messages = packed | "ByWatermark" >> counted_by_watermark(run.plan.schedule, cut, run.stream)
        release = ReleaseStagesInOrder(stages, noise_key, cut.shards, senders=1)
        return (messages | "Release" >> release).reports
