"""Monitor a stream: `MonitorStream`, the transform that users import for streams that do not end by themselves. Records
of its partitions are never shuffled: each is read into counted messages of packed contributions, by shard of users.

A partition is read in a loop: of timers, whose state an engine stores and restores, or in one call, where an engine has
no such timers. The state is a `PartitionProgress`; an engine stores messages and state together.

An engine drops the state and the timers of a pipeline whose input has ended. So timers hang on an input that stays
open (`KeepAliveDoFn`).

A partition emits the name of an intent to `confirm`, which runs in the same process, fused with the DoFn that emitted
it. The engine calls back there when it has stored the bundle (`logs.streams.partition_poller`).
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms.beam.in_order import ReleaseStagesInOrder
from dp_transforms.beam.read_events import REJECTED
from dp_transforms.beam.runner_options import keep_bundles_whole
from dp_transforms.beam.workers import KeyedDoFn, add_counts, operator_gauge, resolve_noise_key
from dp_transforms.checks import check_names
from dp_transforms.core import operator_counts as names
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItems, PublicItemsSource
from dp_transforms.core.stage import Sharding, ToShard
from dp_transforms.core.stages import stages_of
from dp_transforms.errors import StreamError
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_poller import Confirmation, PartitionPoller, Polling, Step, now_micros
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.logs.streams.stream_source import StreamSource
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND

TIMERS, LOOP = "timers", "loop"
_INTENTS = "intents"  # tag of the third output
_KEEP_ALIVE_SECONDS = 600


class StreamOutput(NamedTuple):
    """What `MonitorStream` returns.

    reports: PCollection of `WindowReport`, one per window with heavy items, at the maximal timestamp of its window, in
        the GlobalWindow. ended: PCollection of `RunEnded`, one, when the last window of the schedule is closed.
        rejected: PCollection of `RejectedEvents`, for the operator alone.
    """

    reports: beam.PCollection
    ended: beam.PCollection
    rejected: beam.PCollection


class MonitorStream(beam.PTransform):
    """Which items are held by many users in each window of a stream, under user-level differential privacy.

    Guarantee: as in `ShiftingHeavyHitters`, over all windows of the plan's schedule. The reports are those that
    `ShiftingHeavyHitters` returns for a stream with the events that came in time. For hits,
    bounded input gives the same reports; for contributions it does not: a stream does not know what a user will do
    later, so each user spends its budget at its own pace (`core.user_budgets`).

    Which events came in time depends on the records of the partitions and on the clock only (docs/guarantee.md,
    "Streams and parts"): not on watermarks, not on the engine, and not on restarts from the stored state.

    source: a `StreamSource`. Its partitions are listed when the transform is applied, and are fixed for the run.
    plan, noise_key, stream, shards, public_items: as in `ShiftingHeavyHitters`. A run that continues after a restart
        must have the same ones.
    run_id: new for every run. Give an old one only to continue from the stored state of that run.
    driver: ``timers`` for engines that store and restore state; ``loop`` where timers cannot go on forever: then each
        partition is read in one call until it has ended.
    confirm: whether a decision of the wall clock or of the operator waits until the engine has stored it. False only
        where nothing is ever restored.
    stop_file: when a file appears at this path, what arrived by then counts, all windows are closed, and the run ends.
        All workers must see the file. Leave it there unchanged until the run has ended. "By then" includes an allowance
        for clocks that differ: `StreamClock.stop_micros`.
    poll_seconds: how long to wait when a partition has nothing more.
    of_clock: ``clock``, ``allowed_lateness_seconds`` and the other fields of `StreamClock`: when a window is closed,
        and which events are too late.

    Raises ValueError for an argument that cannot be used, and StreamError for a source that cannot be used.
    """

    def __init__(
        self,
        source: StreamSource,
        plan: Plan,
        *,
        noise_key: beam.Secret | str | os.PathLike[str] | None = None,
        run_id: str,
        stream: str = "events",
        shards: int | None = None,
        public_items: PublicItems | str | os.PathLike[str] | None = None,
        driver: str = TIMERS,
        confirm: bool = True,
        stop_file: str | None = None,
        poll_seconds: float = 0.5,
        **of_clock: Any,
    ) -> None:
        super().__init__()
        self._public_items = PublicItemsSource.of_plan(public_items, plan)
        if not isinstance(run_id, str):
            raise ValueError("run_id must be given: a new name for a new run, or the name of the run to continue.")
        check_names(stream=stream, run_id=run_id)
        if driver not in (TIMERS, LOOP):
            raise ValueError(f"driver must be {TIMERS!r} or {LOOP!r}, got {driver!r}.")
        if isinstance(poll_seconds, bool) or not 0 < poll_seconds < math.inf:
            raise ValueError(f"poll_seconds must be > 0 and finite, got {poll_seconds!r}.")
        if stop_file is not None and "://" in stop_file:
            raise ValueError(f"stop_file must be a path that all workers see, not a URL, got {stop_file!r}.")
        if shards is None and driver == LOOP:
            shards = 1  # such an engine works in one process, where each key costs time
        self._source, self._clock = source, StreamClock(**of_clock)
        self._noise_key, self._driver = noise_key, driver
        self._shards = Sharding.of_stream(shards).shards
        self._confirm, self._stop_file, self._poll_seconds = confirm, stop_file, poll_seconds
        self._run = PlannedRun(plan=plan, stream=stream, run_id=run_id)
        self._stages = stages_of(self._run, self._public_items)

    def expand(self, begin: beam.pvalue.PBegin) -> StreamOutput:
        noise_key = resolve_noise_key(self._noise_key, begin.pipeline)
        keep_bundles_whole(begin.pipeline)
        listed = self._source.partitions()
        partitions = {partition.name: partition for partition in listed}
        if not partitions or len(partitions) != len(listed):
            raise StreamError(f"a source must have partitions with different names, got {len(listed)} partitions.")
        is_loop = self._driver == LOOP
        polling = Polling(
            partitions,
            self._run,
            self._clock,
            self._source.fingerprint(),
            self._shards,
            self._confirm and not is_loop,  # one call is never restored
            self._stop_file,
            self._poll_seconds,
        )
        poll = (PollInLoopDoFn if is_loop else PollInTimersDoFn)(polling, noise_key, self._public_items)
        elements = begin | "PollPartitions/Once" >> beam.Impulse()
        if not is_loop:
            keep_alive = beam.ParDo(KeepAliveDoFn(list(partitions))).with_output_types(tuple[str, int])
            elements |= "PollPartitions/Partitions" >> keep_alive
        polled = elements | "PollPartitions/Poll" >> beam.ParDo(poll).with_outputs(REJECTED, _INTENTS, main="messages")
        messages, rejected, intents = polled.messages, polled[REJECTED], polled[_INTENTS]
        messages.element_type, rejected.element_type = convert_to_beam_type(ToShard), RejectedEvents
        if polling.confirm:
            intents.element_type = str
            _ = intents | "PollPartitions/Confirm" >> beam.FlatMap(confirm).with_output_types(str)
        # Each partition announces to every shard of users when it closes a window: so each shard has as many senders.
        release = ReleaseStagesInOrder(self._stages, noise_key, self._shards, len(partitions))
        reports, ended = messages | "Release" >> release
        return StreamOutput(reports, ended, rejected)


class _PollDoFn(KeyedDoFn):
    """Steps partitions, whose readers stay open on this worker."""

    def __init__(self, polling: Polling, noise_key: beam.Secret, public_items: PublicItemsSource | None) -> None:
        super().__init__(polling.run, noise_key, public_items)
        self._polling = polling

    def setup(self) -> None:
        super().setup()
        self._poller = PartitionPoller(self._polling, self._keys, self._public_items)

    def teardown(self) -> None:
        self._poller.close()

    def _outputs(self, step: Step, name: str, progress: PartitionProgress) -> Iterator[object]:
        """What a step of this partition sends. What is for the operator is counted."""
        add_counts(step.counts)
        if progress.is_over or abs(progress.clock_micros) < 2**61:
            lag_micros = 0 if progress.is_over else now_micros() - progress.clock_micros
            # Several share a worker, and the latest value of one gauge would be that of any of them.
            number = list(self._polling.partitions).index(name)
            operator_gauge(f"{names.CLOCK_LAG_SECONDS}_{number}").set(lag_micros // MICROS_PER_SECOND)
        yield from step.messages
        for rejected in step.rejected:
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        if step.marker is not None:
            yield beam.pvalue.TaggedOutput(_INTENTS, step.marker)


class PollInLoopDoFn(_PollDoFn):
    """Reads one partition after the other, each until all its windows are closed. Nothing is restored: an engine that
    repeats the call starts again from the beginning, and drops what the earlier call sent."""

    def process(self, once: bytes) -> Iterator[object]:
        with contextlib.closing(self._poller):  # readers, also where the bundle fails behind this step
            for name in self._polling.partitions:
                progress = self._poller.start()
                while not progress.is_over:
                    step = self._poller.step(name, progress)
                    yield from self._outputs(step, name, progress)
                    if not step.is_busy and not progress.is_over:
                        time.sleep(self._polling.poll_seconds)


class PollInTimersDoFn(_PollDoFn):
    """Stateful, keyed by partition: a timer makes one step and sets itself again, until all windows are closed.

    How far a partition was read, and its clock, must be stored together with what was sent: otherwise a restart would
    read records twice, or decide anew which of them came in time."""

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    PARTITIONS = ReadModifyWriteStateSpec("partitions_v1", VarIntCoder())  # how many the run was started with
    POLL = TimerSpec("poll_v1", TimeDomain.REAL_TIME)

    def setup(self) -> None:
        super().setup()
        self._stored: dict[str, bytes] = {}

    def process(
        self,
        element: tuple[str, int],
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        partitions: Any = beam.DoFn.StateParam(PARTITIONS),
        poll: Any = beam.DoFn.TimerParam(POLL),
    ) -> None:
        if progress.read() is None:
            progress.write(self._poller.start().to_bytes())
            partitions.write(len(self._polling.partitions))
            poll.set(Timestamp.now())

    @on_timer(POLL)
    def poll(
        self,
        name: str = beam.DoFn.KeyParam,
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        partitions: Any = beam.DoFn.StateParam(PARTITIONS),
        poll: Any = beam.DoFn.TimerParam(POLL),
    ) -> Iterator[object]:
        started_with, has_now = partitions.read(), len(self._polling.partitions)
        if started_with != has_now:  # otherwise no window would ever be complete
            raise StreamError(
                f"the run was started with {started_with} partitions, and the source has {has_now} now. To go on"
                f" without the new ones, which do not count, resume it with --partitions {started_with}."
            )
        before = progress.read()
        now = self._poller.restore(before)
        if self._stored.get(name) != before:
            # The state was restored, or was in another process meanwhile: begin like a new process.
            self._poller.close_reader(name)
        if now.is_over:
            return
        step = self._poller.step(name, now)
        stored = self._stored[name] = now.to_bytes()
        if stored != before:
            progress.write(stored)
        yield from self._outputs(step, name, now)
        if not now.is_over:
            poll.set(Timestamp.now() + Duration(seconds=self._poller.seconds_to_wait(step)))


def confirm(intent: str, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[str]:
    """Registers a `Confirmation` for the intent. Emits nothing."""
    finalizer.register(Confirmation(intent))
    yield from ()


class _Forever(RestrictionProvider):
    """A restriction that never ends: one position for each time that the engine comes back."""

    def initial_restriction(self, element: bytes) -> OffsetRange:
        return OffsetRange(0, 2**60)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: bytes, restriction: OffsetRange) -> int:
        return 1

    def truncate(self, element: bytes, restriction: OffsetRange) -> None:
        return None


class KeepAliveDoFn(beam.DoFn):
    """Emits the same once, and then nothing, forever.

    It comes back seldom, because some engines keep a little memory for each return.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @beam.DoFn.unbounded_per_element()
    def process(
        self,
        once: bytes,
        tracker: Any = beam.DoFn.RestrictionParam(_Forever()),  # noqa: B008
    ) -> Iterator[tuple[str, int]]:
        returns = tracker.current_restriction().start
        if not tracker.try_claim(returns):
            return
        if returns == 0:
            for number, name in enumerate(self._names):
                yield name, number
        tracker.defer_remainder(Duration(seconds=_KEEP_ALIVE_SECONDS))
