"""Which items of one shard are named in which windows: the noisy sums against their thresholds.

Guarantee: with the weights, units and thresholds of a plan, what is named in all windows together, in all rounds, is
(epsilon, delta)-DP for adding or removing one user with all its events. Condition: what the weights of each user cost
together never exceeds its user budget. Source: docs/guarantee.md, "Contributions" and "Rounds".

A new item is tested where somebody adds to it. All else that has a lower threshold is tested whether anybody adds to it
or not: a followed item in every window, and in a later round each candidate. Were it tested only while somebody does,
the lower threshold would betray a lone holder.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np
import numpy.typing as npt

from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems, levels_and_sizes
from dp_transforms.core.noise_table import noise_bounds
from dp_transforms.core.randomness import StreamKeys, Words
from dp_transforms.core.round_candidates import OPEN, Candidates
from dp_transforms.core.tables import window_item_keys
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.rounds import RoundTerms, terms_of_round, terms_of_sizing

Whole = npt.NDArray[np.int64]
_CANDIDATES_AT_ONCE = 1 << 20
_NOTHING = np.zeros(0, dtype=np.int64)


class ItemNamer:
    """Names the items of one shard in one round. Holds no state: names are a function of the sums and of what was
    named before. A draw is one keyed uniform for each window and item, and the holders with their weights, inverted by
    the table of the round's noise."""

    def __init__(self, plan: Plan, keys: StreamKeys, number: int = 0) -> None:
        """number: of the round."""
        self._plan = plan
        self._keys = keys
        self._number = number
        self._table = noise_bounds(plan.prices_of_rounds[number].noise)
        self._uniforms = keys.round_uniforms(number) if number else keys.window_uniforms()
        self._followed_threshold = plan.followed_threshold
        self._terms_of_round = functools.cache(
            functools.partial(terms_of_round, plan)
        )  # the same for all shards of a round

    @property
    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[Z >= followed threshold])``: an item that nobody holds passes with this probability."""
        tails = self._plan.paid_contributions.noise.upper_tail_integers()
        return tails[self._followed_threshold - 1] if self._followed_threshold <= len(tails) else 0

    # In one round

    def name_windows(self, sums: ItemSums, followed: FollowedItems, first: int, end: int) -> NamedItems:
        """What is named of open items in the windows ``first .. end - 1``, in order. It does not depend on how a run is
        cut.

        Window after window: what is named in one is followed in the next ones, and tested there whether anybody adds to
        it or not. What is not followed, and never reaches the threshold of new items, is left aside at once.

        sums: all cells of these windows in one shard of items. followed: the items of the shard that are followed in
        window ``first``; `FollowedItems.after` then tells which are in window ``end``.

        Raises ValueError for empty items, which are public.
        """
        return self._test_windows(sums, followed, first, end)[0]

    def test_windows(self, sums: ItemSums, followed: FollowedItems, first: int, end: int) -> tuple[NamedItems, Whole]:
        """The first test of a stream: what it names, as `name_windows`, and the rows of ``sums`` that are neither named
        nor left out. What stays a whole level below its threshold is left out: the second test would hardly name it."""
        return self._test_windows(sums, followed, first, end, self._plan.paid_contributions.spacing)

    def _test_windows(
        self, sums: ItemSums, followed: FollowedItems, first: int, end: int, spacing: int = 0
    ) -> tuple[NamedItems, Whole]:
        if len(sums) and not sums.sums.min() > 0:
            raise ValueError("a cell without a sum is of a public item, and must be named by `name_public`.")
        threshold, forget_after = self._plan.threshold, self._plan.followed_for
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        is_kept = self._table.passes(uniforms, threshold - spacing - sums.sums)
        items, (of_sums, of_followed) = ItemTable.merge([sums.table, followed.table])
        may_be_named = np.zeros(len(items), dtype=np.bool_)
        may_be_named[of_sums[sums.items[is_kept]]] = may_be_named[of_followed] = True
        if not may_be_named.any():
            return NamedItems.none(), _NOTHING
        rows, place = np.flatnonzero(may_be_named[of_sums[sums.items]]), np.cumsum(may_be_named) - 1
        items, of_rows = items.take(np.flatnonzero(may_be_named)), place[of_sums[sums.items[rows]]]
        last_named = np.full(len(items), -1 - forget_after)
        last_named[place[of_followed]] = followed.last_named
        bounds = np.searchsorted(sums.windows[rows], np.arange(first, end + 1))
        found: list[tuple[Whole, Whole, Whole, Whole, Words]] = []
        undecided = [_NOTHING]
        for window, (low, high) in enumerate(itertools.pairwise(bounds.tolist()), first):
            is_followed, held = last_named >= window - forget_after, of_rows[low:high]
            is_empty = is_followed.copy()
            is_empty[held] = False
            empty = np.flatnonzero(is_empty)
            hashes = items.hashes.take(empty, axis=0)
            of_nobody = self._uniforms(np.full(len(empty), window), hashes, np.zeros_like(hashes))
            tested, drawn = np.append(held, empty), np.concatenate([uniforms[rows[low:high]], of_nobody])
            values = np.append(sums.sums[rows[low:high]], np.zeros_like(empty))
            thresholds = np.where(is_followed[tested], self._followed_threshold, threshold)
            is_named = self._table.passes(drawn, thresholds - values)
            if spacing:
                is_left = ~is_named & self._table.passes(drawn, thresholds - spacing - values)
                undecided.append(rows[low:high][is_left[: high - low]])
            named = np.flatnonzero(is_named)
            named = named[np.argsort(tested[named])]
            last_named[tested[named]] = window
            windows = np.full(len(named), window)
            found.append((windows, tested[named], values[named], thresholds[named], drawn[named]))
        windows, at, values, thresholds, drawn = map(np.concatenate, zip(*found, strict=True))
        named_items = self._named(windows, at, values + self._table.sample(drawn), thresholds, items)
        return named_items, np.concatenate(undecided)

    def name_public(self, sums: ItemSums) -> NamedItems:
        """The same of public items, which are followed for ever. sums: also of those that nobody holds and that are
        drawn: a cell with sum 0 is an empty item, of which is known that it passes."""
        table, threshold = self._table, self._followed_threshold
        uniforms = self._uniforms(sums.windows, sums.hashes, sums.digests)
        is_empty = sums.sums == 0
        named = np.flatnonzero(is_empty | table.passes(uniforms, threshold - sums.sums))
        uniforms, is_empty = uniforms[named], is_empty[named]
        noisy_sums = sums.sums[named]
        noisy_sums[~is_empty] += table.sample(uniforms[~is_empty])
        noisy_sums[is_empty] += table.sample_given_pass(uniforms[is_empty], np.full(int(is_empty.sum()), threshold))
        return self._named(sums.windows[named], sums.items[named], noisy_sums, threshold, sums.table)

    # In rounds

    def name_in_blocks(self, sums: ItemSums) -> NamedItems:
        """Round 0. The windows of the sums, and of the names, are blocks: their first windows."""
        terms = terms_of_round(self._plan, 0, 0, self._plan.schedule.horizon)
        uniforms = self._keys.block_uniforms()(sums.windows, sums.hashes, sums.digests)
        named = np.flatnonzero(self._table.passes(uniforms, terms.threshold - sums.sums) & (sums.sums > 0))
        noisy_sums = sums.sums[named] + self._table.sample(uniforms[named])
        return self._named(sums.windows[named], sums.items[named], noisy_sums, terms.threshold, sums.table, terms)

    def name_public_in_blocks(self, drawn: NamedItems, sums: ItemSums, threshold: int) -> NamedItems:
        """The same of public items, with a threshold of their own: which of these, held or not, are named; without
        levels or sizes, which would need more. sums: of no others."""
        values, digests = _placed(drawn, sums)
        uniforms = self._keys.block_uniforms()(drawn.windows, drawn.hashes, digests)
        return drawn.select(self._table.passes(uniforms, threshold - values))

    def name_in_windows(self, sums: ItemSums, candidates: Candidates, shard: int, shards: int) -> NamedItems:
        """A later round: what it names or leaves out. The round before the last one leaves out what stays a whole level
        below its threshold: it would hardly be named, and users keep what it would cost.

        sums: of all candidates of the shard that have one. candidates: of all shards.

        Raises ValueError for a sum of what is no candidate.
        """
        terms = self._terms_of_round(self._number, candidates.drawn, candidates.windows)
        of_shard, uniforms_of = candidates.of_shard(shard, shards), self._keys.round_uniforms(self._number)
        at = of_shard.places_of(sums.table, sums.windows, sums.items)
        if (of_shard.statuses_at(at) != OPEN).any():
            raise ValueError("there is a sum of what is no candidate.")
        by_place, found, left_out = np.argsort(at), [(_NOTHING, _NOTHING)], [_NOTHING]
        for places in of_shard.open_places(_CANDIDATES_AT_ONCE):
            held = by_place[slice(*np.searchsorted(at, [places[0], places[-1] + 1], sorter=by_place))]
            rows = np.searchsorted(places, at[held])
            values, digests = np.zeros(len(places), dtype=np.int64), np.zeros((len(places), 2), dtype=np.uint64)
            values[rows], digests[rows] = sums.sums[held], sums.digests[held]
            windows, items = of_shard.cells_of(places)
            uniforms = uniforms_of(windows, of_shard.table.hashes.take(items, axis=0), digests)
            named = np.flatnonzero(self._table.passes(uniforms, terms.threshold - values))
            found.append((places[named], values[named] + self._table.sample(uniforms[named])))
            if terms.least is not None:
                left_out.append(places[~self._table.passes(uniforms, terms.least - values)])
        places, noisy_sums = map(np.concatenate, zip(*found, strict=True))
        windows, items = of_shard.cells_of(places)
        order = np.lexsort((items, windows))
        windows, items, noisy_sums = windows[order], items[order], noisy_sums[order]
        named_now = self._named(windows, items, noisy_sums, terms.threshold, of_shard.table, terms)
        return NamedItems.merge([named_now, of_shard.left_out(np.concatenate(left_out))]).select(slice(None))

    def size(self, named: NamedItems, sums: ItemSums, drawn: int, windows: int) -> tuple[NamedItems, ItemSums]:
        """Sizing, in the last round: the same names, each with the higher one of two levels and sizes, and the other
        sums. Which contributions are named does not depend on it.

        Earlier rounds named with small weights, and a small weight shows little of how many users hold an item. What
        users have left buys a better size: all that is named is drawn for once more, held or not, with new noise.

        named: by earlier rounds, in this shard. sums: all of the last round. drawn: for how many names of all shards
        it draws in so many windows.
        """
        if not len(named):
            return named, sums
        is_named = named.contain(sums)
        values, digests = _placed(named, sums.select(is_named))
        uniforms_of = self._keys.round_uniforms(self._number)
        noisy_sums = values + self._table.sample(uniforms_of(named.windows, named.hashes, digests))
        terms = terms_of_sizing(self._plan, drawn, windows)
        found = levels_and_sizes(noisy_sums, terms.threshold, self._plan, terms)
        levels, users = (np.where(noisy_sums < terms.threshold, 0, each) for each in found)
        levels, users = np.maximum(named.levels, levels), np.maximum(named.at_least_users, users)
        return dataclasses.replace(named, levels=levels, at_least_users=users), sums.select(~is_named)

    def _named(
        self,
        windows: Whole,
        items: Whole,
        noisy_sums: Whole,
        thresholds: Whole | int,
        table: ItemTable,
        terms: RoundTerms | None = None,
    ) -> NamedItems:
        """With levels and sizes, and a table of the named items alone. The columns are in the order of `NamedItems`."""
        terms = terms or self._plan.terms_of_tests[self._number]
        levels, at_least_users = levels_and_sizes(noisy_sums, thresholds, self._plan, terms)
        return NamedItems(windows, items, levels, at_least_users, table).select(slice(None))


def _placed(named: NamedItems, sums: ItemSums) -> tuple[Whole, Words]:
    """The sum and the digest of each name, 0 for none."""
    (cells, asked), _ = window_item_keys([named, sums])
    places = np.searchsorted(cells, asked)
    values, digests = np.zeros(len(named), dtype=np.int64), np.zeros((len(named), 2), dtype=np.uint64)
    values[places], digests[places] = sums.sums, sums.digests
    return values, digests
