"""What is audited of release mode `names`: the mechanism as plain numbers, and what the plan claims about it."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from dp_transforms.plan.names_plan import NamesPlan

Whole = npt.NDArray[np.int64]

_LEVELS = 6  # of each item; what more boundaries show is the same again


@dataclasses.dataclass(frozen=True)
class PricesOfUser:
    """A price list, and what a user has to pay its looks with.

    weights, units: rising, and what a look with each costs. purse: in units, without what is taken out for hits.
    hits: after so many a user on this list no longer counts, 0: hits are free; hit_units: what it pays for each.
    counts: so many counted pairs of a user count, and are set aside for; count_units: what each costs.
    """

    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    hits: int = 0
    hit_units: int = 0
    counts: int = 0
    count_units: int = 0

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return self.purse // self.units[0]

    @functools.cached_property
    def most_paid(self) -> int:
        """The same of a user of a replay: so many pairs are paid for, with what is set aside for their counts."""
        looks = np.arange(1, self.most_looks + 1)
        return int(np.count_nonzero(looks * self.units[0] <= self.purse_of(looks)))

    def purse_of(self, looks: Whole) -> Whole:
        """What users with so many pairs in the whole run have left for looks, when counts are set aside for."""
        return self.purse - np.minimum(looks, self.counts) * self.count_units

    def payable(self, amount: int) -> int | None:
        """Where in the list the largest weight is that costs at most this; None if none does."""
        place = bisect.bisect_right(self.units, amount) - 1
        return None if place < 0 else place

    def replay_weight(self, looks: int) -> int:
        """Of a user of this list with so many pairs in the whole run."""
        purse = int(self.purse_of(np.array(looks)))
        place = self.payable(purse // min(looks, purse // self.units[0]))
        assert place is not None
        return self.weights[place]


@dataclasses.dataclass(frozen=True)
class NamesMechanism:
    """shape, scale: of the noise. weights, units: what a look may weigh, rising, and what each costs of a purse.

    purse: in units. boundaries, known_boundaries: noisy sums from which an item has level 1, 2, ..., if it is not
    known and if it is. tests_lone_items: whether an item is drawn for only if somebody holds it (an open domain).
    hits_list: of users who pay for hits; None where nobody does. Level 1 is then a hit, and level 2 is the last one.
    counts_per_user, count_units, count_scale: so many counted pairs of a user count, what each costs, and the scale of
    the Gaussian noise of a count; 0 without counts.
    """

    shape: float
    scale: int
    weights: tuple[int, ...]
    units: tuple[int, ...]
    purse: int
    boundaries: tuple[int, ...]
    known_boundaries: tuple[int, ...]
    tests_lone_items: bool = True
    hits_list: PricesOfUser | None = None
    counts_per_user: int = 0
    count_units: int = 0
    count_scale: int = 0

    @classmethod
    def of_plan(cls, plan: NamesPlan) -> NamesMechanism:
        levels = 2 if plan.hits_per_user else _LEVELS
        first, known = (
            tuple(start + level * plan.spacing for level in range(levels))
            for start in (plan.threshold, plan.known_threshold)
        )
        hits_list = None
        if plan.hits_per_user:
            left = plan.purse - plan.hits_per_user * plan.hit_units
            hits_list = PricesOfUser(plan.hit_weights, plan.hit_look_units, left, plan.hits_per_user, plan.hit_units)
        return cls(
            shape=plan.shape,
            scale=plan.scale,
            weights=plan.weights,
            units=plan.units,
            purse=plan.purse,
            boundaries=first,
            known_boundaries=known,
            tests_lone_items=not plan.domain_size,
            hits_list=hits_list,
            counts_per_user=plan.counts_per_user,
            count_units=plan.count_units,
            count_scale=plan.count_scale,
        )

    @functools.cached_property
    def looks_list(self) -> PricesOfUser:
        return PricesOfUser(
            self.weights, self.units, self.purse, counts=self.counts_per_user, count_units=self.count_units
        )

    @property
    def lists(self) -> tuple[PricesOfUser, ...]:
        """The looks list, and the hits list if there is one."""
        return (self.looks_list,) if self.hits_list is None else (self.looks_list, self.hits_list)

    @property
    def most_looks(self) -> int:
        """A purse pays for no more looks than this."""
        return max(listed.most_looks for listed in self.lists)

    @property
    def most_paid(self) -> int:
        """So many pairs of a user of a replay are paid for."""
        return max(listed.most_paid for listed in self.lists)

    def all_count(self, looks: int) -> bool:
        """Whether all of so many pairs of a user of a replay count, whatever is named: each is paid for, and it is not
        on the hits list, or has but one."""
        return looks <= self.most_paid and (looks == 1 or self.replay_choice(looks)[1] == self.looks_list)

    @property
    def spacing(self) -> int:
        return self.boundaries[1] - self.boundaries[0]

    @property
    def spacings(self) -> tuple[tuple[int, ...], ...]:
        """Each way in which boundaries lie, as distances from the first one. What a look shows depends on these."""
        both = (self.boundaries, self.known_boundaries)
        return tuple(dict.fromkeys(tuple(bound - each[0] for bound in each) for each in both))

    def replay_choice(self, looks: int) -> tuple[int, PricesOfUser]:
        """The weight of a user with so many looks in the whole run, and its list: the one that gives it more."""
        best = max(self.lists, key=lambda listed: listed.replay_weight(looks))
        return best.replay_weight(looks), best


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
