"""Followed items for tests of states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems
from tests.helpers.small_runs import SECRET, settings_of, small_plan

KEYS = settings_of(small_plan()).stream_keys(SECRET)


def followed_of(labels: Sequence[str], last_named: Sequence[int] | npt.NDArray[np.int64]) -> FollowedItems:
    table, positions = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
    ordered = np.empty(len(table), dtype=np.int64)
    ordered[positions] = last_named
    return FollowedItems(table, ordered)
