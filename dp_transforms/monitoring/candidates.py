"""The parallel front of the monitor: the first stage of every draw (docs/guarantee.md, section 5.4).

The active holders of an item are at most all its holders, so an item whose full count plus noise stays below the
threshold is not published whatever the counters of its holders are. Only the bit "reaches it" is drawn here; the
sequential stage draws the noise conditioned on that bit. The transcript has exactly the sequential algorithm's
distribution.
"""

from __future__ import annotations

import numpy as np

from dp_transforms.mechanisms.discrete_laplace import discrete_laplace
from dp_transforms.mechanisms.randomness import StreamKeys, sum_modulo_2_128
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.settings import MonitorSettings


def find_candidates(cells: ItemHolders, settings: MonitorSettings, keys: StreamKeys) -> ItemHolders:
    """The cells whose bit ``Z >= threshold - count`` came up. ``cells`` must hold all holders of its items."""
    if not len(cells):
        return cells
    noise = discrete_laplace(settings.epsilon_per_query)
    margins = settings.threshold - cells.counts
    digests = sum_modulo_2_128(keys.widen_users(cells.holders), cells.splits[:-1])
    hashes = cells.table.hashes[cells.items]
    passed = np.zeros(len(cells), dtype=np.bool_)
    for window, part in cells.by_window():
        uniforms = keys.pass_uniforms(window).of_pairs(hashes[part], digests[part])
        passed[part] = noise.passes(uniforms, margins[part])
    return cells.select(np.flatnonzero(passed))
