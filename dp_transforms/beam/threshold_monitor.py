"""ThresholdMonitorEvolving as a stateful DoFn: the last stage wherever users pay for hits."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec

from dp_transforms.beam.in_order import ENDED, REPORTS, InOrderDoFn, Progress, ReleaseInOrderDoFn, Windows
from dp_transforms.beam.turns import PENDING, PENDING_FAR, PENDING_SOON, TURNS
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.operator_counts import Key, ToShard, messages_of
from dp_transforms.monitor.window_report import RunEnded, WindowReport
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import pack_by_bucket
from dp_transforms.stages.stage import Span, Stage


class MonitorHeavyHitters(beam.PTransform):
    """Candidates -> `WindowReport`, tagged `REPORTS`, at the maximal timestamp of its window; `RunEnded`, tagged
    `ENDED`; and what a part of a replay carries over, tagged `STATE`.

    senders: of a stream, with counted messages to one shard: how many shards of items send to each window. None:
    bounded input, ``(key, packed candidates)``, all of which have one turn. part: of a run; None for a whole one.
    """

    def __init__(
        self, stage: Stage, noise_key: beam.Secret, senders: int | None = None, part: RunPart | None = None
    ) -> None:
        super().__init__()
        self._senders = senders
        self._first_window = 0 if part is None else part.first
        self._do_fn = ThresholdMonitorEvolvingDoFn(stage, noise_key, senders, part)

    def expand(self, candidates: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        if self._senders is None:
            at_once = beam.Map(_of_window, self._first_window).with_output_types(tuple[Key, bytes])
            groups = candidates | "AllWindows" >> at_once | "Gather" >> beam.GroupByKey()
            candidates = groups | "OneTurn" >> beam.FlatMap(_one_turn).with_output_types(ToShard)
        outputs = candidates | "CloseWindows" >> beam.ParDo(self._do_fn).with_outputs(ENDED, STATE, main=REPORTS)
        outputs[REPORTS].element_type, outputs[ENDED].element_type = WindowReport, RunEnded
        return outputs


def _of_window(packed: tuple[Any, bytes], window: int) -> tuple[Key, bytes]:
    return (window, 0), packed[1]


def _one_turn(group: tuple[Key, Iterable[bytes]]) -> Iterator[ToShard]:
    (window, shard), blobs = group
    for message in messages_of(window, list(blobs)):
        yield shard, message


class ThresholdMonitorEvolvingDoFn(ReleaseInOrderDoFn):
    """ThresholdMonitorEvolving ([KMS21] Algorithm 5), stateful, with one key, in the GlobalWindow.

    Its state has a counter of hits for each user that ever paid one (`ContributionCounters`). `HeavyHitterMonitor`
    tests each item of a window against the threshold, charges the counters of its holders for a hit, and leaves out
    users that have paid all theirs. What is a hit, and the noise, depend on the mode; with ``kms21`` both are the
    paper's, and tests/beam/test_threshold_monitor_evolving.py runs `mechanisms.papers.threshold_monitor` beside it.

    Windows are closed strictly in order, each when all its candidates have come, as `InOrderDoFn` counts them: no
    timer and no watermark decides. All windows of bounded input have one turn.
    """

    COUNTERS = BagStateSpec("counters", BytesCoder())

    def __init__(
        self, stage: Stage, noise_key: beam.Secret, senders: int | None = None, part: RunPart | None = None
    ) -> None:
        super().__init__(stage, noise_key, senders or 1)
        self._is_bounded = senders is None
        self._carries_over, self._part = part is not None, part or RunPart.whole(stage.run.plan.schedule)
        self._first = self._part.first

    def process(
        self,
        element: ToShard,
        pending: Any = beam.DoFn.StateParam(PENDING),
        soon: Any = beam.DoFn.StateParam(PENDING_SOON),
        far: Any = beam.DoFn.StateParam(PENDING_FAR),
        turns: Any = beam.DoFn.StateParam(TURNS),
        counters: Any = beam.DoFn.StateParam(COUNTERS),
        progress: Any = beam.DoFn.StateParam(InOrderDoFn.PROGRESS),
    ) -> Iterator[object]:
        yield from super().process(element, pending, soon, far, turns, counters, progress)

    def note(self, closed: int, dropped: int) -> None:
        if not self._is_bounded:
            super().note(closed, dropped)

    def _span(self, windows: Windows, shard: int) -> Span:
        span = super()._span(windows, shard)
        return dataclasses.replace(span, end=self._part.end) if self._is_bounded else span

    def _advance(self, blobs: list[bytes], span: Span, cells: Any, progress: Progress) -> Iterator[object]:
        if not self._is_bounded:
            yield from super()._advance(blobs, span, cells, progress)
            return
        counts: Counter[str] = Counter()
        candidates = self._work.columns(blobs)
        state = self._work.load(self._part, candidates, span)
        yield from self.send(self._work.advance(state, candidates, span, counts), span, progress)
        self._add(list(self._work.cells(state)), cells, progress)
        if self._carries_over:
            for packed in pack_by_bucket(self._work.cells(state)):
                yield beam.pvalue.TaggedOutput(STATE, packed)
