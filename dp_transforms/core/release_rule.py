"""What a noisy count leads to: the rule of each mode of hits."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

from dp_transforms.checks import LARGEST_WHOLE, check_whole


class Release(NamedTuple):
    """What is published of one query. zone: None or the zone's name. noisy_count: None if it must not be published.

    charged: whether the result is a hit, which every active holder pays.
    """

    zone: str | None
    noisy_count: int | None
    charged: bool


class ReleaseRule(Protocol):
    """Post-processing of one noisy count; ``None`` means that nothing is published ("bot")."""

    def __call__(self, noisy_count: int) -> Release | None: ...


@dataclasses.dataclass(frozen=True)
class CountsAboveThreshold:
    """Mode ``hits-with-counts``: publishes the noisy count when it reaches the threshold; every holder is charged.

    Guarantee: with discrete Laplace noise of scale 1/epsilon each query is epsilon-DP, and its outcomes other than
    "bot" are a q-target, ``q = 1/(e^epsilon + 1)`` (NotPrior, [CL23] Lemma 2.3). Condition: users are excluded once
    they have paid their hits ([CL23] Algorithm 5). Unit: one user.
    """

    threshold: int

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, -LARGEST_WHOLE)

    def __call__(self, noisy_count: int) -> Release | None:
        if noisy_count < self.threshold:
            return None
        return Release(zone=None, noisy_count=noisy_count, charged=True)


@dataclasses.dataclass(frozen=True)
class NamesAboveThreshold:
    """Mode ``kms21``: names an item whose noisy count reaches the threshold; every holder is charged.

    Guarantee and condition: those of ThresholdMonitorEvolving ([KMS21] Algorithm 5) with its two noises, users being
    excluded once they have paid their hits; the proof allows no count to be published. Unit: one user.
    """

    threshold: int

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, -LARGEST_WHOLE)

    def __call__(self, noisy_count: int) -> Release | None:
        return None if noisy_count < self.threshold else Release(zone=None, noisy_count=None, charged=True)


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
