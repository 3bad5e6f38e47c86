"""Poll: a stream source -> counted messages of packed pairs, by shard of users. Records are never shuffled.

A partition is read in a loop: of timers, whose state an engine stores and restores, or in one call, where an engine has
no such timers. The state is a `PartitionProgress`; an engine stores messages and state together.

An engine drops the state and the timers of a pipeline whose input has ended. So timers hang on an input that stays
open (`KeepAliveDoFn`).

A partition acts on an intent (`logs.streams.partition_progress`) only when no restart can forget it. It emits the name
of the intent to `confirm`, which runs in the same process, fused with the DoFn that emitted it. The engine calls back
there when it has stored the bundle. Two confirmations are needed. When a checkpoint is complete, Flink calls back for
all bundles that have ended by then, including bundles that ended after the checkpoint's barrier: the first call may be
for such a bundle. The second question is asked after the first call, so the checkpoint that answers it began after the
intent was stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
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
from dp_transforms.beam.metrics import operator_counter, operator_gauge
from dp_transforms.beam.read_events import REJECTED
from dp_transforms.checks import on_one_line
from dp_transforms.core import operator_counts as names
from dp_transforms.core.contributions import IdKeys
from dp_transforms.core.operator_counts import ToShard
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.public_items import PublicItemsSource, PublicItemsTable
from dp_transforms.errors import StreamError
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_poller import MAX_RECORDS, PartitionPoller, Step
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock
from dp_transforms.logs.streams.stream_source import PartitionReader, StreamPartition
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND

TIMERS = "timers"
LOOP = "loop"
_INTENTS = "intents"  # tag of the third output
_KEEP_ALIVE_SECONDS = 600
_CONFIRMATIONS = 2
_ASK_AGAIN_SECONDS = 30
# Until more has come: a step costs as much as thousands of records, and a message to each shard.
_GATHER_SECONDS, _GATHER_SECONDS_OF_SHARD = 0.1, 0.003
# Of this process: how often each intent was confirmed, and when each question was last asked, by (intent, number).
_CONFIRMED: dict[str, int] = {}
_ASKED: dict[tuple[str, int], float] = {}


class PollPartitions(beam.PTransform):
    """Start of a pipeline -> ``(shard of users, message)``, and `RejectedEvents`.

    Each partition announces to every shard of users when it closes a window, so that each shard has as many senders as
    there are partitions. source: the fingerprint of the source. driver, confirm, stop_file,
    poll_seconds: as in `MonitorStream`. max_records: of one poll; results do not depend on it.
    """

    def __init__(
        self,
        partitions: Sequence[StreamPartition],
        run: PlannedRun,
        noise_key: beam.Secret,
        clock: StreamClock,
        shards: int,
        *,
        source: str = "",
        domain: PublicItemsSource | None,
        driver: str,
        confirm: bool,
        stop_file: str | None,
        poll_seconds: float,
        max_records: int = MAX_RECORDS,
    ) -> None:
        super().__init__()
        polling = _Polling(
            {partition.name: partition for partition in partitions},
            run,
            clock,
            source,
            shards,
            confirm and driver == TIMERS,  # a loop in one call is never restored
            stop_file,
            poll_seconds,
            max_records,
        )
        self._polling = polling
        self._driver = driver
        if driver == TIMERS:
            self._poll = beam.ParDo(PollInTimersDoFn(polling, noise_key, domain))
        else:
            self._poll = beam.FlatMap(_poll_in_loop, polling, noise_key, domain)

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


@dataclasses.dataclass(frozen=True)
class _Polling:
    """How partitions are polled, in plain values."""

    partitions: dict[str, StreamPartition] = dataclasses.field(repr=False)  # may hold the settings of a client
    run: PlannedRun
    clock: StreamClock
    source: str
    shards: int
    confirm: bool
    stop_file: str | None
    poll_seconds: float
    max_records: int


class _OpenPartitions:
    """Steps partitions with `PartitionPoller`, and keeps their readers open between steps."""

    def __init__(self, polling: _Polling, keys: IdKeys, domain: PublicItemsTable | None) -> None:
        self._polling = polling
        self._readers: dict[str, tuple[PartitionReader, int]] = {}
        self._stop_micros: int | None = None
        self._numbers = {name: number for number, name in enumerate(polling.partitions)}
        self.poller = PartitionPoller(
            polling.run,
            keys,
            polling.clock,
            polling.shards,
            domain=domain,
            confirm=polling.confirm,
            source=polling.source,
            max_records=polling.max_records,
        )

    def step(self, name: str, progress: PartitionProgress) -> Step:
        """One step. If the reader fails, it is closed and the error raised."""
        now = _now_micros()
        if name not in self._polling.partitions:
            raise StreamError(
                f"the source no longer has a partition {name!r}. Use the source that the run was started with."
            )
        if name not in self._readers:
            since_micros = self._polling.clock.first_arrival_micros(self._polling.run.plan.schedule)
            self._readers[name] = (self._polling.partitions[name].open(since_micros), now)
        reader, open_since = self._readers[name]
        asked = progress.intent
        try:
            step = self.poller.step(
                name,
                progress,
                reader,
                now,
                find_stop=self._find_stop,
                is_confirmed=asked is not None and is_confirmed(asked.name),
                open_since_micros=open_since,
            )
        except BaseException:
            self.close_reader(name)
            raise
        if asked is not None and progress.intent is None:
            forget(asked.name)
        self._count(step, self._numbers[name], progress, now)
        if progress.is_over:
            self.close_reader(name)
        return step

    def close_reader(self, name: str) -> None:
        """If there is one."""
        if name in self._readers:
            reader, _ = self._readers.pop(name)
            reader.close()

    def close(self) -> None:
        for name in list(self._readers):
            self.close_reader(name)

    def _count(self, step: Step, number: int, progress: PartitionProgress, now_micros: int) -> None:
        for name, count in step.counts.items():
            if count:
                operator_counter(name).inc(count)
        if step.partitions_unread is not None:
            operator_gauge(names.PARTITIONS_UNREAD).set(step.partitions_unread)
        operator_gauge(names.of_partition(names.WINDOWS_SENT, number)).set(progress.next_window)
        if progress.is_over or abs(progress.clock_micros) < 2**61:
            lag_micros = 0 if progress.is_over else now_micros - progress.clock_micros
            operator_gauge(names.of_partition(names.CLOCK_LAG_SECONDS, number)).set(lag_micros // MICROS_PER_SECOND)

    def _find_stop(self) -> int | None:
        """The last arrival that counts, if there is a stop file; else None. It follows from the change time of the
        file, which the kernel sets when the file appears. It is the same for all partitions here, whatever happens to
        the file after it was first seen."""
        if self._stop_micros is None and self._polling.stop_file is not None:
            try:
                asked_micros = os.lstat(self._polling.stop_file).st_ctime_ns // 1000
            except FileNotFoundError:
                return None
            except OSError as error:  # nobody knows whether a stop was requested, so nothing may be counted
                raise StreamError(
                    f"{on_one_line(self._polling.stop_file)}: it cannot be known whether the stop file is there"
                    f" ({error.strerror}). Let every worker see its folder, or name another with --stop-file."
                ) from None
            self._stop_micros = self._polling.clock.stop_micros(asked_micros)
        return self._stop_micros


class PollInTimersDoFn(KeyedDoFn):
    """Stateful, keyed by partition: a timer makes one step and sets itself again, until all windows are closed.

    How far a partition was read, and its clock, must be stored together with what was sent: otherwise a restart would
    read records twice, or decide anew which of them came in time."""

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    PARTITIONS = ReadModifyWriteStateSpec("partitions_v1", VarIntCoder())  # how many the run was started with
    POLL = TimerSpec("poll_v1", TimeDomain.REAL_TIME)

    def __init__(self, polling: _Polling, noise_key: beam.Secret, domain: PublicItemsSource | None) -> None:
        super().__init__(polling.run, noise_key, domain)
        self._polling = polling
        self._state_bytes = operator_gauge(names.PARTITION_STATE_BYTES)
        self._open: _OpenPartitions
        self._stored: dict[str, bytes]

    def setup(self) -> None:
        super().setup()
        self._open, self._stored = _OpenPartitions(self._polling, self._keys, self._public_items), {}

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
        yield from step.messages
        for rejected in step.rejected:
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        if step.marker is not None and must_ask(step.marker):
            yield beam.pvalue.TaggedOutput(_INTENTS, step.marker)
        if not now.is_over:
            idle, shards = self._polling.poll_seconds, self._polling.shards
            gather = max(_GATHER_SECONDS, shards * _GATHER_SECONDS_OF_SHARD)
            soon = min(gather, idle) if step.is_drained else 0
            poll.set(Timestamp.now() + Duration(seconds=soon if step.is_busy else idle))


def _poll_in_loop(
    once: bytes, polling: _Polling, noise_key: beam.Secret, domain: PublicItemsSource | None
) -> Iterator[object]:
    """Reads one partition after the other, each until all its windows are closed. Nothing is restored: an engine that
    repeats the call starts again from the beginning, and drops what the earlier call sent."""
    keys = polling.run.stream_keys(noise_key.get_secret_bytes())
    opened = _OpenPartitions(polling, keys, None if domain is None else domain.table(keys))
    with contextlib.closing(opened):
        for name in polling.partitions:
            progress = opened.poller.start()
            while not progress.is_over:
                step = opened.step(name, progress)
                yield from step.messages
                for rejected in step.rejected:
                    yield beam.pvalue.TaggedOutput(REJECTED, rejected)
                if not step.is_busy and not progress.is_over:
                    time.sleep(polling.poll_seconds)


def _now_micros() -> int:
    return time.time_ns() // 1000


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


def is_confirmed(intent: str) -> bool:
    """Whether the engine has surely stored the intent."""
    return _CONFIRMED.get(intent, 0) >= _CONFIRMATIONS


def must_ask(intent: str) -> bool:
    """Whether this process has not asked for the next confirmation lately. If so, it counts as asked now."""
    now, question = time.monotonic(), (intent, _CONFIRMED.get(intent, 0))
    if now - _ASKED.get(question, -_ASK_AGAIN_SECONDS) < _ASK_AGAIN_SECONDS:
        return False
    _ASKED[question] = now
    return True


def forget(intent: str) -> None:
    """Call it when the intent was acted on."""
    _CONFIRMED.pop(intent, None)
    for number in range(_CONFIRMATIONS):
        _ASKED.pop((intent, number), None)


def confirm(intent: str, finalizer: Any = beam.DoFn.BundleFinalizerParam) -> Iterator[str]:
    """Registers a `Confirmation` for the intent. Emits nothing."""
    finalizer.register(Confirmation(intent))
    yield from ()


class Confirmation:
    """What the engine calls when it has stored the bundle. Repeated calls count once."""

    def __init__(self, intent: str) -> None:
        self._intent = intent
        self._number = _CONFIRMED.get(intent, 0) + 1

    def __call__(self) -> None:
        _CONFIRMED[self._intent] = max(self._number, _CONFIRMED.get(self._intent, 0))
