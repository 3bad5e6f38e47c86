"""The release modes as an accountant sees them: the noise of one count, what is charged, and what that proves.

    labels  BetweenThresholds, charged in the zone above the threshold   single noise, target charging
    counts  sparse vector with individual charging                       single noise, target charging
    kms21   ThresholdMonitorEvolving as printed in [KMS21]               wide noise and a capped one, its own proof

`RELEASE_MODES` has one object for each; what differs between them is here and nowhere else in the package.
"""

from __future__ import annotations

import functools
import math
from typing import Protocol

import numpy as np

from dp_transforms.accounting.accountant import Accountant
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.accounting.noise_parameters import NoiseParameters, noise_error
from dp_transforms.accounting.running_epsilon import epsilon_after_each_hit
from dp_transforms.accounting.target_charging import (
    TARGET_CHARGING_ACCOUNTANTS,
    between_probability,
    not_prior_probability,
)
from dp_transforms.accounting.target_charging_noise import solve_target_charging
from dp_transforms.checks import shown
from dp_transforms.mechanisms.discrete_laplace_law import MAX_EPSILON, MIN_EPSILON, MIN_WIDE_EPSILON

_EXACT_HITS = 64  # of kms21: entries of the running figure up to here are computed one by one
_GRID = 32


class ReleaseMode(Protocol):
    """One release mode. default_hits: of hits_per_user. accountants: their names, the default first.

    widest: the widest noise that can be sampled.
    """

    default_hits: int
    accountants: tuple[str, ...]
    widest: NoiseParameters

    def zone_width(self, noise: NoiseParameters) -> int:
        """Integers in the charged zone; 0 where every result is charged."""
        ...

    def check(self, noise: NoiseParameters) -> None:
        """Raises ValueError for numbers that are not a noise of this mode."""
        ...

    def solve(self, accountant: str, hits: int, epsilon: float, delta: float) -> NoiseParameters:
        """The least noise at which the accountant proves (epsilon, delta), rounded to more."""
        ...

    def accountant(self, name: str, noise: NoiseParameters, hits: int) -> Accountant:
        """What this accountant, one of `accountants`, proves about the charged results."""
        ...

    def epsilon_after_hits(self, noise: NoiseParameters, hits: int, epsilon: float, delta: float) -> tuple[float, ...]:
        """For j = 1 .. hits an epsilon, not decreasing and at most `epsilon`, of the mechanism cut at j hits."""
        ...


class TargetChargingMode:
    """Modes ``labels`` and ``counts``: eps-DP queries. Those with a result in a target are charged."""

    accountants: tuple[str, ...] = tuple(TARGET_CHARGING_ACCOUNTANTS)
    widest = NoiseParameters(MIN_EPSILON)

    def __init__(self, *, has_zone: bool, default_hits: int) -> None:
        self.has_zone = has_zone
        self.default_hits = default_hits

    def zone_width(self, noise: NoiseParameters) -> int:
        """ceil(2 / epsilon_per_query) in labels: 6 % more noise than for counts."""
        return math.ceil(2 / noise.epsilon_per_query) if self.has_zone else 0

    def target_probability(self, epsilon_per_query: float) -> float:
        """q of the target whose results are charged (docs/guarantee.md section 3)."""
        if self.has_zone:
            return between_probability(epsilon_per_query, self.zone_width(NoiseParameters(epsilon_per_query)))
        return not_prior_probability(epsilon_per_query)

    def check(self, noise: NoiseParameters) -> None:
        if not MIN_EPSILON <= noise.epsilon_per_query <= MAX_EPSILON:
            raise ValueError(
                f"epsilon_per_query must lie in [{MIN_EPSILON}, {MAX_EPSILON:g}], got {noise.epsilon_per_query!r}."
            )
        if noise.wide_epsilon_per_query or noise.noise_cap:
            raise ValueError("wide_epsilon_per_query and noise_cap must be 0 except for release 'kms21'.")

    def solve(self, accountant: str, hits: int, epsilon: float, delta: float) -> NoiseParameters:
        def delta_at(epsilon_per_query: float) -> float:
            return self.accountant(accountant, NoiseParameters(epsilon_per_query), hits).delta(epsilon)

        return NoiseParameters(solve_target_charging(delta_at, hits, epsilon, delta))

    def accountant(self, name: str, noise: NoiseParameters, hits: int) -> Accountant:
        q = self.target_probability(noise.epsilon_per_query)
        return TARGET_CHARGING_ACCOUNTANTS[name](noise.epsilon_per_query, q, hits)

    def epsilon_after_hits(self, noise: NoiseParameters, hits: int, epsilon: float, delta: float) -> tuple[float, ...]:
        """By the game, whichever accountant the plan used: it is never larger."""
        q = self.target_probability(noise.epsilon_per_query)
        return epsilon_after_each_hit(noise.epsilon_per_query, q, hits, epsilon, delta)


class Kms21Mode:
    """Mode ``kms21``: the noises, and the proof with explicit constants, of `kms21_accountant`."""

    accountants: tuple[str, ...] = ("threshold_monitor",)
    widest = NoiseParameters(MIN_WIDE_EPSILON, wide_epsilon_per_query=MIN_WIDE_EPSILON, noise_cap=1)
    # About ln(1/delta), the number of hits for which [KMS21] states Theorem 3.2: from there on noise grows in
    # proportion to the hits, and below it hardly falls.
    default_hits = 20

    def zone_width(self, noise: NoiseParameters) -> int:
        return 0

    def check(self, noise: NoiseParameters) -> None:
        self._threshold_monitor(noise, 1)

    def solve(self, accountant: str, hits: int, epsilon: float, delta: float) -> NoiseParameters:
        try:
            noise = calibrate_threshold_monitor(epsilon, delta, hits)
        except ValueError:
            raise noise_error(epsilon, hits, 1 / MIN_WIDE_EPSILON) from None
        return NoiseParameters(noise.narrow_epsilon, wide_epsilon_per_query=noise.wide_epsilon, noise_cap=noise.cap)

    def accountant(self, name: str, noise: NoiseParameters, hits: int) -> Accountant:
        return self._threshold_monitor(noise, hits)

    def epsilon_after_hits(self, noise: NoiseParameters, hits: int, epsilon: float, delta: float) -> tuple[float, ...]:
        """Beyond the first hits at some numbers of hits only; those in between take the next larger one's."""
        whole = self._threshold_monitor(noise, hits)
        solved = {*range(1, min(hits, _EXACT_HITS) + 1), *np.geomspace(min(hits, _EXACT_HITS), hits, _GRID).astype(int)}
        found = np.full(hits, epsilon)
        last = 0
        for cut in sorted({*map(int, solved), hits}):
            found[last:cut] = min(epsilon, whole.cut(cut).epsilon(delta))
            last = cut
        return tuple(np.maximum.accumulate(found).tolist())

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def _threshold_monitor(noise: NoiseParameters, hits: int) -> ThresholdMonitorAccountant:
        return ThresholdMonitorAccountant(
            wide_epsilon=noise.wide_epsilon_per_query,
            narrow_epsilon=noise.epsilon_per_query,
            cap=noise.noise_cap,
            hits=hits,
        )


RELEASE_MODES: dict[str, ReleaseMode] = {
    "labels": TargetChargingMode(has_zone=True, default_hits=3),
    "counts": TargetChargingMode(has_zone=False, default_hits=10),
    "kms21": Kms21Mode(),
}
ACCOUNTANTS = tuple(dict.fromkeys(name for mode in RELEASE_MODES.values() for name in mode.accountants))


def mode_of(release: str) -> ReleaseMode:
    """The mode of this name. Raises ValueError for another one."""
    if not isinstance(release, str) or release not in RELEASE_MODES:
        raise ValueError(f"release must be one of {', '.join(RELEASE_MODES)}, got {shown(release)}.")
    return RELEASE_MODES[release]
