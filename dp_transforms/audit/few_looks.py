"""The best adaptive adversary of a few looks, with any weights that a purse pays for.

The adversary sees the results so far, and then chooses the next weight and count. It is found on a grid, by Bellman's
equation over (looks left, units left, likelihood ratio), and then what it does is followed result by result, without
any grid: so the delta is attained exactly. Of a look only the name is used, not the level, which can but lose.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np

from dp_transforms.audit.look_law import ROUNDING, NoiseLaw, Values, Whole
from dp_transforms.audit.mechanism import PricesOfUser

_WEIGHTS = 9  # the largest ones, as many as an adversary of so few looks can want
_REACH = 3.5  # of margins, in scales: beyond it a look shows next to nothing to so few
_STEPS = 16  # of margins, for each unit of scale
_RATIOS = 0.06  # step of ln r on the grid that decides what to do


@dataclasses.dataclass(frozen=True)
class FewLooks:
    """looks: as many. delta: attained at the claimed epsilon, rounded down. weights: of the looks, until an item is
    named; margins: the threshold less what others add, of the same ones."""

    looks: int
    delta: float
    weights: tuple[int, ...]
    margins: tuple[int, ...]
    adds_user: bool


class _Outcome(NamedTuple):
    """``ln P`` and ``ln Q``: float64[n] each."""

    log_p: Values
    log_q: Values


class FewLooksAdversary:
    """threshold: of new items. adds_user: P is the run with the user."""

    def __init__(self, law: NoiseLaw, listed: PricesOfUser, threshold: int, epsilon: float, *, adds_user: bool) -> None:
        self._law, self._prices, self._threshold = law, listed, threshold
        self._epsilon, self._adds_user = epsilon, adds_user
        self._listed = range(max(0, len(listed.weights) - _WEIGHTS), len(listed.weights))
        self._step = max(1, law.scale // _STEPS)
        reach = math.ceil(_REACH * law.scale) + listed.weights[-1]
        lowest = listed.weights[-1] - reach
        # Others cannot add less than nothing: no margin is above the threshold.
        self._margins = np.arange(lowest, min(reach, threshold) + 1, self._step)
        self._log_ratios = np.arange(-epsilon - 10, 8, _RATIOS)
        self._value = functools.cache(self._value)  # type: ignore[method-assign]

    def play(self, looks: int) -> FewLooks:
        """The best that it can do. looks: at most 3 or so."""
        delta, path = self._attained(looks, self._prices.purse, 0.0)
        weights, margins = (tuple(each[column] for each in path) for column in (0, 1))
        return FewLooks(looks, delta * (1 - ROUNDING), weights, margins, self._adds_user)

    def _outcomes(self, place: int, margins: Whole) -> list[_Outcome]:
        """Not named; named."""
        law, both = self._law, (margins - self._prices.weights[place], margins)
        sides = [(law.log_tail(1 - moved), law.log_tail(moved)) for moved in both]
        p, q = sides if self._adds_user else sides[::-1]
        return [_Outcome(*each) for each in zip(p, q, strict=True)]

    def _gain(self, log_ratios: Values) -> Values:
        """If nothing more is looked at."""
        return np.asarray(-np.expm1(np.minimum(0.0, self._epsilon + log_ratios)))

    def _value(self, looks: int, rest: int) -> Values:
        """About what is still to be had, by likelihood ratio Q/P so far: float64[ratios]."""
        values = [
            self._after(looks, rest, place, self._margins, self._log_ratios).max(axis=0)
            for place in self._payable(looks, rest)
        ]
        return np.asarray(np.max([self._gain(self._log_ratios), *values], axis=0))

    def _after(self, looks: int, rest: int, place: int, margins: Whole, log_ratios: Values) -> Values:
        """The value if the next look has this weight: float64[margins, ratios]."""
        total = np.zeros((len(margins), len(log_ratios)))
        for outcome in self._outcomes(place, margins):
            with np.errstate(invalid="ignore"):
                change = np.where(outcome.log_p == -math.inf, 0.0, outcome.log_q - outcome.log_p)
            moved = log_ratios + change[:, None]
            if looks == 1:
                value = self._gain(moved)
            else:
                after = self._value(looks - 1, rest - self._prices.units[place])
                value = np.interp(moved.reshape(-1), self._log_ratios, after).reshape(moved.shape)
            total += np.exp(outcome.log_p)[:, None] * value
        return total

    def _payable(self, looks: int, rest: int) -> list[int]:
        """Places in the list: any of the largest weights; for a last look the largest one that is payable. None if
        nothing is."""
        largest = self._prices.payable(rest)
        if largest is None:
            return []
        return [largest] if looks == 1 else [place for place in self._listed if place <= largest] or [largest]

    def _choice(self, looks: int, rest: int, log_ratio: float) -> tuple[int, int] | None:
        """The next weight's place and the margin; None if there is no look any more."""
        at = np.array([log_ratio])
        tried = [
            (place, self._after(looks, rest, place, self._margins, at)[:, 0]) for place in self._payable(looks, rest)
        ]
        if not tried:
            return None
        place, values = max(tried, key=lambda each: float(each[1].max()))
        margin = int(self._margins[np.argmax(values)])
        finely = np.arange(margin - self._step, margin + self._step + 1)
        finely = finely[finely <= self._threshold]
        return place, int(finely[np.argmax(self._after(looks, rest, place, finely, at)[:, 0])])

    def _attained(self, looks: int, rest: int, log_ratio: float) -> tuple[float, list[tuple[int, int]]]:
        """What this adversary has in the end, per unit of P; weight and margin of its looks until an item is named."""
        chosen = self._choice(looks, rest, log_ratio) if looks else None
        if chosen is None:
            return -math.expm1(min(0.0, self._epsilon + log_ratio)), []
        place, margin = chosen
        total, left = 0.0, rest - self._prices.units[place]
        paths: list[list[tuple[int, int]]] = []
        for outcome in self._outcomes(place, np.array([margin])):
            p, q = float(outcome.log_p[0]), float(outcome.log_q[0])
            if p == -math.inf:
                paths.append([])
                continue
            value, path = self._attained(looks - 1, left, log_ratio + q - p)
            total += math.exp(p) * value
            paths.append(path)
        return total, [(self._prices.weights[place], margin), *paths[0]]
