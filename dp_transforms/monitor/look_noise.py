"""The noise of looks in two stages, for runs in which users pay for hits: a `QueryNoise` of the sequential monitor.

Stage one is the bit "the full sum and the noise together reach the known threshold", the lowest one that can apply.
Stage two draws the noise given that bit, for the holders that are active when the item has its turn. They add no more
than all holders do, so an item that fails stage one fails whoever is active. The two together have the law of one draw
(docs/guarantee.md, "Draws in two stages").
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.noise_table import noise_bounds
from dp_transforms.mechanisms.randomness import StreamKeys, Words
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.query_noise import Draw, digests_of_groups

Whole = npt.NDArray[np.int64]


class LookNoise:
    """A draw is a function of its window, item, and holders with their weights and price lists, and of the key."""

    def __init__(self, noise: ExponentialPower, known_threshold: int, keys: StreamKeys) -> None:
        self._noise = noise
        self._table = noise_bounds(noise)
        self._known_threshold = known_threshold
        self._keys = keys
        self._pass_uniforms, self._noise_uniforms = keys.look_uniforms(), keys.look_noise_uniforms()

    def may_pass(self, cells: ItemHolders) -> npt.NDArray[np.bool_]:
        """First stage. A cell without holders is known to pass. bool[c]."""
        digests = digests_of_groups(cells.members(self._keys), cells.splits)
        hashes = cells.table.hashes.take(cells.items, axis=0)
        uniforms = self._pass_uniforms(cells.windows, hashes, digests)
        passed: npt.NDArray[np.bool_] = cells.counts == 0
        passed |= self._table.passes(uniforms, self._known_threshold - cells.sums)
        return passed

    def nobody_passes(self, windows: Whole, hashes: Words) -> npt.NDArray[np.bool_]:
        """The same of items that nobody holds. windows: int64[n]. hashes: uint64[n, 2]. Returns bool[n]."""
        uniforms = self._pass_uniforms(windows, hashes, np.zeros_like(hashes))
        return self._table.passes(uniforms, np.full(len(windows), self._known_threshold))

    def draws_of(self, window: int) -> Draw:
        """Second stage, for items that passed the first one."""

        def draw(hashes: Words, digests: Words, sums: Whole) -> Whole:
            uniforms = self._noise_uniforms(np.full(len(sums), window), hashes, digests)
            return self._table.sample_given_pass(uniforms, self._known_threshold - sums)

        return draw

    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[Z >= known threshold])``."""
        tails = self._noise.upper_tail_integers()
        return tails[self._known_threshold - 1] if self._known_threshold <= len(tails) else 0
