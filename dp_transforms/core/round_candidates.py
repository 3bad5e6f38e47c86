"""What a round of looks draws for: all pairs (window, item) of what was named in their block, but for those that are
named already, or left out. A function of what earlier rounds said, of all shards of items, and of the plan.

Users and items ask the same object: so each pair that a user adds to is drawn for, and each is drawn for whether
anybody adds to it or not (docs/guarantee.md, "Rounds").
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.equal_rows import concatenated_ranges, group_slices, group_starts
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import WINDOWS_AT_ONCE, NamedItems
from dp_transforms.core.tables import WindowItems
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
    order. named, left_out: int64[m], the pairs that are named already, or left out, a bit for each window: for each of
    blocks and items one number or more."""

    of_windows: WindowBlocks
    table: ItemTable
    blocks: Whole
    items: Whole
    named: Whole
    left_out: Whole

    @classmethod
    def of_names(cls, of_windows: WindowBlocks, in_blocks: NamedItems, in_windows: NamedItems) -> Candidates:
        """in_blocks: what round 0 named. in_windows: what later rounds named or left out, all together."""
        table, (_, places) = ItemTable.merge([in_blocks.table, in_windows.table])
        found = cls(of_windows, table, in_blocks.windows, in_blocks.items, _NOTHING, _NOTHING)
        zeros = np.zeros(int(found._counts.sum()), dtype=np.int64)
        found = dataclasses.replace(found, named=zeros, left_out=zeros.copy())
        windows, items, levels = in_windows.windows, places[in_windows.items], in_windows.levels
        rows = found._rows_of(windows, items)
        if (rows < 0).any() or len(table) != len(in_blocks.table):
            raise ValueError("a pair was named of an item that was not named in its block.")
        numbers, bits = found._numbers_of(rows, windows)
        is_named = levels >= 0
        np.bitwise_or.at(found.named, numbers[is_named], 1 << bits[is_named])
        np.bitwise_or.at(found.left_out, numbers[~is_named], -levels[~is_named] << bits[~is_named])
        return found

    def with_nothing_left_out(self) -> Candidates:
        return dataclasses.replace(self, left_out=np.zeros_like(self.left_out))

    @property
    def drawn(self) -> int:
        """How many pairs are drawn for."""
        in_blocks = int((self.of_windows.ends(self.blocks) - self.blocks).sum())
        return in_blocks - int(np.bitwise_count(self.named | self.left_out).sum())

    def of_shard(self, shard: int, shards: int) -> Candidates:
        """Those of the items of one shard; `drawn` is then of it alone."""
        of_shard = (self.table.hashes[:, 1] % np.uint64(shards)) == shard
        places = np.cumsum(of_shard) - 1
        rows = of_shard[self.items]
        numbers = np.repeat(rows, self._counts)
        table, items = self.table.take(np.flatnonzero(of_shard)), places[self.items[rows]]
        return Candidates(self.of_windows, table, self.blocks[rows], items, self.named[numbers], self.left_out[numbers])

    def pairs_of(self, pairs: Contributions, *, with_sizing: bool = False) -> Contributions:
        """Those of these pairs of users that are drawn for. with_sizing: and what is named already,
        `Contributions.split_by_mask`."""
        starts = group_starts(pairs.windows, pairs.items)
        windows = pairs.windows[starts]
        rows = self._rows_of(windows, self._places_of(pairs.table)[pairs.items[starts]])
        asked = np.flatnonzero(rows >= 0)
        numbers, bits = self._numbers_of(rows[asked], windows[asked])
        is_drawn = ~_are_set(self.left_out if with_sizing else self.named | self.left_out, numbers, bits)
        asked = asked[is_drawn]
        counts = np.diff(starts, append=len(pairs))[asked]
        drawn = pairs.select_users(concatenated_ranges(starts[asked], counts)[0])
        if not with_sizing:
            return drawn
        return drawn.split_by_mask(np.repeat(_are_set(self.named, numbers[is_drawn], bits[is_drawn]), counts))

    def cells(self, most: int) -> Iterator[tuple[Whole, Whole]]:
        """All that is drawn for, windows and items, in order; about so many at a time."""
        if not len(self.blocks):
            return
        windows = np.arange(self.blocks[0], self.of_windows.ends(self.blocks[-1:])[0])
        blocks = self.of_windows.of_windows(windows)
        begins = np.searchsorted(self.blocks, blocks)
        counts = np.searchsorted(self.blocks, blocks, side="right") - begins
        parts = np.cumsum(counts) // most
        not_drawn = self.named | self.left_out
        for part in np.split(np.arange(len(windows)), np.flatnonzero(np.diff(parts)) + 1):
            rows, splits = concatenated_ranges(begins[part], counts[part])
            of_rows = np.repeat(windows[part], np.diff(splits))
            kept = np.flatnonzero(~_are_set(not_drawn, *self._numbers_of(rows, of_rows)))
            yield of_rows[kept], self.items[rows[kept]]

    def leave_out(self, windows: Whole, items: Whole) -> None:
        """These pairs, each once."""
        numbers, bits = self._numbers_of(self._rows_of(windows, items), windows)
        np.add.at(self.left_out, numbers, 1 << bits)

    def told_left_out(self) -> NamedItems:
        """What is left out, as it is told: each number from its first bit on that is set."""
        numbers = np.flatnonzero(self.left_out)
        rows = np.repeat(np.arange(len(self.blocks)), self._counts)[numbers]
        bits = self.left_out[numbers]
        first = np.frexp(bits & -bits)[1] - 1
        windows = self.blocks[rows] + (numbers - self._firsts[rows]) * WINDOWS_AT_ONCE + first
        order = np.lexsort((self.items[rows], windows))
        rows, windows, levels = rows[order], windows[order], -(bits >> first)[order]
        return NamedItems(windows, self.items[rows], levels, np.zeros_like(levels), self.table)

    @functools.cached_property
    def _counts(self) -> Whole:
        """How many numbers say what is left out of each of blocks and items."""
        return -(-(self.of_windows.ends(self.blocks) - self.blocks) // WINDOWS_AT_ONCE)

    @functools.cached_property
    def _firsts(self) -> Whole:
        """The first one of each."""
        counts = self._counts
        return np.asarray(np.cumsum(counts) - counts)

    def _rows_of(self, windows: Whole, items: Whole) -> Whole:
        """Where these pairs are in blocks and items: -1 for an item that was not named in the block of the window.
        windows: ascending."""
        if (windows[1:] < windows[:-1]).any():
            raise ValueError("windows must ascend.")
        of_blocks = group_slices(self.blocks)
        blocks = self.blocks[[block.start for block in of_blocks]]
        begins, ends = np.searchsorted(windows, blocks), np.searchsorted(windows, self.of_windows.ends(blocks))
        rows = np.full(len(windows), -1)
        of_items = np.full(len(self.table) + 1, -1)  # in a block; the last one is for items that are not in the table
        for block, begin, end in zip(of_blocks, begins.tolist(), ends.tolist(), strict=True):
            if begin < end:
                of_items[self.items[block]] = np.arange(block.start, block.stop)
                rows[begin:end] = of_items[items[begin:end]]
                of_items[self.items[block]] = -1
        return rows

    def _numbers_of(self, rows: Whole, windows: Whole) -> tuple[Whole, Whole]:
        """Where it is said whether they are named or left out: the numbers, and their bits."""
        later, bits = np.divmod(windows - self.blocks[rows], WINDOWS_AT_ONCE)
        return self._firsts[rows] + later, bits

    def places_of(self, cells: WindowItems) -> Whole:
        """Where the item of each cell is in the table; -1 for another item."""
        return self._places_of(cells.table)[cells.items]

    def _places_of(self, table: ItemTable) -> Whole:
        union, (here, asked) = ItemTable.merge([self.table, table])
        places = np.full(len(union), -1)
        places[here] = np.arange(len(self.table))
        return places[asked]


_NOTHING = np.zeros(0, dtype=np.int64)


def _are_set(numbers_of: Whole, numbers: Whole, bits: Whole) -> npt.NDArray[np.bool_]:
    return np.asarray(numbers_of[numbers] >> bits & 1, dtype=np.bool_)
