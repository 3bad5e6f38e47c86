"""Which pairs of a user count where its purse cannot pay for all: a uniform choice by keyed hash."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.equal_rows import group_starts
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.user_pairs import UserPairs


def keep_by_hash(pairs: UserPairs | ItemPairs, most: npt.NDArray[np.int64], keys: StreamKeys) -> npt.NDArray[np.bool_]:
    """Whether each pair is among the first ``most`` ones of its user, in a keyed order of (user, window, item).

    A uniform random subset, independent of everything else. ``pairs`` must contain all pairs of its users in its
    windows. most: int64[u], by user. Returns bool[n].
    """
    has_more = pairs.counts > most
    if not has_more.any():
        return np.ones(len(pairs), dtype=np.bool_)
    codes = pairs.user_codes()
    kept = ~has_more[codes]
    rows = np.flatnonzero(~kept)
    codes = codes[rows]
    order = keys.look_order()(
        pairs.users[codes], pairs.windows[rows], pairs.table.hashes.take(pairs.items[rows], axis=0)
    )
    ranked = np.lexsort((order[:, 1], order[:, 0], codes))
    codes = codes[ranked]
    begins = group_starts(codes)
    rank = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    kept[rows[ranked[rank < most[codes]]]] = True
    return kept
