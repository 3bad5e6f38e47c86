"""Named items in messages that engines accept (`monitor.counted_messages`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dp_transforms.monitor.counted_messages import MOST_MESSAGE_BYTES
from dp_transforms.monitor.named_items import NamedItems


def named_messages(named: NamedItems, most_bytes: int = MOST_MESSAGE_BYTES) -> Iterator[bytes]:
    """Packed parts of ``named``, each with at least one item. `NamedItems.merge` joins them. None for no items."""
    if not len(named):
        return
    data = named.to_bytes()
    if len(data) <= most_bytes or len(named) == 1:
        yield data
        return
    middle = len(named) // 2
    for rows in (slice(0, middle), slice(middle, len(named))):
        used, items = np.unique(named.items[rows], return_inverse=True)
        part = NamedItems(
            named.windows[rows],
            items.reshape(-1),
            named.levels[rows],
            named.at_least_users[rows],
            named.table.take(used),
        )
        yield from named_messages(part, most_bytes)
