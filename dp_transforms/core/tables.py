"""Tables of columns: packed for a shuffle or a state, merged, selected, and cut by window and by shard.

A table is a frozen dataclass of arrays that inherits from `Table`. Its ``SCHEMA`` says what each array is, its
``ORDER`` how the rows are sorted. What comes out of a shuffle or a state may be damaged: `Table.from_bytes` checks it
against the schema, and nothing behind it checks again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.core.columns import (
    HASHES,
    MOST_MESSAGE_BYTES,
    NARROW,
    Kind,
    Packed,
    Whole,
    are_ascending,
    check_unpacked,
    group_slices,
    group_starts,
    narrowest,
    pack_arrays,
    unpack_arrays,
)
from dp_transforms.core.item_table import TABLE_KINDS, ItemTable
from dp_transforms.plan.window_schedule import MOST_WINDOWS

Rows = npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice
Join = Callable[[npt.NDArray, Whole], npt.NDArray]  # of a column and where each group of rows begins
LEAST, MOST, ADDED = np.minimum.reduceat, np.maximum.reduceat, np.add.reduceat


@dataclasses.dataclass(frozen=True)
class Column:
    """One column.

    stored: the types that it may have when it is packed; where there are several, it holds whole numbers from 0 on, and
    takes as few bytes as they need. of: what has one value each; columns of the same things have one length. into: the
    column in which its values are positions. below: what its values are below. width: how many numbers make one value.
    join: what rows that coincide have in common.
    """

    stored: Kind = HASHES
    of: str = "row"
    into: str | None = None
    below: int | None = None
    width: int = 1
    join: Join = lambda values, starts: values[starts]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of the arrays that it is packed in."""
        return (self.stored,)

    def pack(self, values: Any) -> tuple[npt.NDArray, ...]:
        return (narrowest(values) if len(self.stored) > 1 else values.reshape(-1),)

    def unpack(self, *arrays: npt.NDArray) -> Any:
        """Inverse of `pack`. Raises ValueError for values that it cannot have."""
        (values,) = arrays
        if self.width > 1:
            check_unpacked(len(values) % self.width == 0)
            values = values.reshape(-1, self.width)
        if len(self.stored) > 1:
            values = values.astype(np.int64)
            check_unpacked(not len(values) or values.min() >= 0)
        check_unpacked(self.below is None or not len(values) or values.max() < self.below)
        return values

    def none(self) -> Any:
        return self.unpack(np.zeros(0, dtype=self.stored[0]))


@dataclasses.dataclass(frozen=True)
class Items(Column):
    """An `ItemTable`."""

    of: str = "item"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return TABLE_KINDS

    def pack(self, values: ItemTable) -> tuple[npt.NDArray, ...]:
        return values.arrays()

    def unpack(self, *arrays: npt.NDArray) -> ItemTable:
        return ItemTable.from_arrays(*arrays)

    def none(self) -> ItemTable:
        return ItemTable.none()


WINDOWS, ITEMS, TABLE = Column(NARROW, below=MOST_WINDOWS), Column(NARROW, into="table"), Items()


class Table:
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
        return len(getattr(self, self._row_columns[0]))

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(**{name: column.none() for name, column in cls.SCHEMA.items()})

    # Packed

    def to_bytes(self) -> bytes:
        packed = (column.pack(getattr(self, name)) for name, column in self.SCHEMA.items())
        return pack_arrays(*itertools.chain.from_iterable(packed))

    @classmethod
    def from_bytes(cls, data: Packed) -> Self:
        """Inverse of `to_bytes`. Raises ValueError for bytes that are not a table of this schema: columns of another
        type or length, positions of nothing, windows outside of every run, rows that are not in order, or labels that
        are not text."""
        arrays = iter(unpack_arrays(data, *cls._kinds))
        columns, lengths = {}, dict[str, int]()
        for name, column in cls.SCHEMA.items():
            columns[name] = column.unpack(*itertools.islice(arrays, len(column.kinds)))
            check_unpacked(lengths.setdefault(column.of, len(columns[name])) == len(columns[name]))
        for name, into in cls._into:
            check_unpacked(not len(columns[name]) or columns[name].max() < len(columns[into]))
        check_unpacked(are_ascending(*(columns[name] for name in cls.ORDER)))
        table = cls(**columns)
        table.check()
        return table

    def check(self) -> None:
        """What else must hold of a table that is unpacked. Raises ValueError."""

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

    def halves(self) -> tuple[Self, ...]:
        """Two parts; none if it cannot be cut."""
        middle = len(self) // 2
        return (self.select(slice(0, middle)), self.select(slice(middle, None))) if middle else ()

    def to_chunks(self) -> list[bytes]:
        """Packed parts of under 10 MB, for a state; none for no rows."""
        return list(self.messages())

    # Selected and merged

    def select(self, rows: Rows) -> Self:
        """These rows (positions, a slice, or bool[n]), and of all else what they name alone."""
        columns = {name: getattr(self, name) for name in self.SCHEMA}
        for name in self._row_columns:
            columns[name] = _taken(columns[name], rows)
        for name, into in self._into:  # only those things into which a position leads
            things, columns[name] = used(len(columns[into]), columns[name])
            if things is not None:
                columns[into] = _taken(columns[into], things)
        return type(self)(**columns)

    def by_group(self, groups: Whole) -> Iterator[tuple[int, Self]]:
        """The rows of each group, with its number, ascending. groups: int64[len(self)]."""
        ordered = self
        if (groups[1:] < groups[:-1]).any():
            order = np.argsort(groups, kind="stable")
            ordered, groups = self.select(order), groups[order]
        for rows in group_slices(groups):
            yield int(groups[rows.start]), ordered.select(rows)

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
        order = np.argsort(keys, kind="stable")  # fast where parts are in order
        keys = keys[order]
        starts = group_starts(keys)
        columns = columns_of(keys[starts])
        for name in cls._row_columns:
            if name not in columns:
                values = np.concatenate([getattr(part, name) for part in parts])
                columns[name] = cls.SCHEMA[name].join(_taken(values, order), starts)
        return cls(**columns)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        """By what the rows of all parts are told apart, and the columns of `ORDER` (with what they name) again."""
        name = cls.ORDER[0]
        return np.concatenate([getattr(part, name) for part in parts]), lambda keys: {name: keys}


class ByUser(Table):
    """A table of users. users: uint64[u], distinct keyed hashes, ascending."""

    users: npt.NDArray[np.uint64]
    ORDER = ("users",)


class WindowItems(Table):
    """A table of (window, item), distinct, sorted by window and then by the keyed hash of the item.

    windows: int64[c], window index. items: int64[c], position in ``table``.
    """

    windows: Whole
    items: Whole
    table: ItemTable
    ORDER: ClassVar[tuple[str, ...]] = ("windows", "items")

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Of the item of each row. uint64[c, 2]."""
        return self.table.hashes.take(self.items, axis=0)

    def by_window(self) -> Iterator[tuple[int, slice]]:
        """Each window and the slice of its rows, in order."""
        return ((int(self.windows[rows.start]), rows) for rows in group_slices(self.windows))

    def by_range(self, windows: int) -> Iterator[tuple[int, Self]]:
        """The rows of each range of so many windows, with its number; ranges without rows are left out."""
        return self.by_group(self.windows // windows)

    def by_shard(self, shards: int) -> Iterator[tuple[int, Self]]:
        """The rows of each shard of items, with its number; shards without rows are left out."""
        return self.by_group(self._shards_of_rows(shards))

    def of_shard(self, shard: int, shards: int) -> Self:
        """The rows of one shard of items."""
        return self.select(self._shards_of_rows(shards) == shard)

    def _shards_of_rows(self, shards: int) -> Whole:
        return (self.table.hashes[:, 1] % np.uint64(shards)).astype(np.int64)[self.items]

    def contain(self, others: WindowItems) -> npt.NDArray[np.bool_]:
        """Whether the window and item of each row of the other table is here. Returns bool[n]."""
        (here, asked), _ = window_item_keys([self, others])
        return np.isin(asked, here)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        keys_of_parts, table = window_item_keys(parts)

        def columns(keys: npt.NDArray) -> dict[str, Any]:
            windows, items = np.divmod(keys, max(1, len(table)))
            return {"windows": windows, "items": items, "table": table}

        return np.concatenate(keys_of_parts), columns


def window_item_keys(parts: Sequence[WindowItems]) -> tuple[list[Whole], ItemTable]:
    """Each row of each part as one number, ascending by window and item: ``window * items + item`` in the table of all
    their items, which is returned, too."""
    table, places = ItemTable.merge([part.table for part in parts])
    return [part.windows * len(table) + of[part.items] for part, of in zip(parts, places, strict=True)], table


def used(size: int, positions: Whole) -> tuple[Whole | None, Whole]:
    """Which of so many things have a row, ascending, None for all of them; and the positions among these."""
    if 16 * len(positions) < size:
        return np.unique(positions, return_inverse=True)
    is_used = np.zeros(size, dtype=np.bool_)
    is_used[positions] = True
    if is_used.all():
        return None, positions
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[positions]


def _taken(values: Any, rows: Rows) -> Any:
    """These rows of a column, or these items of a table."""
    if isinstance(values, ItemTable):
        return values.take(rows)
    if values.ndim == 2 and isinstance(rows, np.ndarray) and rows.dtype != np.bool_:
        return values.take(rows, axis=0)  # several times as fast as values[rows]
    return values[rows]
