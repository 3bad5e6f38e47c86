"""BetweenThresholds, release mode ``labels`` ([CL23] section 2.6 and appendix G)."""

from __future__ import annotations

import dataclasses

from dp_transforms.checks import LARGEST_WHOLE, check_whole
from dp_transforms.mechanisms.release_rule import Release


@dataclasses.dataclass(frozen=True)
class BetweenThresholds:
    """Names an item whose noisy count reaches the threshold; charges only when it lies in the zone just above it.

    threshold: lower edge t_l of the zone. zone_width: its number W of integers; from ``threshold + W`` on an item is
    ``above``: named at no charge, and its noisy count is never published (the zone alone is in the target).

    Guarantee: with discrete Laplace noise of scale 1/epsilon each query is epsilon-DP, and the zone is a q-target,
    ``q = (1 - e^{-W epsilon})/(e^epsilon + 1)``. Condition: users are excluded once they have paid their hits. Unit:
    one user.
    """

    threshold: int
    zone_width: int

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, -LARGEST_WHOLE)
        check_whole("zone_width", self.zone_width, 1)

    def __call__(self, noisy_count: int) -> Release | None:
        if noisy_count < self.threshold:
            return None
        if noisy_count < self.threshold + self.zone_width:
            return Release(zone="between", noisy_count=noisy_count, charged=True)
        return Release(zone="above", noisy_count=None, charged=False)
