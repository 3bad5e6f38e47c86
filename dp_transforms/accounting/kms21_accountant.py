"""The price of [KMS21] Algorithms 3 and 5, ThresholdMonitor and ThresholdMonitorEvolving, with explicit constants.

``Plan.for_hits(noise="printed")`` takes its noise from here, and so do the two mechanisms of these names in
`papers.threshold_monitor`, which the pipeline does not run.

Guarantee: a monitor with noises of these three numbers, on a grid of `grid` units in 1, that deletes a user once its
contributions to results "top" reach `hits`, is (epsilon, delta)-DP for one user with all of its contributions, against
adaptive queries and data, over any number of steps. Neighbours: with and without the user. Source: [KMS21] Theorem 3.2
made explicit; docs/proofs.md, "Theorem of the monitor" proves it there.

With ``g = narrow_epsilon * grid`` the proof needs four inequalities, which are checked, and shows

    epsilon = g (75 (k + 1) + 25 ln(1/d)),  delta = 3 d,        for every d in (0, 1), k = hits.

The algorithm's own pair (e, d) enters its noise only as ``e / ln(1/d) = g``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dp_transforms.accounting.accountants import ROUNDING, check_delta, check_epsilon, running_figure
from dp_transforms.accounting.discrete_laplace_law import MIN_WIDE_EPSILON, upper_tail
from dp_transforms.checks import check_positive, check_range, check_whole, is_number

_PER_HIT = 75.0  # the constants of [KMS21] Theorem 3.2
_PER_LOG = 25.0
_FAILURES = 3.0
_SMALLEST_DELTA = 1e-290  # a third of it, and shares of that, are still floats
_LARGEST_SHIFT = 0.5  # of g; [KMS21] leaves such conditions out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThresholdMonitorAccountant:
    """Guarantee: a monitor with these numbers is (epsilon, delta(epsilon))-DP for one user.

    wide_epsilon, narrow_epsilon, cap: W is discrete Laplace with wide_epsilon, V with narrow_epsilon; what is added is
    ``W + min(V, cap)``. All in units of ``1 / grid``. hits: k, in whole contributions of 1.

    Condition: see the module. ValueError if the numbers do not satisfy the conditions of the proof.
    Source: [KMS21] Theorem 3.2, docs/proofs.md, "Theorem of the monitor".

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
                raise ValueError(
                    f"{name} must be finite and >= {MIN_WIDE_EPSILON}, got {value!r}. Raise epsilon or delta, lower "
                    "hits, or use a coarser grid."
                )
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
        exponent = min(0.0, _PER_HIT * (self.hits + 1) - epsilon / self.shift * (1 - 1e-14))
        return min(1.0, _FAILURES * math.exp(exponent / _PER_LOG) * (1 + ROUNDING))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return self.shift * _units(self.hits, delta) * (1 + ROUNDING)

    def epsilon_after_hits(self, epsilon: float, delta: float) -> tuple[float, ...]:
        """For j = 1 .. hits an epsilon, not decreasing and at most `epsilon`, of the monitor cut at j hits."""
        found = [min(epsilon, dataclasses.replace(self, hits=cut).epsilon(delta)) for cut in range(1, self.hits + 1)]
        return running_figure(np.array(found), epsilon)


def calibrate_threshold_monitor(epsilon: float, delta: float, hits: int, grid: int = 1) -> ThresholdMonitorAccountant:
    """The least noise for which a monitor is proved to be (epsilon, delta)-DP, in numbers of six digits.

    >>> noise = calibrate_threshold_monitor(epsilon=1.0, delta=1e-6, hits=50)
    >>> print(round(1 / noise.narrow_epsilon), noise.cap, round(1 / noise.wide_epsilon))
    4198 35020 350200
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_range("delta", delta, _SMALLEST_DELTA, 1)
    check_whole("hits", hits, 1)
    check_whole("grid", grid, 1)
    scale = max(_units(hits, delta) / epsilon, 1 / _LARGEST_SHIFT)
    while True:
        narrow_epsilon = _six_digits_down(1 / (scale * grid))
        cap = math.ceil(math.log(1 / (narrow_epsilon * grid)) / narrow_epsilon)
        wide_epsilon = _six_digits_down(1 / (10 * cap))
        noise = ThresholdMonitorAccountant(
            wide_epsilon=wide_epsilon, narrow_epsilon=narrow_epsilon, cap=cap, hits=hits, grid=grid
        )
        if noise.delta(epsilon) * (1 + 1e-9) <= delta:  # a margin, so that another machine's libm agrees
            return noise
        scale *= 1 + 1e-6


def _units(hits: int, delta: float) -> float:
    """epsilon in units of g."""
    return _PER_HIT * (hits + 1) + _PER_LOG * math.log(_FAILURES / delta)


def _six_digits_down(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return float(f"{math.floor(value / unit * (1 - 1e-12)) * unit:.6g}")
