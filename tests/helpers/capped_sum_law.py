"""The exact law of one query of a plan of mode `kms21`, as `dp_transforms.audit.hits` has that of the others."""

from __future__ import annotations

import dataclasses
import math

from dp_transforms.accounting.discrete_laplace_law import UNIFORM_BITS, capped_sum_tail_integer
from dp_transforms.audit.hits import Result

_ONE = 1 << UNIFORM_BITS


@dataclasses.dataclass(frozen=True, kw_only=True)
class CappedSumLaw:
    """Mode ``kms21``: an item whose ``count + W + min(V, cap)`` reaches the threshold is published and charged.

    W and V are discrete Laplace of scale ``1 / wide_epsilon`` and ``1 / narrow_epsilon`` ([KMS21] Algorithm 3). Only
    the name is published, so there are two results, and no values.
    """

    wide_epsilon: float
    narrow_epsilon: float
    cap: int

    def results(self, distance: int) -> tuple[Result, ...]:
        # In units of 2^-128: the two worlds differ in the seventh digit, and their ratios must not lose it.
        with_user, without_user = self._tail(-distance - 1), self._tail(-distance)
        gained = with_user - without_user
        silent = _ONE - with_user
        return (
            Result(with_user / _ONE, without_user / _ONE, math.log1p(gained / without_user), 1),
            Result(silent / _ONE, (_ONE - without_user) / _ONE, -math.log1p(gained / silent), 0),
        )

    def _tail(self, margin: int) -> int:
        return capped_sum_tail_integer(
            margin, wide_epsilon=self.wide_epsilon, narrow_epsilon=self.narrow_epsilon, cap=self.cap
        )

    def alone(self, threshold: int) -> float:
        return self._tail(threshold - 1) / _ONE
