"""ThresholdMonitorEvolving as a stateful DoFn: the last stage wherever users pay for hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.transforms.userstate import BagStateSpec

from dp_transforms.beam.gather import FAR, NEAR, WAITING, GatherCounted, Part, Turn
from dp_transforms.beam.in_order import InOrderDoFn, Progress, ReleaseInOrder, ReleaseInOrderDoFn
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.operator_counts import Key
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import pack_by_bucket
from dp_transforms.stages.stage import Span, Stage


class MonitorHeavyHitters(beam.PTransform):
    """Candidates -> what `ReleaseInOrder` returns.

    senders: of a stream, with counted messages ``((window, 0), message)``: how many shards of items send to each
    window. None: bounded input, ``(key, packed candidates)``, all of which have one turn. part: of a run; None for a
    whole one.
    """

    def __init__(
        self, stage: Stage, noise_key: beam.Secret, senders: int | None = None, part: RunPart | None = None
    ) -> None:
        super().__init__()
        self._senders = senders
        self._first_window = 0 if part is None else part.first
        do_fn = ThresholdMonitorEvolvingDoFn(stage, noise_key, part, is_bounded=senders is None)
        self._release = ReleaseInOrder(do_fn, stage.run.stream)

    def expand(self, candidates: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        if self._senders is not None:
            return candidates | "Gather" >> GatherCounted(self._senders) | self._release
        at_once = beam.Map(_of_window, self._first_window).with_output_types(tuple[Key, bytes])
        return candidates | "AllWindows" >> at_once | "Gather" >> beam.GroupByKey() | self._release


def _of_window(packed: tuple[Any, bytes], window: int) -> tuple[Key, bytes]:
    return (window, 0), packed[1]


class ThresholdMonitorEvolvingDoFn(ReleaseInOrderDoFn):
    """ThresholdMonitorEvolving ([KMS21] Algorithm 5), stateful, keyed by stream, in the GlobalWindow.

    Its state has a counter of hits for each user that ever paid one (`ContributionCounters`). `HeavyHitterMonitor`
    tests each item of a window against the threshold, charges the counters of its holders for a hit, and leaves out
    users that have paid all theirs. What is a hit, and the noise, depend on the mode; with ``kms21`` both are the
    paper's, and tests/beam/test_threshold_monitor_evolving.py runs `papers.threshold_monitor` beside it.

    Windows are closed strictly in order, each when all its candidates have come, as `InOrderDoFn` counts them: no
    timer and no watermark decides. All windows of bounded input have one turn.
    """

    COUNTERS = BagStateSpec("counters", BytesCoder())

    def __init__(
        self, stage: Stage, noise_key: beam.Secret, part: RunPart | None = None, *, is_bounded: bool = False
    ) -> None:
        super().__init__(stage, noise_key)
        self._is_bounded = is_bounded
        self._carries_over, self._part = part is not None, part or RunPart.whole(stage.run.plan.schedule)
        self._first = self._part.first

    def process(  # type: ignore[override]
        self,
        element: tuple[str, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        counters: Any = beam.DoFn.StateParam(COUNTERS),
        progress: Any = beam.DoFn.StateParam(InOrderDoFn.PROGRESS),
    ) -> Iterator[object]:
        _, part = element
        yield from self.advance(0, part, (near, far, waiting), counters, progress)

    def note(self, turn: Turn) -> None:
        if not self._is_bounded:
            super().note(turn)

    def _end_of(self, turn: Turn, first: int) -> int:
        return self._part.end if self._is_bounded else super()._end_of(turn, first)

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
