"""The usual looks of a plan from a histogram of users' activity, and what such a histogram costs.

A histogram counts users by their number of pairs (window, item) in a run. Of *other* users it costs nothing here, and
protects nobody there. Of the same users it is drawn with noise, and the run gets what is left of epsilon:

Let H be that histogram, with discrete Laplace noise of epsilon_h, and let R be a run that is (epsilon_r, delta)-DP for
each value of H. Then (H, R) is (epsilon_h + epsilon_r, delta)-DP (docs/guarantee.md, "Claim (histogram)").

Noise that is sampled, and users who are told apart by 128-bit hashes, change either world by at most the distance of
`activity_delta`, which the plan pays from its delta_sampling.

**What is made of it.** The usual looks are the 5 % and 95 % quantiles of activity, counted by looks and not by users:
what is found are pairs (window, item), and a pair's users are met in proportion to their looks. By users, the many who
came once would decide, though they hold little of what there is to find. The noise of a plan is chosen for these looks;
users beside them are served too, and all are protected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dp_transforms.accounting.calibration import sampling_delta
from dp_transforms.checks import check_range, exact
from dp_transforms.mechanisms.discrete_laplace_law import (
    MAX_EPSILON,
    MIN_EPSILON,
    UNIFORM_BITS,
    sampling_total_variation,
    upper_tail,
)

DEFAULT_ACTIVITY_SHARE = 0.02
LARGEST_ACTIVITY_SHARE = 0.5
_QUANTILES = (0.05, 0.95)
# With at most this probability noise makes any empty bucket count: far from the others, or beside one that counts.
_FALSE_FAR, _FALSE_NEAR = 0.001, 0.05


def split_epsilon(epsilon: float, share: float) -> tuple[float, float]:
    """``(left, of the histogram)``, which add up to exactly epsilon. Raises ValueError.

    share: of epsilon, at most 1/2. Then left is at least epsilon / 2 (rounding is monotone), and the difference of two
    floats within a factor of 2 is exact (Sterbenz).
    """
    check_range("share", share, 1e-9, LARGEST_ACTIVITY_SHARE)
    left = max(epsilon * (1 - share), epsilon / 2)
    check_activity_epsilon(epsilon - left)
    return left, epsilon - left


def check_activity_epsilon(activity_epsilon: float) -> None:
    """Raises ValueError unless the noise of the histogram can be sampled."""
    if not MIN_EPSILON <= activity_epsilon <= MAX_EPSILON:
        raise ValueError(
            f"activity_epsilon must lie in [{MIN_EPSILON:g}, {MAX_EPSILON:g}], got {activity_epsilon:g}. Give the "
            "histogram another share of epsilon."
        )


def activity_delta(epsilon: float, activity_epsilon: float, max_users: int) -> float:
    """What sampling and hashes of the histogram add to delta; 0 without one.

    The histogram and the run together are within d of the ideal ones in either world. In the ideal histogram all draws
    but the one of the user's bucket are as they are sampled.
    """
    if not activity_epsilon:
        return 0.0
    check_activity_epsilon(activity_epsilon)
    distance = sampling_total_variation(activity_epsilon) + max_users * 2.0**-UNIFORM_BITS
    return sampling_delta(epsilon + activity_epsilon, distance, 0, 0) * (1 + 1e-12)


def guarantee_with_activity(epsilon: float, delta: float, activity_epsilon: float) -> str:
    """What a plan and its run promise together, as a sentence that follows the one about the run; "" without noise."""
    if not activity_epsilon:
        return ""
    return (
        " The plan was made from a noisy histogram of the activity of the same users, with epsilon"
        f" {exact(activity_epsilon)}: the plan and everything published are together"
        f" ({exact(epsilon + activity_epsilon)}, {exact(delta)})-differentially private."
    )


def bucket_edges(most_looks: int) -> tuple[int, ...]:
    """The least number of pairs of each bucket: 1, 2, 4, ... up to most_looks; the last bucket has no end."""
    return tuple(1 << exponent for exponent in range(most_looks.bit_length()))


def usual_looks_of(users: Sequence[int], most_looks: int, activity_epsilon: float = 0.0) -> tuple[int, int] | None:
    """Between how many looks the users have who have most of the looks; None where the histogram does not tell.

    users: in each bucket of `bucket_edges`, with noise of activity_epsilon; 0 for none. A noisy count that noise alone
    may have made counts as 0. Beside a bucket that counts a smaller one is enough: a false one there moves an end by a
    factor of 2, a false one far away would make a plan for users whom the log does not have.
    """
    edges = bucket_edges(most_looks)
    ends = [*(edge - 1 for edge in edges[1:]), most_looks]
    looks = [
        count * math.sqrt(edge * end) if counts else 0.0
        for count, counts, edge, end in zip(users, _that_count(users, activity_epsilon), edges, ends, strict=True)
    ]
    whole, so_far = math.fsum(looks), 0.0
    if not whole:
        return None
    reached: list[int] = []
    for number, of_bucket in enumerate(looks):
        so_far += of_bucket
        reached += [number] * sum(so_far >= share * whole for share in _QUANTILES[len(reached) :])
    return edges[reached[0]], ends[reached[-1]]


def _that_count(users: Sequence[int], activity_epsilon: float) -> list[bool]:
    """Of each bucket whether it counts."""
    if not activity_epsilon:
        return [count > 0 for count in users]
    far, near = (_noise_reaches(activity_epsilon, false / len(users)) for false in (_FALSE_FAR, _FALSE_NEAR))
    counts = [count >= far for count in users]
    for number in [*range(len(users)), *reversed(range(len(users)))]:  # outwards from those, upwards and downwards
        counts[number] |= users[number] >= near and any(counts[max(0, number - 1) : number + 2])
    return counts


def _noise_reaches(epsilon: float, probability: float) -> int:
    """The smallest m with ``Pr[Z >= m] <= probability``."""
    margin = max(1, math.ceil(math.log(1 / probability) / epsilon))
    while margin > 1 and upper_tail(epsilon, margin - 1) <= probability:
        margin -= 1
    return margin
