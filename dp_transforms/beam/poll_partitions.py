"""Poll: a stream source -> counted messages of packed contributions, by shard of users. Records are never shuffled.

A partition is read in a loop: of timers, whose state an engine stores and restores, or in one call, where an engine has
no such timers. The state is a `PartitionProgress`; an engine stores messages and state together.

An engine drops the state and the timers of a pipeline whose input has ended. So timers hang on an input that stays
open (`KeepAliveDoFn`).

A partition emits the name of an intent to `confirm`, which runs in the same process, fused with the DoFn that emitted
it. The engine calls back there when it has stored the bundle (`logs.streams.open_partitions`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms.beam.keys import KeyedDoFn
from dp_transforms.beam.metrics import of_partition, operator_counter, operator_gauge
from dp_transforms.beam.read_events import REJECTED
from dp_transforms.core import operator_counts as names
from dp_transforms.core.public_items import PublicItemsSource
from dp_transforms.core.stage import ToShard
from dp_transforms.errors import StreamError
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.open_partitions import Confirmation, OpenPartitions, Polling, now_micros
from dp_transforms.logs.streams.partition_poller import Step
from dp_transforms.logs.streams.partition_progress import PartitionProgress
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND

TIMERS = "timers"
LOOP = "loop"
_INTENTS = "intents"  # tag of the third output
_KEEP_ALIVE_SECONDS = 600


class PollPartitions(beam.PTransform):
    """Start of a pipeline -> ``(shard of users, message)``, and `RejectedEvents`.

    Each partition announces to every shard of users when it closes a window, so that each shard has as many senders as
    there are partitions. driver: as in `MonitorStream`.
    """

    def __init__(
        self, polling: Polling, noise_key: beam.Secret, public_items: PublicItemsSource | None, *, driver: str
    ) -> None:
        super().__init__()
        if driver == LOOP:  # one call is never restored
            polling = dataclasses.replace(polling, confirm=False)
            self._poll = beam.FlatMap(_poll_in_loop, polling, noise_key, public_items)
        else:
            self._poll = beam.ParDo(PollInTimersDoFn(polling, noise_key, public_items))
        self._polling, self._driver = polling, driver

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection]:
        elements = begin | "Once" >> beam.Impulse()
        if self._driver == TIMERS:
            keep_alive = KeepAliveDoFn(list(self._polling.partitions))
            elements |= "Partitions" >> beam.ParDo(keep_alive).with_output_types(tuple[str, int])
        polled = elements | "Poll" >> self._poll.with_outputs(REJECTED, _INTENTS, main="messages")
        polled.messages.element_type = convert_to_beam_type(ToShard)
        polled[REJECTED].element_type = RejectedEvents
        if self._polling.confirm:
            polled[_INTENTS].element_type = str
            _ = polled[_INTENTS] | "Confirm" >> beam.FlatMap(confirm).with_output_types(str)
        return polled.messages, polled[REJECTED]


class PollInTimersDoFn(KeyedDoFn):
    """Stateful, keyed by partition: a timer makes one step and sets itself again, until all windows are closed.

    How far a partition was read, and its clock, must be stored together with what was sent: otherwise a restart would
    read records twice, or decide anew which of them came in time."""

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    PARTITIONS = ReadModifyWriteStateSpec("partitions_v1", VarIntCoder())  # how many the run was started with
    POLL = TimerSpec("poll_v1", TimeDomain.REAL_TIME)

    def __init__(self, polling: Polling, noise_key: beam.Secret, public_items: PublicItemsSource | None) -> None:
        super().__init__(polling.run, noise_key, public_items)
        self._polling = polling
        self._state_bytes = operator_gauge(names.PARTITION_STATE_BYTES)
        self._open: OpenPartitions
        self._stored: dict[str, bytes]

    def setup(self) -> None:
        super().setup()
        self._open, self._stored = OpenPartitions(self._polling, self._keys, self._public_items), {}

    def teardown(self) -> None:
        self._open.close()

    def process(
        self,
        element: tuple[str, int],
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        partitions: Any = beam.DoFn.StateParam(PARTITIONS),
        poll: Any = beam.DoFn.TimerParam(POLL),
    ) -> None:
        if progress.read() is None:
            progress.write(self._open.poller.start().to_bytes())
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
        now = self._open.poller.restore(before)
        if self._stored.get(name) != before:
            # The state was restored, or was in another process meanwhile: begin like a new process.
            self._open.close_reader(name)
        if now.is_over:
            return
        step = self._open.step(name, now)
        stored = self._stored[name] = now.to_bytes()
        if stored != before:
            progress.write(stored)
        self._state_bytes.set(len(stored))
        yield from _outputs(step, self._polling, name, now)
        if not now.is_over:
            poll.set(Timestamp.now() + Duration(seconds=self._open.seconds_to_wait(step)))


def _poll_in_loop(
    once: bytes, polling: Polling, noise_key: beam.Secret, public_items: PublicItemsSource | None
) -> Iterator[object]:
    """Reads one partition after the other, each until all its windows are closed. Nothing is restored: an engine that
    repeats the call starts again from the beginning, and drops what the earlier call sent."""
    keys = polling.run.stream_keys(noise_key.get_secret_bytes())
    opened = OpenPartitions(polling, keys, None if public_items is None else public_items.table(keys))
    with contextlib.closing(opened):
        for name in polling.partitions:
            progress = opened.poller.start()
            while not progress.is_over:
                step = opened.step(name, progress)
                yield from _outputs(step, polling, name, progress)
                if not step.is_busy and not progress.is_over:
                    time.sleep(polling.poll_seconds)


def _outputs(step: Step, polling: Polling, name: str, progress: PartitionProgress) -> Iterator[object]:
    """What a step of this partition sends. What is for the operator is counted."""
    for count_name, count in step.counts.items():
        if count:
            operator_counter(count_name).inc(count)
    if step.partitions_unread is not None:
        operator_gauge(names.PARTITIONS_UNREAD).set(step.partitions_unread)
    number = list(polling.partitions).index(name)
    operator_gauge(of_partition(names.WINDOWS_SENT, number)).set(progress.next_window)
    if progress.is_over or abs(progress.clock_micros) < 2**61:
        lag_micros = 0 if progress.is_over else now_micros() - progress.clock_micros
        operator_gauge(of_partition(names.CLOCK_LAG_SECONDS, number)).set(lag_micros // MICROS_PER_SECOND)
    yield from step.messages
    for rejected in step.rejected:
        yield beam.pvalue.TaggedOutput(REJECTED, rejected)
    if step.marker is not None:
        yield beam.pvalue.TaggedOutput(_INTENTS, step.marker)


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
