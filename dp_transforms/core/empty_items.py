"""Public items that are published although nobody holds them, drawn without visiting the others.

A public item that nobody holds is tested like every other: it is published with the probability p that the noise alone
reaches the threshold. In a window with n items that is n independent coins. So their number is drawn from
Binomial(n, p), and then that many different items, with equal probability for every subset: the same law, at a cost
that grows with what is published and not with the list (docs/guarantee.md, "Claim (empty items)").

The draws do not depend on the data. An item that has holders in the window is tested by a draw of its own instead:
`ItemHolders.merge` and `ItemSums.merge` then drop the one that was drawn here.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.noise_table import Inversion
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.randomness import BlockFunction, StreamKeys

Whole = npt.NDArray[np.int64]

_ONE = 1 << UNIFORM_BITS
_WINDOWS_AT_ONCE = 1 << 16
_DIGITS = 100  # relative errors of the sums below stay under 2^-200


class EmptyItems:
    """The empty items of a run, as cells without holders or without a sum: the same whenever and wherever drawn.

    tail: the probability that the noise alone reaches the threshold, in units of 2^-128.
    """

    def __init__(self, public_items: PublicItemsTable, tail: int, keys: StreamKeys) -> None:
        self._items = public_items.items
        self._draws = EmptyItemDraws(len(public_items), tail, keys.empty_item_uniforms())
        self._drawn = functools.lru_cache(maxsize=1)(self._draw)  # for one shard after the other

    def without_holders(self, first: int, end: int, shard: int = 0, shards: int = 1) -> ItemHolders:
        """Those of the windows ``first .. end - 1`` in one shard of items."""
        windows, items = self._of_shard(first, end, shard, shards)
        return ItemHolders.without_holders(windows, items, self._items).select(slice(None))

    def without_sums(self, first: int, end: int, shard: int = 0, shards: int = 1) -> ItemSums:
        """The same as cells with sum 0 and digest 0."""
        windows, items = self._of_shard(first, end, shard, shards)
        digests = np.zeros((len(items), 2), dtype=np.uint64)
        return ItemSums(windows, items, np.zeros_like(items), digests, self._items).select(slice(None))

    def _of_shard(self, first: int, end: int, shard: int, shards: int) -> tuple[Whole, Whole]:
        windows, items = self._drawn(first, end)
        rows = np.flatnonzero(self._items.hashes[items, 1] % np.uint64(shards) == shard)
        return windows[rows], items[rows]

    def _draw(self, first: int, end: int) -> tuple[Whole, Whole]:
        drawn = list(self._draws.by_window(end, first))
        windows = np.repeat([window for window, _ in drawn], [len(items) for _, items in drawn]).astype(np.int64)
        return windows, np.concatenate([np.zeros(0, dtype=np.int64), *(items for _, items in drawn)])


class EmptyItemDraws:
    """Subsets of ``0 .. domain_size - 1``, one a window: each position is in it with the same probability.

    tail: that probability in units of 2^-128. uniforms: keyed function of pairs (window, number): number 0 decides how
    many positions there are, and 1, 2, ... which. The distance from the exact law is at most
    ``empty_items_total_variation``, of `discrete_laplace_law`, a window.
    """

    def __init__(self, domain_size: int, tail: int, uniforms: BlockFunction) -> None:
        self._domain_size = domain_size
        self._uniforms = uniforms
        self._count = Inversion(binomial_integers(domain_size, tail))

    def by_window(self, end: int, first: int = 0) -> Iterator[tuple[int, Whole]]:
        """The windows ``first .. end - 1`` with a subset that is not empty, each with its positions, ascending."""
        if not len(self._count):
            return  # the probability is too small for any 128-bit number
        for low in range(first, end, _WINDOWS_AT_ONCE):
            windows = np.arange(low, min(end, low + _WINDOWS_AT_ONCE))
            counts = self._count.count_not_above(self._draw(windows, np.zeros_like(windows)))
            for at in np.flatnonzero(counts):
                yield int(windows[at]), self._positions(int(windows[at]), int(counts[at]))

    def _positions(self, window: int, count: int) -> Whole:
        """A uniform subset of `count` positions: the first different ones in a sequence of uniform positions."""
        if 2 * count > self._domain_size:
            left_out = self._positions(window, self._domain_size - count)
            return np.setdiff1d(np.arange(self._domain_size), left_out)
        # High words above the largest multiple of the domain's size are skipped: what is left is exactly uniform.
        largest = np.uint64((1 << 64) // self._domain_size * self._domain_size - 1)
        drawn = 2 * count + 8
        while True:
            numbers = np.arange(1, drawn + 1)
            high = self._draw(np.full(drawn, window), numbers)[:, 0]
            positions = (high[high <= largest] % np.uint64(self._domain_size)).astype(np.int64)
            _, first = np.unique(positions, return_index=True)
            if len(first) >= count:
                return np.sort(positions[np.sort(first)[:count]])
            drawn *= 2

    def _draw(self, windows: Whole, numbers: Whole) -> npt.NDArray[np.uint64]:
        return self._uniforms(np.stack([windows, numbers], axis=1).astype(np.uint64))


def binomial_integers(trials: int, tail: int) -> list[int]:
    """``floor(2^128 Pr[N <= k])`` for k = 0, 1, ... and N ~ Binomial(trials, tail / 2^128), until it is 2^128.

    The number of entries at most a uniform 128-bit integer is then N, up to one unit of 2^-128 an entry.
    """
    context = decimal.Context(prec=_DIGITS, Emin=-(10**15), Emax=10**15)
    success, failure = decimal.Decimal(tail), decimal.Decimal(_ONE - tail)
    odds = context.divide(success, failure)
    mass = context.power(context.divide(failure, decimal.Decimal(_ONE)), trials)
    total, entries = mass, []
    for successes in range(trials):
        entry = int(context.multiply(total, decimal.Decimal(_ONE)))
        if entry >= _ONE - 1:
            break
        entries.append(entry)
        mass = context.multiply(mass, odds)
        mass = context.divide(context.multiply(mass, decimal.Decimal(trials - successes)), successes + 1)
        total = context.add(total, mass)
    return entries
