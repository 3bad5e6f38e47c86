"""Steps of the partitions of a stream: read some records, or act on an intent, or close windows; and what to send.

Messages to a shard of users hold packed contributions of a window. The last one that a partition sends there for a
window announces how many there were (`core.stage`).

A partition acts on an intent (`partition_progress`) only when no restart can forget it. Two confirmations are needed.
When a checkpoint is complete, Flink calls back for all bundles that have ended by then, including bundles that ended
after the checkpoint's barrier: the first call may be for such a bundle. The second question is asked after the first
call, so the checkpoint that answers it began after the intent was stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import pyarrow as pa

from dp_transforms.checks import on_one_line
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.stage import Message
from dp_transforms.errors import StreamError
from dp_transforms.logs.rejected_events import RejectedEvents
from dp_transforms.logs.streams.partition_progress import CLOCK_BEGIN, PartitionProgress, StreamClock, Taken
from dp_transforms.logs.streams.stream_source import PartitionReader, Polled, StreamPartition

MAX_RECORDS = 50_000
MAX_SECONDS = 0.2
_WINDOWS_AT_ONCE = 2_000
_MOST_POSITIONS = 100_000  # of rejected rows in one element
_TOO_FAR_AHEAD = "time is further ahead of its arrival than the clock of the stream allows"
_CONFIRMATIONS = 2
_ASK_AGAIN_SECONDS = 30
# Until more has come: a step costs as much as thousands of records, and a message to each shard.
_GATHER_SECONDS, _GATHER_SECONDS_OF_SHARD = 0.1, 0.003


@dataclasses.dataclass
class Step:
    """The result of a step.

    messages: ``(shard of users, message)``. marker: name of an intent that waits for its confirmation. is_busy:
    whether to make the next step at once, or soon. is_drained: as in `Polled`. counts: numbers for the operator, by
    name.
    """

    messages: list[tuple[int, Message]] = dataclasses.field(default_factory=list)
    rejected: list[RejectedEvents] = dataclasses.field(default_factory=list)
    marker: str | None = None
    is_busy: bool = False
    is_drained: bool = False
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


@dataclasses.dataclass(frozen=True)
class Polling:
    """How the partitions of a stream are polled, in plain values.

    source: the fingerprint of the source. shards: of users. confirm: whether an intent waits until it is confirmed;
    False only if nothing is ever restored from a stored state. stop_file, poll_seconds: as in `MonitorStream`.
    """

    partitions: dict[str, StreamPartition] = dataclasses.field(repr=False)  # may hold the settings of a client
    run: PlannedRun
    clock: StreamClock
    source: str
    shards: int
    confirm: bool
    stop_file: str | None
    poll_seconds: float


class PartitionPoller:
    """Steps the partitions of one stream. Their readers stay open between steps.

    max_records: how many to read in one step; results do not depend on it.
    """

    def __init__(
        self, polling: Polling, keys: IdKeys, public_items: ItemTable | None, *, max_records: int = MAX_RECORDS
    ) -> None:
        self._polling, self._keys, self._public_items = polling, keys, public_items
        self._schedule, self._max_records = polling.run.plan.schedule, max_records
        self._run_digest = _digest_of_run(polling, keys)
        self._readers: dict[str, tuple[PartitionReader, int]] = {}
        self._stop_micros: int | None = None

    def start(self) -> PartitionProgress:
        return PartitionProgress(self._schedule, self._polling.clock, self._polling.shards, self._run_digest)

    def restore(self, data: bytes) -> PartitionProgress:
        """Raises StreamError for the state of a run with another plan, clock, key, source or number of shards. With
        another key or user field, no user would be recognized, and each would have a new budget."""
        progress = PartitionProgress.from_bytes(data, self._schedule, self._polling.clock, self._polling.shards)
        if progress.run != self._run_digest:
            raise StreamError(
                "the stored state belongs to a run with another plan, clock, stream, run id or noise key, or with"
                " other fields, formats or schemas of its records. Use the same ones, or start a new run."
            )
        return progress

    def step(self, name: str, progress: PartitionProgress) -> Step:
        """One step. If the reader fails, it is closed and the error raised. The step has a marker only if the engine
        must be asked for it now."""
        now = now_micros()
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
            step = self.step_at(
                name,
                progress,
                reader,
                now,
                find_stop=self._find_stop,
                is_confirmed=asked is not None and _QUESTIONS[asked.name].confirmed >= _CONFIRMATIONS,
                open_since_micros=open_since,
            )
        except BaseException:
            self.close_reader(name)
            raise
        if asked is not None and progress.intent is None:
            del _QUESTIONS[asked.name]
        if step.marker is not None:
            question, monotonic = _QUESTIONS[step.marker], time.monotonic()
            if monotonic - question.asked_at < _ASK_AGAIN_SECONDS:
                step.marker = None
            else:
                question.asked_at = monotonic
        if progress.is_over:
            self.close_reader(name)
        return step

    def seconds_to_wait(self, step: Step) -> float:
        """Before the next step."""
        idle = self._polling.poll_seconds
        if not step.is_busy:
            return idle
        gather = max(_GATHER_SECONDS, self._polling.shards * _GATHER_SECONDS_OF_SHARD)
        return min(gather, idle) if step.is_drained else 0

    def close_reader(self, name: str) -> None:
        """If there is one."""
        if name in self._readers:
            reader, _ = self._readers.pop(name)
            reader.close()

    def close(self) -> None:
        for name in list(self._readers):
            self.close_reader(name)

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

    def step_at(
        self,
        name: str,
        progress: PartitionProgress,
        reader: PartitionReader,
        now_micros: int,
        *,
        find_stop: Callable[[], int | None] = lambda: None,
        is_confirmed: bool = False,
        open_since_micros: int = CLOCK_BEGIN,
    ) -> Step:
        """Changes ``progress``; store it together with what the step sends. Raises StreamError.

        name: of the partition. find_stop: returns the last arrival that counts (`StreamClock.stop_micros`) if a stop
        was requested, else None. is_confirmed: whether the pending intent is confirmed. open_since_micros: wall clock
        when the reader was opened; before that nobody could see whether anything came.
        """
        step = Step()
        if progress.intent is None and not progress.is_read:
            polled = reader.poll(progress.position, max_records=self._max_records, max_seconds=MAX_SECONDS)
            # After the poll, and before any of it is taken: if nobody has requested a stop by now, all of it counts.
            if progress.stop_micros is None and (stop_micros := find_stop()) is not None:
                step.counts["stops_seen_late"] += progress.has_arrived_after(stop_micros)
                progress.intend("stop", stop_micros)
                step.is_busy = True  # the same records are read again, with the stop
            else:
                self._take(name, progress, polled, now_micros, step)
                target = progress.wanted_clock_micros(polled, now_micros, open_since_micros)
                is_all = reader.confirm_end if progress.stop_micros is None else reader.confirm_passed
                if target is not None and is_all():
                    progress.intend("clock", target)
        if progress.intent is not None and self._polling.confirm and not is_confirmed:
            step.marker, step.is_busy = progress.intent.name, False
        else:
            progress.act()
        # Announces to all shards the windows that close here.
        closed = progress.close_windows(_WINDOWS_AT_ONCE)
        for window, sent in closed:
            step.messages += [(shard, Message(window, messages + 1, b"")) for shard, messages in enumerate(sent)]
        step.is_busy |= len(closed) == _WINDOWS_AT_ONCE
        return step

    def _take(self, name: str, progress: PartitionProgress, polled: Polled, now_micros: int, step: Step) -> None:
        taken = progress.take(polled, now_micros)
        step.is_busy, step.is_drained = not polled.is_at_end, polled.is_drained
        too_far_ahead = RejectedEvents(name, taken.from_the_future.tolist(), _TOO_FAR_AHEAD)
        step.rejected = [part for rows in (*polled.rejected, too_far_ahead) for part in _in_parts(rows)]
        step.counts.update(
            records_read=polled.records,
            events_read=len(polled.batch),
            events_rejected=sum(len(rows.positions) for rows in polled.rejected),
            events_from_the_future=len(taken.from_the_future),
            events_late=taken.late,
            events_after_stop=taken.after_stop,
            events_outside_range=taken.outside,
        )
        self._pack(taken, progress, step)

    def _pack(self, taken: Taken, progress: PartitionProgress, step: Step) -> None:
        batch, first_open = taken.batch, taken.first_open
        if self._public_items is not None and len(batch):
            public_labels = self._public_items.contains(self._keys.hash_items(batch.item.dictionary))
            is_public = public_labels[batch.item.indices.to_numpy()]
            is_inside = self._schedule.first_window(batch.time_micros) >= 0
            step.counts["events_of_other_items"] += int((is_inside & ~is_public).sum())
            batch, first_open = batch.where(is_public), first_open[is_public]
        sharding = {"windows_per_range": 1, "shards": self._polling.shards}
        for window, shard, pairs in contributions_of_events(
            batch, self._schedule, self._keys, **sharding, first_open=first_open
        ):
            blobs = list(pairs.messages())
            step.messages += [(shard, Message(window, 0, blob)) for blob in blobs]
            progress.sent(window, shard, len(blobs))


def now_micros() -> int:
    return time.time_ns() // 1000


@dataclasses.dataclass
class _Question:
    """confirmed: how often an intent was. asked_at: when the next confirmation was asked for, in monotonic seconds."""

    confirmed: int = 0
    asked_at: float = -math.inf


class Confirmation:
    """What the engine calls when it has stored the bundle that asked. Repeated calls count once."""

    def __init__(self, intent: str) -> None:
        self._intent = intent
        self._number = _QUESTIONS[intent].confirmed + 1

    def __call__(self) -> None:
        if _QUESTIONS[self._intent].confirmed < self._number:
            _QUESTIONS[self._intent] = _Question(self._number)


# Of this process, by the names of intents that wait.
_QUESTIONS: dict[str, _Question] = defaultdict(_Question)


def _in_parts(rows: RejectedEvents) -> Iterator[RejectedEvents]:
    """In elements that engines accept; none for no rows."""
    for start in range(0, len(rows.positions), _MOST_POSITIONS):
        yield rows._replace(positions=rows.positions[start : start + _MOST_POSITIONS])


def _digest_of_run(polling: Polling, keys: IdKeys) -> str:
    """Of the key, it holds only the keyed hash of a fixed text."""
    run, clock = polling.run, dataclasses.asdict(polling.clock)
    key_check = keys.hash_users(pa.array(["the noise key of this run"])).tobytes().hex()
    parts = [run.run_id, run.stream, run.plan.fingerprint, clock, key_check, polling.source]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
