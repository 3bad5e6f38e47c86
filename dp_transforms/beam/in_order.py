"""In order: a driver of stages for streams, window after window: counted messages -> counted messages, or reports."""

from __future__ import annotations

import dataclasses
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import max_timestamp
from dp_transforms.beam.set_up_workers import Counters, operator_counter, operator_gauge
from dp_transforms.beam.threshold_monitor import Progress, ThresholdMonitorEvolvingDoFn
from dp_transforms.beam.turns import PENDING, PENDING_FAR, PENDING_SOON, TURNS, Turns
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.operator_counts import (
    LATE_BATCHES,
    WINDOWS_ANSWERED,
    WINDOWS_CLOSED,
    Message,
    ToShard,
    messages_of,
)
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.stage import Sent, Sharding, Span, Stage, packed_by_group
from dp_transforms.core.state_chunks import Entries, Kind, entries_of_chunk, pack_chunk, unpack_chunk
from dp_transforms.core.window_report import RunEnded, WindowReport
from dp_transforms.errors import StreamError

ENDED, REPORTS = "ended", "reports"
_CELLS_BEFORE_REWRITING, _BYTES_BEFORE_REWRITING = 64, 10_000_000


@dataclasses.dataclass
class StageProgress:
    """shards: of the stage. cells, size: how many cells and bytes the state had when it was last rewritten. reports:
    how many were released."""

    shards: int
    cells: int = 0
    size: int = 0
    reports: int = 0

    FIELDS = struct.Struct("<qqqq")

    def to_bytes(self) -> bytes:
        return self.FIELDS.pack(*dataclasses.astuple(self))


class InOrderDoFn(beam.DoFn):
    """Counted messages to a shard -> messages to the shards of the next stage, window after window.

    Stateful, keyed by shard, without timers. It must hold what comes until its window is whole: the items of a user
    that count are chosen among all that the user has in the window, and an item is tested with all its holders. And
    what a stage carries from window to window, what users have left and which items were named lately, is as the
    window before left it: so windows are taken in order (`Turns`).

    What comes for a window that had its turn is dropped and counted. CELLS is the state of the stage; it is stored
    together with what is sent. So if a worker dies, a window is taken again from the same state, and sends the same.

    shards: of this stage. senders: how many send to each of them. to: shards of the next stage; each shard sends to all
    of them in every window, even if it has nothing to say.
    """

    PENDING, PENDING_SOON, PENDING_FAR, TURNS = PENDING, PENDING_SOON, PENDING_FAR, TURNS
    CELLS = BagStateSpec("cells", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", BytesCoder())

    def __init__(self, stage: Stage, noise_key: beam.Secret, shards: int, senders: int, to: int) -> None:
        self._stage = stage
        self._noise_key = noise_key
        self._shards = shards
        self._senders = senders
        self._to = Sharding(1, to)
        self._counters = Counters()
        self._late = operator_counter(LATE_BATCHES)

    def setup(self) -> None:
        self._step = self._stage.start(self._noise_key.get_secret_bytes())

    def process(
        self,
        element: ToShard,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        turns: Any = beam.DoFn.StateParam(TURNS),
        cells: Any = beam.DoFn.StateParam(CELLS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        shard, message = element
        waiting = Turns(self._senders, turns, (pending, soon, far))
        windows = waiting.add(Message(*message))
        self._late.inc(waiting.dropped)
        if not windows:
            return
        now, span = self._progress(progress), Span(windows[0][0], windows[-1][0] + 1, shard, self._shards)
        blobs = [blob for _, of_window in windows for blob in of_window]
        yield from self.close(blobs, span, cells, now)
        progress.write(now.to_bytes())
        yield from self.end(span, now)

    def close(self, blobs: list[bytes], span: Span, cells: Any, progress: StageProgress) -> Iterator[object]:
        """What the step makes of a span, window by window. blobs: all that came for it."""
        packed = {}
        if blobs or self._step.runs_on_empty:
            packed = dict(packed_by_group(self._process(blobs, span, cells, progress), self._to))
        for window in range(span.first, span.end):
            for shard in range(self._to.shards):
                for message in messages_of(window, packed.get((window, shard), [])):
                    yield shard, message

    def end(self, span: Span, progress: StageProgress) -> Iterator[object]:
        """What follows the windows that had their turn."""
        return iter(())

    def _progress(self, progress: Any) -> StageProgress:
        stored = progress.read()
        now = StageProgress(self._shards) if stored is None else StageProgress(*StageProgress.FIELDS.unpack(stored))
        if now.shards != self._shards:  # users would be in other shards, where their purses are full again
            raise StreamError(f"the stored state is of shards={now.shards}, got shards={self._shards}. Give the same.")
        return now

    def _process(self, blobs: list[bytes], span: Span, cells: Any, progress: StageProgress) -> Sent:
        counts: Counter[str] = Counter()
        keeps_state = self._step.state_kind is not None
        stored = list(cells.read()) if keeps_state else []
        state = self._step.restore([_entries(chunk) for chunk in stored], span.first)
        sent = self._step.process(state, self._step.TAKES.of_messages(blobs), span, counts)
        self._counters.add(counts)
        if keeps_state:
            self._store(state, stored, cells, progress)
        return sent

    def _store(self, state: Any, stored: list[bytes], cells: Any, progress: StageProgress) -> None:
        """Appends what has changed. Now and then it rewrites all, which costs a bounded share of what is read."""
        changed = self._step.delta(state)
        size = sum(map(len, stored)) + sum(len(cell) for _, cell in changed)
        is_scattered = len(stored) + len(changed) > _CELLS_BEFORE_REWRITING + 2 * progress.cells
        if is_scattered or size > _BYTES_BEFORE_REWRITING + 2 * progress.size:
            cells.clear()
            progress.cells = progress.size = 0
            self._add(self._step.chunks(state), cells, progress)
        else:
            for kind, cell in changed:
                cells.add(pack_chunk(kind, 0, cell))
        for name, value in self._step.measures(state).items():
            operator_gauge(name).set(value)

    @staticmethod
    def _add(written: list[tuple[Kind, bytes]], cells: Any, progress: StageProgress) -> None:
        for kind, cell in written:
            cells.add(pack_chunk(kind, 0, cell))
            progress.cells += 1
            progress.size += len(cell)


class ReleaseInOrderDoFn(InOrderDoFn):
    """The same for the last stage, which has one shard: releases the report of each window, and `RunEnded` tagged
    `ENDED`. Stateful, since reports come in the order of windows and the last one ends the run."""

    def __init__(self, run: PlannedRun, noise_key: beam.Secret, senders: int) -> None:
        self._run, self._shards, self._senders = run, 1, senders
        self._late = operator_counter(LATE_BATCHES)
        self._closed = operator_counter(WINDOWS_CLOSED)
        self._answered = operator_gauge(WINDOWS_ANSWERED)

    def setup(self) -> None:
        pass

    def close(self, blobs: list[bytes], span: Span, cells: Any, progress: StageProgress) -> Iterator[object]:
        for window, report in NamedItems.of_messages(blobs).window_reports(self._run.plan, self._run.stream):
            progress.reports += 1
            yield TimestampedValue[WindowReport](report, max_timestamp(self._run.plan.schedule, window))

    def end(self, span: Span, progress: StageProgress) -> Iterator[object]:
        self._closed.inc(span.end - span.first)
        self._answered.set(span.end)
        if span.end == self._run.plan.schedule.horizon:
            ended = RunEnded(self._run.stream, span.end, progress.reports)
            yield beam.pvalue.TaggedOutput(ENDED, ended)


class MonitorInOrderDoFn(ThresholdMonitorEvolvingDoFn):
    """The last stage where users pay for hits: the same DoFn, whose windows are closed by counting and by no timer.

    Stateful, with one key: what users have paid goes from each window to the next.
    """

    close_windows = None

    def __init__(self, run: PlannedRun, noise_key: beam.Secret, senders: int) -> None:
        super().__init__(run, noise_key)
        self._senders = senders
        self._answered = operator_gauge(WINDOWS_ANSWERED)

    def process(  # type: ignore[override]
        self,
        element: ToShard,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        turns: Any = beam.DoFn.StateParam(TURNS),
        counters: Any = beam.DoFn.StateParam(ThresholdMonitorEvolvingDoFn.CONTRIBUTION_COUNTERS),
        progress: Any = beam.DoFn.StateParam(ThresholdMonitorEvolvingDoFn.PROGRESS),
    ) -> Iterator[object]:
        waiting = Turns(self._senders, turns, (pending, soon, far))
        windows = waiting.add(Message(*element[1]))
        self._late.inc(waiting.dropped)
        if not windows:
            return
        now, stream, through = Progress.of(progress.read(), self._part), self._run.stream, windows[-1][0]
        candidates = [blob for _, of_window in windows for blob in of_window]
        for (_, report), stamp in self.close(stream, candidates, through, counters, now):
            yield TimestampedValue[WindowReport](report, stamp)
        progress.write(now.to_bytes())
        self._answered.set(through + 1)
        if through == self.last:
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, through + 1, now.reports))


def _entries(data: bytes) -> Entries:
    kind, _, chunk = unpack_chunk(data)
    return entries_of_chunk(kind, chunk)
