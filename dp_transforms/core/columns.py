"""Tables of columns from a schema: packed for a shuffle or a state, merged, selected, and cut by window and by shard.

A table is a frozen dataclass of arrays that inherits from `Columns`, and says in ``SCHEMA`` what each array is and in
``ORDER`` how its rows are sorted. It adds only what is its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.column_kinds import Column, Splits
from dp_transforms.core.equal_rows import are_ascending, group_slices, group_starts, sort_rows
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.operator_counts import MOST_MESSAGE_BYTES
from dp_transforms.core.packed_arrays import (
    Kind,
    Packed,
    check_unpacked,
    pack_arrays,
    unpack_arrays,
)

Rows = npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice


class Columns:
    """A table. SCHEMA: its columns as they are packed. ORDER: its rows are distinct and ascend by these columns."""

    SCHEMA: ClassVar[Mapping[str, Column]]
    ORDER: ClassVar[tuple[str, ...]] = ()

    # Of the schema, found once: there may be thousands of small tables.
    _row_columns: ClassVar[tuple[str, ...]]
    _into: ClassVar[tuple[tuple[str, str], ...]]
    _kinds: ClassVar[tuple[Kind, ...]]

    def __init_subclass__(cls) -> None:
        schema = getattr(cls, "SCHEMA", {})
        cls._row_columns = tuple(name for name, column in schema.items() if column.of == "row")
        cls._into = tuple((name, column.into) for name, column in schema.items() if column.into is not None)
        cls._kinds = tuple(kind for column in schema.values() for kind in column.kinds)

    def __len__(self) -> int:
        name = self._row_columns[0]
        return self.SCHEMA[name].count(getattr(self, name))

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(**{name: column.none() for name, column in cls.SCHEMA.items()})

    def to_bytes(self) -> bytes:
        columns = self._columns().items()
        return pack_arrays(*(array for name, values in columns for array in self.SCHEMA[name].pack(values)))

    @classmethod
    def from_bytes(cls, data: Packed) -> Self:
        """Inverse of `to_bytes`. Raises ValueError for bytes that are not a table of this schema: columns of another
        type or length, positions of nothing, windows outside of every run, rows that are not in order, or labels that
        are not text."""
        arrays = iter(unpack_arrays(data, *cls._kinds))
        columns = {
            name: column.unpack(*itertools.islice(arrays, len(column.kinds)), size=len(data))
            for name, column in cls.SCHEMA.items()
        }
        _check_lengths(cls.SCHEMA, columns)
        check_unpacked(are_ascending(*(columns[name] for name in cls.ORDER)))
        table = cls(**columns)
        table.check()
        return table

    def check(self) -> None:
        """What else must hold of a table that is unpacked. Raises ValueError."""

    def select(self, rows: Rows) -> Self:
        """These rows (ascending positions, a slice, or bool[n]), and of all else what they name alone."""
        columns = self._columns()
        for name in self._row_columns:
            columns[name] = taken(columns[name], rows)
        for name, into in self._into:  # only those things into which a position leads
            things, columns[name] = used(len(columns[into]), columns[name])
            if things is not None:
                columns[into] = taken(columns[into], things)
        return type(self)(**columns)

    @classmethod
    def merge(cls, parts: Sequence[Self]) -> Self:
        """The union. What rows that coincide have in common is that of ``Column.join``: it depends neither on the
        order of the parts nor, where nothing is added up, on how often one is there."""
        parts = [part for part in parts if len(part)] or parts[:1]
        return cls._merged(parts) if len(parts) > 1 else parts[0] if parts else cls.none()

    @classmethod
    def _merged(cls, parts: Sequence[Self]) -> Self:
        """Of several parts that have rows."""
        keys, columns_of = cls._keys_of(parts)
        keys, order = sort_rows(keys) if keys.dtype == np.int64 else _sorted_hashes(keys)
        starts = group_starts(keys)
        columns = columns_of(keys[starts])
        for name in cls._row_columns:
            if name not in columns:
                values = np.concatenate([getattr(part, name) for part in parts])
                columns[name] = cls.SCHEMA[name].join(taken(values, order), starts)
        return cls(**columns)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        """By what the rows of all parts are told apart, and the columns of `ORDER` (with what they name) again."""
        name = cls.ORDER[0]
        return np.concatenate([getattr(part, name) for part in parts]), lambda keys: {name: keys}

    @classmethod
    def of_messages(cls, messages: Iterable[Packed]) -> Self:
        """What several messages hold together, in any order."""
        return cls.merge([cls.from_bytes(message) for message in messages])

    def messages(self, most_bytes: int = MOST_MESSAGE_BYTES) -> Iterator[bytes]:
        """Packed parts, each with at least one row, as large as engines accept. `merge` joins them again. None for no
        rows."""
        if not len(self):
            return
        data = self.to_bytes()
        if len(data) <= most_bytes or not (halves := self.halves()):
            yield data
            return
        for half in halves:
            yield from half.messages(most_bytes)

    def to_cells(self) -> list[bytes]:
        """Packed parts as byte strings under 10 MB, for a state; none for no rows."""
        return list(self.messages())

    def halves(self) -> tuple[Self, ...]:
        """Two parts; none if it cannot be cut."""
        middle = len(self) // 2
        return (self.select(slice(0, middle)), self.select(slice(middle, len(self)))) if middle else ()

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.SCHEMA}


class ByUser(Columns):
    """A table of users. users: uint64[u], distinct keyed hashes, ascending."""

    users: npt.NDArray[np.uint64]
    ORDER = ("users",)
    ROWS_OF_CELL: ClassVar[int]  # so that a cell stays under 10 MB

    def to_cells(self) -> list[bytes]:
        size = self.ROWS_OF_CELL
        return [self.select(slice(low, low + size)).to_bytes() for low in range(0, len(self), size)]


class Cells(Columns):
    """A table of (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``.
    """

    windows: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    table: ItemTable
    ORDER: ClassVar[tuple[str, ...]] = ("windows", "items")

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Of the item of each cell. uint64[c, 2]."""
        return self.table.hashes.take(self.items, axis=0)

    def by_window(self) -> Iterator[tuple[int, slice]]:
        """Each window and the slice of its cells, in order."""
        for cells in group_slices(self.windows):
            yield int(self.windows[cells.start]), cells

    def by_window_range(self, windows_per_range: int) -> Iterator[tuple[int, Self]]:
        """The cells in ranges of so many consecutive windows: ``(range, cells)``; ranges without cells are left out."""
        window_ranges = self.windows // windows_per_range
        for cells in group_slices(window_ranges):
            yield int(window_ranges[cells.start]), self if cells == slice(0, len(self)) else self.select(cells)

    def shard_by_item(self, shards: int) -> Iterator[tuple[int, Self]]:
        """The cells by shard of items: ``(shard, cells)``; shards without cells are left out."""
        if shards == 1:
            if len(self):
                yield 0, self
            return
        shard_of_cell = (self.table.hashes[:, 1] % np.uint64(shards)).astype(np.int64)[self.items]
        order = np.argsort(shard_of_cell, kind="stable")
        for part in group_slices(shard_of_cell[order]):
            yield int(shard_of_cell[order[part.start]]), self.select(order[part])

    def of_shard(self, shard: int, shards: int) -> Self:
        """The cells of one shard of items."""
        return dict(self.shard_by_item(shards)).get(shard, self.none())

    def contain(self, others: Any) -> npt.NDArray[np.bool_]:
        """Whether the cell of each row is here. others: rows with windows, items and a table. Returns bool[n]."""
        table, (here, asked) = ItemTable.merge([self.table, others.table])
        return np.isin(cell_keys(others, len(table), asked), cell_keys(self, len(table), here))

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        table, item_maps = ItemTable.merge([part.table for part in parts])
        of_parts = [cell_keys(part, len(table), item_map) for part, item_map in zip(parts, item_maps, strict=True)]

        def columns(keys: npt.NDArray) -> dict[str, Any]:
            windows, items = np.divmod(keys, max(1, len(table)))
            return {"windows": windows, "items": items, "table": table}

        return np.concatenate(of_parts), columns


def cell_keys(cells: Any, items: int, item_map: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each cell as one number, ascending by window and item. cells: with windows and items. item_map: where each item
    is in a table of so many ``items``."""
    keys: npt.NDArray[np.int64] = cells.windows * items + item_map[cells.items]
    return keys


def taken(values: Any, rows: Rows) -> Any:
    """These rows of a column, or these items of a table."""
    if isinstance(values, ItemTable):
        return values.take(rows)
    if values.ndim == 2 and isinstance(rows, np.ndarray) and rows.dtype != np.bool_:
        return values.take(rows, axis=0)  # several times as fast as values[rows]
    return values[rows]


def used(size: int, positions: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64]]:
    """Which of so many things have a row, ascending, None for all of them; and the positions among these."""
    if 16 * len(positions) < size:
        found, places = np.unique(positions, return_inverse=True)
        return found, places.reshape(-1)
    is_used = np.zeros(size, dtype=np.bool_)
    is_used[positions] = True
    if is_used.all():
        return None, positions
    found = np.flatnonzero(is_used)
    places = np.empty(size, dtype=np.int64)
    places[found] = np.arange(len(found))
    return found, places[positions]


def _check_lengths(schema: Mapping[str, Column], columns: Mapping[str, Any]) -> None:
    lengths: dict[str, int] = {}
    for name, column in schema.items():
        length = column.count(columns[name])
        check_unpacked(lengths.setdefault(column.of, length) == length)
    for name, column in schema.items():
        values = columns[name]
        if column.into is not None:
            check_unpacked(not len(values) or values.max() < len(columns[column.into]))
        if isinstance(column, Splits):
            check_unpacked(values[-1] == lengths[column.parts])


def _sorted_hashes(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    order = np.argsort(hashes, kind="stable")  # fast where parts are in order
    return hashes[order], order
