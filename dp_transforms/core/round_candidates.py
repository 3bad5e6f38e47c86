"""What a later round of tests draws for: each item that was named in a block, in each window of the block, but for
those that are named already or left out. A function of what earlier rounds said, of all shards of items, and of the
plan.

Users and items ask the same object: so each candidate that a user adds to is drawn for, and each is drawn for whether
anybody adds to it or not (docs/guarantee.md, "Rounds").
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import concatenated_ranges, group_slices, group_starts
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import WINDOWS_AT_ONCE, NamedItems
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule

Whole = npt.NDArray[np.int64]
OPEN, NAMED, LEFT_OUT = 0, 1, 2  # of a candidate: drawn for; named by an earlier round; not drawn for any more


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
    order. statuses: uint8[m], for each of them in turn one for each window of its block: `OPEN`, `NAMED` or
    `LEFT_OUT`. The place of a candidate is where its status is."""

    of_windows: WindowBlocks
    table: ItemTable
    blocks: Whole
    items: Whole
    statuses: npt.NDArray[np.uint8]

    @classmethod
    def of_names(cls, of_windows: WindowBlocks, in_blocks: NamedItems, in_windows: NamedItems) -> Candidates:
        """in_blocks: what round 0 named. in_windows: what later rounds named or left out, all together."""
        sizes = of_windows.ends(in_blocks.windows) - in_blocks.windows
        statuses = np.full(int(sizes.sum()), OPEN, dtype=np.uint8)
        found = cls(of_windows, in_blocks.table, in_blocks.windows, in_blocks.items, statuses)
        places = found.places_of(in_windows.table, in_windows.windows, in_windows.items)
        if (places < 0).any():
            raise ValueError("an item was named in a window, and not in its block.")
        statuses[places[in_windows.levels >= 0]] = NAMED
        bits = -np.minimum(in_windows.levels, 0)
        for later in range(WINDOWS_AT_ONCE):
            statuses[places[(bits >> later & 1).astype(np.bool_)] + later] = LEFT_OUT
        return found

    @functools.cached_property
    def drawn(self) -> int:
        """How many candidates are drawn for."""
        return int((self.statuses == OPEN).sum())

    @property
    def windows(self) -> int:
        """Of how many windows they are."""
        return self.of_windows.end - self.of_windows.first

    def of_shard(self, shard: int, shards: int) -> Candidates:
        """Those of the items of one shard; `drawn` is then of it alone."""
        of_shard = (self.table.hashes[:, 1] % np.uint64(shards)) == shard
        rows = of_shard[self.items]
        table, items = self.table.take(np.flatnonzero(of_shard)), (np.cumsum(of_shard) - 1)[self.items[rows]]
        statuses = self.statuses[np.repeat(rows, self._sizes)]
        return Candidates(self.of_windows, table, self.blocks[rows], items, statuses)

    def contributions_of(self, held: Contributions, *, with_sizing: bool = False) -> Contributions:
        """Those of these contributions that are drawn for. with_sizing: and what is named already,
        `Contributions.with_two_slots`."""
        starts = group_starts(held.windows, held.items)
        places = self.places_of(held.table, held.windows[starts], held.items[starts])
        statuses = self.statuses_at(places)
        asked = np.flatnonzero(statuses <= (NAMED if with_sizing else OPEN))
        counts = np.diff(starts, append=len(held))[asked]
        drawn = held.select_users(concatenated_ranges(starts[asked], counts))
        return drawn.with_two_slots(np.repeat(statuses[asked] == NAMED, counts)) if with_sizing else drawn

    def open_places(self, most: int) -> list[Whole]:
        """The places of all that is drawn for, in order; so many at a time, at most."""
        places = np.flatnonzero(self.statuses == OPEN)
        return np.array_split(places, -(-len(places) // most)) if len(places) else []

    def cells_of(self, places: Whole) -> tuple[Whole, Whole]:
        """Their windows and items."""
        rows = np.searchsorted(self._firsts, places, side="right") - 1
        return self.blocks[rows] + places - self._firsts[rows], self.items[rows]

    def statuses_at(self, places: Whole) -> npt.NDArray[np.uint8]:
        """Where there is no candidate, -1, nothing is drawn for either."""
        return np.append(self.statuses, np.uint8(LEFT_OUT))[places]

    def left_out(self, places: Whole) -> NamedItems:
        """That these candidates are left out, as it is told to the next round: one number for the windows of an item,
        from the first one on. places: ascending."""
        rows = np.searchsorted(self._firsts, places, side="right") - 1
        later = places - self._firsts[rows]
        starts = group_starts(rows, later // WINDOWS_AT_ONCE)
        firsts = np.repeat(later[starts], np.diff(starts, append=len(later)))
        levels = -np.add.reduceat(1 << (later - firsts), starts) if len(starts) else later
        rows, windows = rows[starts], self.blocks[rows[starts]] + later[starts]
        order = np.lexsort((self.items[rows], windows))
        zeros = np.zeros_like(levels)
        return NamedItems(windows[order], self.items[rows[order]], levels[order], zeros, self.table)

    @functools.cached_property
    def _sizes(self) -> Whole:
        """How many windows each of blocks and items has."""
        return self.of_windows.ends(self.blocks) - self.blocks

    @functools.cached_property
    def _firsts(self) -> Whole:
        """The place of each of blocks and items in its first window."""
        return np.asarray(np.cumsum(self._sizes) - self._sizes)

    def places_of(self, table: ItemTable, windows: Whole, items: Whole) -> Whole:
        """The places of these items of a table in these windows, which ascend: -1 for an item that was not named in the
        block of the window."""
        if (windows[1:] < windows[:-1]).any():
            raise ValueError("windows must ascend.")
        union, (here, theirs) = ItemTable.merge([self.table, table])
        of_blocks = group_slices(self.blocks)
        blocks = self.blocks[[block.start for block in of_blocks]]
        begins, ends = np.searchsorted(windows, blocks), np.searchsorted(windows, self.of_windows.ends(blocks))
        places, of_items = np.full(len(windows), -1), np.full(len(union), -1)  # rows of the items of a block
        for block, begin, end in zip(of_blocks, begins.tolist(), ends.tolist(), strict=True):
            if begin < end:
                of_items[here[self.items[block]]] = np.arange(block.start, block.stop)
                rows = of_items[theirs[items[begin:end]]]
                of_items[here[self.items[block]]] = -1
                at = self._firsts[rows] + windows[begin:end] - self.blocks[rows]
                places[begin:end] = np.where(rows < 0, -1, at)
        return places
