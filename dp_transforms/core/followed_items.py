"""Known items: what was named lately, and so is public, a function of what was published alone. And following them:
which windows an item is named in, when what was named lately has a lower threshold.

All windows at once. For each item write down its *passes*: the windows in which its noisy sum reaches the known
threshold, and which of them reach the higher threshold of items that are not known. Cut the passes wherever two
neighbours are more than `forget_after` windows apart. In each piece, the item is named from the first one on that
reaches the higher threshold: from there on each pass has a named one shortly before it. Before it, and in a piece
without one, nothing was named lately, so the item is not known. This is the rule of windows in order, without a loop
over windows.

The passes of windows in which nobody adds to a known item are noise alone. They are drawn for exactly those windows in
which the item is known, and each can make the item known for longer. So a round draws for the windows that the one
before it has added, until no round finds a pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.equal_rows import group_starts
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.messages import WHOLE
from dp_transforms.core.randomness import Words
from dp_transforms.core.tables import MOST, Column, Items, Table, WindowItems

Whole = npt.NDArray[np.int64]
Bits = npt.NDArray[np.bool_]
_DRAWS_AT_ONCE = 1 << 20
NO_ROW = -1
_GIVEN = -2  # in the place of a row: what was named before the first window


@dataclasses.dataclass(frozen=True, eq=False)
class FollowedItems(Table):
    """k items in the order of their keyed hashes, with the window in which each was last named.

    table: ItemTable of length k. last_named: int64[k].
    """

    table: ItemTable
    last_named: npt.NDArray[np.int64]

    SCHEMA: ClassVar = {"last_named": Column(WHOLE, join=MOST), "table": Items(of="row")}

    def after(self, named: WindowItems, next_window: int, forget_after: int) -> FollowedItems:
        """What is known in ``next_window``, if after these items were named no others are, up to that window.

        An item is known in window t if it was named in one of the windows ``t - forget_after .. t - 1``.
        """
        is_known = self.last_named >= next_window - forget_after
        is_new = named.windows >= next_window - forget_after
        if not is_new.any():
            if is_known.all():
                return self
            return self.select(is_known)
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
class Passes:
    """n distinct (item, window) whose noisy sum reaches the known threshold, sorted by item, then window.

    items: int64[n], any code. windows: int64[n]. names_anew: bool[n], whether it names an item that is not known.
    rows: int64[n], the caller's; `NO_ROW` where nobody adds anything. Of what was named before the
        first window, neither.
    drawn_to: int64[n], the last window that has been drawn for after this pass; at least its own window.
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

    def take(self, which: npt.NDArray) -> Passes:
        """These passes. which: positions or bool[n]."""
        return Passes(*(column[which] for column in self.columns()))

    def joined(self, more: Passes) -> Passes:
        """The union, in order."""
        both = Passes(*map(np.concatenate, zip(self.columns(), more.columns(), strict=True)))
        return both.take(np.lexsort((both.windows, both.items)))

    def named(self, forget_after: int) -> tuple[Bits, Bits]:
        """Which of them are named, bool[n], and which of these were known then, bool[n]."""
        place = np.arange(len(self))
        begins = np.zeros(len(self), dtype=np.bool_)
        begins[group_starts(self.items)] = True
        begins[1:] |= np.diff(self.windows) > forget_after
        first = np.maximum.accumulate(np.where(begins, place, 0))
        last_anew = np.maximum.accumulate(np.where(self.names_anew, place, -1))
        named = last_anew >= first
        was_known = np.zeros(len(self), dtype=np.bool_)
        was_known[1:] = named[:-1] & ~begins[1:]
        return named, was_known


DrawNobody = Callable[[Whole, Whole], Bits]  # of items and windows: whether noise alone reaches the known threshold


def follow(
    cells: WindowItems,
    known: FollowedItems,
    first: int,
    end: int,
    forget_after: int,
    *,
    names_anew: Bits,
    reaches: Callable[[Whole], Bits],
    nobody_passes: Callable[[Whole, Words], Bits],
) -> tuple[Passes, Bits, ItemTable]:
    """All named passes of the windows ``first .. end - 1``, by window, then item; whether each was of a known item; and
    the table of their items.

    cells: all with a sum above 0 in these windows: nothing is drawn for them here. known: before window ``first``.
    names_anew: bool[c], of cells. reaches: of rows of cells, whether they reach the known threshold. nobody_passes: of
    windows and hashes of items, whether noise alone reaches it.
    """
    items, (of_cells, of_known) = ItemTable.merge([cells.table, known.table])
    is_followed = np.zeros(len(items), dtype=np.bool_)
    is_followed[of_cells[cells.items[names_anew]]] = is_followed[of_known] = True
    rows = np.flatnonzero(is_followed[of_cells[cells.items]])
    rows = rows[np.argsort(of_cells[cells.items[rows]], kind="stable")]  # by item, then window
    has_sum = of_cells[cells.items[rows]], cells.windows[rows]
    held = Passes(*has_sum, names_anew[rows], rows, has_sum[1]).take(reaches(rows))
    anew, given = np.ones(len(known), dtype=np.bool_), np.full(len(known), _GIVEN)
    earlier = Passes(of_known, known.last_named, anew, given, np.full(len(known), first - 1))

    def draw_nobody(items_of_draws: Whole, windows: Whole) -> Bits:
        return nobody_passes(windows, items.hashes.take(items_of_draws, axis=0))

    parts = list(rounds(held.joined(earlier), has_sum, end, forget_after, draw_nobody))
    columns = zip(*((*part.columns(), was_known) for part, was_known in parts), strict=True)
    *named, was_known = (np.concatenate(column) for column in columns)
    order = np.lexsort((named[0], named[1]))
    order = order[named[3][order] != _GIVEN]
    return Passes(*(column[order] for column in named)), was_known[order], items


def rounds(
    passes: Passes, has_sum: tuple[Whole, Whole], end: int, forget_after: int, draw_nobody: DrawNobody
) -> Iterator[tuple[Passes, Bits]]:
    """The named passes of the items that each round leaves as they are; at least one part."""
    span = end + 1
    taken = has_sum[0] * span + has_sum[1]
    while True:
        named, was_known = passes.named(forget_after)
        to_draw, reach = _windows_to_draw(passes, named, end, forget_after)
        found = _draw(passes, to_draw, reach, taken, span, draw_nobody)
        has_grown = np.isin(passes.items, found.items)
        settled = named & ~has_grown
        yield passes.take(settled), was_known[settled]
        if not len(found):
            return
        drawn_to = passes.drawn_to.copy()
        drawn_to[to_draw] = reach
        passes = dataclasses.replace(passes, drawn_to=drawn_to).take(has_grown).joined(found)


def _windows_to_draw(passes: Passes, named: Bits, end: int, forget_after: int) -> tuple[Whole, Whole]:
    """The named passes after which windows are to be drawn for, and the last such window of each."""
    until = np.full(len(passes), end - 1)
    same_item = passes.items[1:] == passes.items[:-1]
    until[:-1][same_item] = passes.windows[1:][same_item] - 1
    reach = np.minimum(until, passes.windows + forget_after)
    rows = np.flatnonzero(named & (reach > passes.drawn_to))
    return rows, reach[rows]


def _draw(passes: Passes, rows: Whole, reach: Whole, taken: Whole, span: int, draw_nobody: DrawNobody) -> Passes:
    """The passes of noise alone in the windows after these rows."""
    items, first = passes.items[rows], passes.drawn_to[rows] + 1
    ends = np.cumsum(reach - first + 1)
    total = int(ends[-1]) if len(ends) else 0
    found = [_NO_PASSES]
    for low in range(0, total, _DRAWS_AT_ONCE):
        place = np.arange(low, min(low + _DRAWS_AT_ONCE, total))
        row = np.searchsorted(ends, place, side="right")
        window = reach[row] - (ends[row] - 1 - place)
        code = items[row] * span + window
        at = np.searchsorted(taken, code)
        is_free = np.append(taken, -1)[at] != code
        row, window = row[is_free], window[is_free]
        drawn = draw_nobody(items[row], window)
        row, window = row[drawn], window[drawn]
        no_rows = np.full(len(row), NO_ROW)
        found.append(Passes(items[row], window, np.zeros(len(row), dtype=np.bool_), no_rows, reach[row]))
    return Passes(*map(np.concatenate, zip(*(part.columns() for part in found), strict=True)))


_NOTHING = np.zeros(0, dtype=np.int64)
_NO_PASSES = Passes(_NOTHING, _NOTHING, np.zeros(0, dtype=np.bool_), _NOTHING, _NOTHING)
