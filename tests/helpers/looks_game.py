"""A tighter accountant for a fixed number of equal looks, to compare: the best adaptive choice of counts, by Bellman.

Guarantee: if a user has at most `looks` looks, each with this weight or a smaller one, whatever the counts of the
others are and however they react to what was published, all looks together are (epsilon, delta)-DP for the delta of
`looks_delta`. Unit of privacy: that of the looks. It needs up to 6 % less noise than the purse where all users have
equally many looks; a purse also serves users who do not, hits and levels.

State: the likelihood ratio r = Q/P of what was published so far; ``V_0(r) = (1 - e^epsilon r)_+`` and

    V_n(r) = max over counts of  P V_{n-1}(r Q/P) + (1 - P) V_{n-1}(r (1 - Q)/(1 - P)),    delta = V_n(1).

By symmetry of the noise both directions have one value. Three bounds make a finite computation safe:

- V_n is a maximum of sums ``P V(r Q/P)`` and so convex in r: chords between grid points are above it. V(0) = 1, and V
  does not rise with r.
- The noise is log-concave, so P/Q and (1 - P)/(1 - Q) rise with the threshold. All bits with thresholds in one interval
  have P/Q at most A, its value at the upper end, and (1 - P)/(1 - Q) at least A', at the lower end. The bit with the
  ratios A and A' is at least as informative as each (Blackwell): the line from (0, 0) with slope A and the line to
  (1, 1) with slope A' enclose their points (Q, P), and meet in its point.
- Above the grid a hit has a probability of at most P at its end, and a miss only raises r: this P is added for each
  look. Below the grid: the bit with A' = 0.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.composition import ROUNDING
from dp_transforms.mechanisms.exponential_power import ExponentialPower

_RATIOS = 1e-9  # relative error of P/Q - 1 from that of two logarithms, down to the smallest weight: some 5e-10
_STEP = 0.008  # of ln r; V falls like a power of r, so that a chord is above it by some (power step)^2 / 8
_BELOW = 6.0  # ln r goes from -(epsilon + this) ...
_ABOVE = 4.0  # ... to this; V is at most its last value from there on, and 1 at 0
_BEYOND = 1e-22  # probability that the noise passes the largest threshold of the grid
_INTERVALS = 1000  # of thresholds from -1 on; below, where bits tell little, a twentieth of that

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class _Bits:
    """Pairs of bits that dominate all counts: P and Q of the first outcome; complements apart, for their digits."""

    p: Floats
    q: Floats
    not_p: Floats
    not_q: Floats


def looks_delta(shape: float, weight: float, looks: int, epsilon: float) -> float:
    """The smallest delta that the game proves. weight: of each look, 0.001 to 10, for noise of scale 1. Rounded up."""
    bits = _dominating_bits(float(shape), float(weight))
    log_ratios = np.arange(-epsilon - _BELOW, _ABOVE + _STEP, _STEP)
    ratios = np.exp(log_ratios)
    values = np.maximum(0.0, 1 - np.exp(epsilon) * ratios)
    for _ in range(looks):
        values = _one_look(bits, ratios, values)
    at = int(np.searchsorted(log_ratios, 0.0)) - 1
    share = (1 - ratios[at]) / (ratios[at + 1] - ratios[at])
    delta = values[at] * (1 - share) + values[at + 1] * share + 2 * looks * _BEYOND
    return float(min(1.0, delta * (1 + ROUNDING)))


def _one_look(bits: _Bits, ratios: Floats, values: Floats) -> Floats:
    best = values.copy()  # a look that tells nothing
    for p, q, not_p, not_q in zip(bits.p, bits.q, bits.not_p, bits.not_q, strict=True):
        hit = p * _moved(q / p, _STEP, ratios, values) if p else 0.0
        miss = not_p * _moved(not_q / not_p, _STEP, ratios, values) if not_p else 0.0
        np.maximum(best, hit + miss, out=best)
    return best


def _moved(factor: float, step: float, ratios: Floats, values: Floats) -> Floats:
    """A bound on ``V(r factor)`` at each grid point r: by chords, 1 at r = 0, and the last value beyond the grid.

    step: of ln r from each grid point to the next.
    """
    shift = np.log(factor) / step
    whole = int(np.floor(shift))
    rest = np.expm1((shift - whole) * step) / np.expm1(step)  # the same share in each interval of a geometric grid
    size = len(values)
    index = np.arange(size) + whole
    inside = (index >= 0) & (index < size - 1)
    safe = np.clip(index, 0, size - 2)
    chords = values[safe] * (1 - rest) + values[safe + 1] * rest
    below = 1 - (1 - values[0]) * np.minimum(1.0, ratios * factor / ratios[0])
    return np.asarray(np.where(inside, chords, np.where(index < 0, below, values[-1])))


@functools.lru_cache(maxsize=64)
def _dominating_bits(shape: float, weight: float) -> _Bits:
    """One bit for each interval of thresholds ``t_i <= t <= t_(i+1)``, and one for all below the first.

    With ``P = Pr[X >= t - weight]`` and ``Q = Pr[X >= t]`` the ratio P/Q rises with t and (1 - P)/(1 - Q) too (X is
    log-concave). The bit with the largest P/Q and the smallest (1 - P)/(1 - Q) of an interval dominates all its bits.
    """
    noise = ExponentialPower(shape, 1)
    far = -float(_largest_threshold(shape)) - weight
    points = np.concatenate(
        [np.linspace(far, -1, _INTERVALS // 20 + 1)[:-1], np.linspace(-1, weight - far, _INTERVALS + 1)]
    )
    (log_p, log_not_p), (log_q, log_not_q) = noise.log_tails_at(points - weight), noise.log_tails_at(points)
    up = np.expm1((log_p - log_q)[1:]) * (1 + _RATIOS)  # P/Q - 1 at the upper ends
    down = np.minimum(
        1.0, -np.expm1((log_not_p - log_not_q)[:-1]) * (1 + _RATIOS)
    )  # 1 - (1 - P)/(1 - Q) at the lower ends
    # (1 + up) q + (1 - down)(1 - q) = 1.
    q = down / (up + down)
    not_q = up / (up + down)
    return _Bits(
        np.append((1 + up) * q, 1.0),
        np.append(q, np.exp(log_q[0])),
        np.append((1 - down) * not_q, 0.0),
        np.append(not_q, np.exp(log_not_q[0])),
    )


def _largest_threshold(shape: float) -> float:
    from scipy.special import gammainccinv

    return float(gammainccinv(1 / shape, 2 * _BEYOND) ** (1 / shape))
