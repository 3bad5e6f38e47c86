"""Contributions: which items each user holds in each window, once however many events; and which of them count."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import (
    NARROW,
    Packed,
    check_unpacked,
    concatenated_ranges,
    group_slices,
    group_starts,
    narrowest,
    order_in_groups,
    sort_distinct,
)
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import StreamKeys, Words
from dp_transforms.core.tables import ITEMS, TABLE, WINDOWS, Column, Table, used

Whole = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Contributions(Table):
    """n contributions (user, window, item), distinct, sorted by window, then item, then user: as they are added up, and
    nearly as they come in the order of time.

    users: uint64[u], distinct keyed hashes, ascending. codes: int64[n], position in ``users`` of each row.
    windows: int64[n], window index. items: int64[n], position in ``table``.
    """

    users: npt.NDArray[np.uint64]
    codes: Whole
    windows: Whole
    items: Whole
    table: ItemTable

    ORDER = ("windows", "items", "codes")
    SCHEMA: ClassVar = {
        "users": Column(of="user"),
        "codes": Column(NARROW, into="users"),
        "windows": WINDOWS,
        "items": ITEMS,
        "table": TABLE,
    }

    def check(self) -> None:
        check_unpacked(bool((self.users[1:] > self.users[:-1]).all()))

    @functools.cached_property
    def counts(self) -> Whole:
        """How many rows each user has. int64[u]."""
        return np.bincount(self.codes, minlength=len(self.users))

    def select_users(self, rows: Whole | slice) -> Self:
        """These rows (ascending), and the users that have one. The table stays whole, so that the cost is that of rows,
        not of items."""
        columns = {name: getattr(self, name)[rows] for name in self._row_columns}
        users, columns["codes"] = used(len(self.users), columns["codes"])
        return dataclasses.replace(self, users=self.users if users is None else self.users[users], **columns)

    def with_two_slots(self, marked: npt.NDArray[np.bool_]) -> Self:
        """The same rows, and two slots for each user, who is in ``users`` twice: rows of the first have code 2c, marked
        ones, of the second, 2c + 1. So what counts by ``codes`` counts both kinds apart. marked: bool[n]."""
        return dataclasses.replace(self, users=np.repeat(self.users, 2), codes=2 * self.codes + marked)

    def in_windows(self, windows: Whole) -> Self:
        """The distinct contributions when their windows are these instead. windows: int64[n], in any order."""
        moved, _ = self.of_rows([dataclasses.replace(self, windows=windows)], [])
        return moved

    @classmethod
    def of_messages(cls, messages: Iterable[Packed]) -> Self:
        """Each is as narrow as it was packed while it waits for the others: one user may have millions of rows."""
        messages = list(messages)
        if len(messages) < 2:
            return super().of_messages(messages)
        parts = (cls.from_bytes(message) for message in messages)
        return cls._merged([part._narrow() for part in parts if len(part)])

    def _narrow(self) -> Self:
        narrow: dict[str, Any] = {name: narrowest(getattr(self, name)) for name in self._row_columns}
        return dataclasses.replace(self, **narrow)

    @classmethod
    def _merged(cls, parts: Sequence[Self]) -> Self:
        """What several parts hold is kept once."""
        if not parts:
            return cls.none()
        table, item_maps = ItemTable.merge([part.table for part in parts])
        # "stable" finds the runs that are in order already. And np.unique would hash.
        users = np.sort(np.concatenate([part.users for part in parts]), kind="stable")
        users = users[group_starts(users)]
        renamed = []
        for part, items in zip(parts, item_maps, strict=True):
            maps = {"codes": np.searchsorted(users, part.users), "items": items}
            columns: dict[str, Any] = {name: narrowest(of)[getattr(part, name)] for name, of in maps.items()}
            renamed.append(dataclasses.replace(part, users=users, table=table, **columns))
        merged, _ = cls.of_rows(renamed, [], stable=True)
        return merged

    @classmethod
    def of_rows(cls, parts: Sequence[Self], groups: list[Whole], *, stable: bool = False) -> tuple[Self, list[Whole]]:
        """The distinct rows by group, each group in order; and their groups. All by one sort. parts: rows in any order,
        of the same users and table; one where there are groups."""
        users, table = parts[0].users, parts[0].table
        first = min((int(rows.windows.min()) for rows in parts if len(rows)), default=0)
        columns = {name: [getattr(rows, name) for rows in parts] for name in cls.ORDER}
        columns["windows"] = [windows - first for windows in columns["windows"]]
        sizes = {"windows": max(map(_size, columns["windows"])), "items": len(table), "codes": len(users)}
        ordered = sort_distinct(
            [[*groups, *of_part] for of_part in zip(*columns.values(), strict=True)],
            [*map(_size, groups), *sizes.values()],
            kind="stable" if stable else "quicksort",
        )
        found = dict(zip(cls.ORDER, ordered[len(groups) :], strict=True))
        found["windows"] += first
        return cls(users=users, table=table, **found), ordered[: len(groups)]


def _size(values: Whole) -> int:
    return int(values.max(initial=0)) + 1


def bound_contributions(contributions: Contributions, max_items_per_user: int, keys: StreamKeys) -> Contributions:
    """The contribution bound: at most L distinct items per user and window, chosen uniformly. Keeps L items of each
    user with more than L of them in a window: those first in a keyed order of (user, item).

    A uniform random subset, independent of everything else (docs/guarantee.md, "Several items in a window"); the order
    differs from window to window. ``contributions`` must contain all of its users in its windows.
    """
    users_before = (contributions.windows - contributions.windows[:1]) * len(contributions.users)
    of_user = users_before + contributions.codes
    # What a user holds in a window stands together.
    groups, rows = sort_distinct([(of_user, np.arange(len(of_user)))], [_size(of_user), len(of_user)])
    sizes = np.diff(np.append(group_starts(groups), len(groups)))
    is_crowded = np.repeat(sizes > max_items_per_user, sizes)
    if not is_crowded.any():
        return contributions
    groups, rows, sizes = groups[is_crowded], rows[is_crowded], sizes[sizes > max_items_per_user]
    users, items = contributions.users[contributions.codes[rows]], contributions.items[rows]
    blocks = np.stack([users, contributions.table.hashes[items, 0]], axis=1)
    windows, priority = contributions.windows[rows], np.empty(len(rows), dtype=np.uint64)
    for of_window in group_slices(windows):
        order = keys.contribution_order(int(windows[of_window.start]))
        priority[of_window] = order(blocks[of_window])[:, 0]
    ranked = np.lexsort((priority, groups))  # which keeps each group in its place
    ranks = concatenated_ranges(np.zeros_like(sizes), sizes)
    kept = np.ones(len(contributions), dtype=np.bool_)
    kept[rows[ranked[ranks >= max_items_per_user]]] = False
    return contributions.select(kept)


def keep_by_hash(contributions: Contributions, most: Whole, keys: StreamKeys) -> npt.NDArray[np.bool_]:
    """Which contributions of a user count where its budget cannot pay for all: whether each is among the first ``most``
    ones of its user, in a keyed order of (user, window, item).

    A uniform random subset, independent of everything else. ``contributions`` must contain all of its users in its
    windows. most: int64[u], by user. Returns bool[n].
    """
    has_more = contributions.counts > most
    if not has_more.any():
        return np.ones(len(contributions), dtype=np.bool_)
    kept = ~has_more[contributions.codes]
    rows = np.flatnonzero(~kept)
    codes, payment_order = contributions.codes[rows], keys.payment_order()

    def hashes_of(some: slice) -> Words:
        hashes = contributions.table.hashes.take(contributions.items[rows[some]], axis=0)
        return payment_order(contributions.users[codes[some]], contributions.windows[rows[some]], hashes)

    ranked, sizes = order_in_groups(codes, hashes_of), contributions.counts[has_more]
    first_ones = concatenated_ranges(np.cumsum(sizes) - sizes, most[has_more])
    kept[rows[ranked[first_ones]]] = True
    return kept
