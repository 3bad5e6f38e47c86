"""The parallel front of the monitor: the first stage of every draw (docs/guarantee.md, "Draws in two stages").

An item has at most as many active holders as holders. So if its full count plus noise stays below the threshold, it is
not published, whatever the counters of its holders are. Only the bit "reaches it" is drawn here. The sequential stage
draws the noise conditioned on that bit. The transcript has exactly the sequential algorithm's
distribution. Mode ``kms21`` has no such bit: there every cell is a candidate.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.hit_rules import query_noise
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.plan.plan import Plan


def find_candidates(cells: ItemHolders, plan: Plan, keys: StreamKeys) -> ItemHolders:
    """The cells that may be published. ``cells`` must contain all holders of its items."""
    if not len(cells):
        return cells
    return cells.select(np.flatnonzero(query_noise(plan, keys).may_pass(cells)))
