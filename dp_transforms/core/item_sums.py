"""What the users of each item add to it in each window: a sum, or who they are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import NARROW, WHOLE, check_unpacked, concatenated_ranges, group_starts
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import StreamKeys, Words, sum_modulo_2_128
from dp_transforms.core.tables import ADDED, ITEMS, TABLE, WINDOWS, Column, Rows, WindowItems, window_item_keys


@dataclasses.dataclass(frozen=True, eq=False)
class ItemSums(WindowItems):
    """c distinct (window, item), sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``. sums: int64[c], the weights of all holders
    together: raw, never to be published. digests: uint64[c, 2], which holders with which weights.

    A sum is above 0. Only with public items there are rows with sum and digest 0: `EmptyItems`, which are named if
    nobody holds them.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]
    digests: Words
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": WINDOWS,
        "items": ITEMS,
        "sums": Column((*NARROW, *WHOLE), join=ADDED),  # 10^8 users of weight 12,000 are far below 2^63
        "digests": Column(width=2, join=sum_modulo_2_128),
        "table": TABLE,
    }

    @classmethod
    def of_weights(cls, added: Contributions, weights: npt.NDArray[np.int64], keys: StreamKeys) -> ItemSums:
        """What users add to their items. weights: int64[len(added)], of each contribution; those with 0 do not
        count."""
        if not weights.any():
            return cls.none()
        codes, rows = added.codes, added.windows * len(added.table) + added.items
        if not weights.all():
            counted = np.flatnonzero(weights != 0)  # many times as fast as of the numbers themselves
            codes, rows, weights = codes[counted], rows[counted], weights[counted]
        # What is added to digests is computed once for each user, if each has one weight in all its rows.
        of_users = np.zeros(len(added.users), dtype=np.int64)
        of_users[codes] = weights
        if np.array_equal(of_users[codes], weights):
            digests = keys.widen_holders(added.users, of_users).take(codes, axis=0)
        else:
            digests = keys.widen_holders(added.users[codes], weights)
        starts = group_starts(rows)
        windows, items = np.divmod(rows[starts], len(added.table))
        sums = np.add.reduceat(weights, starts)
        return cls(windows, items, sums, sum_modulo_2_128(digests, starts), added.table).select(slice(None))


@dataclasses.dataclass(frozen=True, eq=False)
class ItemHolders(WindowItems):
    """c distinct (window, item), sorted by window and then by the keyed hash of the item, and who holds each.

    windows: int64[c], window index. items: int64[c], position in ``table``. counts: int64[c], number of holders of
    each: raw, never to be published. holders: uint64[n], keyed hashes of the users of each, one after the other;
    distinct in a row, in no particular order.

    A row without holders is one of `EmptyItems`: a public item that is published if nobody holds it.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    holders: npt.NDArray[np.uint64]
    table: ItemTable

    SCHEMA: ClassVar = {
        "windows": WINDOWS,
        "items": ITEMS,
        "counts": Column(NARROW),
        "holders": Column(of="holder"),
        "table": TABLE,
    }

    def check(self) -> None:
        check_unpacked(self.splits[-1] == len(self.holders))

    @functools.cached_property
    def splits(self) -> npt.NDArray[np.int64]:
        """Where the holders of each row begin, and where the last ones end. int64[c + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @classmethod
    def without_holders(
        cls, windows: npt.NDArray[np.int64], items: npt.NDArray[np.int64], table: ItemTable
    ) -> ItemHolders:
        """What nobody holds. windows, items: as above."""
        return cls(windows, items, np.zeros(len(windows), dtype=np.int64), np.zeros(0, dtype=np.uint64), table)

    @classmethod
    def of_contributions(cls, held: Contributions, **of_rows: Any) -> Self:
        """of_rows: what else is told of each holder."""
        starts = group_starts(held.windows, held.items)
        counts = np.diff(np.append(starts, len(held)))
        columns = held.windows[starts], held.items[starts], counts, held.users[held.codes], held.table
        return cls(*columns, **of_rows)

    def contributions(self) -> Contributions:
        """Inverse of `of_contributions`."""
        users, codes = np.unique(self.holders, return_inverse=True)
        windows, items = np.repeat(self.windows, self.counts), np.repeat(self.items, self.counts)
        held, _ = Contributions.of_rows([Contributions(users, codes, windows, items, self.table)], [])
        return held

    @property
    def _by_holder(self) -> dict[str, Any]:
        """The columns with an entry for each holder."""
        return {name: getattr(self, name) for name, column in self.SCHEMA.items() if column.of == "holder"}

    @classmethod
    def _merged(cls, parts: Sequence[Self]) -> Self:
        """Of parts with different holders. What somebody holds is no longer without holders."""
        keys_of_parts, table = window_item_keys(parts)
        keys = np.concatenate(keys_of_parts)
        rows = np.repeat(keys, np.concatenate([part.counts for part in parts]))
        order, of_keys = np.argsort(rows, kind="stable"), np.argsort(keys, kind="stable")
        keys = keys[of_keys]
        starts = group_starts(keys)
        keys = keys[starts]
        windows, items = np.divmod(keys, max(1, len(table)))
        counts = np.diff(np.searchsorted(rows[order], keys), append=len(rows))
        columns: dict[str, Any] = {"windows": windows, "items": items, "counts": counts, "table": table}
        for name, column in cls.SCHEMA.items():
            if name not in columns:
                values = np.concatenate([getattr(part, name) for part in parts])
                columns[name] = values[order] if column.of == "holder" else column.join(values[of_keys], starts)
        return cls(**columns)

    def select(self, rows: Rows) -> Self:
        """These rows (ascending positions, a slice, or bool[c]), with a table of their items alone."""
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.arange(len(self))[rows]
        of_holders = concatenated_ranges(self.splits[rows], self.counts[rows])
        by_holder = {name: values[of_holders] for name, values in self._by_holder.items()}
        return dataclasses.replace(super().select(rows), **by_holder)

    def select_range(self, rows: slice) -> Self:
        """Consecutive rows, as views; the table stays whole."""
        of_holders = slice(self.splits[rows.start], self.splits[rows.stop])
        columns = {name: getattr(self, name)[rows] for name in self._row_columns}
        return dataclasses.replace(
            self, **columns, **{name: values[of_holders] for name, values in self._by_holder.items()}
        )

    def select_holders(self, which: npt.NDArray[np.bool_]) -> Self:
        """All rows with these of their holders alone, perhaps with none. which: bool[n]."""
        counts = np.diff(np.concatenate([[0], np.cumsum(which)])[self.splits])
        by_holder = {name: values[which] for name, values in self._by_holder.items()}
        return dataclasses.replace(self, counts=counts, **by_holder)

    def halves(self) -> tuple[Self, ...]:
        """A row with very many holders is cut too, so two parts may have the same row."""
        if len(self) > 1:
            return super().halves()
        which = np.arange(len(self.holders)) < len(self.holders) // 2
        return (self.select_holders(which), self.select_holders(~which)) if which.any() else ()


@dataclasses.dataclass(frozen=True, eq=False)
class WeighedItems(ItemHolders):
    """What the holders of each (window, item) add to it in the first test of a stream. weights: int64[n], of each
    holder, above 0."""

    weights: npt.NDArray[np.int64]

    SCHEMA: ClassVar = {**ItemHolders.SCHEMA, "weights": Column(WHOLE, of="holder")}

    def check(self) -> None:
        super().check()
        check_unpacked(bool((self.counts > 0).all() and (self.weights > 0).all()))

    def sums(self, keys: StreamKeys) -> ItemSums:
        if not len(self):
            return ItemSums.none()
        starts, digests = self.splits[:-1], keys.widen_holders(self.holders, self.weights)
        sums = np.add.reduceat(self.weights, starts)
        return ItemSums(self.windows, self.items, sums, sum_modulo_2_128(digests, starts), self.table)
