"""The driver of streams: stateful DoFns that run the steps window after window, and send each other counted messages.

The first messages are made by `MonitorStream`, of Kafka or a folder, or by `counted_by_watermark`, of a stream that
Beam reads. A step knows by the counts when it has all messages of a window (`core.stage.Message`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec
from apache_beam.transforms.window import TimestampedValue

from dp_transforms.beam.assign_windows import (
    KeyedCell,
    group_once,
    in_closing_windows,
    in_global_window,
    max_timestamp,
    with_starts,
)
from dp_transforms.beam.threshold_monitor import charge_windows
from dp_transforms.beam.turns import PENDING, PENDING_FAR, PENDING_SOON, PROGRESS, Progress, Turns, store
from dp_transforms.beam.workers import add_counts, operator_counter, operator_gauge
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.operator_counts import LATE_BATCHES, WINDOWS_CLOSED
from dp_transforms.core.stage import (
    Message,
    Sent,
    Sharding,
    Span,
    Stage,
    ToShard,
    messages_of,
    packed_by_group,
    shards_of_items,
)
from dp_transforms.core.stages import RunStages
from dp_transforms.core.state_chunks import Kind, entries_of_chunk, pack_chunk, unpack_chunk
from dp_transforms.core.window_report import WindowReport
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.reports.report_records import RunEnded

ENDED, REPORTS = "ended", "reports"


@beam.ptransform_fn
def counted_by_watermark(
    packed: beam.PCollection, schedule: WindowSchedule, cut: Sharding, stream: str
) -> beam.PCollection:
    """``(KeyedCell, packed contributions)`` of a stream that Beam reads, under the stream of the run -> ``(shard,
    message)`` of one sender, in the GlobalWindow.

    Beam groups a shard of a window when the watermark passes its end (`assign_windows`); what comes later is dropped
    and counted. Each shard of every window is announced, also one without events, since it was started before: followed
    items are tested in every window, what is announced must not show who was there, and no user can decide whether
    late events of others count.
    """
    closing = packed | "InClosingWindows" >> in_closing_windows(schedule)
    started = closing | "AllWindows" >> with_starts(schedule, cut, [stream])
    groups = started | "GroupUsers" >> group_once(are_started=True)
    return in_global_window(groups | "Announce" >> beam.FlatMap(_announced).with_output_types(ToShard))


def _announced(group: tuple[KeyedCell, Iterable[bytes]]) -> Iterator[ToShard]:
    (_, window, shard), blobs = group
    return ((shard, message) for message in messages_of(window, [blob for blob in blobs if blob]))


class ReleasedInOrder(NamedTuple):
    """reports: of `WindowReport`. ended: of `RunEnded`."""

    reports: beam.PCollection
    ended: beam.PCollection


class ReleaseStagesInOrder(beam.PTransform):
    """``(shard of users, message)`` -> `ReleasedInOrder`, through three stateful steps: users, items, and what reports.

    The clocks of partitions, or a watermark, say when a window is complete; these steps do not ask which.

    shards: of users; of items there are `shards_of_items`. senders: how many send to each shard of users.
    """

    def __init__(self, stages: RunStages, noise_key: beam.Secret, shards: int, senders: int) -> None:
        super().__init__()
        of_items = shards_of_items(shards)
        self._users = InOrderDoFn(stages.users, noise_key, shards, senders, of_items)
        self._items = InOrderDoFn(stages.items, noise_key, of_items, shards, 1)
        self._last = ReportInOrderDoFn(stages, noise_key, of_items)

    def expand(self, messages: beam.PCollection) -> ReleasedInOrder:
        added = messages | "Users" >> beam.ParDo(self._users).with_output_types(ToShard)
        found = added | "Items" >> beam.ParDo(self._items).with_output_types(ToShard)
        released = found | "Windows" >> beam.ParDo(self._last).with_outputs(ENDED, main=REPORTS)
        released[REPORTS].element_type, released[ENDED].element_type = WindowReport, RunEnded
        return ReleasedInOrder(released[REPORTS], released[ENDED])


class InOrderDoFn(beam.DoFn):
    """Counted messages to a shard -> messages to the shards of the next stage, window after window.

    Stateful, keyed by shard, without timers. It holds the messages of a window until all have come: a user's items that
    count are chosen among all that the user has in the window, and an item is tested with all its holders. Windows are
    taken in order (`Turns`), since each one begins with what the window before has left: the budgets of users, and
    which items were named lately.

    A message for a window that had its turn is dropped and counted. CELLS is the state of the stage; it is stored
    together with what is sent. So if a worker dies, a window is taken again from the same state, and sends the same.

    shards: of this stage. senders: how many send to each of them. to: shards of the next stage; each shard sends to all
    of them in every window, even if it has nothing to say.
    """

    PENDING, PENDING_SOON, PENDING_FAR, PROGRESS = PENDING, PENDING_SOON, PENDING_FAR, PROGRESS
    CELLS = BagStateSpec("cells", BytesCoder())

    def __init__(self, stage: Stage, noise_key: beam.Secret, shards: int, senders: int, to: int) -> None:
        self._stage, self._noise_key = stage, noise_key
        self._shards, self._senders, self._to = shards, senders, Sharding(1, to)
        self._late = operator_counter(LATE_BATCHES)

    def setup(self) -> None:
        self._step = self._stage.start(self._noise_key.get_secret_bytes())

    def process(
        self,
        element: ToShard,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        cells: Any = beam.DoFn.StateParam(CELLS),
        progress: Any = beam.DoFn.StateParam(PROGRESS),
    ) -> Iterator[object]:
        shard, message = element
        now = Progress.read(progress, self._shards)
        first, turns = now.next_window, Turns(now, (pending, soon, far), self._senders)
        blobs, outputs = [blob for _, _, blob in turns.add(Message(*message))], []
        self._late.inc(turns.dropped)
        if now.next_window > first:
            outputs = list(self.close(blobs, Span(first, now.next_window, shard, self._shards), cells, now))
        progress.write(now.to_bytes())  # all state is written before anything is sent
        yield from outputs

    def close(self, blobs: list[bytes], span: Span, cells: Any, now: Progress) -> Iterator[object]:
        """What the step makes of a span, window by window. blobs: all that came for it."""
        packed = {}
        if blobs or self._step.runs_on_empty:
            packed = dict(packed_by_group(self._processed(blobs, span, cells, now), self._to))
        for window in range(span.first, span.end):
            for shard in range(self._to.shards):
                for message in messages_of(window, packed.get((window, shard), [])):
                    yield shard, message

    def _processed(self, blobs: list[bytes], span: Span, cells: Any, now: Progress) -> Sent:
        step, counts = self._step, Counter[str]()
        stored = [] if step.state_kind is None else list(cells.read())
        entries = [entries_of_chunk(kind, chunk) for kind, _, chunk in map(unpack_chunk, stored)]
        state = step.restore(entries, span.first)
        sent = step.process(state, step.TAKES.of_messages(blobs), span, counts)
        add_counts(counts)
        if step.state_kind is not None:
            store(cells, stored, _packed(step.delta(state)), lambda: _packed(step.chunks(state)), now)
            for name, value in step.measures(state).items():
                operator_gauge(name).set(value)
        return sent


def _packed(chunks: Iterable[tuple[Kind, bytes]]) -> list[bytes]:
    return [pack_chunk(kind, 0, chunk) for kind, chunk in chunks]


class ReportInOrderDoFn(InOrderDoFn):
    """The last step, which has one shard: sends the report of each window, and at the end `RunEnded`, tagged `ENDED`.

    Stateful, since reports come in the order of windows and the last one ends the run. Where users pay for hits, what
    they have paid goes from each window to the next, as in `ThresholdMonitorEvolvingDoFn`; where contributions are
    tested twice, what they have left for second tests.
    """

    def __init__(self, stages: RunStages, noise_key: beam.Secret, senders: int) -> None:
        self._again, self._run = stages.again, stages.items.run
        self._noise_key, self._shards, self._senders = noise_key, 1, senders
        self._late, self._closed = operator_counter(LATE_BATCHES), operator_counter(WINDOWS_CLOSED)
        self._monitor: HeavyHitterMonitor | None = None

    def setup(self) -> None:
        if self._again is not None:
            self._step = self._again.start(self._noise_key.get_secret_bytes())
        if self._run.plan.hits is not None:
            keys = self._run.stream_keys(self._noise_key.get_secret_bytes())
            self._monitor = HeavyHitterMonitor(self._run.plan, keys)

    def close(self, blobs: list[bytes], span: Span, cells: Any, now: Progress) -> Iterator[object]:
        plan, stream = self._run.plan, self._run.stream
        reports: Iterable[tuple[int, WindowReport]] = ()
        if self._monitor is not None:
            reports = charge_windows(self._monitor, blobs, span.first, cells, now)
        elif self._again is None:
            reports = NamedItems.of_messages(blobs).window_reports(plan, stream)
        elif blobs or self._step.runs_on_empty:
            reports = cast(NamedItems, self._processed(blobs, span, cells, now)).window_reports(plan, stream)
        for window, report in reports:
            now.reports += 1
            yield TimestampedValue[WindowReport](report, max_timestamp(plan.schedule, window))
        self._closed.inc(span.end - span.first)
        if span.end == plan.schedule.horizon:
            yield beam.pvalue.TaggedOutput(ENDED, RunEnded(stream, span.end, now.reports))
