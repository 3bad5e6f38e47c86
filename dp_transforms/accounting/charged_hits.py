"""The ways to charge hits: the noise of one count, what is charged, what that proves, and the least noise for a budget.

names    BetweenThresholds, charged in the zone above the threshold   single noise, target charging
counts   sparse vector with individual charging                       single noise, target charging
printed  ThresholdMonitorEvolving as printed in [KMS21]     wide noise and a capped one, its own proof
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from dp_transforms.accounting.accountants import smallest_safe_argument
from dp_transforms.accounting.charging_game import GameAccountant, between_probability
from dp_transforms.accounting.discrete_laplace_law import (
    MAX_EPSILON,
    MIN_EPSILON,
    MIN_WIDE_EPSILON,
    WholeNoise,
    capped_sum_upper_tail,
    not_prior_probability,
    sampling_total_variation,
    smallest_whole,
    upper_tail,
)
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.errors import InputError

NAMES, COUNTS, PRINTED = "names", "counts", "printed"
# Of a user. Printed: about ln(1/delta), the number of hits for which [KMS21] states Theorem 3.2: from there on noise
# grows in proportion to the hits, and below it hardly falls.
DEFAULT_HITS = {NAMES: 3, COUNTS: 10, PRINTED: 20}


@dataclasses.dataclass(frozen=True)
class NoiseParameters(WholeNoise):
    """What is added to one count.

    Z, discrete Laplace of scale ``1 / epsilon_per_query``. Where wide_epsilon_per_query is not 0, instead
    ``W + min(V, noise_cap)``, V of scale ``1 / epsilon_per_query`` and W of scale ``1 / wide_epsilon_per_query``.
    """

    epsilon_per_query: float
    _: dataclasses.KW_ONLY
    wide_epsilon_per_query: float = 0.0
    noise_cap: int = 0

    @property
    def scale(self) -> float:
        """Of the widest part, in users."""
        return 1 / (self.wide_epsilon_per_query or self.epsilon_per_query)

    @property
    def total_variation(self) -> float:
        """Bound on the distance of each of the two draws of a query from its exact distribution."""
        return sampling_total_variation(self.wide_epsilon_per_query or self.epsilon_per_query)

    def upper_tail(self, margin: int) -> float:
        if not self.wide_epsilon_per_query:
            return upper_tail(self.epsilon_per_query, margin)
        wide, narrow, cap = self.wide_epsilon_per_query, self.epsilon_per_query, self.noise_cap
        return capped_sum_upper_tail(margin, wide_epsilon=wide, narrow_epsilon=narrow, cap=cap)


def zone_width(mode: str, epsilon_per_query: float) -> int:
    """Integers in the charged zone; 0 where every result is charged.

    ``ceil(2 / epsilon_per_query)`` for names: 6 % more noise than with counts.
    """
    return math.ceil(2 / epsilon_per_query) if mode == NAMES else 0


def target_probability(mode: str, epsilon_per_query: float) -> float:
    """q of the target whose results are charged, but for the printed algorithm (docs/guarantee.md, "Targets")."""
    if mode == NAMES:
        return between_probability(epsilon_per_query, zone_width(mode, epsilon_per_query))
    return not_prior_probability(epsilon_per_query)


def proof_of(mode: str, noise: NoiseParameters, hits: int) -> GameAccountant | ThresholdMonitorAccountant:
    """What the charged results cost with this noise. Raises ValueError if it is no noise of this mode."""
    if mode == PRINTED:
        wide, narrow, cap = noise.wide_epsilon_per_query, noise.epsilon_per_query, noise.noise_cap
        return ThresholdMonitorAccountant(wide_epsilon=wide, narrow_epsilon=narrow, cap=cap, hits=hits)
    if not MIN_EPSILON <= noise.epsilon_per_query <= MAX_EPSILON:
        raise ValueError(
            f"epsilon_per_query must lie in [{MIN_EPSILON}, {MAX_EPSILON:g}], got {noise.epsilon_per_query!r}."
        )
    return GameAccountant(noise.epsilon_per_query, target_probability(mode, noise.epsilon_per_query), hits)


def widest_total_variation(mode: str) -> float:
    """`NoiseParameters.total_variation` of the widest noise that can be sampled in this mode."""
    return sampling_total_variation(MIN_WIDE_EPSILON if mode == PRINTED else MIN_EPSILON)


def least_noise(mode: str, hits: int, epsilon: float, delta: float) -> NoiseParameters:
    """The least noise for which `proof_of` shows (epsilon, delta), rounded to more. Raises ValueError."""
    try:
        if mode == PRINTED:
            found = calibrate_threshold_monitor(epsilon, delta, hits)
            wide, cap = found.wide_epsilon, found.cap
            return NoiseParameters(found.narrow_epsilon, wide_epsilon_per_query=wide, noise_cap=cap)

        def delta_at(epsilon_per_query: float) -> float:
            return GameAccountant(epsilon_per_query, target_probability(mode, epsilon_per_query), hits).delta(epsilon)

        return NoiseParameters(solve_target_charging(delta_at, hits, epsilon, delta))
    except ValueError:
        largest_scale = 1 / (MIN_WIDE_EPSILON if mode == PRINTED else MIN_EPSILON)
        raise InputError(
            "epsilon",
            f"= {epsilon:g} with {hits} hits per user needs noise of scale over {largest_scale:g}.",
            "Raise epsilon or delta, or lower hits_per_user.",
        ) from None


def solve_target_charging(delta_at: Callable[[float], float], hits: int, epsilon: float, delta: float) -> float:
    """The largest epsilon_per_query, rounded down to six digits, with ``delta_at(epsilon_per_query) <= delta``.

    Raises ValueError if there is none for which noise can be sampled.
    """
    # A first guess from advanced composition of about as many calls as such an interaction makes.
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    spread = math.sqrt(2 * calls * math.log(1 / delta))
    # calls / (sqrt(spread^2 + 2 calls epsilon) - spread), with nothing that cancels where epsilon is tiny.
    guess = (math.sqrt(spread**2 + 2 * calls * epsilon) + spread) / (2 * epsilon)
    limits = {"lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}
    noise_scale = smallest_safe_argument(
        lambda scale: delta_at(1 / scale), delta, guess=guess, tolerance=1e-6, **limits
    )
    unit = 10.0 ** (math.floor(math.log10(1 / noise_scale)) - 5)
    steps = math.floor(1 / noise_scale / unit)
    while True:
        # Through text, so that the plan shows the six digits. A margin, so that another machine's libm agrees.
        epsilon_per_query = float(f"{steps * unit:.6g}")
        if delta_at(epsilon_per_query) * (1 + 1e-9) <= delta:
            return epsilon_per_query
        steps -= 1


def smallest_safe_threshold(noise: NoiseParameters, queries_per_user: int, delta_open: float) -> int:
    """The smallest T >= 1 with ``queries_per_user * Pr[noise >= T - 1] <= delta_open`` (docs/guarantee.md, "Claim
    (untested zeros)").

    An item is published although one user is its only holder with at most this probability over the whole run.
    """
    return 1 + smallest_whole(lambda margin: queries_per_user * noise.upper_tail(margin) <= delta_open, -1, 1)


def check_threshold(threshold: int, safe: int) -> None:
    """Raises ValueError for a threshold below the smallest safe one."""
    if not threshold >= safe:
        raise InputError(
            "threshold",
            f"must be >= {safe}, the smallest one at which an item of a single user stays hidden under this budget, "
            f"got {threshold}.",
            f"Use {safe} or leave it out.",
        )
