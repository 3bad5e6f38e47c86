"""The noise of one count in each mode of hits: which cells are tested at all, and what is drawn for them. And what else
the sequential stage needs of a plan: its rule, its hits, what they cost.
"""

from __future__ import annotations

import functools
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import capped_sum_tail_integer, upper_tail_integers
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.noise_table import (
    WideDiscreteLaplace,
    discrete_laplace,
    wide_discrete_laplace,
)
from dp_transforms.core.randomness import StreamKeys, Words, sum_modulo_2_128
from dp_transforms.core.release_rule import (
    BetweenThresholds,
    CountsAboveThreshold,
    NamesAboveThreshold,
    ReleaseRule,
)
from dp_transforms.plan.plan import Plan


class Draw(Protocol):
    """The noise of items of one window."""

    def __call__(self, hashes: Words, digests: Words, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """hashes: uint64[n, 2], of items. digests: uint64[n, 2], of their active holders. counts: int64[n], of all
        their holders, as in the first stage. Returns int64[n]."""
        ...


class QueryNoise(Protocol):
    """What a mode adds to a count, as a function of window, item and holders.

    A cell without holders is an item of a known domain. Its noise is known to reach the threshold by itself.
    """

    def may_pass(self, cells: ItemHolders) -> npt.NDArray[np.bool_]:
        """First stage: False only for cells that are not published whichever holders are active. bool[c]."""
        ...

    def draws_of(self, window: int) -> Draw:
        """Second stage: the noise of items that may pass, in one window."""
        ...

    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[noise >= threshold])``: an item that nobody holds is published with this probability."""
        ...


class SingleNoise:
    """One discrete Laplace variable Z of scale ``1 / epsilon_per_query``: modes ``hits`` and ``counts``.

    It decides everything about an item in a window, so it can be drawn in two stages (docs/guarantee.md, "Draws in two
    stages"): the bit "the full count plus Z reaches the threshold", and later Z given that bit.
    """

    def __init__(self, epsilon_per_query: float, threshold: int, keys: StreamKeys) -> None:
        self._epsilon_per_query = epsilon_per_query
        self._noise = discrete_laplace(epsilon_per_query)
        self._threshold = threshold
        self._keys = keys

    def may_pass(self, cells: ItemHolders) -> npt.NDArray[np.bool_]:
        counts = cells.counts
        digests = digests_of_groups(self._keys.widen_users(cells.holders), cells.splits)
        hashes = cells.table.hashes[cells.items]
        passed: npt.NDArray[np.bool_] = counts == 0
        for window, part in cells.by_window():
            uniforms = self._keys.pass_uniforms(window).of_pairs(hashes[part], digests[part])
            passed[part] |= self._noise.passes(uniforms, self._threshold - counts[part])
        return passed

    def draws_of(self, window: int) -> Draw:
        function = self._keys.noise_uniforms(window)

        def draw(hashes: Words, digests: Words, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            return self._noise.sample_given_pass(function.of_pairs(hashes, digests), self._threshold - counts)

        return draw

    def empty_item_tail(self) -> int:
        tails = upper_tail_integers(self._epsilon_per_query)
        return tails[self._threshold - 1] if self._threshold <= len(tails) else 0


class CappedSumNoise:
    """``W + min(V, cap)``, two independent discrete Laplace variables: mode ``kms21`` ([KMS21] Algorithm 5).

    Drawn in one stage, for the active holders: every item that somebody holds must be tested.
    """

    def __init__(
        self, threshold: int, keys: StreamKeys, *, wide_epsilon: float, narrow_epsilon: float, cap: int
    ) -> None:
        self._tail = functools.partial(
            capped_sum_tail_integer, wide_epsilon=wide_epsilon, narrow_epsilon=narrow_epsilon, cap=cap
        )
        self._wide = wide_discrete_laplace(wide_epsilon)
        self._narrow = wide_discrete_laplace(narrow_epsilon)
        self._cap = cap
        self._threshold = threshold
        self._keys = keys

    def may_pass(self, cells: ItemHolders) -> npt.NDArray[np.bool_]:
        return np.ones(len(cells), dtype=np.bool_)

    def draws_of(self, window: int) -> Draw:
        each = WideDiscreteLaplace.UNIFORMS
        functions = [self._keys.noise_pair_uniforms(window, number) for number in range(2 * each)]

        def draw(hashes: Words, digests: Words, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
            uniforms = np.stack([function.of_pairs(hashes, digests) for function in functions], axis=1)
            wide, narrow = self._wide.sample(uniforms[:, :each]), self._narrow.sample(uniforms[:, each:])
            # An item that nobody holds is known to pass; the value of its noise is never published.
            return np.where(counts > 0, wide + np.minimum(narrow, self._cap), self._threshold)

        return draw

    def empty_item_tail(self) -> int:
        return self._tail(self._threshold)


def digests_of_groups(members: Words, splits: npt.NDArray[np.int64]) -> Words:
    """The digest of each group of widened users. members: uint64[n, 2]. splits: int64[k + 1]. Returns uint64[k, 2]."""
    digests = np.zeros((len(splits) - 1, 2), dtype=np.uint64)
    starts, is_held = splits[:-1], splits[1:] > splits[:-1]
    if is_held.any():
        digests[is_held] = sum_modulo_2_128(members, starts[is_held])
    return digests


def query_noise(plan: Plan, keys: StreamKeys) -> QueryNoise:
    """What is added to the count of an item in a window."""
    hits = plan.charged_hits
    if hits.wide is None:
        return SingleNoise(hits.epsilon_per_query, plan.threshold, keys)
    return CappedSumNoise(
        plan.threshold,
        keys,
        wide_epsilon=hits.wide.epsilon_per_query,
        narrow_epsilon=hits.epsilon_per_query,
        cap=hits.wide.cap,
    )


def release_rule(plan: Plan) -> ReleaseRule:
    """What is published of a noisy count, and whether it is a hit."""
    if plan.charged_hits.mode == "hits":
        return BetweenThresholds(plan.threshold, plan.charged_hits.zone_width)
    return (CountsAboveThreshold if plan.counts else NamesAboveThreshold)(plan.threshold)


def most_hits(plan: Plan, charged: int) -> int:
    """So many of a window's charged results can be of one user."""
    return min(plan.charged_hits.max_items_per_user, charged)


def epsilon_spent(plan: Plan, hit_bound: int) -> float:
    """The running estimate of one key, if no user can have paid more hits than this under it.

    A user of this key may have paid all its hits under its other keys. Results without a hit leak a little too and
    belong to the next hit: the estimate is that of one hit more (docs/guarantee.md, "Claim (running figure)").
    """
    elsewhere = (plan.most_keys - 1) * plan.hits_per_user
    return plan.epsilon_after_hits[elsewhere + min(hit_bound, plan.hits_per_user - 1)]
