"""What a test costs at most: bounds on the prices of many weights at once.

What is published of an item is its level: how many of the boundaries T, T + d, T + 2d, ... the noisy sum reaches. The
price of a test is the largest Renyi divergence, in either direction, between the level with a user's weight and without
it, over all counts of the other users: whole numbers, the sums of their weights.

Guarantee: `price_bounds` is at least the price of each weight, and at most 0.02 % above it at the spacing of plans,
where no tail below e^-600 decides; `within` says yes only where a price is at most what is given (docs/proofs.md, "Many
prices at once"). Errors of floats are added, each inequality is rounded up. Tests compare the bounds with exact prices.

The search goes through these counts: the excess over a long interval of them is bounded by that of a few corners, which
enclose it, and only intervals whose bound is above what is allowed are cut. ``P = Pr[Z >= m - weight]``, with the user,
and ``Q = Pr[Z >= m]``, without, belong to one boundary; m is the boundary less the count of the others;
``lam = order - 1``; the excess is ``sum P^order Q^-lam - 1`` over the outcomes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.exponential_power import LOG_TAIL_ERROR, ExponentialPower
from dp_transforms.checks import check_range, check_whole, shown

MAX_ORDER = 1000.0
SMALLEST_PRICE = 1e-12  # no price is below
ROUNDING = 1e-12  # relative; of logarithms of sums
LEAST_SPACING, MOST_SPACING = 2, 30  # standard deviations: closer boundaries cost much, others need much memory

_ABOVE_FOUND = 1e-4  # relative: what a bound may be above the largest excess that was found
_FIRST_INTERVALS = 5  # for each unit of scale
_CUTS = 4
_SLOPE_ERRORS = 1e-12  # of differences of tails: of the larger one, times the size of its logarithm
_OUTCOME_ERRORS = 5e-12  # of the probability of an outcome, likewise
_REST = 1e-6  # of what is found: what the boundaries beyond the reach may add
_SMALLEST_DECAY = math.log(2)
_FAR = -600.0  # logarithm of a tail that is no longer computed with as a number
_WEIGHTS_AT_ONCE = 256
_MOST_STEPS = 40

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Published(NamedTuple):
    """The levels that are published of a test, with boundaries at this distance, and the order of the divergence."""

    noise: ExponentialPower
    order: float
    spacing: int


def price_bounds(
    published: Published, weights: Ints, *, least: float = SMALLEST_PRICE, most: float = math.inf
) -> Floats:
    """Bounds on the prices of these weights; infinite where they are above `most`, or cannot be bounded in floats.

    least: a smaller price is not looked at closely: its bound is this.
    """
    lam = published.order - 1
    nothing = np.full(len(weights), math.nan)
    excess = _in_parts(published, weights, nothing, math.expm1(lam * least / 2), math.expm1(min(lam * most, 600.0)))
    return np.maximum(least, np.log1p(excess) / lam * (1 + ROUNDING))


def within(published: Published, weights: Ints, prices: Floats) -> Bools:
    """Whether the price of each weight is certainly at most this one. No: it may be more."""
    lam = published.order - 1
    allowed = np.expm1(np.minimum(lam * prices * (1 - 2 * ROUNDING), 600.0)) * (1 - ROUNDING)
    return np.isfinite(_in_parts(published, weights, allowed, math.expm1(lam * SMALLEST_PRICE / 2), math.inf))


def _in_parts(published: Published, weights: Ints, allowed: Floats, least: float, most: float) -> Floats:
    parts = [slice(at, at + _WEIGHTS_AT_ONCE) for at in range(0, len(weights), _WEIGHTS_AT_ONCE)]
    return np.concatenate(
        [np.zeros(0), *(_Search(published, weights[part], allowed[part], least, most).excess() for part in parts)]
    )


def check_published(published: Published) -> None:
    """Raises ValueError unless prices can be bounded."""
    if not check_range("order", published.order, 1.0, MAX_ORDER) > 1:
        raise ValueError("order must be > 1, got 1.")
    deviation = published.noise.standard_deviation
    check_whole("spacing", published.spacing, max(1, math.ceil(LEAST_SPACING * deviation)))
    if published.spacing > max(1, MOST_SPACING * deviation):
        most = f"{MOST_SPACING} standard deviations of the noise"
        raise ValueError(f"spacing must be at most {most}, got {shown(published.spacing)}.")


def log_tails(noise: ExponentialPower, reach: int) -> Floats:
    """``ln Pr[Z >= m]`` for m from ``-n`` to n, with m = 0 in the middle and n at least `reach`."""
    return _log_tails(noise, noise.scale << (max(1, math.ceil(reach / noise.scale)) - 1).bit_length())


@functools.lru_cache(maxsize=8)  # sizes of one law; the largest has 16 units of scale or little more
def _log_tails(noise: ExponentialPower, size: int) -> Floats:
    known = _log_tails(noise, size // 2)[size // 2 + 1 :] if size > noise.scale else np.zeros(0)
    above = np.concatenate([known, noise.log_upper_tail(np.arange(len(known) + 1, size + 2))])
    tails = np.concatenate([np.log1p(-np.exp(above[::-1])), above[:-1]])  # Pr[Z >= m] = 1 - Pr[Z >= 1 - m]
    tails.flags.writeable = False
    return tails


class _Corner(NamedTuple):
    """Bounds on one pair of P and Q, and on their complements: (low, high) each."""

    p: tuple[Floats, Floats]
    q: tuple[Floats, Floats]
    not_p: tuple[Floats, Floats]
    not_q: tuple[Floats, Floats]


class _Search:
    """Excesses. allowed: of each weight; NaN: what is found, and a little more. least: what is taken to be found at
    first. most: beyond it nothing is searched."""

    def __init__(self, published: Published, weights: Ints, allowed: Floats, least: float, most: float) -> None:
        self.noise, self.order, self.spacing = published
        self.lam = self.order - 1
        self.allowed, self.most = allowed, most
        self.found = np.full(len(weights), least)
        self.failed = weights > self.spacing  # levels of such a weight are not bounded here
        # In the place of those stands 1: a forged weight may be so large that no memory holds its tails.
        self.weights = np.where(self.failed, 1, weights).astype(np.int64)
        self.reach = self.weights + 2 * self.noise.scale
        self.rest = np.zeros(len(weights))  # what boundaries beyond the reach add

    def excess(self) -> Floats:
        """A bound for each weight; infinite where none within what is allowed was found."""
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            self._one_period()
        return np.where(self.failed | (self.found > self.most), math.inf, self._limit())

    def _limit(self) -> Floats:
        return np.where(np.isnan(self.allowed), self.found * (1 + _ABOVE_FOUND), self.allowed)

    def _open(self) -> Bools:
        return ~self.failed & (self.found <= self.most)

    def _one_period(self) -> None:
        """All cases: m in one period of the boundaries, with the middle one nearest to the count."""
        for _ in range(_MOST_STEPS):
            self._sample_bits()
            beyond = self._beyond(self.reach)
            far = (beyond <= _REST * self.found) & (self._decay(self.reach) >= _SMALLEST_DECAY)
            which = np.flatnonzero(self._open() & ~far)
            if not len(which):
                break
            self.reach[which] = np.ceil(self.reach[which] * 1.25)
        self.failed[which] = True
        self.rest = 2 * beyond
        which = np.flatnonzero(self._open())
        first = (self.weights[which] - self.spacing) // 2
        self._search(which, first, first + self.spacing + 1)

    def _sample_bits(self) -> None:
        """One boundary alone tells no more than all of them: excesses at some counts, from below."""
        which = np.flatnonzero(self._open())
        w, reach = self.weights[which, None], self.reach[which, None]
        m = w + 1 + (np.linspace(-0.5, 1, 30) * (reach - w - 1)).astype(np.int64)
        p, q, not_p, not_q = self.tails_at(m - w), self.tails_at(m), self.tails_at(1 - m + w), self.tails_at(1 - m)
        total = np.exp(self.order * p - self.lam * q) + np.exp(self.order * not_p - self.lam * not_q) - 1
        self.found[which] = np.maximum(self.found[which], np.nan_to_num(total.max(axis=1), posinf=math.inf))

    def _beyond(self, reach: Ints) -> Floats:
        """A bound on the excess for all counts beyond the reach ("Prices: facts and certificate"): from where ``H(t) <=
        order / lam * H(t - weight)`` on, ``P (P/Q)^lam`` falls; at the other side 1 - Q rises. Infinite before that."""
        log_p, log_q = self.tails_at(reach - self.weights), self.tails_at(reach)
        lowest, highest = self.noise.hazard_bounds(reach - self.weights)[0], self.noise.hazard_bounds(reach)[1]
        falls = highest <= self.order / self.lam * lowest * (1 - 1e-9)
        error = 2 * self.order * LOG_TAIL_ERROR * np.maximum(1.0, -log_q)
        other = np.expm1(-self.lam * np.log1p(-np.exp(log_p + error)))
        bound = np.maximum(np.exp(self.order * log_p - self.lam * log_q + error), other) * (1 + ROUNDING)
        return np.where(falls & (log_p <= -math.log(2 * self.order)), bound, math.inf)

    def _decay(self, reach: Ints) -> Floats:
        """``ln(P (P/Q)^lam)`` falls by at least this much from one boundary to the next: its slope is ``lam H(t) -
        order H(t - weight) <= -H(t - weight) (order - lam R)``, R the largest ratio of hazards from here on."""
        lowest, highest = self.noise.hazard_bounds(reach - self.weights)[0], self.noise.hazard_bounds(reach)[1]
        return np.asarray(self.spacing / self.noise.scale * lowest * (self.order - self.lam * highest / lowest))

    def tails_at(self, margins: Ints) -> Floats:
        """``ln Pr[Z >= margin]``."""
        farthest = max(int(margins.max(initial=1)), -int(margins.min(initial=-1)))
        tails = log_tails(self.noise, farthest + 1)
        return tails.take(margins + len(tails) // 2)  # twice as fast as by index

    def _search(self, which: Ints, first: Ints, last: Ints) -> None:
        """All counts from first to last for each of these weights: found rises, or failed is set."""
        stride = max(1, self.noise.scale // _FIRST_INTERVALS)
        number = -(-(last - first) // stride)
        index = np.repeat(which, number)
        step = np.arange(len(index)) - np.repeat(np.cumsum(number) - number, number)
        lower = np.repeat(first, number) + step * stride
        upper = np.minimum(lower + stride, np.repeat(last, number))
        while len(index):
            bound, at_ends = self._bounds(index, lower, upper)
            bound = np.where(upper - lower <= 1, at_ends, bound)
            np.maximum.at(self.found, index, at_ends)
            self.failed |= self.found > self._limit()  # more than allowed: closer looks would not change that
            # Never a single count: what is found there is within the limit, or has failed.
            again = ~(bound <= self._limit()[index]) & self._open()[index]
            index, lower, upper = index[again], lower[again], upper[again]
            width = upper - lower
            cuts = np.arange(_CUTS + 1)[:, None]
            edges = lower + cuts * width // _CUTS
            index, lower, upper = np.tile(index, _CUTS), edges[:-1].ravel(), edges[1:].ravel()
            some = upper > lower
            index, lower, upper = index[some], lower[some], upper[some]

    def _bounds(self, index: Ints, lower: Ints, upper: Ints) -> tuple[Floats, Floats]:
        """A bound on the excess over all m from lower to upper, and the larger of those at both ends."""
        weights, spacing = self.weights[index], self.spacing
        boundaries = [_Boundary(self, weights, lower + by, upper + by) for by in (-spacing, 0, spacing)]
        # The largest sum over all choices of a corner for each boundary: an outcome depends on neighbours alone.
        best = boundaries[0].below
        ends = best[:2]
        for here, there in itertools.pairwise(boundaries):
            is_above = here.lower + here.upper + spacing > weights
            hits = [[self._between(here, i, there, j, is_above) for j in range(3)] for i in range(3)]
            ends = [ends[k] + hits[k][k] for k in range(2)]
            best = [_largest(best[i] + hits[i][j] for i in range(3)) for j in range(3)]
        last = boundaries[-1]
        bound = _largest(best[k] + last.above[k] for k in range(3)) - 1 + self._further(index, lower, upper)
        at_ends = _largest(
            ends[k] + last.above[k] - 1 + self._further(index, m, m) for k, m in enumerate((lower, upper))
        )
        return np.where(np.isnan(bound), math.inf, bound), np.where(np.isnan(at_ends), math.inf, at_ends)

    def _between(self, here: _Boundary, i: int, there: _Boundary, j: int, is_above: Bools) -> Floats:
        """Of the outcome between two boundaries, at a corner of each; by the tails on the side where they are small.

        Where both boundaries are too far out for that: it adds no more than all that is above the first, or below the
        second.
        """
        one, two = here.corners[i], there.corners[j]
        p = np.where(is_above, one.p[1] - two.p[0], two.not_p[1] - one.not_p[0])
        q = np.where(is_above, one.q[0] - two.q[1], two.not_q[0] - one.not_q[1])
        found = self.part(p, q)
        if there.has_far:
            found = np.where(there.far_below, there.below[j], found)
        if here.has_far:
            found = np.where(here.far_above, here.above[i], found)
        return found * (1 + ROUNDING)

    def part(self, p: Floats, q: Floats) -> Floats:
        """``P (P/Q)^lam`` of one outcome, rounded up."""
        log_p, log_q = np.log(p), np.log(q)
        error = 1 + 2 * self.order * _OUTCOME_ERRORS * np.maximum(1.0, -np.minimum(log_p, log_q))
        found = p * np.exp(self.lam * (log_p - log_q)) * error
        found[(p <= 0) & (q >= 0)] = 0.0  # NaN, or a q below 0, must not pass for nothing
        return found

    def falling_part(self, weights: Ints, lower: Ints, upper: Ints) -> Floats:
        """A bound on ``P (P/Q)^lam`` of all that is above a boundary from lower to upper; close where both > weight."""
        before, first = self.tails_at(lower - weights), self.tails_at(lower)
        last = self.tails_at(upper)
        # Up to the weight, P falls: no more is used. The bound on its hazard is for positive margins.
        steepness = np.where(lower > weights, self.noise.hazard_bounds(np.maximum(lower - weights, 1))[0], 0.0)
        at_upper = self.order * (before - steepness * (upper - lower) / self.noise.scale) - self.lam * last
        error = 4 * self.order * LOG_TAIL_ERROR * np.maximum(1.0, -last)
        return np.asarray(np.exp(np.maximum(self.order * before - self.lam * first, at_upper) + error))

    def _further(self, index: Ints, lower: Ints, upper: Ints) -> Floats:
        """What all other boundaries add, at most."""
        weights, spacing, reach = self.weights[index], self.spacing, self.reach[index]
        total = self.rest[index].copy()
        for k in itertools.count(2):
            near = lower + k * spacing < reach
            if not np.any(near):
                break
            at = np.flatnonzero(near)
            total[at] += self.falling_part(weights[at], lower[at] + k * spacing, upper[at] + k * spacing)
        # Below m - spacing: refined at m - 2 spacing.
        lowest, low = self.tails_at(1 - upper + 2 * spacing), self.tails_at(1 - upper + spacing)
        share = np.exp(lowest - low + 4 * LOG_TAIL_ERROR * np.maximum(1.0, -lowest))
        missed = np.exp(self.tails_at(1 - upper + spacing + weights)) * np.expm1(-self.lam * np.log1p(-share))
        return total + (missed + np.exp(lowest)) * (1 + 1e-9)


class _Boundary:
    """One boundary from lower to upper: three corners, two of them its ends, whose triangle encloses all its (Q, P).

    P as a function of Q is concave, of slope `_slopes`: the third corner is where the tangents of the ends meet. Where
    a tail is too small for a float, the corners are boxes.
    """

    def __init__(self, search: _Search, weights: Ints, lower: Ints, upper: Ints) -> None:
        self.lower, self.upper = lower, upper
        with_user, without = [lower - weights, upper - weights], [lower, upper]
        log_p, log_q = [search.tails_at(m) for m in with_user], [search.tails_at(m) for m in without]
        log_not_p, log_not_q = [search.tails_at(1 - m) for m in with_user], [search.tails_at(1 - m) for m in without]
        p, q, not_p, not_q = ([np.exp(log) for log in logs] for logs in (log_p, log_q, log_not_p, log_not_q))
        slopes = [_slopes(search.noise, weights, m) for m in without]
        p_step = np.where(with_user[0] >= 1, p[0] * -np.expm1(log_p[1] - log_p[0]), _step(log_not_p, not_p))
        q_step = np.where(lower >= 1, q[0] * -np.expm1(log_q[1] - log_q[0]), _step(log_not_q, not_q))
        turn = (slopes[1] - slopes[0]) * q_step
        share = np.where(turn > 0, (p_step - slopes[0] * q_step) / turn, 0.5)  # of q_step, from the upper end
        share = np.clip(np.nan_to_num(share, nan=0.5), 0.0, 1.0)
        above = _SLOPE_ERRORS * np.maximum(1.0, -np.minimum(log_p[1], log_q[1]))
        below = _SLOPE_ERRORS * np.maximum(1.0, -np.minimum(log_not_p[0], log_not_q[0]))
        meeting = _Corner(
            _around(p[1] + slopes[1] * share * q_step, above * p[0]),
            _around(q[1] + share * q_step, above * q[0], least=q[1]),
            _around(not_p[0] + slopes[0] * (1 - share) * q_step, below * not_p[1]),
            _around(not_q[0] + (1 - share) * q_step, below * not_q[1], least=not_q[0]),
        )
        ends = [_Corner((p[k], p[k]), (q[k], q[k]), (not_p[k], not_p[k]), (not_q[k], not_q[k])) for k in range(2)]
        box = _Corner((p[1], p[0]), (q[1], q[0]), (not_p[0], not_p[1]), (not_q[0], not_q[1]))
        self.far_above = far_above = np.minimum(log_p[1], log_q[1]) < _FAR
        self.far_below = far_below = np.minimum(log_not_p[0], log_not_q[0]) < _FAR
        far = far_above | far_below
        self.has_far = bool(np.any(far))
        self.corners = [_instead(far, box, corner) if self.has_far else corner for corner in (*ends, meeting)]
        self.below = [np.where(far_below, not_p[1], search.part(c.not_p[1], c.not_q[0])) for c in self.corners]
        self.above = [search.part(c.p[1], c.q[0]) for c in self.corners]
        if np.any(far_above):
            at = np.flatnonzero(far_above)
            for part in self.above:
                part[at] = search.falling_part(weights[at], lower[at], upper[at])


def _step(logs: list[Floats], tails: list[Floats]) -> Floats:
    return tails[1] * -np.expm1(logs[0] - logs[1])


def _slopes(noise: ExponentialPower, weights: Ints, margins: Ints) -> Floats:
    """dP/dQ: the density with the user over that without, at ``margin - 1/2``."""
    at = (margins - 0.5) / noise.scale
    return np.exp(np.abs(at) ** noise.shape - np.abs(at - weights / noise.scale) ** noise.shape)


def _around(value: Floats, error: Floats, least: Floats | float = 0.0) -> tuple[Floats, Floats]:
    return np.maximum(value - error, least), value + error


def _instead(where: Bools, this: _Corner, other: _Corner) -> _Corner:
    return _Corner(
        *((np.where(where, a[0], b[0]), np.where(where, a[1], b[1])) for a, b in zip(this, other, strict=True))
    )


def _largest(values: Iterable[Floats]) -> Floats:
    return functools.reduce(np.maximum, values)
