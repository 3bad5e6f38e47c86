"""What one query shows about one user: every possible result, with its exact probability in both worlds.

A query counts the active holders of an item: `f` without the user and `f + 1` with it. Only the *distance*
``f - threshold`` matters, for the mechanism compares a noisy count with fixed edges. Results with the same
ratio of probabilities and the same charge are one result here: merging them changes no privacy loss (docs/audit.md).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple


class Result(NamedTuple):
    """with_user, without_user: its probabilities. log_ratio: ``ln(with_user / without_user)``, without cancellation.

    charged: how many hits every active holder pays for it, 0 or 1.
    """

    with_user: float
    without_user: float
    log_ratio: float
    charged: int


@dataclasses.dataclass(frozen=True)
class ThresholdLaw:
    """Modes ``hits`` (zone_width >= 1) and ``hits-with-counts`` (zone_width 0: all from the threshold on is charged).

    Discrete Laplace noise of scale ``1 / epsilon_per_query``. A noisy count v has ratio e^epsilon_per_query where
    ``v > f`` and its inverse where ``v <= f``. Only "below" and "above", which lump values, may lie between.

    >>> law = ThresholdLaw(epsilon_per_query=0.5, zone_width=4)
    >>> [(round(result.log_ratio, 3), result.charged) for result in law.results(-1)]
    [(-0.5, 0), (0.5, 1), (0.5, 0)]
    """

    epsilon_per_query: float
    zone_width: int
    near: ClassVar[int] = -1  # the distance at which, if it is kept, the loss can grow most while the user pays least

    def results(self, distance: int) -> tuple[Result, ...]:
        """All possible results, at this distance of the count without the user from the threshold."""
        last_of_zone = self.zone_width - 1 if self.zone_width else None
        # Single values keep their own ratio, so the zone is cut at the count. "below" and "above" are lumps.
        charged = [(*part, 1) for part in _cut(0, last_of_zone, distance)]
        above = [(self.zone_width, None, 0)] if self.zone_width else []
        found: dict[tuple[float, int], Result] = {}
        for first, last, hits in [(None, -1, 0), *charged, *above]:
            with_user, without_user, log_ratio = self._range(first, last, distance)
            key = (log_ratio, hits)
            before = found.get(key, Result(0.0, 0.0, *key))
            found[key] = Result(before.with_user + with_user, before.without_user + without_user, *key)
        return tuple(result for result in found.values() if result.with_user > 0 or result.without_user > 0)

    def _range(self, first: int | None, last: int | None, distance: int) -> tuple[float, float, float]:
        """Two probabilities and the log ratio of noisy counts ``threshold + first .. threshold + last``."""
        epsilon = self.epsilon_per_query
        with_user = laplace_mass(epsilon, first, last, distance + 1)
        without_user = laplace_mass(epsilon, first, last, distance)
        if first is not None and first > distance:
            log_ratio = epsilon
        elif last is not None and last <= distance:
            log_ratio = -epsilon
        else:
            log_ratio = math.log(with_user / without_user)
        return with_user, without_user, log_ratio

    @property
    def far(self) -> int | None:
        """The mirror image of `near`, at the other edge of a charged zone; None without a zone."""
        return self.zone_width - 1 if self.zone_width else None

    @property
    def distances(self) -> tuple[int, ...]:
        """A few distances to try, `near` and `far` among them."""
        last = self.zone_width - 1 if self.zone_width else math.ceil(1 / self.epsilon_per_query)
        return tuple(sorted({-1, last // 2, last}))

    def alone(self, threshold: int) -> float:
        """The probability that an item whose only holder is the user is published."""
        return laplace_mass(self.epsilon_per_query, threshold, None, 1)


def laplace_mass(epsilon: float, first: int | None, last: int | None, center: int) -> float:
    """``Pr[first <= center + Z <= last]`` for discrete Laplace Z, with all digits; None: without end."""
    a = math.exp(-epsilon)
    low = -math.inf if first is None else first - center
    high = math.inf if last is None else last - center
    if low > high:
        return 0.0
    if low > 0:
        return -math.exp(-epsilon * low) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    if high < 0:
        return -math.exp(epsilon * high) * math.expm1(-epsilon * (high - low + 1)) / (1 + a)
    return 1 - (math.exp(-epsilon * (1 - low)) + math.exp(-epsilon * (high + 1))) / (1 + a)


def _cut(low: int | None, high: int | None, distance: int) -> list[tuple[int | None, int | None]]:
    """The range in two: up to the count, and above it."""
    if (low is not None and low > distance) or (high is not None and high <= distance):
        return [(low, high)]
    return [(low, distance), (distance + 1, high)]
