"""What `ItemHolders` hold, in plain lists."""

from __future__ import annotations

import itertools

from dp_transforms.monitor.item_holders import ItemHolders


def cells_by_label(cells: ItemHolders) -> list[tuple[tuple[int, str], list[int]]]:
    """((window, label), holders) of each cell."""
    labels = cells.table.labels.to_pylist()
    return [
        ((window, labels[item]), sorted(cells.holders[low:high].tolist()))
        for window, item, (low, high) in zip(
            cells.windows.tolist(), cells.items.tolist(), itertools.pairwise(cells.splits.tolist()), strict=True
        )
    ]
