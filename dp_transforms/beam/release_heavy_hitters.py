"""Release: `ShiftingHeavyHitters`, the transform that users import for logs and for streams that Beam reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import WindowFn

from dp_transforms.beam.assign_windows import assign_windows, check_window, check_windowing, in_global_window
from dp_transforms.beam.at_once import ReleaseAtOnce, Released
from dp_transforms.beam.close_windows import KeyedCell
from dp_transforms.beam.element_fields import Getter, check_getters, getter_of
from dp_transforms.beam.in_order import CountedByWatermark, ReleaseStagesInOrder
from dp_transforms.beam.keys import resolve_noise_key
from dp_transforms.beam.read_events import CollectEvents
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.threshold_monitor import MonitorContributions
from dp_transforms.checks import check_names
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.pack_contributions import PackContributions
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import AtOnceStep, GroupKey, Partitioning, Sharding
from dp_transforms.core.steps import stages_of
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs.event_ids import label_getter
from dp_transforms.logs.log_chunk import TIME_UNITS
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.plan.plan import Plan


class ReleaseOutput(NamedTuple):
    """What `ShiftingHeavyHitters` returns.

    reports: PCollection of `WindowReport`, one per window with heavy items, at the maximal timestamp of its window, in
        the GlobalWindow. They have no order, as in every PCollection. In which one an engine gives them may depend on
        data that are not released, so do not publish it: sort what you write, as `WriteReports` does. rejected:
        PCollection of `RejectedEvents`, for the operator alone. blocks: the same as reports of blocks, if asked for.
    """

    reports: beam.PCollection
    rejected: beam.PCollection
    blocks: beam.PCollection | None = None


class ShiftingHeavyHitters(beam.PTransform):
    """Which items are held by many users in each window, under user-level differential privacy over the whole run.

    Guarantee: all reports together are (plan.epsilon, plan.delta)-DP for adding or removing one user with all its
    events, however many windows of the plan's schedule are published (docs/guarantee.md). With public items this
    holds if the list of items is public and was not made from the log. ``rejected`` and Beam's metrics are for the
    operator and are not covered.

    plan: a `Plan`; its schedule declares the windows. Events outside its range are skipped and counted.
    window: None for the windows of the plan; other values are checked to be the same windows.
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
    with_blocks: also report what is held by many in the blocks of a plan with rounds, such as days, at no further cost.

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
        window: WindowFn | None = None,
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
        with_blocks: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(plan, Plan):
            raise ValueError(
                f"plan must be a Plan, got a {type(plan).__name__}."
                " Use Plan.for_contributions(...) or Plan.for_hits(...)."
            )
        if window is not None:
            check_window(window, plan.schedule)
        items = item if isinstance(item, (list, tuple)) and item else [item]
        of_items = (("item", each) for each in items)
        for name, getter in (("user", user), *of_items, *((("time", time),) if time is not None else ())):
            if not (callable(getter) or (isinstance(getter, str) and getter)):
                raise ValueError(f"{name} must be a field name or a function, got {getter!r}.")
        if time_unit is not None and (time is None or time_unit not in TIME_UNITS):
            raise ValueError(
                f"time_unit must be one of {', '.join(TIME_UNITS)}, and belongs to time, got {time_unit!r} with"
                f" time={time!r}."
            )
        check_names(stream=stream, run_id=run_id)
        if with_blocks:
            _ = plan.paid_rounds  # raises without rounds
        self._with_blocks = with_blocks
        self._public_items = PublicItemsSource.of_plan(public_items, plan)
        self._plan = plan
        self._user = user
        self._item = item
        self._time = time
        self._time_unit = time_unit
        self._noise_key = noise_key
        self._shards = shards
        self._run_id = run_id
        self._stream = stream

    def expand(self, events: beam.PCollection) -> ReleaseOutput:
        check_windowing(events, self._plan.schedule)
        if self._time is not None and not events.is_bounded:
            raise ValueError(
                "time cannot be used with unbounded input: its windows close by the timestamps of its elements, so the"
                " source must set these. Leave time out."
            )
        noise_key = resolve_noise_key(self._noise_key, events.pipeline)
        keep_bundles_whole(events.pipeline)
        # Drawn here and not in __init__: a transform that is applied twice must not repeat its noise over other data.
        run_id = self._run_id or fresh_run_id()
        run = PlannedRun(plan=self._plan, stream=self._stream, run_id=run_id)
        release = self._in_order
        if run.plan.hits is not None:
            release = self._by_hits
        elif events.is_bounded:
            release = self._at_once
        batches, rejected = self._batches(events)
        reports, blocks = release(batches, run, noise_key)
        return ReleaseOutput(reports, rejected, blocks)

    def _by_hits(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> Released:
        """`ThresholdMonitorEvolving` under one key, the stream of the run."""
        cut = MonitorContributions.cut(run.plan.schedule, self._shards, is_bounded=batches.is_bounded)
        packed = batches | "AssignWindows" >> self._packing(run, noise_key, cut)
        keyed = packed | "UnderKey" >> beam.Map(_under_key, run.stream).with_output_types(tuple[KeyedCell, bytes])
        monitor = MonitorContributions(run, noise_key, cut, public_items=self._public_items, keys=(run.stream,))
        return Released(keyed | "Release" >> monitor | "Reports" >> beam.Values().with_output_types(WindowReport), None)

    def _at_once(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> Released:
        cuts = Partitioning.of(run.plan.schedule, pays_looks=True, shards=self._shards)
        packed = batches | "AssignWindows" >> self._packing(run, noise_key, cuts.users)
        stages = stages_of(run, self._public_items, is_replay=True)
        return packed | "Release" >> ReleaseAtOnce(stages, noise_key, cuts, with_blocks=self._with_blocks)  # type: ignore[no-any-return]

    def _in_order(self, batches: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> Released:
        cut, stages = Sharding.of_stream(self._shards), stages_of(run, self._public_items)
        packed = batches | "AssignWindows" >> self._packing(run, noise_key, cut)
        messages = packed | "ByWatermark" >> CountedByWatermark(AtOnceStep(stages.users, cut, cut))
        release = ReleaseStagesInOrder(stages, noise_key, cut.shards, senders=1)
        return Released((messages | "Release" >> release).reports, None)

    def _packing(self, run: PlannedRun, noise_key: beam.Secret, cut: Sharding) -> beam.ParDo:
        step = PackContributions(run.plan.schedule, cut)
        return assign_windows(run, noise_key, step, self._public_items)

    def _batches(self, events: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        if events.element_type is EventBatch:
            none = events | "NoneRejected" >> beam.FlatMap(_nothing).with_output_types(RejectedEvents)
            return in_global_window(events), none
        user, item, time = self._getters(events.element_type)
        batches, rejected = events | "CollectEvents" >> CollectEvents(user, item, time, self._time_unit)
        return batches, rejected

    def _getters(self, element_type: Any) -> tuple[Getter, Getter, Getter | None]:
        items = [self._item] if isinstance(self._item, str) or callable(self._item) else self._item
        check_getters(element_type, self._user, items, self._time, self._time_unit)
        of_items = [getter_of(field, 1) for field in items]
        item = of_items[0] if items[0] is self._item else label_getter(of_items)
        return getter_of(self._user, 0), item, None if self._time is None else getter_of(self._time, 2)


def _under_key(packed: tuple[GroupKey, bytes], key: str) -> tuple[KeyedCell, bytes]:
    cell, blob = packed
    return (key, *cell), blob


def _nothing(batch: EventBatch) -> tuple[RejectedEvents, ...]:
    return ()
