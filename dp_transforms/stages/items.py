"""The second stage: what all users add to some items -> which of them are named, or candidates of the monitor."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.heavy_hitter_monitor import find_candidates
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_namer import EmptyItems, ItemNamer
from dp_transforms.monitor.item_sums import ItemHolders, ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.operator_counts import KNOWN_ITEMS
from dp_transforms.monitor.query_noise import query_noise
from dp_transforms.plan.plan import Plan
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Cell, Kind, known_of_cells
from dp_transforms.stages.stage import Span, StageWork


class FindCandidates(StageWork):
    """`ItemHolders` -> the candidates among them (docs/guarantee.md, "Draws in two stages"), where users pay for hits.
    In a known domain, also of items that nobody holds."""

    TAKES = ItemHolders
    takes_turns = keeps_state = False

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._empty = None if domain is None else EmptyItems(domain, query_noise(plan, keys).empty_item_tail(), keys)

    def unpacked(self, blobs: Sequence[bytes]) -> list[ItemHolders]:
        return [ItemHolders.from_bytes(blob) for blob in blobs]

    def advance(self, state: None, columns: list[ItemHolders], span: Span, counts: Counter[str]) -> ItemHolders:
        nobody = () if self._empty is None else (self._empty.without_holders(*dataclasses.astuple(span)),)
        return find_candidates(ItemHolders.merge([*columns, *nobody]), self.plan, self.keys)


@dataclasses.dataclass
class _Followed:
    known: KnownItems


class NameItems(StageWork):
    """`ItemSums` -> `NamedItems`, where users pay for looks (`monitor.item_namer`). Known items are looked at in every
    window, held or not: in a known domain all, else those that were named lately, which are the state."""

    TAKES = ItemSums

    def __init__(self, plan: Plan, keys: StreamKeys, domain: DomainTable | None, number: int = 0) -> None:
        super().__init__(plan, keys, domain, number)
        self._namer = ItemNamer(plan, keys)
        self._empty = None if domain is None else EmptyItems(domain, self._namer.empty_item_tail, keys)
        self._are_followed = plan.known is not None
        self.acts_alone |= self._are_followed

    def unpacked(self, blobs: Sequence[bytes]) -> list[ItemSums]:
        return [ItemSums.from_bytes(blob) for blob in blobs]

    def load(self, part: RunPart, columns: list[ItemSums] | None, span: Span) -> _Followed:
        return _Followed(part.known(span.shard, span.shards) if self._are_followed else KnownItems.none())

    def read(self, cells: Iterable[tuple[Kind, Cell]], first: int) -> _Followed:
        return _Followed(known_of_cells([cell for _, cell in cells], first - self.plan.known_for))

    def advance(self, state: _Followed, columns: list[ItemSums], span: Span, counts: Counter[str]) -> NamedItems:
        nobody = () if self._empty is None else (self._empty.without_sums(*dataclasses.astuple(span)),)
        sums = ItemSums.merge([*columns, *nobody])
        named = self._namer.name_windows(sums, state.known, span.first, span.end)
        if self._are_followed:
            state.known = state.known.after(named, span.end, self.plan.known_for)
        return named

    def cells(self, state: _Followed) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.KNOWN, cell) for cell in state.known.to_cells())

    def changed(self, state: _Followed, span: Span) -> Iterator[tuple[Kind, bytes]]:
        return ((Kind.KNOWN, cell) for cell in state.known.since(span.first).to_cells())

    def measures(self, state: _Followed) -> dict[str, int]:
        return {KNOWN_ITEMS: len(state.known)} if self._are_followed else {}
