"""Sparse vector with individual charging, release mode ``counts`` ([CL23] Algorithm 5)."""

from __future__ import annotations

import dataclasses

from dp_transforms.mechanisms.release_rule import Release


@dataclasses.dataclass(frozen=True)
class SparseVector:
    """Publishes the noisy count when it reaches the threshold, and charges every active holder.

    Guarantee: with discrete Laplace noise of scale 1/epsilon each query is epsilon-DP, and its outcomes other than
    "bot" are a q-target, ``q = 1/(e^epsilon + 1)`` (NotPrior, [CL23] Lemma 2.5). Condition: users are excluded once
    they have paid their hits. Unit: one user.
    """

    threshold: int

    def __call__(self, noisy_count: int) -> Release | None:
        if noisy_count < self.threshold:
            return None
        return Release(zone=None, noisy_count=noisy_count, charged=True)
