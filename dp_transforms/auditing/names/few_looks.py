"""The best adaptive adversary of a few looks, with any weights that a purse pays for.

The adversary sees the results so far, and then chooses the next weight and count. It is found on a grid, by Bellman's
equation over (looks left, units left, likelihood ratio), and then what it does is followed result by result, without
any grid: so the delta is attained exactly. Of a look only the name is used, not the level, which can but lose.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from dp_transforms.auditing.names.look_law import ROUNDING
from dp_transforms.auditing.names.mechanism import NamesMechanism
from dp_transforms.auditing.names.noise_law import NoiseLaw, Values, Whole

_WEIGHTS = 12  # the largest ones, as many as an adversary of so few looks can want
_REACH = 3.5  # of margins, in scales: beyond it a look shows next to nothing to so few
_STEPS = 20  # of margins, for each unit of scale
_RATIOS = 0.04  # step of ln r on the grid that decides what to do


@dataclasses.dataclass(frozen=True)
class FewLooks:
    """looks: as many. delta: attained at the claimed epsilon, rounded down. weights: of the looks, until one is a hit;
    margins: the threshold less what others add, of the same ones."""

    looks: int
    delta: float
    weights: tuple[int, ...]
    margins: tuple[int, ...]
    adds_user: bool


def best_of_few(
    law: NoiseLaw, mechanism: NamesMechanism, looks: int, epsilon: float, *, adds_user: bool, weights: int = _WEIGHTS
) -> FewLooks:
    """looks: at most 3 or so. adds_user: P is the run with the user."""
    return _Adversary(law, mechanism, epsilon, adds_user, weights).play(looks)


class _Adversary:
    def __init__(self, law: NoiseLaw, mechanism: NamesMechanism, epsilon: float, adds_user: bool, weights: int) -> None:
        self._law, self._mechanism = law, mechanism
        self._epsilon, self._adds_user = epsilon, adds_user
        self._listed = range(max(0, len(mechanism.weights) - weights), len(mechanism.weights))
        self._step = max(1, law.scale // _STEPS)
        reach = math.ceil(_REACH * law.scale) + mechanism.weights[-1]
        # Others cannot add less than nothing: no margin is above the threshold.
        self._margins = np.arange(mechanism.weights[-1] - reach, min(reach, mechanism.boundaries[0]) + 1, self._step)
        self._log_ratios = np.arange(-epsilon - 10, 8, _RATIOS)
        self._value = functools.cache(self._value)  # type: ignore[method-assign]

    def play(self, looks: int) -> FewLooks:
        rest = self._mechanism.purse
        delta = self._attained(looks, rest, 0.0) * (1 - ROUNDING)
        weights, margins, log_ratio = [], [], 0.0
        for left in range(looks, 0, -1):
            chosen = self._choice(left, rest, log_ratio)
            if chosen is None:
                break
            place, margin = chosen
            weights.append(self._mechanism.weights[place])
            margins.append(margin)
            rest -= self._mechanism.units[place]
            _, (log_p, log_q) = zip(*self._bits(place, np.array([margin])), strict=True)
            log_ratio += float(log_q[0] - log_p[0])
        return FewLooks(looks, delta, tuple(weights), tuple(margins), self._adds_user)

    def _bits(self, place: int, margins: Whole) -> tuple[tuple[Values, Values], tuple[Values, Values]]:
        """``ln P`` and ``ln Q`` of being named, and of not: float64[n] each."""
        weight = self._mechanism.weights[place]
        with_user = (self._law.log_tail(margins - weight), self._law.log_tail(1 - margins + weight))
        without = (self._law.log_tail(margins), self._law.log_tail(1 - margins))
        p, q = (with_user, without) if self._adds_user else (without, with_user)
        return (p[0], q[0]), (p[1], q[1])

    def _gain(self, place: int, margins: Whole, log_ratios: Values) -> Values:
        """Of a last look: ``E_P (1 - e^epsilon r)_+`` after it. margins: [n]. log_ratios: [k]. Returns [n, k]."""
        total = np.zeros((len(margins), len(log_ratios)))
        for log_p, log_q in self._bits(place, margins):
            lost = self._epsilon + log_ratios + (log_q - log_p)[:, None]
            total += np.exp(log_p)[:, None] * -np.expm1(np.minimum(0.0, lost))
        return total

    def _value(self, looks: int, rest: int) -> Values:
        """About what is still to be had, by likelihood ratio Q/P so far: float64[ratios]."""
        stop = -np.expm1(np.minimum(0.0, self._epsilon + self._log_ratios))
        values = [
            self._after(looks, rest, place, self._margins, self._log_ratios).max(axis=0)
            for place in self._payable(looks, rest)
        ]
        return np.asarray(np.max([stop, *values], axis=0))

    def _after(self, looks: int, rest: int, place: int, margins: Whole, log_ratios: Values) -> Values:
        """The value if the next look has this weight: float64[margins, ratios]."""
        if looks == 1:
            return self._gain(place, margins, log_ratios)
        after = self._value(looks - 1, rest - self._mechanism.units[place])
        total = np.zeros((len(margins), len(log_ratios)))
        for log_p, log_q in self._bits(place, margins):
            moved = log_ratios + (log_q - log_p)[:, None]
            value = np.interp(moved.reshape(-1), self._log_ratios, after).reshape(moved.shape)
            total += np.exp(log_p)[:, None] * value
        return total

    def _payable(self, looks: int, rest: int) -> list[int]:
        """Places in the list: any of the largest weights, and last the largest one that is payable."""
        largest = self._mechanism.payable(rest)
        if largest is None:
            return []
        return [largest] if looks == 1 else [place for place in self._listed if place <= largest] or [largest]

    def _choice(self, looks: int, rest: int, log_ratio: float) -> tuple[int, int] | None:
        """The next weight's place and the margin; None if nothing can be paid."""
        at = np.array([log_ratio])
        tried = [
            (place, self._after(looks, rest, place, self._margins, at)[:, 0]) for place in self._payable(looks, rest)
        ]
        if not tried:
            return None
        place, values = max(tried, key=lambda each: float(each[1].max()))
        margin = int(self._margins[np.argmax(values)])
        finely = np.arange(margin - self._step, margin + self._step + 1)
        finely = finely[finely <= self._mechanism.boundaries[0]]
        return place, int(finely[np.argmax(self._after(looks, rest, place, finely, at)[:, 0])])

    def _attained(self, looks: int, rest: int, log_ratio: float) -> float:
        """What this adversary has in the end, per unit of P."""
        chosen = self._choice(looks, rest, log_ratio) if looks else None
        if chosen is None:
            return -math.expm1(min(0.0, self._epsilon + log_ratio))
        place, margin = chosen
        total = 0.0
        for log_p, log_q in self._bits(place, np.array([margin])):
            p, q = float(log_p[0]), float(log_q[0])
            if p > -math.inf:
                total += math.exp(p) * self._attained(looks - 1, rest - self._mechanism.units[place], log_ratio + q - p)
        return total
