"""Pairs and cells as messages of bounded size: engines refuse values of 80 MB, and copy each one several times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.user_pairs import UserPairs

MOST_MESSAGE_BYTES = 8_000_000


def pair_messages(pairs: UserPairs, most_bytes: int = MOST_MESSAGE_BYTES) -> Iterator[bytes]:
    """Packed parts of ``pairs``, one row at least; `UserPairs.merge` puts them together again. None for no pairs."""
    if not len(pairs):
        return
    data = pairs.to_bytes()
    if len(data) <= most_bytes or len(pairs) == 1:
        yield data
        return
    codes, middle = pairs.user_codes(), len(pairs) // 2
    for rows in (slice(0, middle), slice(middle, len(pairs))):
        windows, items = pairs.windows[rows], pairs.items[rows]
        yield from pair_messages(
            UserPairs.from_sorted_codes(pairs.users, codes[rows], windows, items, pairs.table), most_bytes
        )


def holder_messages(cells: ItemHolders, most_bytes: int = MOST_MESSAGE_BYTES) -> Iterator[bytes]:
    """Packed parts of ``cells``; `ItemHolders.merge` puts them together again. None for no cells.

    A cell with very many holders is cut as well, so that two parts may hold it.
    """
    if not len(cells):
        return
    data = cells.to_bytes()
    if len(data) <= most_bytes or (len(cells) == 1 and len(cells.holders) <= 1):
        yield data
        return
    if len(cells) > 1:
        middle = len(cells) // 2
        parts = [cells.select(np.arange(middle)), cells.select(np.arange(middle, len(cells)))]
    else:
        middle = len(cells.holders) // 2
        parts = [_with_holders(cells, slice(0, middle)), _with_holders(cells, slice(middle, len(cells.holders)))]
    for part in parts:
        yield from holder_messages(part, most_bytes)


def _with_holders(cell: ItemHolders, rows: slice) -> ItemHolders:
    """One cell with these of its holders."""
    holders = cell.holders[rows]
    return ItemHolders(cell.windows, cell.items, np.array([0, len(holders)]), holders, cell.table)
