"""Followed items: what was named lately, and so is public. And which windows an item is named in, when what is followed
has a lower threshold.

All windows at once. For each item write down its *crossings*: the windows in which its noisy sum reaches the followed
threshold, and which of them reach the higher threshold of new items. Cut them wherever two neighbours are more than
`forget_after` windows apart. In each piece, the item is named from the first one on that reaches the higher threshold:
from there on each crossing has a named one shortly before it. Before it, and in a piece without one, nothing was named
lately, so the item is not followed. This is the rule of windows in order, without a loop over windows.

The crossings of windows in which nobody adds to a followed item are noise alone. They are drawn for exactly those
windows in which the item is followed, and each can let it be followed for longer. So a pass draws for the windows that
the one before it has added, until none finds a crossing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.equal_rows import concatenated_ranges, group_starts
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.messages import WHOLE
from dp_transforms.core.randomness import Words
from dp_transforms.core.tables import MOST, Column, Items, Table, WindowItems

Whole = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
NO_ROW = -1
_GIVEN = -2  # in the place of a row: what was named before the first window
_DRAWS_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class FollowedItems(Table):
    """k items in the order of their keyed hashes, with the window in which each was last named.

    table: ItemTable of length k. last_named: int64[k].
    """

    table: ItemTable
    last_named: npt.NDArray[np.int64]

    SCHEMA: ClassVar = {"last_named": Column(WHOLE, join=MOST), "table": Items(of="row")}

    def after(self, named: WindowItems, next_window: int, forget_after: int) -> FollowedItems:
        """What is followed in ``next_window``, if after these items were named no others are, up to that window.

        An item is followed in window t if it was named in one of the windows ``t - forget_after .. t - 1``.
        """
        table, (old, new) = ItemTable.merge([self.table, named.table])
        last_named = np.full(len(table), -1, dtype=np.int64)
        last_named[old] = self.last_named
        np.maximum.at(last_named, new[named.items], named.windows)
        kept = np.flatnonzero((last_named >= 0) & (last_named >= next_window - forget_after))
        return FollowedItems(table.take(kept), last_named[kept])

    def since(self, window: int) -> FollowedItems:
        """Those that were last named in this window or later."""
        return self.select(self.last_named >= window)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        table, positions = ItemTable.merge([part.table for part in parts])
        return np.concatenate(positions), lambda keys: {"table": table}


@dataclasses.dataclass(frozen=True, eq=False)
class Crossings:
    """n distinct (item, window) whose noisy sum reaches the followed threshold, sorted by item, then window.

    items: int64[n], any code. windows: int64[n]. names_anew: bool[n], whether it names an item that is not followed.
    rows: int64[n], the caller's; `NO_ROW` where nobody adds anything. Of what was named before the first window,
    neither. drawn_to: int64[n], the last window that has been drawn for after it; at least its own.
    """

    items: Whole
    windows: Whole
    names_anew: Bits
    rows: Whole
    drawn_to: Whole

    def __len__(self) -> int:
        return len(self.items)

    def columns(self) -> tuple[npt.NDArray, ...]:
        return self.items, self.windows, self.names_anew, self.rows, self.drawn_to

    def take(self, which: npt.NDArray) -> Crossings:
        """These. which: positions or bool[n]."""
        return Crossings(*(column[which] for column in self.columns()))

    def joined(self, more: Crossings) -> Crossings:
        """The union, in order."""
        both = Crossings(*map(np.concatenate, zip(self.columns(), more.columns(), strict=True)))
        return both.take(np.lexsort((both.windows, both.items)))

    def named(self, forget_after: int) -> tuple[Bits, Bits]:
        """Which of them are named, bool[n], and which of these were followed then, bool[n]."""
        place = np.arange(len(self))
        begins = np.zeros(len(self), dtype=np.bool_)
        begins[group_starts(self.items)] = True
        begins[1:] |= np.diff(self.windows) > forget_after
        first = np.maximum.accumulate(np.where(begins, place, 0))
        last_anew = np.maximum.accumulate(np.where(self.names_anew, place, -1))
        named = last_anew >= first
        was_followed = np.zeros(len(self), dtype=np.bool_)
        was_followed[1:] = named[:-1] & ~begins[1:]
        return named, was_followed

    def undrawn(self, named: Bits, end: int, forget_after: int) -> tuple[Whole, Whole]:
        """The named ones after which windows are to be drawn for, and the last such window of each."""
        until = np.full(len(self), end - 1)
        same_item = self.items[1:] == self.items[:-1]
        until[:-1][same_item] = self.windows[1:][same_item] - 1
        reach = np.minimum(until, self.windows + forget_after)
        rows = np.flatnonzero(named & (reach > self.drawn_to))
        return rows, reach[rows]


def name_followed_items(
    cells: WindowItems,
    followed: FollowedItems,
    first: int,
    end: int,
    forget_after: int,
    *,
    names_anew: Bits,
    reaches: Callable[[Whole], Bits],
    nobody_passes: Callable[[Whole, Words], Bits],
) -> tuple[Crossings, Bits, ItemTable]:
    """All that is named in the windows ``first .. end - 1``, by window, then item; whether each was followed then; and
    the table of their items.

    cells: all with a sum above 0 in these windows: nothing is drawn for them here. followed: before window ``first``.
    names_anew: bool[c], of cells. reaches: of rows of cells, whether they reach the followed threshold. nobody_passes:
    of windows and hashes of items, whether noise alone reaches it.
    """
    items, (of_cells, of_followed) = ItemTable.merge([cells.table, followed.table])
    is_asked = np.zeros(len(items), dtype=np.bool_)
    is_asked[of_cells[cells.items[names_anew]]] = is_asked[of_followed] = True
    rows = np.flatnonzero(is_asked[of_cells[cells.items]])
    rows = rows[np.argsort(of_cells[cells.items[rows]], kind="stable")]  # by item, then window
    asked, windows = of_cells[cells.items[rows]], cells.windows[rows]
    held = Crossings(asked, windows, names_anew[rows], rows, windows).take(reaches(rows))
    anew, given = np.ones(len(followed), dtype=np.bool_), np.full(len(followed), _GIVEN)
    earlier = Crossings(of_followed, followed.last_named, anew, given, np.full(len(followed), first - 1))
    has_sum = asked * (end + 1) + windows

    def noise_crosses(drawn: Whole, windows: Whole) -> Bits:
        codes = drawn * (end + 1) + windows
        crosses: Bits = np.append(has_sum, -1)[np.searchsorted(has_sum, codes)] != codes
        crosses[crosses] = nobody_passes(windows[crosses], items.hashes.take(drawn[crosses], axis=0))
        return crosses

    parts = list(_settled(held.joined(earlier), end, forget_after, noise_crosses))
    columns = zip(*((*part.columns(), was_followed) for part, was_followed in parts), strict=True)
    *named, was_followed = (np.concatenate(column) for column in columns)
    order = np.lexsort((named[0], named[1]))
    order = order[named[3][order] != _GIVEN]
    return Crossings(*(column[order] for column in named)), was_followed[order], items


def _settled(
    crossings: Crossings, end: int, forget_after: int, noise_crosses: Callable[[Whole, Whole], Bits]
) -> Iterator[tuple[Crossings, Bits]]:
    """The named crossings of the items that each pass leaves as they are; at least one part. noise_crosses: of items
    and windows, whether nobody adds anything there, and noise alone crosses."""
    while True:
        named, was_followed = crossings.named(forget_after)
        rows, reach = crossings.undrawn(named, end, forget_after)
        found = _drawn(crossings, rows, reach, noise_crosses)
        has_grown = np.isin(crossings.items, found.items)
        settled = named & ~has_grown
        yield crossings.take(settled), was_followed[settled]
        if not len(found):
            return
        crossings.drawn_to[rows] = reach
        crossings = crossings.take(has_grown).joined(found)


def _drawn(crossings: Crossings, rows: Whole, reach: Whole, noise_crosses: Callable[[Whole, Whole], Bits]) -> Crossings:
    """The crossings of noise alone in the windows after these rows, up to ``reach``."""
    counts = reach - crossings.drawn_to[rows]
    found = [(_NOTHING, _NOTHING, _NOTHING)]
    for part in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(np.cumsum(counts) // _DRAWS_AT_ONCE)) + 1):
        windows, _ = concatenated_ranges(crossings.drawn_to[rows[part]] + 1, counts[part])
        items, drawn_to = (np.repeat(column[part], counts[part]) for column in (crossings.items[rows], reach))
        crosses = noise_crosses(items, windows)
        found.append((items[crosses], windows[crosses], drawn_to[crosses]))
    items, windows, drawn_to = map(np.concatenate, zip(*found, strict=True))
    return Crossings(items, windows, np.zeros(len(items), dtype=np.bool_), np.full(len(items), NO_ROW), drawn_to)


_NOTHING = np.zeros(0, dtype=np.int64)
