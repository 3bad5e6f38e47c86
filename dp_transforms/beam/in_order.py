"""In order: a driver of stages for streams, which gathers what belongs to a window and waits for the window's turn."""

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
from dp_transforms.beam.gather import (
    FAR,
    NEAR,
    WAITING,
    GatherCounted,
    Part,
    Turn,
    parts_of_shards,
    parts_of_window,
    take_turn,
)
from dp_transforms.beam.set_up_workers import Counters, operator_counter, operator_gauge
from dp_transforms.beam.write_state import STATE
from dp_transforms.errors import StreamError
from dp_transforms.monitor.operator_counts import (
    LATE_BATCHES,
    WINDOWS_ANSWERED,
    WINDOWS_CLOSED,
    EncodedMessage,
    Group,
    Key,
    messages_of,
)
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.runs.state_cells import Cell, Kind, pack_cell, unpack_cell
from dp_transforms.stages.stage import Sharding, Span, Stage, packed_by_cell

ENDED, REPORTS = "ended", "reports"
_CELLS_BEFORE_REWRITING, _BYTES_BEFORE_REWRITING = 64, 10_000_000


class InOrder(beam.PTransform):
    """``((window, group of shards), message)`` -> ``((window, shard), message)`` for the next stage, with counted
    messages.

    groups: of shards of users; else a shard is a group. senders: how many senders each group has. Each shard sends to
    all ``to`` shards of the next stage in every window, even if it has nothing to say.
    """

    def __init__(
        self,
        stage: Stage,
        noise_key: beam.Secret,
        shards: int,
        senders: int,
        to: int,
        groups: int | None = None,
    ) -> None:
        super().__init__()
        self._senders, self._cut = senders, (groups or shards, shards)
        self._takes_turns = stage.work.takes_turns
        kind = InOrderDoFn if self._takes_turns else AsItComesDoFn
        self._do_fn = kind(stage, noise_key, shards, to)

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        groups = messages | "Gather" >> GatherCounted(self._senders)
        if self._takes_turns:
            groups = groups | "ByShard" >> beam.FlatMap(parts_of_shards, *self._cut).with_output_types(tuple[int, Part])
        return groups | "Advance" >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, EncodedMessage])


class ReleaseInOrder(beam.PTransform):
    """``((window, 0), blobs)``, all that was found in a window -> `WindowReport`, tagged `REPORTS`, at the maximal
    timestamp of its window; `RunEnded`, tagged `ENDED`; and what a part of a replay carries over, tagged `STATE`."""

    def __init__(self, do_fn: ReleaseInOrderDoFn, stream: str) -> None:
        super().__init__()
        self._do_fn = do_fn
        self._stream = stream

    def expand(self, groups: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        outputs = (
            groups
            | "OneKey" >> beam.FlatMap(parts_of_window, self._stream).with_output_types(tuple[str, Part])
            | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, STATE, main=REPORTS)
        )
        outputs[REPORTS].element_type, outputs[ENDED].element_type = WindowReport, RunEnded
        return outputs


@dataclasses.dataclass
class Progress:
    """next_window: the first that had no turn. shards: of the stage. cells, size: how many cells and bytes the state
    had when it was last rewritten. reports: how many were released."""

    next_window: int
    shards: int
    cells: int = 0
    size: int = 0
    reports: int = 0

    FIELDS = struct.Struct("<qqqqq")

    def to_bytes(self) -> bytes:
        return self.FIELDS.pack(*dataclasses.astuple(self))


class InOrderDoFn(beam.DoFn):
    """Stateful, keyed by shard, without timers: advances a stage through a window when it has come whole, and it was
    advanced through all windows before.

    What comes for a window that had its turn is dropped and counted. CELLS is the state of the stage; it is stored
    together with what is sent. So if a worker dies, a window is taken again from the same state, and sends the same.

    to: shards of the next stage.
    """

    CELLS = BagStateSpec("cells", BytesCoder())
    PROGRESS = ReadModifyWriteStateSpec("progress", BytesCoder())

    def __init__(self, stage: Stage, noise_key: beam.Secret, shards: int, to: int) -> None:
        self._stage = stage
        self._noise_key = noise_key
        self._shards = shards
        self._to = Sharding(1, to)
        self._first = 0
        self._counters = Counters()
        self._late = operator_counter(LATE_BATCHES)

    def setup(self) -> None:
        self._work = self._stage.start(self._noise_key.get_secret_bytes())

    def process(
        self,
        element: tuple[int, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        cells: Any = beam.DoFn.StateParam(CELLS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        shard, part = element
        yield from self.advance(shard, part, (near, far, waiting), cells, progress)

    def advance(
        self, shard: int, part: Part, queue: tuple[Any, Any, Any], cells: Any, progress: Any
    ) -> Iterator[object]:
        """All that one element leads to. queue: the state of `take_turn`; cells, progress: that of the stage."""
        now = self._progress(progress)
        turn = take_turn(part, now.next_window, *queue)
        self.note(turn)
        if not turn.windows:
            return
        span = Span(now.next_window, self._end_of(turn, now.next_window), shard, self._shards)
        blobs = [blob for _, of_window in turn.windows for blob in of_window]
        if blobs or self._work.acts_alone:
            yield from self._advance(blobs, span, cells, now)
        else:
            yield from self.send(None, span, now)
        now.next_window = span.end
        progress.write(now.to_bytes())
        yield from self.end(span, now)

    def send(self, advanced: Any, span: Span, progress: Progress) -> Iterator[object]:
        """What the stage made of a span, window by window; None: nothing came for it."""
        packed = {} if advanced is None else dict(packed_by_cell(advanced, self._to))
        for window in range(span.first, span.end):
            for shard in range(self._to.shards):
                for message in messages_of(packed.get((window, shard), [])):
                    yield (window, shard), message

    def end(self, span: Span, progress: Progress) -> Iterator[object]:
        """What follows the windows that had their turn."""
        return iter(())

    def note(self, turn: Turn) -> None:
        """For the operator."""
        self._late.inc(turn.dropped)

    def _end_of(self, turn: Turn, first: int) -> int:
        return first + len(turn.windows)

    def _progress(self, progress: Any) -> Progress:
        if (stored := progress.read()) is not None:
            now = Progress(*Progress.FIELDS.unpack(stored))
            if now.shards != self._shards:  # users would be in other shards, where their purses are full again
                raise StreamError(
                    f"the stored state is of shards={now.shards}, got shards={self._shards}. Give the same."
                )
            return now
        now = Progress(self._first, self._shards)
        progress.write(now.to_bytes())
        return now

    def _advance(self, blobs: list[bytes], span: Span, cells: Any, progress: Progress) -> Iterator[object]:
        counts: Counter[str] = Counter()
        stored = list(cells.read()) if self._work.keeps_state else []
        state = self._work.read(map(_unpacked, stored), span.first)
        yield from self.send(self._work.advance(state, self._work.columns(blobs), span, counts), span, progress)
        self._counters.add(counts)
        if self._work.keeps_state:
            self._store(state, stored, span, cells, progress)

    def _store(self, state: Any, stored: list[bytes], span: Span, cells: Any, progress: Progress) -> None:
        """Appends what has changed. Now and then it rewrites all, which costs a bounded share of what is read."""
        changed = list(self._work.changed(state, span))
        size = sum(map(len, stored)) + sum(len(cell) for _, cell in changed)
        is_scattered = len(stored) + len(changed) > _CELLS_BEFORE_REWRITING + 2 * progress.cells
        if is_scattered or size > _BYTES_BEFORE_REWRITING + 2 * progress.size:
            cells.clear()
            progress.cells = progress.size = 0
            self._add(list(self._work.cells(state)), cells, progress)
        else:
            for kind, cell in changed:
                cells.add(pack_cell(kind, 0, cell))
        for name, value in self._work.measures(state).items():
            operator_gauge(name).set(value)

    @staticmethod
    def _add(written: list[tuple[Kind, bytes]], cells: Any, progress: Progress) -> None:
        for kind, cell in written:
            cells.add(pack_cell(kind, 0, cell))
            progress.cells += 1
            progress.size += len(cell)


class ReleaseInOrderDoFn(InOrderDoFn):
    """The same for the last stage: releases the report of each window, and `RunEnded` tagged `ENDED`."""

    def __init__(self, stage: Stage, noise_key: beam.Secret) -> None:
        super().__init__(stage, noise_key, 1, 1)
        self._closed = operator_counter(WINDOWS_CLOSED)
        self._answered = operator_gauge(WINDOWS_ANSWERED)

    def process(  # type: ignore[override]
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        cells: Any = beam.DoFn.StateParam(InOrderDoFn.CELLS),
        progress: Any = beam.DoFn.StateParam(InOrderDoFn.PROGRESS),
    ) -> Iterator[object]:
        _, part = element
        yield from self.advance(0, part, (near, far, waiting), cells, progress)

    def send(self, advanced: Any, span: Span, progress: Progress) -> Iterator[object]:
        for window, report in advanced or ():
            progress.reports += 1
            yield TimestampedValue[WindowReport](report, max_timestamp(self._stage.run.plan.schedule, window))

    def end(self, span: Span, progress: Progress) -> Iterator[object]:
        self._answered.set(span.end)
        if span.end == self._stage.run.plan.schedule.horizon:
            ended = RunEnded(self._stage.run.stream, span.end, progress.reports)
            yield beam.pvalue.TaggedOutput(ENDED, ended)

    def note(self, turn: Turn) -> None:
        super().note(turn)
        self._closed.inc(len(turn.windows))


class AsItComesDoFn(beam.DoFn):
    """A stage without a state: window by window, in whatever order they come."""

    def __init__(self, stage: Stage, noise_key: beam.Secret, shards: int, to: int) -> None:
        self._stage, self._noise_key, self._shards, self._to = stage, noise_key, shards, Sharding(1, to)

    def setup(self) -> None:
        self._work = self._stage.start(self._noise_key.get_secret_bytes())

    def process(self, group: Group) -> Iterator[tuple[Key, EncodedMessage]]:
        (window, shard), blobs = group
        packed: dict[Key, list[bytes]] = {}
        if blobs or self._work.acts_alone:
            span = Span(window, window + 1, shard, self._shards)
            advanced = self._work.advance(None, self._work.columns(blobs), span, Counter())
            packed = dict(packed_by_cell(advanced, self._to))
        for to in range(self._to.shards):
            for message in messages_of(packed.get((window, to), [])):
                yield (window, to), message


def _unpacked(data: bytes) -> tuple[Kind, Cell]:
    kind, _, cell = unpack_cell(data)
    return kind, cell
