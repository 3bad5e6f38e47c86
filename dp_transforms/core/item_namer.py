"""Which items of one shard are named in which windows: the noisy sums against their thresholds.

Guarantee: with the weights, units and thresholds of a plan, what is named in all windows together is
(epsilon, delta)-DP for adding or removing one user with all its events. Condition: what the weights of each user cost
together never exceeds its purse. Source: docs/guarantee.md, "Contributions".

A cell with a sum above 0 is looked at. In an open domain a known item is looked at in every window, whether anybody
adds to it or not: were it looked at only while somebody does, the threshold of known items would betray a lone holder.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS
from dp_transforms.core.followed_items import NO_ROW, FollowedItems, follow
from dp_transforms.core.item_sums import ItemHolders, ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import NamedItems, levels_and_sizes
from dp_transforms.core.noise_table import Inversion, noise_bounds
from dp_transforms.core.public_items import PublicItemsTable
from dp_transforms.core.randomness import BlockFunction, StreamKeys, Words
from dp_transforms.plan.plan import Plan

# Items of a known domain that are published although nobody holds them, drawn without visiting the others.
#
# In a known domain an item that nobody holds is tested like every other: it is published with the probability p that
# the noise alone reaches the threshold. In a window with n items that is n independent coins. So their number is drawn
# from Binomial(n, p), and then that many different items, with equal probability for every subset: the same law, at a
# cost that grows with what is published and not with the domain (docs/guarantee.md, "Claim (empty items)").
#
# The draws do not depend on the data. An item that has holders in the window is tested by a draw of its own instead:
# `ItemHolders.merge` and `ItemSums.merge` then drop the one that was drawn here.

_ONE = 1 << UNIFORM_BITS
_WINDOWS_AT_ONCE = 1 << 16
_DIGITS = 100  # relative errors of the sums below stay under 2^-200


class EmptyItems:
    """The empty items of a run, as cells without holders or without a sum: the same whenever and wherever drawn.

    tail: the probability that the noise alone reaches the threshold, in units of 2^-128.
    """

    def __init__(self, domain: PublicItemsTable, tail: int, keys: StreamKeys) -> None:
        self._items = domain.items
        self._draws = EmptyItemDraws(len(domain), tail, keys.empty_item_uniforms())
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

    def _of_shard(
        self, first: int, end: int, shard: int, shards: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        windows, items = self._drawn(first, end)
        rows = np.flatnonzero(self._items.hashes[items, 1] % np.uint64(shards) == shard)
        return windows[rows], items[rows]

    def _draw(self, first: int, end: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        drawn = list(self._draws.by_window(end, first))
        if not drawn:
            nothing = np.zeros(0, dtype=np.int64)
            return nothing, nothing
        windows = np.repeat([window for window, _ in drawn], [len(items) for _, items in drawn])
        return windows, np.concatenate([items for _, items in drawn])


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

    def by_window(self, end: int, first: int = 0) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """The windows ``first .. end - 1`` with a subset that is not empty, each with its positions, ascending."""
        if not len(self._count):
            return  # the probability is too small for any 128-bit number
        for low in range(first, end, _WINDOWS_AT_ONCE):
            windows = np.arange(low, min(end, low + _WINDOWS_AT_ONCE))
            counts = self._count.count_not_above(self._draw(windows, np.zeros_like(windows)))
            for at in np.flatnonzero(counts):
                yield int(windows[at]), self._positions(int(windows[at]), int(counts[at]))

    def _positions(self, window: int, count: int) -> npt.NDArray[np.int64]:
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

    def _draw(self, windows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
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


Whole = npt.NDArray[np.int64]


class ItemNamer:
    """Names the items of one shard. Holds no state: windows are a function of their sums and of what was known. A draw
    is one keyed uniform for each window and item, and the holders with their weights, inverted by the noise's table.
    """

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self._plan = plan
        self._table = noise_bounds(plan.paid_contributions.noise)
        self._uniforms = keys.look_uniforms()
        self._known_threshold = plan.followed_threshold

    @property
    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[Z >= known threshold])``: an item that nobody holds passes with this probability."""
        tails = self._plan.paid_contributions.noise.upper_tail_integers()
        return tails[self._known_threshold - 1] if self._known_threshold <= len(tails) else 0

    def name_windows(self, sums: ItemSums, known: FollowedItems, first: int, end: int) -> NamedItems:
        """What is named in the windows ``first .. end - 1``, in order. It does not depend on how a run is cut.

        sums: all cells of these windows in one shard of items. known: what is known of the shard before window
        ``first``; `FollowedItems.after` then tells what is known in window ``end``.

        Raises ValueError for cells of other windows, and for empty items in an open domain.
        """
        if not 0 <= first < end <= self._plan.schedule.horizon:
            raise ValueError(f"windows {first} .. {end - 1} are not windows of the run.")
        if len(sums) and not first <= sums.windows[0] <= sums.windows[-1] < end:
            raise ValueError(f"the sums must be of the windows {first} .. {end - 1}.")
        if self._plan.domain_size:
            return self._name_in_domain(sums)
        if len(sums) and not sums.sums.min() > 0:
            raise ValueError("a cell without a sum is a public item, and the plan has none.")
        return self._name_in_open_domain(sums, known, first, end)

    def _name_in_domain(self, sums: ItemSums) -> NamedItems:
        """All items are known for ever. A cell with sum 0 is an empty item, of which is known that it passes."""
        table, threshold = self._table, self._known_threshold
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        is_empty = sums.sums == 0
        named = np.flatnonzero(is_empty | table.passes(uniforms, threshold - sums.sums))
        uniforms, is_empty = uniforms[named], is_empty[named]
        noise = np.empty(len(named), dtype=np.int64)
        noise[~is_empty] = table.sample(uniforms[~is_empty])
        noise[is_empty] = table.sample_given_pass(uniforms[is_empty], np.full(int(is_empty.sum()), threshold))
        noisy_sums = sums.sums[named] + noise
        return self._named(
            sums.windows[named], sums.items[named], noisy_sums, np.full(len(named), threshold), sums.table
        )

    def _name_in_open_domain(self, sums: ItemSums, known: FollowedItems, first: int, end: int) -> NamedItems:
        table, threshold = self._table, self._plan.threshold
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        names_anew = table.passes(uniforms, threshold - sums.sums)
        if not len(known) and not names_anew.any():
            return NamedItems.none()
        named, was_known, items = follow(
            sums,
            known,
            first,
            end,
            self._plan.followed_for,
            names_anew=names_anew,
            reaches=lambda cells: table.passes(uniforms[cells], self._known_threshold - sums.sums[cells]),
            nobody_passes=self._nobody_passes,
        )
        noisy_sums = np.empty(len(named), dtype=np.int64)
        has_sum = named.rows != NO_ROW
        rows, nobody = named.rows[has_sum], named.take(~has_sum)
        noisy_sums[has_sum] = sums.sums[rows] + table.sample(uniforms[rows])
        noisy_sums[~has_sum] = table.sample(self._of_nobody(nobody.windows, items.hashes[nobody.items]))
        thresholds = np.where(was_known, self._known_threshold, threshold)
        return self._named(named.windows, named.items, noisy_sums, thresholds, items)

    def _nobody_passes(self, windows: Whole, hashes: Words) -> npt.NDArray[np.bool_]:
        drawn = self._of_nobody(windows, hashes)
        return self._table.passes(drawn, np.full(len(windows), self._known_threshold))

    def _of_nobody(self, windows: Whole, hashes: Words) -> Words:
        """The uniforms of items to which nobody adds anything."""
        return self._uniforms(windows, hashes, np.zeros_like(hashes))

    def _named(
        self, windows: Whole, items: Whole, noisy_sums: Whole, thresholds: Whole, table: ItemTable
    ) -> NamedItems:
        """With levels and sizes, and a table of the named items alone. The columns are in the order of `NamedItems`."""
        levels, at_least_users = levels_and_sizes(noisy_sums, thresholds, self._plan, self._plan.terms_of_tests)
        return NamedItems(windows, items, levels, at_least_users, table).select(slice(None))
