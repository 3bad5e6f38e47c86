"""A histogram of users with noise: each user is in at most one bucket.

Guarantee: the result is epsilon-DP for adding or removing one user, up to the total variation that
`discrete_laplace_law.sampling_total_variation` bounds, once. Unit: one histogram. A user is in one bucket, so one of
the counts changes by 1, and every outcome becomes at most e^epsilon times likelier or less likely (docs/guarantee.md,
section 1). The other counts, and the draws for them, are the same with and without the user. The buckets are declared,
empty ones included: a bucket that only appears with a user in it would tell of that user.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.discrete_laplace import discrete_laplace
from dp_transforms.mechanisms.randomness import Words


def noisy_histogram(counts: npt.NDArray[np.int64], epsilon: float, uniforms: Words) -> npt.NDArray[np.int64]:
    """The counts, each with discrete Laplace noise of scale ``1 / epsilon``. They may become negative.

    counts: int64[n], users in each bucket. uniforms: uint64[n, 2], fresh: never used before or afterwards.
    """
    if uniforms.shape != (len(counts), 2):
        raise ValueError(f"uniforms must be one pair of words for each of {len(counts)} counts, got {uniforms.shape}.")
    return counts + discrete_laplace(epsilon).sample(uniforms)
