"""What is audited of release mode `names`: the mechanism as plain numbers, and what the plan claims about it."""

from __future__ import annotations

import bisect
import dataclasses
import math

from dp_transforms.accounting.names_plan import NamesPlan

_LEVELS = 6  # of each item; what more boundaries show is the same again


@dataclasses.dataclass(frozen=True)
class NamesMechanism:
    """shape, scale: of the noise. weights, units: what a look may weigh, rising, and what each costs of a purse.

    purse: in units. boundaries, known_boundaries: noisy sums from which an item has level 1, 2, ..., if it is not
    known and if it is. tests_lone_items: whether an item is drawn for only if somebody holds it (an open domain).
    """

    shape: float
    scale: int
    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    boundaries: tuple[int, ...]
    known_boundaries: tuple[int, ...]
    tests_lone_items: bool = True

    @classmethod
    def of_plan(cls, plan: NamesPlan) -> NamesMechanism:
        first, known = (
            tuple(start + level * plan.spacing for level in range(_LEVELS))
            for start in (plan.threshold, plan.known_threshold)
        )
        return cls(
            shape=plan.shape,
            scale=plan.scale,
            weights=plan.weights,
            units=plan.units,
            purse=plan.purse,
            boundaries=first,
            known_boundaries=known,
            tests_lone_items=not plan.domain_size,
        )

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return self.purse // self.units[0]

    @property
    def spacings(self) -> tuple[tuple[int, ...], ...]:
        """Each way in which boundaries lie, as distances from the first one. What a look shows depends on these."""
        both = (self.boundaries, self.known_boundaries)
        return tuple(dict.fromkeys(tuple(bound - each[0] for bound in each) for each in both))

    def payable(self, amount: int) -> int | None:
        """Where in the list the largest weight is that costs at most this; None if none does."""
        place = bisect.bisect_right(self.units, amount) - 1
        return None if place < 0 else place

    def replay_weight(self, looks: int) -> int:
        """Of a user with so many looks in the whole run."""
        place = self.payable(self.purse // min(looks, self.most_looks))
        assert place is not None
        return self.weights[place]


@dataclasses.dataclass(frozen=True)
class NamesClaim:
    """What is promised: (epsilon, delta) for the run, and how delta was split.

    order, budget: the divergence of this order that a full purse stands for. most_looks: that it pays for.
    """

    epsilon: float
    delta: float
    delta_looks: float
    delta_open: float
    order: float
    budget: float
    most_looks: int

    @classmethod
    def of_plan(cls, plan: NamesPlan) -> NamesClaim:
        return cls(
            plan.epsilon,
            plan.delta,
            plan.delta_looks,
            plan.delta_open,
            plan.order,
            plan.budget,
            plan.most_looks,
        )

    def price(self, units: int, purse: int) -> float:
        """The divergence that so many units stand for."""
        return self.budget * units / purse

    @property
    def delta_of_purse(self) -> float:
        """What a full purse proves at this order (Canonne, Kamath, Steinke 2020, Proposition 12)."""
        lam = self.order - 1
        exponent = lam * (self.budget - self.epsilon) + self.order * math.log1p(-1 / self.order) - math.log(lam)
        return math.exp(min(0.0, exponent))
