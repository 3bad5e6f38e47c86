"""What a noisy count leads to: the rule of each mode of the pipeline."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np

from dp_transforms.checks import LARGEST_WHOLE, check_whole
from dp_transforms.mechanisms.priced_weights import stated_users


class Release(NamedTuple):
    """What is published of one query. zone: None or the zone's name. noisy_count: None if it must not be published.

    charged: whether the result is a hit, which every active holder that pays for hits pays.
    level, at_least_users: as in `HeavyHitter`, None but in mode `looks`.
    """

    zone: str | None
    noisy_count: int | None
    charged: bool
    level: int | None = None
    at_least_users: int | None = None

    @property
    def published(self) -> tuple[str | None, int | None, int | None, int | None]:
        """Zone, noisy count, level and size, as in `HeavyHitter`."""
        return self.zone, self.noisy_count, self.level, self.at_least_users


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
class HitOrAbove:
    """Mode ``looks`` with hits: publishes one of two levels of a noisy sum of weights; level 1 is the hit.

    threshold: from here on the item is named. spacing: from ``threshold + spacing`` on it has level 2, free of charge;
    there is no higher level. likely_noise: as in `Plan`. largest_weight: no user adds more.

    Guarantee: that of the prices of the plan, whose three outcomes these are (docs/guarantee.md, "Looks and hits in
    one purse"). Condition: each look is paid for beforehand, and users on the hits list are excluded after the hits
    that they have paid for. Unit: one user.
    """

    threshold: int
    spacing: int
    likely_noise: int
    largest_weight: int

    def __post_init__(self) -> None:
        check_whole("threshold", self.threshold, 1)
        check_whole("spacing", self.spacing, 1)
        check_whole("largest_weight", self.largest_weight, 1)

    def __call__(self, noisy_count: int) -> Release | None:
        if noisy_count < self.threshold:
            return None
        level = 1 if noisy_count < self.threshold + self.spacing else 2
        boundary = np.array(self.threshold + (level - 1) * self.spacing)
        users = int(stated_users(boundary, self.likely_noise, self.largest_weight))
        return Release(zone=None, noisy_count=None, charged=level == 1, level=level, at_least_users=users)


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
