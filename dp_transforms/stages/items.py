"""The second stage: what all users add to some items -> which of them are named, or candidates of the monitor."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.heavy_hitter_monitor import LookCandidates, find_candidates
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.operator_counts import KNOWN_ITEMS
from dp_transforms.monitor.query_noise import query_noise
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Cell, Kind, known_of_cells
from dp_transforms.stages.stage import Span, StageWork


class _DrawingWork(StageWork):
    """What the stages share that look at all cells of a shard of items: in a known domain, also those that nobody
    holds."""

    TAKES: ClassVar[Any] = ItemHolders

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        tail = query_noise(plan, keys).empty_item_tail() if domain is not None else 0
        self._empty_items = None if domain is None else EmptyItems(domain, tail, keys)

    def unpacked(self, blobs: Sequence[bytes]) -> list[Any]:
        return [self.TAKES.from_bytes(blob) for blob in blobs]

    def _all_cells(self, columns: list[Any], span: Span) -> Any:
        if self._empty_items is None:
            return self.TAKES.merge(columns)
        of_nobody = self._empty_items.without_sums if self.TAKES is ItemSums else self._empty_items.without_holders
        return self.TAKES.merge([*columns, of_nobody(span.first, span.end, span.shard, span.shards)])


class FindCandidates(_DrawingWork):
    """`ItemHolders` -> the candidates among them (docs/guarantee.md, "Draws in two stages"), where users pay for hits
    alone."""

    takes_turns = keeps_state = False

    def advance(self, state: None, columns: list[ItemHolders], span: Span, counts: Counter[str]) -> ItemHolders:
        return find_candidates(self._all_cells(columns, span), self.plan, self.keys)


@dataclasses.dataclass
class _Followed:
    known: KnownItems


class _FollowingWork(StageWork):
    """What the stages share in which items that were found lately are looked at in every window, held or not.

    KIND: of the state."""

    KIND: ClassVar[Kind]

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._are_followed = plan.known is not None
        self.acts_alone |= self._are_followed

    def load(self, part: RunPart, columns: Any, span: Span) -> _Followed:
        return _Followed(part.known(self.KIND, span.shard, span.shards) if self._are_followed else KnownItems.none())

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> _Followed:
        return _Followed(known_of_cells([cell for _, cell in cells], first - self.plan.known_for))

    def cells(self, state: _Followed) -> Iterator[tuple[Kind, bytes]]:
        return ((self.KIND, cell) for cell in state.known.to_cells())

    def changed(self, state: _Followed, span: Span) -> Iterator[tuple[Kind, bytes]]:
        return ((self.KIND, cell) for cell in state.known.since(span.first).to_cells())

    def measures(self, state: _Followed) -> dict[str, int]:
        return {KNOWN_ITEMS: len(state.known)} if self._are_followed else {}

    def _note(self, state: _Followed, found: ItemHolders | NamedItems, span: Span) -> None:
        if self._are_followed:
            state.known = state.known.after(found, span.end, self.plan.known_for)


class FindLooks(_FollowingWork, _DrawingWork):
    """`ItemHolders` -> the candidates among them, where users pay for looks and for hits. What passed lately is drawn
    for in every window (`LookCandidates`)."""

    KIND = Kind.PASSED

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._candidates = LookCandidates(plan, keys)

    def advance(self, state: _Followed, columns: list[ItemHolders], span: Span, counts: Counter[str]) -> ItemHolders:
        found = self._candidates.find(self._all_cells(columns, span), state.known, span.first, span.end)
        self._note(state, found, span)
        return found


class NameItems(_FollowingWork, _DrawingWork):
    """`ItemSums` -> `NamedItems`, where users pay for looks alone (`monitor.item_namer`)."""

    KIND = Kind.KNOWN
    TAKES = ItemSums

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._namer = ItemNamer(plan, keys)

    def advance(self, state: _Followed, columns: list[ItemSums], span: Span, counts: Counter[str]) -> NamedItems:
        named = self._namer.name_windows(self._all_cells(columns, span), state.known, span.first, span.end)
        self._note(state, named, span)
        return named
