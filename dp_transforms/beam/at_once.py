"""At once: a driver of stages for bounded input, which groups all that belongs to a range of windows and a shard.

Steps run on the worker of an engine, or in the processes of a pool on this machine.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from apache_beam.utils.windowed_value import WindowedValue

from dp_transforms.beam.close_windows import InClosingWindows, KeyedCell
from dp_transforms.beam.metrics import add_counts
from dp_transforms.beam.read_events import REJECTED, ReplayProgress
from dp_transforms.beam.write_state import STATE
from dp_transforms.core.pack_contributions import MergeContributions, Packed
from dp_transforms.core.stage import AtOnceStep, GroupKey, StateChunk
from dp_transforms.local.pool import ProcessPool, Result, Step
from dp_transforms.local.read_contributions import BYTES, ROWS
from dp_transforms.logs.rejected_events import RejectedEvents

_Named = Sequence[Packed] | None  # in earlier rounds of looks


class Sent(NamedTuple):
    """What a stage sends to the next. states: of a part of a run, the packed cells that it hands over to the next part:
    one PCollection; of a whole run none."""

    sent: beam.PCollection
    states: tuple[beam.PCollection, ...]


def run_at_once(
    groups: beam.PCollection,
    label: str,
    step: AtOnceStep,
    noise_key: beam.Secret,
    pool: str | None = None,
    *,
    rereads: bool = False,
    named: Sequence[beam.PCollection] = (),
) -> Sent:
    """``((range, shard), all packed columns)`` -> packed columns by range and shard for the next step.

    pool: the token of a `ProcessPool` of this process; None: the stage runs where its DoFn does. rereads: the groups
    are read again by another step. named: for every group of a later round of looks, what was named, packed
    `NamedItems` by range and shard, as `Step.process` takes them; each of one step alone, since not every engine waits
    for all that were flattened.
    """
    do_fn = _do_fn_of(step, noise_key, pool, len(_keys(step)), rereads=rereads)
    run = beam.ParDo(do_fn, *map(beam.pvalue.AsList, named))
    sent = tuple[GroupKey, bytes]
    if step.part is None:
        return Sent(groups | label >> run.with_output_types(sent), ())
    outputs = groups | label >> run.with_outputs(STATE, main="sent")
    outputs.sent.element_type, outputs[STATE].element_type = convert_to_beam_type(sent), bytes
    return Sent(outputs.sent, (outputs[STATE],))


def run_for_keys(
    groups: beam.PCollection, label: str, step: AtOnceStep, noise_key: beam.Secret, pool: str | None = None
) -> beam.PCollection:
    """The same for ``((key, range, shard), all packed columns)``, also of a stream."""
    do_fn = _do_fn_of(step, noise_key, pool, len(_keys(step)))
    return groups | label >> beam.ParDo(do_fn).with_output_types(tuple[KeyedCell, bytes])


def merge_pairs(
    groups: beam.PCollection, noise_key: beam.Secret, pool: str | None, step: AtOnceStep
) -> beam.PCollection:
    """``((range, shard), all packed pairs of users)`` -> the same groups, merged: each of several steps that read them
    would sort them again. step: one of these."""
    merging = MergeContributions() if pool is None else MergeContributions(sys.maxsize)  # in a pool, they do not travel
    merge = beam.ParDo(_do_fn_of(merging, noise_key, pool, len(_keys(step)))).with_output_types(Packed)
    return groups | "MergeContributions" >> merge | "GroupMerged" >> beam.GroupByKey()


def _do_fn_of(step: Step, noise_key: beam.Secret, pool: str | None, groups: int, *, rereads: bool = False) -> beam.DoFn:
    """groups: that may go through it, for a progress bar; 0 for a step that is not counted."""
    ReplayProgress.pass_groups(of=groups)
    if pool is None:
        return RunStepDoFn(step, noise_key, is_counted=groups > 0)
    return RunInPoolDoFn(step, pool, is_counted=groups > 0, rereads=rereads)


class WithStarts(beam.PTransform):
    """Packed columns by range and shard, and an empty blob for each such group: those to which nothing comes act, too.

    Followed items, and public ones, are tested in every window. names: for columns by key, range and shard, the keys.
    On a stream the groups of all windows are put in at the beginning, before the watermark can pass one.
    """

    def __init__(self, step: AtOnceStep, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self._step, self._names = step, names

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        once = packed.pipeline | "Once" >> beam.Impulse()
        starts = once | "Starts" >> beam.FlatMap(_starts, self._step, self._names)
        starts.element_type = packed.element_type
        if not packed.is_bounded:
            starts = starts | "ByWatermark" >> InClosingWindows(self._step.stage.run.plan.schedule)
        return (packed, starts) | "Join" >> beam.Flatten()


def _starts(once: bytes, step: AtOnceStep, names: Sequence[str] | None) -> Iterator[tuple[Any, bytes]]:
    if names is None:
        return ((cell, b"") for cell in _keys(step))
    return (((name, *cell), b"") for name in names for cell in _keys(step))


def _keys(step: AtOnceStep) -> list[GroupKey]:
    """All that there may be."""
    part, windows = step.whole_or_part, step.cut.windows_per_range
    window_ranges = range(part.first // windows, -(-part.end // windows))
    return [(window_range, shard) for window_range in window_ranges for shard in range(step.cut.shards)]


class RunStepDoFn(beam.DoFn):
    """Adapts a stage to groups."""

    def __init__(self, step: Step, noise_key: beam.Secret, *, is_counted: bool = False) -> None:
        self._step = step
        self._noise_key = noise_key
        self._is_counted = is_counted

    def setup(self) -> None:
        self._work = self._step.start(self._noise_key.get_secret_bytes())

    def process(self, element: Any, first: _Named = None, second: _Named = None) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        for output in self._work((*element, *_lists(first, second)), counts):
            if isinstance(output, StateChunk):
                yield beam.pvalue.TaggedOutput(STATE, output.packed)
            else:
                yield output
        add_counts(counts)
        ReplayProgress.pass_groups(self._is_counted)


class RunInPoolDoFn(beam.DoFn):
    """Hands the elements of a bundle to the processes, and yields what comes back, in their order; bounded input in the
    GlobalWindow only.

    rereads: the packed columns of the elements are needed again, by another step. Else they are given back.
    """

    def __init__(self, step: Step, pool: str, *, is_counted: bool = False, rereads: bool = False) -> None:
        self._step = step
        self._token = pool
        self._is_counted = is_counted
        self._rereads = rereads
        self._waiting: deque[tuple[Any, Future[Result]]] = deque()

    def setup(self) -> None:
        self._pool = ProcessPool.of(self._token)

    def process(self, element: Any, first: _Named = None, second: _Named = None) -> Iterator[Any]:
        if isinstance(element, tuple):  # a group, whose columns Beam hands out one by one
            element = element[0], list(element[1]), *_lists(first, second)
        self._waiting.append((element, self._pool.submit(self._step, element)))
        while self._waiting and self._waiting[0][1].done():
            yield from self._outputs()

    def finish_bundle(self) -> Iterator[Any]:
        while self._waiting:
            for output in self._outputs():
                if isinstance(output, beam.pvalue.TaggedOutput):
                    yield beam.pvalue.TaggedOutput(output.tag, _in_global_window(output.value))
                else:
                    yield _in_global_window(output)

    def _outputs(self) -> Iterator[Any]:
        element, future = self._waiting.popleft()
        result = future.result()
        if ROWS in result.counts:
            ReplayProgress.advance(result.counts.pop(ROWS), result.counts.pop(BYTES, 0))
        ReplayProgress.pass_groups(self._is_counted)
        add_counts(result.counts)
        if isinstance(element, tuple) and not self._rereads:
            for blob in element[1]:
                self._pool.release(blob)
        for output in result.outputs:
            yield beam.pvalue.TaggedOutput(REJECTED, output) if isinstance(output, RejectedEvents) else output


def _lists(*named: _Named) -> list[list[bytes]]:
    """Of the side inputs that there are: Beam does not type those of ``*named``."""
    return [[blob for _, blob in each] for each in named if each is not None]


def _in_global_window(value: Any) -> WindowedValue:
    window = GlobalWindow()
    return WindowedValue(value, window.max_timestamp(), (window,))
