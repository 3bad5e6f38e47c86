"""Which items were named in which windows, what is published of it, and what is followed: what was named lately."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.priced_weights import stated_users
from dp_transforms.core.columns import WHOLE, group_slices
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.tables import ITEMS, MOST, TABLE, WINDOWS, Column, Items, Table, WindowItems
from dp_transforms.core.window_report import HeavyHitter, WindowReport, report_of_window
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import RoundTerms

WINDOWS_AT_ONCE = 63  # of an item, for which one number says which of them are left out
Whole = npt.NDArray[np.int64]


def levels_and_sizes(noisy_sums: Whole, thresholds: Whole | int, plan: Plan, terms: RoundTerms) -> tuple[Whole, Whole]:
    """What is published of sums that reach their thresholds: a level from 1 on, and "at least N users".

    Weights of early rounds are small: levels count what users would add with the largest of all rounds in windows, so
    that they compare. Where round 0 has larger ones, the first levels of its blocks are one. terms: of the round.
    """
    largest = max(plan.largest_in_rounds[plan.rounds is not None :])
    boundaries: Whole = thresholds + (noisy_sums - thresholds) // terms.spacing * terms.spacing
    in_largest = boundaries * largest // terms.largest_weight
    users = stated_users(boundaries, terms.likely_noise, terms.largest_weight)
    above_first = in_largest - (thresholds - terms.raised)
    return np.maximum(1, 1 + above_first // plan.prices_of_rounds[-1].spacing), users


@dataclasses.dataclass(frozen=True, eq=False)
class NamedItems(WindowItems):
    """n named (window, item), distinct, sorted by window and then by the keyed hash of the item: all of it public.

    windows: int64[n], window index. items: int64[n], position in ``table``. levels: int64[n], from 1 on. Between rounds
        also a number below 0: the item is left out in this window and in later ones, its bits being those of
        the negative one; these are not drawn for any more.
    at_least_users: int64[n], so many users hold the item; all of them in a run, but for `Plan.size_error`.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    levels: npt.NDArray[np.int64]
    at_least_users: npt.NDArray[np.int64]
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": WINDOWS,
        "items": ITEMS,
        "levels": Column(WHOLE),
        "at_least_users": Column(WHOLE),
        "table": TABLE,
    }

    ORDER = ()  # not asked of messages: an engine that lost a state may name twice, and the tests are to see it

    @classmethod
    def in_all(cls, windows: Whole, table: ItemTable) -> NamedItems:
        """Each of these items in each of these windows, with level 1 and no size."""
        number, items = len(windows), np.arange(len(table))
        ones = np.ones(number * len(table), dtype=np.int64)
        return cls(np.repeat(windows, len(table)), np.tile(items, number), ones, np.zeros_like(ones), table)

    def without_left_out(self) -> NamedItems:
        return self.select(self.levels >= 0)

    def window_reports(self, plan: Plan, stream: str) -> Iterator[tuple[int, WindowReport]]:
        """The report of each window with named items, in order, with the number of its window.

        epsilon_spent is that of the whole run: public output does not say how much of a user budget is left.
        """
        labels = self.table.labels
        for rows in group_slices(self.windows):
            columns = (self.items[rows].tolist(), self.levels[rows].tolist(), self.at_least_users[rows].tolist())
            heavy_hitters = [
                HeavyHitter(labels[item].as_py(), None, None, level, users)
                for item, level, users in zip(*columns, strict=True)
            ]
            window = int(self.windows[rows.start])
            yield window, report_of_window(plan, stream, window, heavy_hitters, plan.epsilon)


@dataclasses.dataclass(frozen=True, eq=False)
class FirstTests(ItemHolders):
    """What the first test of a stream has found: what it has named, without holders; and what it has neither named nor
    left out, with the holders that it tested, who have a second test.

    levels, at_least_users: int64[c], as in `NamedItems`; 0 of what is not named.
    """

    levels: npt.NDArray[np.int64]
    at_least_users: npt.NDArray[np.int64]

    SCHEMA: ClassVar = {
        **ItemHolders.SCHEMA,
        "levels": Column(WHOLE, join=MOST),
        "at_least_users": Column(WHOLE, join=MOST),
    }

    @classmethod
    def of(cls, named: NamedItems, undecided: ItemHolders) -> FirstTests:
        """Both are of different windows and items."""
        held = ItemHolders.without_holders(named.windows, named.items, named.table), undecided
        columns = [{name: getattr(each, name) for name in ItemHolders.SCHEMA} for each in held]
        nothing = np.zeros(len(undecided), dtype=np.int64)
        found = cls(**columns[0], levels=named.levels, at_least_users=named.at_least_users)
        return cls.merge([found, cls(**columns[1], levels=nothing, at_least_users=nothing)])

    def named(self) -> NamedItems:
        named = self.select(self.levels > 0)
        return NamedItems(named.windows, named.items, named.levels, named.at_least_users, named.table)

    def undecided(self) -> FirstTests:
        return self.select(self.levels == 0)


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

    def without(self, named: WindowItems) -> FollowedItems:
        return self.select(~named.table.contains(self.table.hashes)) if len(named) else self

    def since(self, window: int) -> FollowedItems:
        """Those that were last named in this window or later."""
        return self.select(self.last_named >= window)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        table, positions = ItemTable.merge([part.table for part in parts])
        return np.concatenate(positions), lambda keys: {"table": table}
