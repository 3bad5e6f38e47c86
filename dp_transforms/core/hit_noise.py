"""Where users pay for hits: the noise of one count, in two stages, and what a noisy count leads to. Both depend on the
plan alone; so does what hits cost.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.discrete_laplace_law import capped_sum_tail_integer, upper_tail_integers
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.noise_table import WideDiscreteLaplace, discrete_laplace, wide_discrete_laplace
from dp_transforms.core.randomness import StreamKeys, Words, sum_modulo_2_128
from dp_transforms.plan.plan import Plan

Whole = npt.NDArray[np.int64]
Draw = Callable[[Words, Words, Whole], Whole]
"""The noise of n items of one window, int64[n]: of their hashes, uint64[n, 2]; of the digests of their active holders,
uint64[n, 2]; and of the numbers of all their holders, as in the first stage, int64[n]."""


# ---------------------------------------------------------------------------------------------------------------------
# The noise of a count
# ---------------------------------------------------------------------------------------------------------------------


class SingleNoise:
    """One discrete Laplace variable Z of scale ``1 / epsilon_per_query``.

    It decides everything about an item in a window, so it can be drawn in two stages (docs/guarantee.md, "Draws in two
    stages"): the bit "the full count plus Z reaches the threshold", and later Z given that bit.
    """

    def __init__(self, epsilon_per_query: float, threshold: int, keys: StreamKeys) -> None:
        self._epsilon_per_query = epsilon_per_query
        self._noise = discrete_laplace(epsilon_per_query)
        self._threshold = threshold
        self._keys = keys

    def may_pass(self, cells: ItemHolders) -> npt.NDArray[np.bool_]:
        """First stage: False only for cells that are not published whichever holders are active. bool[c]. A cell
        without holders is a public item, whose noise is known to reach the threshold by itself."""
        counts = cells.counts
        digests = digests_of_groups(self._keys.widen_users(cells.holders), cells.splits)
        hashes = cells.table.hashes[cells.items]
        passed: npt.NDArray[np.bool_] = counts == 0
        for window, part in cells.by_window():
            uniforms = self._keys.pass_uniforms(window).of_pairs(hashes[part], digests[part])
            passed[part] |= self._noise.passes(uniforms, self._threshold - counts[part])
        return passed

    def draws_of(self, window: int) -> Draw:
        """Second stage: the noise of items that may pass, in one window."""
        function = self._keys.noise_uniforms(window)

        def draw(hashes: Words, digests: Words, counts: Whole) -> Whole:
            return self._noise.sample_given_pass(function.of_pairs(hashes, digests), self._threshold - counts)

        return draw

    def empty_item_tail(self) -> int:
        """``floor(2^128 Pr[noise >= threshold])``: an item that nobody holds is published with this probability."""
        tails = upper_tail_integers(self._epsilon_per_query)
        return tails[self._threshold - 1] if self._threshold <= len(tails) else 0


class CappedSumNoise:
    """``W + min(V, cap)``, two independent discrete Laplace variables, as printed: [KMS21] Algorithm 5.

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

        def draw(hashes: Words, digests: Words, counts: Whole) -> Whole:
            uniforms = np.stack([function.of_pairs(hashes, digests) for function in functions], axis=1)
            wide, narrow = self._wide.sample(uniforms[:, :each]), self._narrow.sample(uniforms[:, each:])
            # An item that nobody holds is known to pass; the value of its noise is never published.
            return np.where(counts > 0, wide + np.minimum(narrow, self._cap), self._threshold)

        return draw

    def empty_item_tail(self) -> int:
        return self._tail(self._threshold)


QueryNoise = SingleNoise | CappedSumNoise


def query_noise(plan: Plan, keys: StreamKeys) -> QueryNoise:
    """What is added to the count of an item in a window."""
    hits = plan.charged_hits
    if hits.wide is None:
        return SingleNoise(hits.epsilon_per_query, plan.threshold, keys)
    wide_epsilon, narrow_epsilon, cap = hits.wide.epsilon_per_query, hits.epsilon_per_query, hits.wide.cap
    return CappedSumNoise(plan.threshold, keys, wide_epsilon=wide_epsilon, narrow_epsilon=narrow_epsilon, cap=cap)


def digests_of_groups(members: Words, splits: Whole) -> Words:
    """The digest of each group of widened users. members: uint64[n, 2]. splits: int64[k + 1]. Returns uint64[k, 2]."""
    digests = np.zeros((len(splits) - 1, 2), dtype=np.uint64)
    starts, is_held = splits[:-1], splits[1:] > splits[:-1]
    if is_held.any():
        digests[is_held] = sum_modulo_2_128(members, starts[is_held])
    return digests


# ---------------------------------------------------------------------------------------------------------------------
# What a noisy count leads to
# ---------------------------------------------------------------------------------------------------------------------


class Release(NamedTuple):
    """What is published of one query. zone: None or the zone's name. noisy_count: None if it must not be published.

    charged: whether the result is a hit, which every active holder pays.
    """

    zone: str | None
    noisy_count: int | None
    charged: bool


@dataclasses.dataclass(frozen=True)
class ReleaseRule:
    """What one noisy count leads to: a `Release`, or None ("bot") below the threshold.

    zone_width: None: an item that reaches the threshold is published, with_counts or without, and each holder is
    charged. W: it is named, and charged only in the zone of W integers from the threshold on; above that it is named at
    no charge, and its noisy count is never published (the zone alone is in the target).

    Guarantee: with discrete Laplace noise of scale 1/epsilon each query is epsilon-DP. Without a zone its outcomes
    other than "bot" are a q-target, ``q = 1/(e^epsilon + 1)`` (NotPrior, [CL23] Lemma 2.3); the zone is one with
    ``q = (1 - e^{-W epsilon})/(e^epsilon + 1)``. With the two noises of ThresholdMonitorEvolving ([KMS21] Algorithm 5)
    its theorem, which allows no count to be published. Condition: users are excluded once they have paid their hits
    ([CL23] Algorithm 5). Unit: one user.
    """

    threshold: int
    zone_width: int | None = None
    with_counts: bool = True

    @classmethod
    def of_plan(cls, plan: Plan) -> ReleaseRule:
        return cls(plan.threshold, plan.charged_hits.zone_width or None, plan.counts)

    def __call__(self, noisy_count: int) -> Release | None:
        if noisy_count < self.threshold:
            return None
        if self.zone_width is None:
            return Release(zone=None, noisy_count=noisy_count if self.with_counts else None, charged=True)
        if noisy_count < self.threshold + self.zone_width:
            return Release(zone="between", noisy_count=noisy_count, charged=True)
        return Release(zone="above", noisy_count=None, charged=False)


def epsilon_spent(plan: Plan, hit_bound: int) -> float:
    """The running estimate of one key, if no user can have paid more hits than this under it.

    A user of this key may have paid all its hits under its other keys. Results without a hit leak a little too and
    belong to the next hit: the estimate is that of one hit more (docs/guarantee.md, "Claim (running figure)").
    """
    elsewhere = (plan.most_keys - 1) * plan.hits_per_user
    return plan.epsilon_after_hits[elsewhere + min(hit_bound, plan.hits_per_user - 1)]
