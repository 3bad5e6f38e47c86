"""What a round of looks draws for: all pairs (window, item) of what was named in their block, but for those that are
named already, or left out. A function of what earlier rounds said, of all shards of items, and of the plan.

Users and items ask the same object: so each pair that a user adds to is drawn for, and each is drawn for whether
anybody adds to it or not (docs/guarantee.md, "Rounds"). Of facets users need not ask: all those of what is named are
drawn for, and they have no others (`FacetPairs.as_items`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import IdKeys
from dp_transforms.monitor.columns import Cells
from dp_transforms.monitor.equal_rows import concatenated_ranges, group_starts
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.named_items import LEFT_OUT, NamedItems
from dp_transforms.monitor.pairs import ItemPairs
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

Whole = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class WindowBlocks:
    """The windows of a part of a run in blocks, each window in that in which it ends. A block is named by its first
    window of the part, so that two parts have none in common.

    seconds: of a block. first, end: of the part.
    """

    schedule: WindowSchedule
    seconds: int
    first: int
    end: int

    @classmethod
    def of(cls, plan: Plan, first: int, end: int) -> WindowBlocks:
        return cls(plan.schedule, plan.paid_rounds.block_seconds, first, end)

    def of_windows(self, windows: Whole) -> Whole:
        return self._first_of(self.schedule.blocks_of(windows, self.seconds))

    def ends(self, blocks: Whole) -> Whole:
        """Where the windows of each block end."""
        return self._first_of(self.schedule.blocks_of(blocks, self.seconds) + 1)

    def _first_of(self, numbers: Whole) -> Whole:
        return np.clip(numbers * self.seconds // self.schedule.slide_seconds, self.first, self.end)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """table: of all items that were named in a block. blocks, items: int64[n], what was named, by block and item, in
    order. answered: int64[k], the pairs that are named already or left out, as ``window * len(table) + item``,
    ascending. is_named: bool[k], which of these are named."""

    of_windows: WindowBlocks
    table: ItemTable
    blocks: Whole
    items: Whole
    answered: Whole
    is_named: npt.NDArray[np.bool_]

    @classmethod
    def of_names(cls, of_windows: WindowBlocks, in_blocks: NamedItems, in_windows: NamedItems) -> Candidates:
        """in_blocks: what round 0 named. in_windows: what later rounds named or left out, all together."""
        table, (_, places) = ItemTable.merge([in_blocks.table, in_windows.table])
        if len(table) != len(in_blocks.table):
            raise ValueError("a pair was named of an item that was not named in its block.")
        answered = in_windows.windows * len(table) + places[in_windows.items]
        order = np.argsort(answered)
        is_named = (in_windows.levels != LEFT_OUT)[order]
        return cls(of_windows, table, in_blocks.windows, in_blocks.items, answered[order], is_named)

    @classmethod
    def of_facets(
        cls, of_windows: WindowBlocks, named: NamedItems, facets: int, keys: IdKeys
    ) -> tuple[Candidates, Whole]:
        """All facets of what is named, each pair a block of its own; and the number of each in the table. facets: how
        many the plan has."""
        every = np.arange(1, facets + 1)
        table, places = named.table.of_facets(
            np.repeat(np.arange(len(named.table)), facets), np.tile(every, len(named.table)), keys
        )
        numbers = np.zeros(len(table), dtype=np.int64)
        numbers[places] = np.tile(every, len(named.table))
        of_pairs = places.reshape(-1, facets)[named.items]
        cells = np.sort((named.windows[:, None] * len(table) + of_pairs).reshape(-1))
        windows, items = np.divmod(cells, max(1, len(table)))
        alone = dataclasses.replace(of_windows, seconds=of_windows.schedule.slide_seconds)
        return cls(alone, table, windows, items, np.zeros(0, np.int64), np.zeros(0, np.bool_)), numbers

    @property
    def drawn(self) -> int:
        """How many pairs are drawn for."""
        return int((self.of_windows.ends(self.blocks) - self.blocks).sum()) - len(self.answered)

    def of_shard(self, shard: int, shards: int) -> Candidates:
        """Those of the items of one shard; `drawn` is then of it alone."""
        of_shard = (self.table.hashes[:, 1] % np.uint64(shards)) == shard
        places = np.cumsum(of_shard) - 1
        rows = of_shard[self.items]
        windows, items = np.divmod(self.answered, max(1, len(self.table)))
        kept = of_shard[items] if len(items) else np.zeros(0, dtype=np.bool_)
        table = self.table.take(np.flatnonzero(of_shard))
        answered = windows[kept] * len(table) + places[items[kept]]
        blocks, items = self.blocks[rows], places[self.items[rows]]
        return Candidates(self.of_windows, table, blocks, items, answered, self.is_named[kept])

    def pairs_of(self, pairs: ItemPairs, *, with_second: bool = False) -> ItemPairs:
        """Those of these pairs of users that are drawn for. with_second: and what is named already, `Pairs.apart`."""
        if not len(pairs) or not len(self.blocks):
            return ItemPairs.none()
        starts = group_starts(pairs.windows, pairs.items)
        items = self._places_of(pairs.table)[pairs.items[starts]]
        windows = pairs.windows[starts]
        size = len(self.table)
        is_drawn = (items >= 0) & _is_in(self.of_windows.of_windows(windows) * size + items, self._named_in_blocks)
        cells = windows * size + items
        is_named = is_drawn & _is_in(cells, self.answered[self.is_named])
        is_drawn &= ~_is_in(cells, self.answered) | (with_second & is_named)
        counts = np.diff(np.append(starts, len(pairs)))
        drawn = np.repeat(is_drawn, counts)
        if not with_second:
            return pairs.select(drawn)
        return pairs.select(drawn).apart(np.repeat(is_named, counts)[drawn])

    def cells(self, most: int) -> Iterator[tuple[Whole, Whole]]:
        """All that is drawn for, windows and items, in order; about so many at a time."""
        if not len(self.blocks):
            return
        windows = np.arange(self.blocks[0], self.of_windows.ends(self.blocks[-1:])[0])
        blocks = self.of_windows.of_windows(windows)
        begins = np.searchsorted(self.blocks, blocks)
        counts = np.searchsorted(self.blocks, blocks, side="right") - begins
        parts = np.cumsum(counts) // most
        for part in np.split(np.arange(len(windows)), np.flatnonzero(np.diff(parts)) + 1):
            rows, splits = concatenated_ranges(begins[part], counts[part])
            of_rows, items = np.repeat(windows[part], np.diff(splits)), self.items[rows]
            kept = ~_is_in(of_rows * len(self.table) + items, self.answered)
            yield of_rows[kept], items[kept]

    def places_of(self, cells: Cells) -> Whole:
        """Where the item of each cell is in the table; -1 for another item."""
        return self._places_of(cells.table)[cells.items]

    @property
    def _named_in_blocks(self) -> Whole:
        return self.blocks * len(self.table) + self.items

    def _places_of(self, table: ItemTable) -> Whole:
        union, (here, asked) = ItemTable.merge([self.table, table])
        places = np.full(len(union), -1)
        places[here] = np.arange(len(self.table))
        return places[asked]


def _is_in(values: Whole, ascending: Whole) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.asarray(ascending[at] == values)
