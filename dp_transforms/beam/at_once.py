"""At once: a driver of stages for bounded input, which groups all that belongs to a range of windows and a shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import apache_beam as beam

from dp_transforms.beam.close_windows import InClosingWindows, KeyedCell
from dp_transforms.beam.metrics import add_counts
from dp_transforms.core.pack_contributions import MergeContributions, Packed
from dp_transforms.core.stage import AtOnceStep, GroupKey

_Named = Sequence[Packed] | None  # in earlier rounds of looks


class Step(Protocol):
    """A step with all its settings, and without the key. It can be pickled."""

    def start(self, secret: bytes) -> Callable[[Any, Counter[str]], Iterator[Any]]: ...


def run_at_once(
    groups: beam.PCollection,
    label: str,
    step: AtOnceStep,
    noise_key: beam.Secret,
    named: Sequence[beam.PCollection] = (),
) -> beam.PCollection:
    """``((range, shard), all packed columns)`` -> packed columns by range and shard for the next step.

    named: for every group of a later round of looks, what was named, packed `NamedItems` by range and shard, as
    `Step.process` takes them; each of one step alone, since not every engine waits for all that were flattened.
    """
    process = beam.ParDo(RunStepDoFn(step, noise_key), *map(beam.pvalue.AsList, named))
    return groups | label >> process.with_output_types(tuple[GroupKey, bytes])


def run_for_keys(groups: beam.PCollection, label: str, step: AtOnceStep, noise_key: beam.Secret) -> beam.PCollection:
    """The same for ``((key, range, shard), all packed columns)``, also of a stream."""
    return groups | label >> beam.ParDo(RunStepDoFn(step, noise_key)).with_output_types(tuple[KeyedCell, bytes])


def merge_pairs(groups: beam.PCollection, noise_key: beam.Secret) -> beam.PCollection:
    """``((range, shard), all packed pairs of users)`` -> the same groups, merged: each of several steps that read them
    would sort them again."""
    merge = beam.ParDo(RunStepDoFn(MergeContributions(), noise_key)).with_output_types(Packed)
    return groups | "MergeContributions" >> merge | "GroupMerged" >> beam.GroupByKey()


class WithStarts(beam.PTransform):
    """Packed columns by range and shard, and an empty blob for each such cell: those to which nothing comes act, too.

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
    ranges = range(part.first // windows, -(-part.end // windows))
    return [(number, shard) for number in ranges for shard in range(step.cut.shards)]


class RunStepDoFn(beam.DoFn):
    """Adapts a stage to groups."""

    def __init__(self, step: Step, noise_key: beam.Secret) -> None:
        self._step = step
        self._noise_key = noise_key

    def setup(self) -> None:
        self._work = self._step.start(self._noise_key.get_secret_bytes())

    def process(self, element: Any, first: _Named = None, second: _Named = None) -> Iterator[Any]:
        counts: Counter[str] = Counter()
        yield from self._work((*element, *_lists(first, second)), counts)
        add_counts(counts)


def _lists(*named: _Named) -> list[list[bytes]]:
    """Of the side inputs that there are: Beam does not type those of ``*named``."""
    return [[blob for _, blob in each] for each in named if each is not None]
