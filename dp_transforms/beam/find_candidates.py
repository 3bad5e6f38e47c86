"""Find: all holders of some items in some windows -> the candidates among them (docs/guarantee.md, section 5.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.utils.windowed_value import PaneInfo

from dp_transforms.beam.drop_late_panes import is_late
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.run_steps import RunInPoolDoFn, RunStepDoFn
from dp_transforms.beam.set_up_workers import DomainSource, KeyedDoFn, operator_counter
from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.counted_messages import (
    ENDS,
    Group,
    Key,
    Sent,
    ending_messages,
    holder_messages,
    messages_of,
)
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.monitor.zero_items import ZeroItemsOfWindows
from dp_transforms.workers.groups import FindCandidatesStep


class FindCandidates(beam.PTransform):
    """``((slab, shard of items), packed ItemHolders)`` -> ``(stream, (slab, shard, packed candidates))``.

    pool: as in `run_step`; bounded input only.
    """

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret, pool: str | None = None) -> None:
        super().__init__()
        if pool is None:
            self._do_fn: beam.DoFn = FindCandidatesDoFn(settings, noise_key)
        else:
            self._do_fn = RunInPoolDoFn(FindCandidatesStep(settings), pool)

    def expand(self, packed: beam.PCollection) -> beam.PCollection:
        return (
            packed
            | "GroupByItemShard" >> beam.GroupByKey()
            | "DrawPassBits" >> beam.ParDo(self._do_fn).with_output_types(tuple[str, tuple[int, int, bytes]])
        )


class FindCandidatesCounted(beam.PTransform):
    """The same with counted messages: ``((window, shard of items), message)`` -> ``((window, 0), message)``.

    Each shard of items sends to its window, even if it has no candidates. domain: of a plan with a known domain; the
    items that nobody holds are added here, window by window, as `draw_zero_items` would draw them.
    """

    def __init__(
        self, settings: MonitorSettings, noise_key: beam.Secret, shards: int, domain: DomainSource | None = None
    ) -> None:
        super().__init__()
        self._do_fn = FindCandidatesCountedDoFn(settings, noise_key, shards, domain)
        self._shards = shards

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return (
            messages
            | "GatherItemShard" >> GatherCounted(self._shards)
            | "DrawPassBits" >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent])
        )


class FindCandidatesDoFn(RunStepDoFn):
    """Adapts `find_candidates` to groups; only the pane on time counts."""

    def __init__(self, settings: MonitorSettings, noise_key: beam.Secret) -> None:
        super().__init__(FindCandidatesStep(settings), noise_key)
        self._late = operator_counter(LATE_BATCHES)

    def process(
        self,
        group: tuple[tuple[int, int], Iterable[bytes]],
        pane: PaneInfo = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[str, tuple[int, int, bytes]]]:
        if is_late(pane):
            self._late.inc(sum(1 for _ in group[1]))
            return
        yield from super().process(group)


class FindCandidatesCountedDoFn(KeyedDoFn):
    """Adapts `find_candidates` to complete groups of messages."""

    _settings: MonitorSettings

    def __init__(
        self, settings: MonitorSettings, noise_key: beam.Secret, shards: int, domain: DomainSource | None
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._shards = shards
        self._zero_items: ZeroItemsOfWindows | None = None

    def setup(self) -> None:
        super().setup()
        if self._domain is not None:
            self._zero_items = ZeroItemsOfWindows(self._domain, self._settings, self._keys, self._shards)

    def process(self, group: Group) -> Iterator[tuple[Key, Sent]]:
        (window, shard), blobs = group
        if ENDS in blobs:
            yield from ending_messages(window, 1)
            return
        parts = [ItemHolders.from_bytes(blob) for blob in blobs]
        drawn = self._zero_items.cells(window, shard) if self._zero_items is not None else None
        if drawn is not None:
            parts.append(drawn)
        packed: list[bytes] = []
        if parts:
            packed = list(holder_messages(find_candidates(ItemHolders.merge(parts), self._settings, self._keys)))
        for message in messages_of(packed):
            yield (window, 0), message
