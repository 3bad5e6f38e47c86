"""Answer in order: complete windows of a shard of items -> what is found in them, strictly in the order of the windows.

The base of `name_counted` and `find_looks`: what was found lately is known, and is looked at in every window.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import apache_beam as beam
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.transforms.userstate import BagStateSpec, ReadModifyWriteStateSpec

from dp_transforms.beam.gather_in_order import FAR, NEAR, WAITING, Part, Turn, take_turn
from dp_transforms.beam.set_up_workers import DomainSource, KeyedDoFn, operator_counter
from dp_transforms.beam.write_state import state_messages
from dp_transforms.monitor.counted_messages import ending_messages, messages_of
from dp_transforms.monitor.hit_settings import are_followed
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.operator_counts import LATE_BATCHES
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, known_cells, pack_cell

_Found = TypeVar("_Found", NamedItems, ItemHolders)


class AnsweringDoFn(KeyedDoFn, abc.ABC, Generic[_Found]):
    """Stateful, keyed by shard of items, without timers: answers for a window when all before it are answered.

    Windows without events have their turn too, since known items are looked at in every window. Windows that have their
    turn together are answered together. What comes for a window that is answered is dropped and counted.

    Subclasses say what is found and how it is packed. ``shards``: of items.
    """

    KNOWN = BagStateSpec("known_v1", BytesCoder())
    NEXT_WINDOW = ReadModifyWriteStateSpec("next_window_v1", VarIntCoder())

    KIND: Kind  # of what is known here, in the state of a run

    _settings: NamingSettings

    def __init__(
        self,
        settings: NamingSettings,
        noise_key: beam.Secret,
        shards: int,
        domain: DomainSource | None,
        part: RunPart | None = None,
    ) -> None:
        super().__init__(settings, noise_key, domain)
        self._shards = shards
        self._part = part or RunPart.whole(settings.schedule)
        self._late = operator_counter(LATE_BATCHES)

    @abc.abstractmethod
    def find(self, shard: int, turn: Turn, known: KnownItems, first: int, end: int) -> _Found:
        """What is found in the windows ``first .. end - 1``, which are those of ``turn``. known: before ``first``."""

    @abc.abstractmethod
    def pack(self, found: _Found) -> Iterator[bytes]:
        """What is found in one window, for `messages_of`."""

    def process(
        self,
        element: tuple[int, Part],
        near: Any = beam.DoFn.StateParam(NEAR),
        far: Any = beam.DoFn.StateParam(FAR),
        waiting: Any = beam.DoFn.StateParam(WAITING),
        known: Any = beam.DoFn.StateParam(KNOWN),
        next_window: Any = beam.DoFn.StateParam(NEXT_WINDOW),
    ) -> Iterator[object]:
        """Each window of the turn sends to ``(window, 0)``, even if nothing is found in it."""
        shard, part = element
        is_followed = are_followed(self._settings)
        if (begins_at := next_window.read()) is None:
            begins_at = self._part.first
            if is_followed:
                self.store(KnownItems.none(), self._part.known(self.KIND, shard, self._shards), known)
            next_window.write(begins_at)
        turn = take_turn(part, begins_at, near, far, waiting)
        self._late.inc(turn.dropped)
        if not turn:
            return
        first, end = begins_at, begins_at + len(turn.windows)
        before = KnownItems.from_cells(known.read()) if is_followed else KnownItems.none()
        after = before
        if turn.windows:
            found = self.find(shard, turn, before, first, end)
            after = before.after(found, end, self._settings.forget_after) if is_followed else before
            self.store(before, after, known)
            next_window.write(end)
            by_window = dict(found.by_slab(1))
            for window in range(first, end):
                packed = list(self.pack(by_window[window])) if window in by_window else []
                for message in messages_of(packed):
                    yield (window, 0), message
        if turn.ends:
            yield from ending_messages(end, 1)
            yield from state_messages(end, [pack_cell(self.KIND, *cell) for cell in known_cells(after)])

    def store(self, before: KnownItems, after: KnownItems, known: Any) -> None:
        """Replaces what is stored, if it changed."""
        if after is before:
            return
        known.clear()
        for cell in after.to_cells():
            known.add(cell)
