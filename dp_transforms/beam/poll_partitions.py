"""Poll: a stream source -> counted messages of packed pairs by window. Records are never shuffled.

A partition is read in a loop: of timers, whose state an engine stores and restores, or in one call, where an engine has
no such timers. The state is a `PartitionProgress`; an engine stores messages and state together.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.timestamp import Duration, Timestamp

from dp_transforms.beam import confirm_intents, encode_elements
from dp_transforms.beam.count_for_operator import operator_counter, operator_gauge
from dp_transforms.beam.keep_alive import EmitDoFn, KeepAliveDoFn
from dp_transforms.beam.load_domain import DomainSource
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.beam.split_rejected import REJECTED
from dp_transforms.checks import on_one_line
from dp_transforms.errors import StreamError
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_poller import MAX_RECORDS, PartitionPoller, Step
from dp_transforms.logs.streams.partition_progress import PartitionProgress, StreamClock, TakenWindows
from dp_transforms.logs.streams.stream_source import PartitionReader, StreamPartition
from dp_transforms.monitor.counted_messages import Key, Sent
from dp_transforms.monitor.operator_counts import CLOCK_LAG_SECONDS, INTENTS, PARTITION_STATE_BYTES
from dp_transforms.monitor.stream_settings import StreamSettings
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND
from dp_transforms.runs.run_part import RunPart

encode_elements.register_coders()

TIMERS = "timers"
LOOP = "loop"
_INTENTS = "intents"  # tag of the third output


class PollPartitions(beam.PTransform):
    """Start of a pipeline -> ``((window, shard of users), (announced, blob))``, and `RejectedEvents`.

    Each partition sends to every shard of every window, and announces there when it closes the window. So each shard
    has as many senders as there are partitions. source: the fingerprint of the source. driver, confirm, stop_file,
    poll_seconds, part: as in `MonitorStream`. max_records: of one poll; results do not depend on it.
    """

    def __init__(
        self,
        partitions: Sequence[StreamPartition],
        settings: StreamSettings,
        noise_key: beam.Secret,
        clock: StreamClock,
        shards: int,
        *,
        source: str = "",
        domain: DomainSource | None,
        driver: str,
        confirm: bool,
        stop_file: str | None,
        poll_seconds: float,
        max_records: int = MAX_RECORDS,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        windows = part or RunPart.whole(settings.schedule)
        taken = TakenWindows(windows.first, windows.end, hands_over=part is not None)
        self._names = [partition.name for partition in partitions]
        do_fn = PollInTimersDoFn if driver == TIMERS else PollInLoopDoFn
        self._driver = driver
        self._confirm = confirm and driver == TIMERS  # a loop in one call is never restored
        self._do_fn = do_fn(
            {partition.name: partition for partition in partitions},
            settings,
            noise_key,
            domain,
            _Polling(clock, source, shards, self._confirm, stop_file, poll_seconds, max_records, taken),
        )

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, beam.PCollection]:
        emit = KeepAliveDoFn(self._names) if self._driver == TIMERS else EmitDoFn(self._names)
        polled = (
            begin
            | "Once" >> beam.Impulse()
            | "Partitions" >> beam.ParDo(emit).with_output_types(tuple[str, int])
            | "Poll" >> beam.ParDo(self._do_fn).with_outputs(REJECTED, _INTENTS, main="messages")
        )
        polled.messages.element_type = convert_to_beam_type(tuple[Key, Sent])
        polled[REJECTED].element_type = RejectedEvents
        if self._confirm:
            polled[_INTENTS].element_type = str
            _ = polled[_INTENTS] | "Confirm" >> beam.ParDo(confirm_intents.ConfirmDoFn()).with_output_types(str)
        return polled.messages, polled[REJECTED]


@dataclasses.dataclass(frozen=True)
class _Polling:
    """How partitions are polled, in plain values."""

    clock: StreamClock
    source: str
    shards: int
    confirm: bool
    stop_file: str | None
    poll_seconds: float
    max_records: int
    taken: TakenWindows


class _PollDoFn(KeyedDoFn):
    """Steps partitions with `PartitionPoller`, and keeps their readers open between steps."""

    _settings: StreamSettings

    def __init__(
        self,
        partitions: dict[str, StreamPartition],
        settings: StreamSettings,
        noise_key: beam.Secret,
        domain: DomainSource | None,
        polling: _Polling,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._partitions = partitions
        self._polling = polling
        self._lag = operator_gauge(CLOCK_LAG_SECONDS)
        self._state_bytes = operator_gauge(PARTITION_STATE_BYTES)
        self._intents = operator_counter(INTENTS)
        self._poller: PartitionPoller
        self._readers: dict[str, tuple[PartitionReader, int]]
        self._stored: dict[str, bytes]
        self._stop_micros: int | None

    def setup(self) -> None:
        super().setup()
        polling = self._polling
        self._readers, self._stored, self._stop_micros = {}, {}, None
        self._poller = PartitionPoller(
            self._settings,
            self._keys,
            polling.clock,
            polling.shards,
            domain=self._domain,
            confirm=polling.confirm,
            source=polling.source,
            max_records=polling.max_records,
            taken=polling.taken,
        )

    def teardown(self) -> None:
        readers, self._readers = self._readers, {}
        for reader, _ in readers.values():
            reader.close()

    def _step(self, name: str, progress: PartitionProgress) -> Step:
        """One step. If the reader fails, it is closed and the error raised."""
        now = _now_micros()
        if name not in self._partitions:
            raise StreamError(
                f"the source no longer has a partition {name!r}. Use the source that the run was started with."
            )
        if name not in self._readers:
            since_micros = self._polling.clock.first_arrival_micros(self._settings.schedule, self._polling.taken.first)
            self._readers[name] = (self._partitions[name].open(since_micros), now)
        reader, open_since = self._readers[name]
        asked = progress.intent
        try:
            step = self._poller.step(
                name,
                progress,
                reader,
                now,
                find_stop=self._find_stop,
                is_confirmed=asked is not None and confirm_intents.is_confirmed(asked.name),
                open_since_micros=open_since,
            )
        except BaseException:
            self._close_reader(name)
            raise
        if asked is not None and progress.intent is None:
            confirm_intents.forget(asked.name)
        self._count(step, progress, now)
        if progress.is_over:
            self._close_reader(name)
        return step

    def _close_reader(self, name: str) -> None:
        reader, _ = self._readers.pop(name)
        reader.close()

    def _count(self, step: Step, progress: PartitionProgress, now_micros: int) -> None:
        for name, count in step.counts.items():
            if count:
                operator_counter(name).inc(count)
        if abs(progress.clock_micros) < 2**61:
            self._lag.set((now_micros - progress.clock_micros) // MICROS_PER_SECOND)

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


class PollInTimersDoFn(_PollDoFn):
    """Stateful, keyed by partition: a timer makes one step and sets itself again, until all windows are closed."""

    PROGRESS = ReadModifyWriteStateSpec("progress_v1", BytesCoder())
    PARTITIONS = ReadModifyWriteStateSpec("partitions_v1", VarIntCoder())  # how many the run was started with
    POLL = TimerSpec("poll_v1", TimeDomain.REAL_TIME)

    def process(
        self,
        element: tuple[str, int],
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        partitions: Any = beam.DoFn.StateParam(PARTITIONS),
        poll: Any = beam.DoFn.TimerParam(POLL),
    ) -> None:
        if progress.read() is None:
            progress.write(self._poller.start().to_bytes())
            partitions.write(len(self._partitions))
            poll.set(Timestamp.now())

    @on_timer(POLL)
    def poll(
        self,
        name: str = beam.DoFn.KeyParam,
        progress: Any = beam.DoFn.StateParam(PROGRESS),
        partitions: Any = beam.DoFn.StateParam(PARTITIONS),
        poll: Any = beam.DoFn.TimerParam(POLL),
    ) -> Iterator[object]:
        started_with = partitions.read()
        if started_with != len(self._partitions):  # otherwise no window would ever be complete
            raise StreamError(
                f"the run was started with {started_with} partitions, and the source has {len(self._partitions)} now."
                " The partitions of a run cannot change: start a new run."
            )
        before = progress.read()
        now = self._poller.restore(before)
        if name in self._readers and self._stored.get(name) != before:
            # The state was restored, or was in another process meanwhile: begin like a new process.
            self._close_reader(name)
        if now.is_over:
            return
        step = self._step(name, now)
        stored = self._stored[name] = now.to_bytes()
        if stored != before:
            progress.write(stored)
        self._state_bytes.set(len(stored))
        yield from step.messages
        for rejected in step.rejected:
            yield beam.pvalue.TaggedOutput(REJECTED, rejected)
        if step.marker is not None and confirm_intents.must_ask(step.marker):
            self._intents.inc()
            yield beam.pvalue.TaggedOutput(_INTENTS, step.marker)
        if not now.is_over:
            poll.set(Timestamp.now() + Duration(seconds=0 if step.is_busy else self._polling.poll_seconds))


class PollInLoopDoFn(_PollDoFn):
    """Reads a partition in one call until all windows are closed. Nothing is restored: an engine that repeats the call
    starts again from the beginning, and drops what the earlier call sent."""

    def process(self, element: tuple[str, int]) -> Iterator[object]:
        name, _ = element
        progress = self._poller.start()
        while not progress.is_over:
            step = self._step(name, progress)
            yield from step.messages
            for rejected in step.rejected:
                yield beam.pvalue.TaggedOutput(REJECTED, rejected)
            if not step.is_busy and not progress.is_over:
                time.sleep(self._polling.poll_seconds)


def _now_micros() -> int:
    return time.time_ns() // 1000
