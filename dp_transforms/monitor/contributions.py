"""The contribution bound: at most L distinct items per user and window, chosen uniformly."""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.equal_rows import group_slices, group_starts
from dp_transforms.monitor.user_pairs import UserPairs


def bound_contributions(pairs: UserPairs, max_items_per_user: int, keys: StreamKeys) -> UserPairs:
    """Keeps L items of each user with more than L of them in a window: those first in a keyed order of (user, item).

    A uniform random subset, independent of everything else (docs/guarantee.md, "Several items in a window"); the order
    differs from window to window. ``pairs`` must contain all pairs of its users in its windows.
    """
    user_codes = pairs.user_codes()
    starts = group_starts(user_codes, pairs.windows)
    sizes = np.diff(np.append(starts, len(pairs)))
    crowded = np.repeat(sizes > max_items_per_user, sizes)
    rows = np.flatnonzero(crowded)
    if not len(rows):
        return pairs
    group_of_row = np.repeat(np.arange(len(starts)), sizes)[rows]

    blocks = np.stack([pairs.users[user_codes[rows]], pairs.table.hashes[pairs.items[rows], 0]], axis=1)
    by_window = np.argsort(pairs.windows[rows], kind="stable")
    priority = np.empty(len(rows), dtype=np.uint64)
    for of_window in group_slices(pairs.windows[rows[by_window]]):
        part = by_window[of_window]
        order = keys.contribution_order(int(pairs.windows[rows[part[0]]]))
        priority[part] = order(blocks[part])[:, 0]

    ranked = np.lexsort((priority, group_of_row))
    begins = group_starts(group_of_row)  # lexsort keeps each group in its place
    rank = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    kept = ~crowded
    kept[rows[ranked[rank < max_items_per_user]]] = True
    return UserPairs.from_sorted_codes(
        pairs.users, user_codes[kept], pairs.windows[kept], pairs.items[kept], pairs.table
    )
