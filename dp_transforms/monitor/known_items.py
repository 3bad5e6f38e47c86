"""Known items: what was named lately, and so is public. A function of what was published alone.

Of a stream, or of one shard of its items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from dp_transforms.monitor.column_kinds import MOST, Column, Items
from dp_transforms.monitor.columns import Cells, Columns
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.packed_arrays import WHOLE


@dataclasses.dataclass(frozen=True, eq=False)
class KnownItems(Columns):
    """k items in the order of their keyed hashes, with the window in which each was last named.

    table: ItemTable of length k. last_named: int64[k].
    """

    table: ItemTable
    last_named: npt.NDArray[np.int64]

    SCHEMA: ClassVar = {"last_named": Column(WHOLE, join=MOST), "table": Items(of="row")}

    def after(self, named: Cells, next_window: int, forget_after: int) -> KnownItems:
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
        return KnownItems(table.take(kept), last_named[kept])

    def last_named_of(self, table: ItemTable) -> npt.NDArray[np.int64]:
        """The window in which each of these items was last named, -1 for one that is not here. Returns int64[k]."""
        union, (here, asked) = ItemTable.merge([self.table, table])
        last_named = np.full(len(union), -1, dtype=np.int64)
        last_named[here] = self.last_named
        return last_named[asked]

    def since(self, window: int) -> KnownItems:
        """Those that were last named in this window or later."""
        return self.select(self.last_named >= window)

    @classmethod
    def _keys_of(cls, parts: Sequence[Self]) -> tuple[npt.NDArray, Callable[[npt.NDArray], dict[str, Any]]]:
        table, positions = ItemTable.merge([part.table for part in parts])
        return np.concatenate(positions), lambda keys: {"table": table}
