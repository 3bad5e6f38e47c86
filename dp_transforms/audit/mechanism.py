"""What is audited: the mechanism that a plan runs, what the plan claims about it, and what workers get of it.

In a `Mechanism` users pay for hits, in a `LooksMechanism` (mode `looks`) for looks. A mechanism is plain
numbers, so that tests can change one of them and leave the claim as it was.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Self

import numpy as np

from dp_transforms.audit.look_law import NoiseLaw, Whole
from dp_transforms.audit.query_law import CappedSumLaw, QueryLaw, ThresholdLaw
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import FEWEST_STATED
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.stream_settings import StreamSettings
from dp_transforms.plan.hits_plan import HitsPlan
from dp_transforms.plan.looks_plan import LooksPlan

_LEVELS = 6  # of each item; what more boundaries show is the same again
_FREE = ("stream", "run_id")  # names that a run is given
_ERROR = 1e-9  # of a quadrature, relative


# ---------------------------------------------------------------------------------------------------------------------
# Claims. Names as in the plans.
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is promised: (epsilon, delta) for the run, and what of delta is for items that one user holds alone."""

    epsilon: float
    delta: float
    delta_open: float

    @classmethod
    def of_plan(cls, plan: LooksPlan | HitsPlan) -> Self:
        return cls(**{field.name: getattr(plan, field.name) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class HitsClaim(Claim):
    """delta_accounting: for charged results. epsilon_after_hits: entry j - 1 is the epsilon promised, at
    delta_accounting, for an exclusion after j hits."""

    delta_accounting: float
    epsilon_after_hits: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LooksClaim(Claim):
    """delta_looks: for looks. order, budget: the divergence of this order that a full purse stands for. most_looks:
    that it pays for."""

    delta_looks: float
    order: float
    budget: float
    most_looks: int

    def price(self, units: int, purse: int) -> float:
        """The divergence that so many units stand for."""
        return self.budget * units / purse

    @property
    def delta_of_purse(self) -> float:
        """What a full purse proves at this order (Canonne, Kamath, Steinke 2020, Proposition 12)."""
        lam = self.order - 1
        exponent = lam * (self.budget - self.epsilon) + self.order * math.log1p(-1 / self.order) - math.log(lam)
        return math.exp(min(0.0, exponent))


def violations_of_delta(lone_delta: float, together_delta: float, claim: Claim) -> list[str]:
    """What exceeds the claim, in words.

    lone_delta: attained by items that one user holds alone. together_delta: by everything.
    """
    found = []
    if lone_delta > claim.delta_open:
        found.append(
            f"items that one user holds alone are published with probability {lone_delta:.4g}, but only "
            f"{claim.delta_open:.4g} is set aside for them"
        )
    if together_delta > claim.delta:
        found.append(f"together they attain delta {together_delta:.4g} at epsilon {claim.epsilon:g}")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Mechanisms
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """What is run, as plain numbers: the law of one query, the smallest count that is published, and the limits.

    hits_per_user: charged results after which a user is excluded. horizon: windows. max_items_per_user: in one window.
    tests_lone_items: whether an item is tested only if somebody holds it (an open domain).
    """

    law: QueryLaw
    threshold: int
    hits_per_user: int
    horizon: int
    max_items_per_user: int
    tests_lone_items: bool = True

    @classmethod
    def of_plan(cls, plan: HitsPlan) -> Mechanism:
        law: QueryLaw = ThresholdLaw(plan.epsilon_per_query, plan.zone_width)
        if plan.mode == "kms21":
            law = CappedSumLaw(
                wide_epsilon=plan.wide_epsilon_per_query, narrow_epsilon=plan.epsilon_per_query, cap=plan.noise_cap
            )
        return cls(
            law=law,
            threshold=plan.threshold,
            hits_per_user=plan.hits_per_user,
            horizon=plan.schedule.horizon,
            max_items_per_user=plan.max_items_per_user,
            tests_lone_items=not plan.domain_size,
        )


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
class LooksMechanism:
    """shape, scale: of the noise. looks_list: of users who pay nothing for hits. hits_list: of users who pay for hits;
    None where nobody does. Level 1 is then a hit, and level 2 is the last one.

    boundaries, known_boundaries: noisy sums from which an item has level 1, 2, ..., if it is not known and if it is.
    tests_lone_items: whether an item is drawn for only if somebody holds it (an open domain). count_scale: of the
    Gaussian noise of a count; 0 without counts.
    """

    shape: float
    scale: int
    looks_list: PricesOfUser
    boundaries: tuple[int, ...]
    known_boundaries: tuple[int, ...]
    tests_lone_items: bool = True
    hits_list: PricesOfUser | None = None
    count_scale: int = 0

    @classmethod
    def of_plan(cls, plan: LooksPlan) -> LooksMechanism:
        levels = range(2 if plan.hits_per_user else _LEVELS)
        hits_list = None
        if plan.hits_per_user:
            left = plan.purse - plan.hits_per_user * plan.hit_units
            hits_list = PricesOfUser(plan.hit_weights, plan.hit_look_units, left, plan.hits_per_user, plan.hit_units)
        counts = {"counts": plan.counts_per_user, "count_units": plan.count_units}
        return cls(
            plan.shape,
            plan.scale,
            PricesOfUser(plan.weights, plan.units, plan.purse, **counts),
            boundaries=tuple(plan.threshold + level * plan.spacing for level in levels),
            known_boundaries=tuple(plan.known_threshold + level * plan.spacing for level in levels),
            tests_lone_items=not plan.domain_size,
            hits_list=hits_list,
            count_scale=plan.count_scale,
        )

    @property
    def purse(self) -> int:
        """A full one, in units."""
        return self.looks_list.purse

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


# ---------------------------------------------------------------------------------------------------------------------
# What workers get. The sampled runs have thresholds and windows of their own, and would not see others in it.
# ---------------------------------------------------------------------------------------------------------------------


def settings_violations(plan: LooksPlan | HitsPlan, settings: StreamSettings) -> Iterator[str]:
    """A sentence for each field that is not the plan's, and for each of which the plan does not say what it must be."""
    wanted = {"plan_fingerprint": plan.fingerprint, "epsilon_total": plan.epsilon}
    checked = [field.name for field in dataclasses.fields(settings) if field.name not in _FREE]
    if isinstance(plan, LooksPlan):
        wanted["noise"] = ExponentialPower(plan.shape, plan.scale)
        checked.remove("likely_noise")
    for name in checked:
        if name not in wanted and not hasattr(plan, name):
            yield f"workers get {name}, and the audit does not know what it must be"
        elif getattr(settings, name) != wanted.get(name, getattr(plan, name, None)):
            yield f"workers get another {name} than the plan says"
    if isinstance(plan, LooksPlan) and isinstance(settings, NamingSettings):
        wrong = _wrong_sizes(plan, settings.likely_noise)
        if wrong > plan.size_error * (1 + _ERROR):
            yield f"with the likely_noise that workers get up to {wrong:.3g} sizes of a run are wrong on average"


def _wrong_sizes(plan: LooksPlan, likely_noise: int) -> float:
    """How many sizes of a run are wrong on average, at most: docs/guarantee.md, "Sizes", by another law of the
    noise."""
    law = NoiseLaw.whole(plan.shape, plan.scale)
    largest, left = plan.weights[-1], plan.purse - plan.hits_per_user * plan.hit_units
    looks = [(weight, plan.purse / units) for weight, units in zip(plan.weights, plan.units, strict=True)]
    looks += [(weight, left / units) for weight, units in zip(plan.hit_weights, plan.hit_look_units, strict=True)]
    beyond = likely_noise + 1 + (FEWEST_STATED - 1) * (largest - np.array([weight for weight, _ in looks]))
    of_users = plan.max_users * float((np.exp(law.log_tail(beyond)) * [number for _, number in looks]).max())
    unheld = plan.domain_size * plan.schedule.horizon or 2 * plan.forget_after * plan.max_users * plan.most_looks
    return of_users + unheld * law.tail(likely_noise + 1 + (FEWEST_STATED - 1) * largest)
