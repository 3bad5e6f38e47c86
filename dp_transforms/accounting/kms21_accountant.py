"""The price of [KMS21] Algorithms 3 and 5, ThresholdMonitor and ThresholdMonitorEvolving, with explicit constants.

Mode ``kms21`` of the pipeline takes its noise from here, and so do the two mechanisms of these names in
`papers.threshold_monitor`, which the pipeline does not run.

Guarantee: a monitor with noises of these three numbers, on a grid of `grid` units in 1, that deletes a user once its
contributions to results "top" reach `hits`, is (epsilon, delta)-DP for one user with all of its contributions, against
adaptive queries and data, over any number of steps. Neighbours: with and without the user. Source: [KMS21] Theorem 3.2
and, for many hits, Theorem 3.8 made explicit; docs/proofs.md, "Theorem of the monitor" proves them there.

With ``g = narrow_epsilon * grid`` the proof needs four inequalities, which are checked, and shows

    epsilon = g (75 (k + 1) + 25 ln(1/d)),  delta = 3 d,        for every d in (0, 1), k = hits.

The algorithm's own pair (e, d) enters its noise only as ``e / ln(1/d) = g``. Cut into epochs of k/n hits each, the same
monitor is an n-fold composition of such mechanisms: that is cheaper from several hundred hits on.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from dp_transforms.accounting.composition import (
    ROUNDING,
    check_delta,
    check_epsilon,
    optimal_composition_delta,
    running_figure,
    smallest_safe_argument,
)
from dp_transforms.accounting.discrete_laplace_law import MIN_WIDE_EPSILON, upper_tail
from dp_transforms.checks import check_range, check_whole, is_number

_PER_HIT = 75.0  # the constants of [KMS21] Theorem 3.2
_PER_LOG = 25.0
_FAILURES = 3.0
_SMALLEST_DELTA = 1e-290  # a third of it, and shares of that, are still floats
_LARGEST_SHIFT = 0.5  # of g; [KMS21] leaves such conditions out
_HITS_PER_EPOCH = (3, 6, 12, 24)  # tried; every number of epochs gives a valid bound
_MOST_EPOCHS = 10**5  # tried; a monitor that needed more could not be sampled
_EXACT_HITS = 64  # entries of the running figure up to here are computed one by one
_GRID = 32
_LONGEST_SCALE = 1 / MIN_WIDE_EPSILON


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThresholdMonitorAccountant:
    """Guarantee: a monitor with these numbers is (epsilon, delta(epsilon))-DP for one user.

    wide_epsilon, narrow_epsilon, cap: W is discrete Laplace with wide_epsilon, V with narrow_epsilon; what is added is
    ``W + min(V, cap)``. All in units of ``1 / grid``. hits: k, in whole contributions of 1.

    Condition: see the module. ValueError if the numbers do not satisfy the conditions of the proof.
    Source: [KMS21] Theorems 3.2 and 3.8, docs/proofs.md, "Theorem of the monitor".

    >>> accountant = calibrate_threshold_monitor(epsilon=1.0, delta=1e-6, hits=50)
    >>> accountant.delta(1.0) <= 1e-6, accountant.epsilon_after_hits(1.0, 1e-6)[9] < 0.3
    (True, True)
    """

    wide_epsilon: float
    narrow_epsilon: float
    cap: int
    hits: int
    grid: int = 1

    def __post_init__(self) -> None:
        """The conditions of the proof: docs/proofs.md, "The monitor"."""
        check_whole("grid", self.grid, 1)
        check_whole("cap", self.cap, 1)
        check_whole("hits", self.hits, 1)
        for name in ("wide_epsilon", "narrow_epsilon"):
            value = getattr(self, name)
            if not is_number(value) or not MIN_WIDE_EPSILON <= value < math.inf:
                raise ValueError(f"{name} must be finite and >= {MIN_WIDE_EPSILON}, got {value!r}. Use a coarser grid.")
        if not self.shift <= _LARGEST_SHIFT:
            raise ValueError(
                f"narrow_epsilon * grid must be at most {_LARGEST_SHIFT}, got {self.shift:.6g}. Lower epsilon."
            )
        if not self.cap >= math.exp(0.1) * self.grid:
            least = f"e^0.1 grid = {math.exp(0.1) * self.grid:.1f}"
            raise ValueError(f"cap must be at least {least} units, got {self.cap}.")
        tail = upper_tail(self.narrow_epsilon, self.cap + 1)
        if not tail <= self.shift / 2:
            raise ValueError(
                f"Pr[V > cap] must be at most narrow_epsilon * grid / 2 = {self.shift / 2:.6g}, got {tail:.6g}. "
                "Raise cap to ln(1 / (narrow_epsilon * grid)) / narrow_epsilon."
            )
        if not self.wide_epsilon * self.cap <= 0.1:
            most = f"1 / (10 cap) = {0.1 / self.cap:.6g}"
            raise ValueError(f"wide_epsilon must be at most {most}, got {self.wide_epsilon!r}.")

    @property
    def shift(self) -> float:
        """g."""
        return self.narrow_epsilon * self.grid

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return min(_delta(self.shift, self.hits, epochs, epsilon) for epochs in _epoch_counts(self.hits))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        best = self.shift * (_PER_HIT * (self.hits + 1) + _PER_LOG * math.log(_FAILURES / delta)) * (1 + ROUNDING)
        for epochs in _epoch_counts(self.hits)[1:]:
            if _delta(self.shift, self.hits, epochs, best) < delta:
                delta_at = functools.partial(_delta, self.shift, self.hits, epochs)
                best = smallest_safe_argument(delta_at, delta, guess=best, lowest=0.0, highest=best)
        return best

    def epsilon_after_hits(self, epsilon: float, delta: float) -> tuple[float, ...]:
        """For j = 1 .. hits an epsilon, not decreasing and at most `epsilon`, of the monitor cut at j hits.

        Beyond the first ones only some numbers of hits are solved; those in between take the next larger one's.
        """
        exact = min(self.hits, _EXACT_HITS)
        cuts = {*range(1, exact + 1), *np.geomspace(exact, self.hits, _GRID).astype(int).tolist(), self.hits}
        found, last = np.full(self.hits, epsilon), 0
        for cut in sorted(cuts):
            found[last:cut] = min(epsilon, dataclasses.replace(self, hits=cut).epsilon(delta))
            last = cut
        return running_figure(found, epsilon)


def calibrate_threshold_monitor(epsilon: float, delta: float, hits: int, grid: int = 1) -> ThresholdMonitorAccountant:
    """The least noise for which a monitor is proved to be (epsilon, delta)-DP: directly, or by epochs.

    >>> noise = calibrate_threshold_monitor(epsilon=1.0, delta=1e-6, hits=50)
    >>> print(round(1 / noise.narrow_epsilon), noise.cap, round(1 / noise.wide_epsilon))
    4198 35020 350200
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_range("delta", delta, _SMALLEST_DELTA, 1)
    check_whole("hits", hits, 1)
    check_whole("grid", grid, 1)
    if epsilon == 0:
        raise ValueError("epsilon must be > 0, got 0. No noise makes a monitor perfectly private.")
    scale = (_PER_HIT * (hits + 1) + _PER_LOG * math.log(_FAILURES / delta)) / epsilon
    for epochs in _epoch_counts(hits)[1:]:
        if _delta(1 / scale, hits, epochs, epsilon) < delta:

            def delta_at(tried: float, epochs: int = epochs) -> float:
                return _delta(1 / tried, hits, epochs, epsilon)

            limits = {"lowest": 1 / _LARGEST_SHIFT, "highest": scale}
            scale = smallest_safe_argument(delta_at, delta, guess=scale / 1.1, **limits)
    return _round_noise(max(scale, 1 / _LARGEST_SHIFT), epsilon, delta, hits, grid)


def _epoch_counts(hits: int) -> list[int]:
    """The numbers of epochs to try: 1 first."""
    counts = {math.ceil(hits / each) for each in _HITS_PER_EPOCH}
    return [1, *sorted(count for count in counts if 1 < count <= _MOST_EPOCHS)]


def _failure(shift: float, hits: float, epsilon: float) -> float:
    """d, for which ``epsilon = shift * (75 (hits + 1) + 25 ln(1/d))``; rounded up."""
    return math.exp(min(0.0, _PER_HIT * (hits + 1) - epsilon / shift * (1 - 1e-14)) / _PER_LOG) * (1 + ROUNDING)


def _delta(shift: float, hits: int, epochs: int, epsilon: float) -> float:
    """delta at this epsilon, for n epochs: ``3 d n + optimal composition``, at the d where the two are equal.

    [KOV15]: an n-fold composition of (xi, 3 d)-DP mechanisms is (epsilon, 3 d n + delta')-DP, with delta' that of n
    mechanisms that are xi-DP.
    """
    if epochs == 1 or epsilon == 0:
        return min(1.0, _FAILURES * _failure(shift, hits, epsilon))

    def failures(loss: float) -> float:
        return _FAILURES * epochs * _failure(shift, hits / epochs, loss)

    low, high = epsilon / epochs, epsilon
    for _ in range(50):
        middle = (low + high) / 2
        if failures(middle) > optimal_composition_delta(middle, epochs, epsilon):
            low = middle
        else:
            high = middle
    return min(1.0, (failures(high) + optimal_composition_delta(high, epochs, epsilon)) * (1 + ROUNDING))


def _round_noise(scale: float, epsilon: float, delta: float, hits: int, grid: int) -> ThresholdMonitorAccountant:
    """Noise of at least this scale, with numbers of six digits, for which the accountant proves (epsilon, delta)."""
    if 10 * scale * grid * math.log(scale) > 0.99 * _LONGEST_SCALE:
        raise ValueError(
            f"epsilon = {epsilon:g} with hits = {hits} needs noise of scale {10 * scale * grid * math.log(scale):.3g} "
            f"units, over {_LONGEST_SCALE:g}. Raise epsilon or delta, lower hits, or use a coarser grid than {grid}."
        )
    while True:
        narrow_epsilon = _six_digits_down(1 / (scale * grid))
        cap = math.ceil(math.log(1 / (narrow_epsilon * grid)) / narrow_epsilon)
        noise = ThresholdMonitorAccountant(
            wide_epsilon=_six_digits_down(1 / (10 * cap)),
            narrow_epsilon=narrow_epsilon,
            cap=cap,
            grid=grid,
            hits=hits,
        )
        if noise.delta(epsilon) * (1 + 1e-9) <= delta:  # a margin, so that another machine's libm agrees
            return noise
        scale *= 1 + 1e-6


def _six_digits_down(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.floor(value / unit * (1 - 1e-12)) * unit:.6g}")
