"""The parallel front of the monitor: the first stage of every draw (docs/guarantee.md, section 5.4).

The active holders of an item are at most all its holders, so an item whose full count plus noise stays below the
threshold is not published whatever the counters of its holders are. Only the bit "reaches it" is drawn here; the
sequential stage draws the noise conditioned on that bit. The transcript has exactly the sequential algorithm's
distribution. Release mode ``kms21`` has no such bit: there all cells are candidates.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.monitor_settings import MonitorSettings


def find_candidates(cells: ItemHolders, settings: MonitorSettings, keys: StreamKeys) -> ItemHolders:
    """The cells that may be published. ``cells`` must hold all holders of its items."""
    if not len(cells):
        return cells
    return cells.select(np.flatnonzero(settings.query_noise(keys).may_pass(cells)))
