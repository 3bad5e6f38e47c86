"""The best adaptive adversary of a few looks of one user on the two price lists, from docs/guarantee.md, "Looks and
hits in one purse" alone.

It chooses counts, weights, and when the user joins the hits list, by what was published so far; the user pays as the
section says. What it attains is the largest ``P(S) - e^epsilon Q(S)`` of any set of transcripts. The value is convex in
the likelihood ratio so far, so that chords between points of a grid are above it, by less than one in a thousand here.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BELOW, HIT, ABOVE = range(3)
_LOG_RATIOS = np.concatenate([np.linspace(-30, -4, 105)[:-1], np.linspace(-4, 3, 1401)])
RATIOS = np.exp(_LOG_RATIOS)


@dataclasses.dataclass(frozen=True)
class HitsGame:
    """What can be published and what it costs.

    outcomes: of each weight, the probabilities of below, hit and above with the user and without, for each count:
        float64[2, 3, counts]. looks_list, hits_list: weight to units. purse: units. hits: J. hit_units: for each of
        them, set aside when the user joins. never_excluded: a fault.
    """

    outcomes: Mapping[int, Floats]
    looks_list: Mapping[int, int]
    hits_list: Mapping[int, int]
    purse: int
    hits: int
    hit_units: int
    epsilon: float
    never_excluded: bool = False

    def delta(self, looks: int, *, removed: bool = False) -> float:
        """What the adversary attains with at most so many looks. removed: P is the world without the user."""

        @functools.cache
        def value(looks: int, left: int, hits: int | None) -> Floats:
            """Per unit of P, for each of `RATIOS` so far. hits: left; None before the user joins."""
            best = np.maximum(0.0, 1 - math.exp(self.epsilon) * RATIOS)
            if not looks or hits == 0:
                return best
            if hits is None and left >= self.hits * self.hit_units:
                best = np.maximum(best, value(looks, left - self.hits * self.hit_units, self.hits))
            for weight, units in (self.looks_list if hits is None else self.hits_list).items():
                if units <= left:
                    then = [value(looks - 1, left - units, self._after(hits, outcome)) for outcome in range(3)]
                    best = np.maximum(best, _one_look(self.outcomes[weight], then, removed=removed))
            return best

        return float(np.interp(1.0, RATIOS, value(looks, self.purse, None)))

    def _after(self, hits: int | None, outcome: int) -> int | None:
        return hits if hits is None or outcome != HIT or self.never_excluded else hits - 1


def _one_look(outcomes: Floats, then: Sequence[Floats], *, removed: bool) -> Floats:
    """The largest value over all counts."""
    p, q = outcomes[::-1] if removed else outcomes
    best = np.zeros(len(RATIOS))
    for count in range(p.shape[1]):
        total = np.zeros(len(RATIOS))
        for outcome in range(3):
            if p[outcome, count] > 0:
                ratios = RATIOS * (q[outcome, count] / p[outcome, count])
                total += p[outcome, count] * np.interp(ratios, RATIOS, then[outcome], left=1.0)
        best = np.maximum(best, total)
    return best
