"""`ThresholdMonitorEvolving`, the transform that users import, and its stateful DoFn, `ThresholdMonitorEvolvingDoFn`.

Events become contributions, of which so many of a user count in a window. An item that stays below the threshold, with
noise and all its holders, is left out. The others are candidates: the DoFn tests them window after window, and charges
the holders of each hit.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp

from dp_transforms.beam.assign_windows import (
    KeyedCell,
    assign_windows,
    check_windows,
    closing_time,
    group_once,
    in_closing_windows,
    in_global_window,
    last_closed,
    max_timestamp,
    with_starts,
)
from dp_transforms.beam.at_once import run_step
from dp_transforms.beam.read_events import collect_events_of_keys
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.turns import NEVER, PENDING, PENDING_FAR, PENDING_SOON, PROGRESS, Progress, Waiting, store
from dp_transforms.beam.workers import operator_counter, operator_gauge, resolve_noise_key
from dp_transforms.checks import check_names
from dp_transforms.core.columns import MOST_MESSAGE_BYTES
from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, candidates_in_order
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.operator_counts import COUNTER_STATE_BYTES, LATE_BATCHES, WINDOWS_CLOSED
from dp_transforms.core.planned_run import PlannedRun, fresh_run_id
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import AtOnceStep, Sharding, Stage, shards_of_items
from dp_transforms.core.steps import BoundUsers, FindCandidates
from dp_transforms.core.window_report import WindowReport
from dp_transforms.logs.event_ids import id_of_value
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

KeyedReport = tuple[str, WindowReport]
Due = tuple[str, tuple[int, int, list[bytes]]]
"""``(key, (window, missing, candidates))``: candidates of this window and of those before it, packed `ItemHolders`.

Candidates of a key that are due together may be too many for one element. They come as n elements: in one of these
``missing`` is n - 1, in each other -1. So all of them have come when these numbers add up to 0."""


class ThresholdMonitorEvolving(beam.PTransform):
    """Which items are held by many users in each window, for each key by itself; assumes that no user has events under
    more keys than the plan's ``most_keys``, which is enforced where ``keys`` names no more than that.

    ``(key, (user, item))`` with timestamps, or ``(key, EventBatch)`` -> ``(key, WindowReport)``, one for each key and
    window with heavy items, at the maximal timestamp of the window, in the GlobalWindow, in no order.

    Guarantee: all reports of all keys together are (plan.epsilon, plan.delta)-DP for adding or removing one user with
    all its events under so many keys (docs/guarantee.md, "Keys"). Each key, such as a country or a tenant, has a
    monitor, with counters and noise of its own; nothing is sent because a key was seen. With public items this holds if
    the list is public and was not made from the log.

    plan: of `Plan.for_hits`. Its schedule declares the windows; events outside its range are skipped and counted.
        An event that comes after the watermark has passed the end of its window is late, and does not count.
    noise_key, run_id, shards, public_items: as in `ShiftingHeavyHitters`.
    keys: events of other keys are left out and counted. None: any key, if all items are open. With public items they
        must be named, since each of these items is tested under each key in every window.
    with_rejected: return `MonitorOutput`; else elements that cannot be read are only counted.

    In the papers' library, `dp_transforms.papers.threshold_monitor` has a class of this name: the algorithm as it is
    printed, which is asked one query at a time. Here a window is asked at once, with the noise of the plan.

    Raises ValueError for a plan of contributions, for windows that are not those of the plan, and without a usable key.
    """

    def __init__(
        self,
        plan: Plan,
        noise_key: beam.Secret | str | os.PathLike[str] | None = None,
        *,
        run_id: str | None = None,
        keys: Sequence[str] | None = None,
        shards: int | None = None,
        public_items: PublicItems | str | os.PathLike[str] | None = None,
        with_rejected: bool = False,
    ) -> None:
        super().__init__()
        self._public_items = PublicItemsSource.of_plan(public_items, plan)
        _ = plan.charged_hits  # raises for a plan of contributions
        check_names(run_id=run_id)
        if keys is not None:
            keys = tuple(id_of_value(key, "key") for key in (keys if not isinstance(keys, str) else (keys,)))
        if public_items is not None and keys is None:
            raise ValueError("keys must be given with public_items: each of these is tested under each key.")
        self._plan, self._noise_key, self._run_id, self._keys = plan, noise_key, run_id, keys
        self._shards, self._with_rejected = Sharding.of_stream(shards).shards, with_rejected

    def expand(self, events: beam.PCollection) -> beam.PCollection | MonitorOutput:
        plan, keys = self._plan, self._keys
        check_windows(events.windowing.windowfn, plan.schedule)
        noise_key = resolve_noise_key(self._noise_key, events.pipeline)
        keep_bundles_whole(events.pipeline)
        run = PlannedRun(plan=plan, stream="", run_id=self._run_id or fresh_run_id())
        batches, rejected = events | "CollectEvents" >> collect_events_of_keys()
        cut = MonitorContributions.cut(plan.schedule, self._shards, is_bounded=events.is_bounded)
        packed = batches | "AssignWindows" >> assign_windows(
            run, noise_key, cut, self._public_items, has_keys=True, keys=keys
        )
        monitor = MonitorContributions(run, noise_key, cut, public_items=self._public_items, keys=keys or ())
        reports = packed | "Monitor" >> monitor
        return MonitorOutput(reports, rejected) if self._with_rejected else reports


class MonitorOutput(NamedTuple):
    """reports: PCollection of ``(key, WindowReport)``. rejected: PCollection of ``(key, RejectedEvents)``, for the
    operator alone; the key is empty where it cannot be read."""

    reports: beam.PCollection
    rejected: beam.PCollection


class MonitorContributions(beam.PTransform):
    """``(KeyedCell, packed Contributions)`` -> ``(key, WindowReport)``.

    Three times it groups what belongs to a window of a key: to bound the items of each user, to find the candidates
    among all items, and to test these in `ThresholdMonitorEvolvingDoFn`. On a stream a group is closed by the watermark
    (`assign_windows`). Only the last step has a state.

    cut: how users are divided. keys: those under which public items are tested.
    """

    def __init__(
        self,
        run: PlannedRun,
        noise_key: beam.Secret,
        cut: Sharding,
        *,
        public_items: PublicItemsSource | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._noise_key, self._keys, self._schedule = noise_key, keys, run.plan.schedule
        self._bound = AtOnceStep(Stage(BoundUsers, run), cut, cut)
        to = Sharding(cut.windows_per_range, 1)
        self._find = AtOnceStep(Stage(FindCandidates, run, public_items), cut, to)
        self._monitor = ThresholdMonitorEvolvingDoFn(run, noise_key)

    @staticmethod
    def cut(schedule: WindowSchedule, shards: int | None, *, is_bounded: bool) -> Sharding:
        """How the users of bounded input, or of a stream, are divided. shards: None for a good number."""
        if is_bounded:
            return Sharding.of_windows(schedule.horizon, shards)
        return Sharding(1, shards_of_items(Sharding.of_stream(shards).shards))

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        noise_key = self._noise_key
        if not packed.is_bounded:
            packed = packed | "ByWatermark" >> in_closing_windows(self._schedule)
        users = packed | "GroupUsers" >> group_once()
        sums = users | "BoundUsers" >> run_step(self._bound, noise_key)
        if are_public := self._find.stage.public_items is not None:
            sums = sums | "AllItems" >> with_starts(self._schedule, self._find.cut, self._keys)
        items = sums | "GroupItems" >> group_once(are_started=are_public)
        found = items | "FindCandidates" >> run_step(self._find, noise_key)
        due = (
            found
            | "ByKey" >> beam.Map(_by_key).with_output_types(tuple[str, bytes])
            | "GroupCandidates" >> group_once()
            | "Due" >> beam.FlatMap(_due, self._schedule, self._monitor.last).with_output_types(Due)
        )
        return in_global_window(due) | "CloseWindows" >> beam.ParDo(self._monitor).with_output_types(KeyedReport)


def _by_key(packed: tuple[KeyedCell, bytes]) -> tuple[str, bytes]:
    (key, _, _), blob = packed
    return key, blob


def _due(
    group: tuple[str, Iterable[bytes]], schedule: WindowSchedule, last: int, window: Any = beam.DoFn.WindowParam
) -> Iterator[Due]:
    """All candidates that a key has in a window of Beam -> `Due`, in elements that engines accept."""
    key, blobs = group
    through = last if isinstance(window, GlobalWindow) else last_closed(schedule, window.end)
    batches = batches_of_blobs(blobs)
    for number, batch in enumerate(batches):
        yield key, (through, -1 if number else len(batches) - 1, batch)


def batches_of_blobs(blobs: Iterable[bytes], most_bytes: int = MOST_MESSAGE_BYTES) -> list[list[bytes]]:
    """The blobs in order, in batches that engines accept; no blob is cut. One empty batch for no blobs."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for blob in blobs:
        if batches[-1] and size + len(blob) > most_bytes:
            batches.append([])
            size = 0
        batches[-1].append(blob)
        size += len(blob)
    return batches


class ThresholdMonitorEvolvingDoFn(beam.DoFn):
    """ThresholdMonitorEvolving ([KMS21] Algorithm 5), stateful for each key: tests the candidates of each window
    against the threshold, and charges the contribution counters of the users who hold a hit.

    `Due` -> ``(key, WindowReport)``, in the GlobalWindow, since Beam keeps state by key and window, and the counters
    must outlast each window. Windows wait in ``pending`` until the timer says that the watermark has passed the end of
    the first of them. Then it reads the counters, closes all windows that are due strictly in order, writes the
    counters, and is set again for the next window that waits. In bounded input all windows are due at once.

    What is charged: `HeavyHitterMonitor`, on `ContributionCounters`. What is a hit, and the noise, depend on the plan;
    with ``noise="printed"`` both are the paper's.

    A bundle that runs twice finds the counters as they were, and draws the same noise: counters are written before
    a report is sent, with the bundle that sends it, and are never lower than what was published, where a sink publishes
    what the engine has stored (docs/known_limitations.md, "Watermarks").
    """

    PENDING, PENDING_SOON, PENDING_FAR, PROGRESS = PENDING, PENDING_SOON, PENDING_FAR, PROGRESS
    CONTRIBUTION_COUNTERS = BagStateSpec("contribution_counters", BytesCoder())
    CLOSE = TimerSpec("close", TimeDomain.WATERMARK)

    def __init__(self, run: PlannedRun, noise_key: beam.Secret) -> None:
        self._run, self._noise_key = run, noise_key
        self.last = run.plan.schedule.horizon - 1
        self._late, self._closed = operator_counter(LATE_BATCHES), operator_counter(WINDOWS_CLOSED)

    def setup(self) -> None:
        secret = self._noise_key.get_secret_bytes()

        @functools.lru_cache(maxsize=256)
        def monitor_of(key: str) -> HeavyHitterMonitor:
            return HeavyHitterMonitor(self._run.plan, self._run.of_key(key).stream_keys(secret))

        self._monitor_of = monitor_of

    def process(
        self,
        element: Due,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        _counters: Any = beam.DoFn.StateParam(CONTRIBUTION_COUNTERS),  # with --runtime_type_check Beam looks only here
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> None:
        _, (window, missing, candidates) = element
        now = Progress.read(progress)
        if window < now.next_window:  # which no engine sends that keeps to Beam's model
            self._late.inc()
            return
        now.missing += missing
        now.first_pending = min(now.first_pending, window)
        waiting = Waiting(now, (pending, soon, far))
        for blob in candidates:
            waiting.put((window, 0, blob))
        progress.write(now.to_bytes())
        close.set(closing_time(self._run.plan.schedule, now.first_pending))

    @on_timer(CLOSE)
    def close_windows(
        self,
        key: str = beam.DoFn.KeyParam,
        time: Timestamp = beam.DoFn.TimestampParam,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        counters: Any = beam.DoFn.StateParam(CONTRIBUTION_COUNTERS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        close: Any = beam.DoFn.TimerParam(CLOSE),
    ) -> Iterator[TimestampedValue]:
        now, schedule = Progress.read(progress), self._run.plan.schedule
        first, through = now.next_window, last_closed(schedule, time)
        if now.first_pending <= through and not now.missing:
            waiting = Waiting(now, (pending, soon, far))
            candidates = [blob for _, _, blob in waiting.take(through + 1)]
            now.first_pending = waiting.first()
            reports = charge_windows(self._monitor_of(key), candidates, first, counters, now)
            progress.write(now.to_bytes())
            self._closed.inc(now.next_window - first)
            for window, report in reports:
                yield TimestampedValue[KeyedReport]((key, report), max_timestamp(schedule, window))
        if now.first_pending != NEVER:
            close.set(closing_time(schedule, now.first_pending))


def charge_windows(
    monitor: HeavyHitterMonitor, candidates: Sequence[bytes], first: int, counters: Any, now: Progress
) -> list[tuple[int, WindowReport]]:
    """Tests all candidates of the windows from ``first`` on, and charges the counters that a bag holds. They are
    written before a report is sent; the caller writes ``now``."""
    if not candidates:
        return []
    stored = list(counters.read())
    state = MonitorState(first, now.hit_bound, ContributionCounters(map(HitEntries.from_bytes, stored)))
    columns = [ItemHolders.from_bytes(blob) for blob in candidates]
    reports = list(monitor.close_windows(candidates_in_order(columns), state))
    now.hit_bound = state.hit_bound
    store(counters, stored, state.budgets.delta(), state.budgets.chunks, now)
    operator_gauge(COUNTER_STATE_BYTES).set(12 * len(state.budgets))
    return reports
