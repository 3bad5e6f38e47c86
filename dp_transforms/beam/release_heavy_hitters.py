"""Release: `ShiftingHeavyHitters`, the transform that users import for logs and for streams that Beam reads."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import WindowFn
from apache_beam.typehints import typehints
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.typehints.schemas import named_fields_from_element_type

from dp_transforms.beam.assign_windows import assign_windows, check_window, check_windowing, in_global_window
from dp_transforms.beam.in_order import CountedByWatermark, ReleaseStagesInOrder
from dp_transforms.beam.keys import resolve_noise_key
from dp_transforms.beam.metrics import display_of
from dp_transforms.beam.read_events import CollectEvents, Getter
from dp_transforms.beam.run_stages import ReleaseAtOnce, ReleaseHits
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.threshold_monitor import MonitorContributions
from dp_transforms.checks import check_names
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.event_ids import label_getter
from dp_transforms.core.pack_contributions import PackContributions
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import AtOnceStep, Partitioning, Sharding
from dp_transforms.core.steps import stages_of
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
            raise ValueError(f"plan must be a Plan, got a {type(plan).__name__}. Use Plan.for_hits(...).")
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
        self._domain = PublicItemsSource.of_plan(public_items, plan)
        self._plan = plan
        self._user = user
        self._item = item
        self._time = time
        self._time_unit = time_unit
        self._noise_key = noise_key
        self._shards = shards
        self._run_id = run_id
        self._stream = stream

    def display_data(self) -> dict[str, str | float]:
        """What was declared."""
        return display_of(self._plan, self._stream)

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
        if run.plan.hits is not None:
            return self._release_hits(events, run, noise_key)
        if events.is_bounded:
            return self._release_at_once(events, run, noise_key)
        cut, stages = Sharding.of_stream(self._shards), stages_of(run, self._domain)
        packed, rejected = self._packed(events, run, noise_key, PackContributions(run.plan.schedule, cut))
        messages = packed | "ByWatermark" >> CountedByWatermark(AtOnceStep(stages.users, cut, cut))
        release = ReleaseStagesInOrder(stages, noise_key, cut.shards, senders=1)
        return ReleaseOutput((messages | "Release" >> release).reports, rejected)

    def _release_hits(self, events: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> ReleaseOutput:
        cut = MonitorContributions.cut(run.plan.schedule, self._shards, is_bounded=events.is_bounded)
        packed, rejected = self._packed(events, run, noise_key, PackContributions(run.plan.schedule, cut))
        release = ReleaseHits(run, noise_key, cut, self._domain)
        return ReleaseOutput((packed | "Release" >> release).reports, rejected)

    def _release_at_once(self, events: beam.PCollection, run: PlannedRun, noise_key: beam.Secret) -> ReleaseOutput:
        cuts = Partitioning.of(run.plan.schedule, pays_looks=True, shards=self._shards)
        step = PackContributions(run.plan.schedule, cuts.users, by_item=True)
        packed, rejected = self._packed(events, run, noise_key, step)
        stages = stages_of(run, self._domain, is_replay=True)
        release = ReleaseAtOnce(stages, noise_key, cuts, with_blocks=self._with_blocks)
        released = packed | "Release" >> release
        return ReleaseOutput(released.reports, rejected, released.blocks)

    def _packed(
        self, events: beam.PCollection, run: PlannedRun, noise_key: beam.Secret, step: PackContributions
    ) -> tuple[beam.PCollection, beam.PCollection]:
        """The pairs of users, packed, and the rows that cannot be read."""
        batches, rejected = self._batches(events)
        return batches | "AssignWindows" >> assign_windows(run, noise_key, step, self._domain), rejected

    def _batches(self, events: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        if events.element_type is EventBatch:
            none = events | "NoneRejected" >> beam.FlatMap(_nothing).with_output_types(RejectedEvents)
            return in_global_window(events), none
        user, item, time = self._getters(events.element_type)
        batches, rejected = events | "CollectEvents" >> CollectEvents(user, item, time, self._time_unit)
        return batches, rejected

    def _getters(self, element_type: Any) -> tuple[Getter, Getter, Getter | None]:
        given = {"user": self._user, "item": self._item, **({} if self._time is None else {"time": self._time})}
        names = fields_of(element_type)
        if names is not None:
            for flag, getter in given.items():
                for name in [getter] if isinstance(getter, str) else getter if isinstance(getter, Sequence) else []:
                    if name not in names:
                        raise ValueError(
                            f"{flag}={name!r} is not a field of the input, which has {', '.join(names)}."
                            " Name one of them, or give a function."
                        )
            item = self._item_getter(_getter)
            return _getter(self._user), item, None if self._time is None else _getter(self._time)
        if may_be_mapping(element_type):  # whose keys no type says
            time = None if self._time is None else _named_or_pair(self._time, 2)
            return _named_or_pair(self._user, 0), self._item_getter(lambda field: _named_or_pair(field, 1)), time
        if callable(self._user) and callable(self._item):
            if isinstance(self._time, str):
                raise ValueError("the input has no schema: give a function for time as well.")
            return self._user, self._item, self._time
        if callable(self._user) or callable(self._item):
            raise ValueError("the input has no schema: give functions for both user and item, or pairs (user, item).")
        if _may_be_pair(element_type):
            if isinstance(self._time, str) and not _is_anything(element_type):
                raise ValueError("pairs (user, item) have no field for their time: give a function for time.")
            time = None if self._time is None else _named_or_pair(self._time, 2)
            item = self._item_getter(lambda field: _named_or_pair(field, 1))
            return _named_or_pair(self._user, 0), item, time
        raise ValueError(
            "the input must have a schema, or be dicts, pairs (user, item) or EventBatch, got elements of"
            f" {element_type!r}."
            " Give functions for user and item, or declare the types with .with_output_types(tuple[str, str])."
        )

    def _item_getter(self, getter: Callable[[str | Getter], Getter]) -> Getter:
        """getter: of one name."""
        if isinstance(self._item, str) or callable(self._item):
            return getter(self._item)
        return label_getter([getter(name) for name in self._item])


def fields_of(element_type: Any) -> dict[str, Any] | None:
    """Names and types of the fields of elements with a schema; None for others."""
    row_type = RowTypeConstraint.from_user_type(element_type) if isinstance(element_type, type) else element_type
    return dict(named_fields_from_element_type(row_type)) if isinstance(row_type, RowTypeConstraint) else None


def _getter(field: str | Getter) -> Getter:
    return operator.attrgetter(field) if isinstance(field, str) else field


def _named_or_pair(field: str | Getter, position: int) -> Getter:
    """Reads elements of unknown type: by name if they have names, else as pairs (user, item).

    A step that sets timestamps often loses the type of elements. Then a NamedTuple (item, user) must not be read by
    position.
    """
    if not isinstance(field, str):
        return field

    def get(element: Any) -> Any:
        if isinstance(element, Mapping):
            return element[field]
        if isinstance(element, (tuple, list)) and not hasattr(element, "_fields"):
            return _checked_pair(element)[position]
        return getattr(element, field)

    return get


def _checked_pair(pair: Sequence[Any]) -> Sequence[Any]:
    if len(pair) != 2:
        raise ValueError("the element is not a pair (user, item).")
    return pair


def may_be_mapping(element_type: Any) -> bool:
    """Whether elements of this type are dicts or other mappings, or may also be: of a Union."""
    constraint = typehints.normalize(element_type)
    if isinstance(constraint, typehints.UnionConstraint):
        return any(map(may_be_mapping, constraint.union_types))
    return isinstance(constraint, (typehints.DictConstraint, typehints.MappingTypeConstraint))


def _may_be_pair(element_type: Any) -> bool:
    if _is_anything(element_type):
        return True
    constraint = typehints.normalize(element_type)
    return isinstance(constraint, typehints.TupleHint.TupleConstraint) and len(constraint.tuple_types) == 2


def _is_anything(element_type: Any) -> bool:
    return element_type in (Any, typehints.Any, object)


def _nothing(batch: EventBatch) -> tuple[RejectedEvents, ...]:
    return ()
