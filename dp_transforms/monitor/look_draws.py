"""The noise of sums of weights: one keyed uniform for each window and item, inverted by the table of the noise."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.randomness import StreamKeys, Words
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.plan.plan import Plan

Whole = npt.NDArray[np.int64]


class LookDraws:
    """What one run draws. A draw is a function of its window, item, and holders with their weights, and of the key."""

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self.table = noise_bounds(plan.paid_looks.noise)
        self._uniforms = keys.look_uniforms()

    def of_sums(self, sums: ItemSums) -> Words:
        """The uniforms of these cells. Returns uint64[c, 2]."""
        return self._uniforms(sums.windows, sums.hashes, sums.digests)

    def of_nobody(self, windows: Whole, hashes: Words) -> Words:
        """The uniforms of items to which nobody adds anything. windows: int64[n]. hashes: uint64[n, 2]."""
        return self._uniforms(windows, hashes, np.zeros_like(hashes))
