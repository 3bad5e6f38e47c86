"""Name by counting: what users add to some items -> which of them are named, strictly in the order of the windows.

An item that was named lately is known: it is looked at in every window, and has a lower threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from dp_transforms.beam.answer_in_order import AnsweringDoFn
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.gather_in_order import Part, Turn, parts_of_shard
from dp_transforms.beam.set_up_workers import DomainSource, operator_gauge
from dp_transforms.beam.write_state import STATE
from dp_transforms.monitor.counted_messages import Key, Sent
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.named_messages import named_messages
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import KNOWN_ITEMS
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind


class NameCounted(beam.PTransform):
    """``((window, shard of items), message)`` -> ``((window, 0), message)``, with counted messages.

    Each shard of items sends to its window, even if it has named nothing. domain: of a plan with a known domain; the
    empty items are added here, window by window.
    """

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        domain: DomainSource | None = None,
        part: RunPart | None = None,
    ) -> None:
        super().__init__()
        self._do_fn = NameCountedDoFn(settings, noise_key, shards, domain, part)
        self._shards = shards

    def expand(self, messages: beam.PCollection) -> beam.pvalue.DoOutputsTuple:
        return (
            messages
            | "GatherItemShard" >> GatherCounted(self._shards)
            | "ByItemShard" >> beam.FlatMap(parts_of_shard).with_output_types(tuple[int, Part])
            | "NameInOrder"
            >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent]).with_outputs(STATE, main="messages")
        )


class NameCountedDoFn(AnsweringDoFn[NamedItems]):
    """Names the items of a window when all windows before it are named."""

    KIND = Kind.KNOWN

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        domain: DomainSource | None,
        part: RunPart | None = None,
    ) -> None:
        super().__init__(settings, noise_key, shards, domain, part)
        self._known_items = operator_gauge(KNOWN_ITEMS)
        self._namer: ItemNamer
        self._empty_items: EmptyItems | None = None

    def setup(self) -> None:
        super().setup()
        self._namer = ItemNamer(self._settings, self._keys)
        if self._domain is not None:
            self._empty_items = EmptyItems(self._domain, self._settings, self._keys)

    def find(self, shard: int, turn: Turn, known: KnownItems, first: int, end: int) -> NamedItems:
        parts = [ItemSums.from_bytes(blob) for _, blobs in turn.windows for blob in blobs]
        if self._empty_items is not None:
            parts += [self._empty_items.of_window(window, shard, self._shards) for window, _ in turn.windows]
        return self._namer.name_windows(ItemSums.merge(parts), known, first, end)

    def pack(self, found: NamedItems) -> Iterator[bytes]:
        return named_messages(found)

    def store(self, before: KnownItems, after: KnownItems, known: Any) -> None:
        super().store(before, after, known)
        if after is not before:
            self._known_items.set(len(after))
