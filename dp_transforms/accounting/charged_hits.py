"""The modes in which users pay for hits, as an accountant sees them: the noise of one count, what is charged, and what
that proves.

    hits              BetweenThresholds, charged in the zone above the threshold   single noise, target charging
    hits-with-counts  sparse vector with individual charging                       single noise, target charging
    kms21             ThresholdMonitorEvolving as printed in [KMS21]     wide noise and a capped one, its own proof

`RELEASE_MODES` has one object for each of them; what differs between them is here and nowhere else in the package. Also
here: `NoiseParameters`, the noise of one count as plain numbers of a plan, and the thresholds that it allows; the least
noise of target charging; and its running figure, how much of epsilon is spent after each hit (docs/guarantee.md, "Claim
(running figure)").
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from dp_transforms.accounting.charging_game import GameAccountant, between_probability, charging_game_deltas
from dp_transforms.accounting.composition import Accountant, smallest_safe_argument
from dp_transforms.accounting.discrete_laplace_law import (
    MAX_EPSILON,
    MIN_EPSILON,
    MIN_WIDE_EPSILON,
    capped_sum_upper_tail,
    not_prior_probability,
    sampling_total_variation,
    smallest_whole,
    upper_tail,
)
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant, calibrate_threshold_monitor
from dp_transforms.checks import shown
from dp_transforms.errors import InputError

# In a known domain the guarantee does not need a threshold. It only keeps out items that nobody holds: by default, at
# most one run in twenty publishes any.
DEFAULT_FALSE_REPORTS = 0.05
_EPSILONS = 32  # at which the running figure is computed; between them it is interpolated
_EXACT_HITS = 64  # of kms21: entries of the running figure up to here are computed one by one
_GRID = 32


@dataclasses.dataclass(frozen=True)
class NoiseParameters:
    """What is added to one count.

    Z, discrete Laplace of scale ``1 / epsilon_per_query``. Where wide_epsilon_per_query is not 0, instead
    ``W + min(V, noise_cap)``, V of scale ``1 / epsilon_per_query`` and W of scale ``1 / wide_epsilon_per_query``.
    """

    epsilon_per_query: float
    wide_epsilon_per_query: float = dataclasses.field(default=0.0, kw_only=True)
    noise_cap: int = dataclasses.field(default=0, kw_only=True)

    @property
    def scale(self) -> float:
        """Of the widest part, in users."""
        return 1 / (self.wide_epsilon_per_query or self.epsilon_per_query)

    @property
    def total_variation(self) -> float:
        """Bound on the distance of each of the two draws of a query from its exact distribution."""
        return sampling_total_variation(self.wide_epsilon_per_query or self.epsilon_per_query)

    def upper_tail(self, margin: int) -> float:
        """``Pr[noise >= margin]``, rounded up."""
        if not self.wide_epsilon_per_query:
            return upper_tail(self.epsilon_per_query, margin)
        return capped_sum_upper_tail(
            margin,
            wide_epsilon=self.wide_epsilon_per_query,
            narrow_epsilon=self.epsilon_per_query,
            cap=self.noise_cap,
        )

    def smallest_margin(self, probability: float) -> int:
        """The smallest m with ``Pr[noise >= m] <= probability``. probability: in (0, 1)."""
        low, high = -1, 1
        while self.upper_tail(low) <= probability:
            low, high = 2 * low, low
        return smallest_whole(lambda margin: self.upper_tail(margin) <= probability, low, high)


def smallest_safe_threshold(noise: NoiseParameters, queries_per_user: int, delta_open: float) -> int:
    """The smallest T >= 1 with ``queries_per_user * Pr[noise >= T - 1] <= delta_open`` (docs/guarantee.md, "Claim
    (untested zeros)").

    An item is published although one user is its only holder with at most this probability over the whole run.
    """
    if queries_per_user * noise.upper_tail(0) <= delta_open:
        return 1
    margin = noise.smallest_margin(delta_open / queries_per_user)
    while queries_per_user * noise.upper_tail(margin) > delta_open:  # the last digit of the quotient
        margin += 1
    return 1 + margin


def noise_error(epsilon: float, hits: int, largest_scale: float) -> InputError:
    return InputError(
        "epsilon",
        f"= {epsilon:g} with {hits} hits per user needs noise of scale over {largest_scale:g}.",
        "Raise epsilon or delta, or lower hits_per_user.",
    )


def solve_target_charging(delta_at: Callable[[float], float], hits: int, epsilon: float, delta: float) -> float:
    """The largest epsilon_per_query, rounded down to six digits, with ``delta_at(epsilon_per_query) <= delta``."""
    # A first guess from advanced composition of about as many calls as such an interaction makes.
    calls = 2 * (hits + 3 * math.sqrt(hits) + 4)
    spread = math.sqrt(2 * calls * math.log(1 / delta))
    # calls / (sqrt(spread^2 + 2 calls epsilon) - spread), with nothing that cancels where epsilon is tiny.
    guess = (math.sqrt(spread**2 + 2 * calls * epsilon) + spread) / (2 * epsilon)
    limits = {"lowest": 1 / MAX_EPSILON, "highest": 1 / MIN_EPSILON}
    try:
        noise_scale = smallest_safe_argument(
            lambda scale: delta_at(1 / scale), delta, guess=guess, tolerance=1e-6, **limits
        )
    except ValueError:
        raise noise_error(epsilon, hits, 1 / MIN_EPSILON) from None
    unit = 10.0 ** (math.floor(math.log10(1 / noise_scale)) - 5)
    steps = math.floor(1 / noise_scale / unit)
    while True:
        # Through text, so that the plan shows the six digits. A margin, so that another machine's libm agrees.
        epsilon_per_query = float(f"{steps * unit:.6g}")
        if delta_at(epsilon_per_query) * (1 + 1e-9) <= delta:
            return epsilon_per_query
        steps -= 1


def epsilon_after_each_hit(
    epsilon_per_query: float, target_probability: float, hits: int, epsilon: float, delta: float
) -> tuple[float, ...]:
    """For j = 1 .. hits an epsilon, rounded up but at most `epsilon`, at which the game cut at j hits has this delta.

    epsilon: here the game of all hits is known to have at most this delta. One pass of the game gives all j for one
    epsilon. Between two values of epsilon, delta lies below its chord in e^epsilon: it is a supremum of functions
    ``P(S) - e^epsilon Q(S)``, hence convex.
    """
    solved = (GameAccountant(epsilon_per_query, target_probability, k).epsilon(delta) for k in (1, hits))
    # At least a thousandth of the total: a generous delta alone may cover the first hits, at epsilon 0.
    first, last = (min(max(one, epsilon / 1000), epsilon) for one in solved)
    found = np.full(hits, last)
    before: tuple[float, tuple[float, ...]] = (first, ())
    done = 0  # entries found; they are found in order, since delta grows with j
    for at in np.geomspace(first, last, _EPSILONS + 1).tolist():
        # Also some of the entries that are not safe yet, for the chord to the next value.
        deltas = charging_game_deltas(epsilon_per_query, target_probability, hits, at, 20 * delta)
        while done < min(hits, len(deltas)) and deltas[done] <= delta:
            found[done] = min(last, at, _chord(before, (at, deltas), done, delta))
            done += 1
        before = (at, deltas)
    return tuple(np.maximum.accumulate(found).tolist())


def _chord(
    left: tuple[float, tuple[float, ...]], right: tuple[float, tuple[float, ...]], entry: int, delta: float
) -> float:
    """Where the chord between two values of epsilon meets delta; the right value if the left has no such entry."""
    (low, low_deltas), (high, high_deltas) = left, right
    if entry >= len(low_deltas) or not low_deltas[entry] > delta:
        return high
    share = (low_deltas[entry] - delta) / (low_deltas[entry] - high_deltas[entry])
    return min(high, (low + math.log1p(share * math.expm1(high - low))) * (1 + 1e-9))


class TargetChargingMode:
    """Modes ``hits`` and ``hits-with-counts``: eps-DP queries. Those with a result in a target are charged.

    default_hits: of hits_per_user. accountant: the name of its proof, as a plan states it. widest: the widest noise
    that can be sampled. `Kms21Mode` has the same attributes and methods.
    """

    accountant = "game"
    widest = NoiseParameters(MIN_EPSILON)

    def __init__(self, *, has_zone: bool, default_hits: int) -> None:
        self.has_zone = has_zone
        self.default_hits = default_hits

    def zone_width(self, noise: NoiseParameters) -> int:
        """Integers in the charged zone; 0 where every result is charged.

        ceil(2 / epsilon_per_query) in mode ``hits``: 6 % more noise than with counts.
        """
        return math.ceil(2 / noise.epsilon_per_query) if self.has_zone else 0

    def target_probability(self, epsilon_per_query: float) -> float:
        """q of the target whose results are charged (docs/guarantee.md, "Targets")."""
        if self.has_zone:
            return between_probability(epsilon_per_query, self.zone_width(NoiseParameters(epsilon_per_query)))
        return not_prior_probability(epsilon_per_query)

    def check(self, noise: NoiseParameters) -> None:
        """Raises ValueError for numbers that are not a noise of this mode."""
        if not MIN_EPSILON <= noise.epsilon_per_query <= MAX_EPSILON:
            raise ValueError(
                f"epsilon_per_query must lie in [{MIN_EPSILON}, {MAX_EPSILON:g}], got {noise.epsilon_per_query!r}."
            )
        if noise.wide_epsilon_per_query or noise.noise_cap:
            raise ValueError("wide_epsilon_per_query and noise_cap must be 0 except for mode 'kms21'.")

    def solve(self, hits: int, epsilon: float, delta: float) -> NoiseParameters:
        """The least noise for which `proof` shows (epsilon, delta), rounded to more."""

        def delta_at(epsilon_per_query: float) -> float:
            return self.proof(NoiseParameters(epsilon_per_query), hits).delta(epsilon)

        return NoiseParameters(solve_target_charging(delta_at, hits, epsilon, delta))

    def proof(self, noise: NoiseParameters, hits: int) -> Accountant:
        """What the charged results cost."""
        return GameAccountant(noise.epsilon_per_query, self.target_probability(noise.epsilon_per_query), hits)

    def epsilon_after_hits(self, noise: NoiseParameters, hits: int, epsilon: float, delta: float) -> tuple[float, ...]:
        """For j = 1 .. hits an epsilon, not decreasing and at most `epsilon`, of the mechanism cut at j hits."""
        q = self.target_probability(noise.epsilon_per_query)
        return epsilon_after_each_hit(noise.epsilon_per_query, q, hits, epsilon, delta)


class Kms21Mode:
    """Mode ``kms21``: the noises, and the proof with explicit constants, of `kms21_accountant`."""

    accountant = "threshold_monitor"
    widest = NoiseParameters(MIN_WIDE_EPSILON, wide_epsilon_per_query=MIN_WIDE_EPSILON, noise_cap=1)
    # About ln(1/delta), the number of hits for which [KMS21] states Theorem 3.2: from there on noise grows in
    # proportion to the hits, and below it hardly falls.
    default_hits = 20

    def zone_width(self, noise: NoiseParameters) -> int:
        return 0

    def check(self, noise: NoiseParameters) -> None:
        self._threshold_monitor(noise, 1)

    def solve(self, hits: int, epsilon: float, delta: float) -> NoiseParameters:
        try:
            noise = calibrate_threshold_monitor(epsilon, delta, hits)
        except ValueError:
            raise noise_error(epsilon, hits, 1 / MIN_WIDE_EPSILON) from None
        return NoiseParameters(noise.narrow_epsilon, wide_epsilon_per_query=noise.wide_epsilon, noise_cap=noise.cap)

    def proof(self, noise: NoiseParameters, hits: int) -> Accountant:
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


ReleaseMode = TargetChargingMode | Kms21Mode
RELEASE_MODES: dict[str, ReleaseMode] = {
    "hits": TargetChargingMode(has_zone=True, default_hits=3),
    "hits-with-counts": TargetChargingMode(has_zone=False, default_hits=10),
    "kms21": Kms21Mode(),
}


def mode_of(mode: str) -> ReleaseMode:
    """The mode of this name. Raises ValueError for another one."""
    if not isinstance(mode, str) or mode not in RELEASE_MODES:
        raise ValueError(f"mode must be one of {', '.join(RELEASE_MODES)}, got {shown(mode)}.")
    return RELEASE_MODES[mode]


def threshold_error(threshold: int, safe: int) -> InputError:
    return InputError(
        "threshold",
        f"must be >= {safe}, the smallest one at which an item of a single user stays hidden under this budget, got "
        f"{threshold}.",
        f"Use {safe} or leave it out.",
    )


def choose_for_known_domain(
    solve: Callable[[float], NoiseParameters], shared: float, tests: int, threshold: int | None
) -> tuple[NoiseParameters, int, float]:
    """All of delta for the noise, and any threshold; with the part of delta that the threshold takes, 0.

    solve: the least noise for a delta. shared: what is left of delta. tests: the most tests, in the whole run, of items
        that nobody holds. threshold: None for the smallest that keeps the expected false reports at most 0.05.
    """
    noise = solve(shared)
    if threshold is None:
        # The item of one more holder would be at T - 1; the item of none is at T.
        threshold = max(1, smallest_safe_threshold(noise, tests, DEFAULT_FALSE_REPORTS) - 1)
    return noise, threshold, 0.0


def choose_for_open_domain(
    solve: Callable[[float], NoiseParameters], shared: float, queries: int, threshold: int | None
) -> tuple[NoiseParameters, int, float]:
    """Half of delta for the noise, or more where the threshold needs less than the other half; and what it takes.

    solve, shared: as above. queries: of one user in the whole run. threshold: None for the smallest safe one. Raises
        ValueError for a smaller one.
    """
    delta_open = shared / 2
    noise = solve(shared - delta_open)
    smallest = smallest_safe_threshold(noise, queries, delta_open)
    if threshold is None or threshold == smallest:
        return noise, smallest, delta_open
    if threshold < smallest:
        raise threshold_error(threshold, smallest)
    # What the open domain no longer needs goes to the accountant: less noise, and with it a smaller tail.
    delta_open = max(queries * noise.upper_tail(threshold - 1), shared * 1e-6)
    return solve(shared - delta_open), threshold, delta_open
