"""What is audited: the mechanism that a plan runs, and what the plan claims about it."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from dp_transforms.audit.query_law import CappedSumLaw, QueryLaw, ThresholdLaw
from dp_transforms.plan.charging_plan import ChargingPlan


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
    def of_plan(cls, plan: ChargingPlan) -> Mechanism:
        law: QueryLaw = ThresholdLaw(plan.epsilon_per_query, plan.zone_width)
        if plan.release == "kms21":
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
class Claim:
    """What is promised: (epsilon, delta) for the run, and how delta was split.

    epsilon_after_hits: entry j - 1 is the epsilon promised, at delta_accounting, for an exclusion after j hits.
    """

    epsilon: float
    delta: float
    delta_accounting: float
    delta_open: float
    epsilon_after_hits: tuple[float, ...] = ()

    @classmethod
    def of_plan(cls, plan: ChargingPlan) -> Claim:
        return cls(plan.epsilon, plan.delta, plan.delta_accounting, plan.delta_open, plan.epsilon_after_hits)


class DeltaClaim(Protocol):
    """A claim in any release mode, as far as these modes share it."""

    @property
    def epsilon(self) -> float: ...
    @property
    def delta(self) -> float: ...
    @property
    def delta_open(self) -> float: ...


def violations_of_delta(lone_delta: float, together_delta: float, claim: DeltaClaim) -> list[str]:
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
