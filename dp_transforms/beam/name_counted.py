"""Name by counting: what users add to some items -> which of them are named, strictly in the order of the windows.

An item that was named lately is known: it is looked at in every window, and has a lower threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.count_for_operator import KNOWN_ITEMS, LATE_BATCHES, operator_counter, operator_gauge
from dp_transforms.beam.gather_counted import GatherCounted
from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, Turn, parts_of_shard, take_turn
from dp_transforms.beam.load_domain import DomainSource
from dp_transforms.beam.set_up_workers import KeyedDoFn
from dp_transforms.monitoring.counted_messages import Key, Sent, messages_of
from dp_transforms.monitoring.known_items import KnownItems
from dp_transforms.naming.empty_items import EmptyItems
from dp_transforms.naming.item_namer import ItemNamer
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.named_items import NamedItems
from dp_transforms.naming.named_messages import named_messages
from dp_transforms.naming.naming_settings import NamingSettings


class NameCounted(beam.PTransform):
    """``((window, shard of items), message)`` -> ``((window, 0), message)``, with counted messages.

    Each shard of items sends to its window, even if it has named nothing. domain: of a plan with a known domain; the
    empty items are added here, window by window.
    """

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, shards: int, domain: DomainSource | None = None
    ) -> None:
        super().__init__()
        self._do_fn = NameCountedDoFn(settings, noise_key, shards, domain)
        self._shards = shards

    def expand(self, messages: beam.PCollection) -> beam.PCollection:
        return (
            messages
            | "GatherItemShard" >> GatherCounted(self._shards)
            | "ByItemShard" >> beam.FlatMap(parts_of_shard).with_output_types(tuple[int, Part])
            | "NameInOrder" >> beam.ParDo(self._do_fn).with_output_types(tuple[Key, Sent])
        )


class NameCountedDoFn(KeyedDoFn):
    """Stateful, keyed by shard of items, without timers: names the items of a window when all before it are named.

    Windows without events have their turn too, since known items are looked at in every window. Windows that have their
    turn together are named together. What comes for a window that is named is dropped and counted.
    """

    KNOWN = BagStateSpec("known_v1", BytesCoder())
    NEXT_WINDOW = ReadModifyWriteStateSpec("next_window_v1", VarIntCoder())

    _settings: NamingSettings

    def __init__(
        self, settings: NamingSettings, noise_key: beam.Secret, shards: int, domain: DomainSource | None
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._shards = shards
        self._late = operator_counter(LATE_BATCHES)
        self._known_items = operator_gauge(KNOWN_ITEMS)
        self._namer: ItemNamer
        self._empty_items: EmptyItems | None = None

    def setup(self) -> None:
        super().setup()
        self._namer = ItemNamer(self._settings, self._keys)
        if self._domain is not None:
            self._empty_items = EmptyItems(self._domain, self._settings, self._keys)

    def process(
        self,
        element: tuple[int, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        known: Any = beam.DoFn.StateParam(KNOWN),
        next_window: Any = beam.DoFn.StateParam(NEXT_WINDOW),
    ) -> Iterator[tuple[Key, Sent]]:
        shard, part = element
        turn = take_turn(part, next_window.read() or 0, near, far, waiting)
        self._late.inc(turn.dropped)
        if not turn.windows:
            return
        first, end = turn.windows[0][0], turn.windows[-1][0] + 1
        is_open = not self._settings.domain_size  # in a known domain all items are known, and none is noted
        before = KnownItems.from_cells(known.read()) if is_open else KnownItems.none()
        named = self._namer.name_windows(self._sums(shard, turn), before, first, end)
        if is_open:
            self._store(before, before.after(named, end, self._settings.forget_after), known)
        next_window.write(end)
        by_window = dict(named.by_slab(1))
        for window in range(first, end):
            for message in messages_of(list(named_messages(by_window.get(window, NamedItems.none())))):
                yield (window, 0), message

    def _sums(self, shard: int, turn: Turn) -> ItemSums:
        parts = [ItemSums.from_bytes(blob) for _, blobs in turn.windows for blob in blobs]
        if self._empty_items is not None:
            parts += [self._empty_items.of_window(window, shard, self._shards) for window, _ in turn.windows]
        return ItemSums.merge(parts)

    def _store(self, before: KnownItems, after: KnownItems, known: Any) -> None:
        if after is before:
            return
        known.clear()
        for cell in after.to_cells():
            known.add(cell)
        self._known_items.set(len(after))
