"""From how many users on an item is found: by a plan, by the other release modes, and by the methods of others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from dp_transforms.accounting.purse.purse_choice import DEFAULT_MOST_LOOKS
from dp_transforms.checks import LARGEST_WHOLE
from dp_transforms.plan.charging_plan import DEFAULT_MAX_ITEMS_PER_USER, ChargingPlan
from dp_transforms.plan.names_plan import NamesPlan
from dp_transforms.plan.other_methods import (
    gaussian_histograms_found_from,
    partition_selection_found_from,
    weighted_gaussian_found_from,
)
from dp_transforms.plan.release_plan import ReleasePlan

LOOKS = (1, 10, 100, 1000)  # pairs (window, item) of each holder in the whole run
FOUND = 0.95
# Keys of the methods in JSON, and what tables and pictures call them.
NAMES, NAMES_KNOWN = "names", "names_known"
NAMES_WITH_HITS, NAMES_LOOKS_ALONE = "names_with_hits", "names_looks_alone"  # the other of the two for a names plan
HITS_TO_COMPARE = 10
TITLES = {
    NAMES: "names, new item",
    NAMES_KNOWN: "names, known item",
    NAMES_WITH_HITS: f"names with {HITS_TO_COMPARE} hits",
    NAMES_LOOKS_ALONE: "names, looks alone",
    "labels": "labels",
    "counts": "counts",
    "kms21": "kms21",
    "pipelinedp": "PipelineDP, best cap",
    "weighted_gaussian": "weighted Gaussian",
    "gaussian_histograms": "Gaussian histograms",
}

FoundFrom = dict[str, dict[int, int]]
_Users = Callable[[int], int]


def found_from(plan: ReleasePlan, looks: Iterable[int]) -> FoundFrom:
    """Method -> pairs of each holder -> users, for the release mode of the plan alone."""
    return _table(_of_plan(plan), looks)


class Comparison:
    """The plan, and at the same budget, schedule and domain the other modes with their defaults and other methods.

    Beside a plan of names stands the same with a price for hits, or without one: new items, while none of their users
    is excluded. A mode that the budget cannot pay for is left out; so are the other methods in a known domain, where
    theirs would not be these.
    """

    def __init__(self, plan: ReleasePlan) -> None:
        self.plan = plan
        methods: dict[str, _Users] = {}
        for release in (NAMES, "labels", "counts"):
            of_mode = plan if plan.release == release else _in_mode(plan, release)
            if of_mode is not None:
                methods |= _of_plan(of_mode)
        if isinstance(plan, NamesPlan):
            methods |= _with_other_hits(plan)
        self._methods = {**methods, **_of_plan(plan), **({} if plan.domain_size else _of_others(plan))}

    def found_from(self, looks: Iterable[int]) -> FoundFrom:
        """As the function of this name, for all methods, in the order of `TITLES`."""
        ordered = {key: self._methods[key] for key in TITLES if key in self._methods}
        return _table(ordered, looks)


def as_json(found: FoundFrom) -> dict[str, dict[str, int]]:
    return {method: {str(looks): users for looks, users in row.items()} for method, row in found.items()}


def _table(methods: dict[str, _Users], looks: Iterable[int]) -> FoundFrom:
    activities = tuple(looks)
    return {method: {number: users(number) for number in activities} for method, users in methods.items()}


def _of_plan(plan: ReleasePlan) -> dict[str, _Users]:
    if not isinstance(plan, NamesPlan):
        return {plan.release: lambda _: plan.smallest_detectable(FOUND)}
    new = functools.partial(plan.found_from, probability=FOUND)
    if not plan.forget_after or plan.domain_size:
        return {NAMES: new}
    return {NAMES: new, NAMES_KNOWN: functools.partial(plan.found_from, probability=FOUND, known=True)}


def _with_other_hits(plan: NamesPlan) -> dict[str, _Users]:
    """With hits if the plan has none, and without if it has; empty if the budget is too small for it."""
    hits = 0 if plan.hits_per_user else min(HITS_TO_COMPARE, plan.most_looks)
    try:
        other = NamesPlan.calibrate(
            epsilon=plan.epsilon,
            delta=plan.delta,
            schedule=plan.schedule,
            release=NAMES,
            domain=plan.domain,
            max_users=plan.max_users,
            max_items=plan.max_items,
            usual_looks=plan.usual_looks,
            most_looks=plan.most_looks,
            hits_per_user=hits,
            known_error=plan.known_error if plan.domain_size else None,
        )
    except ValueError:
        return {}
    method = NAMES_WITH_HITS if hits else NAMES_LOOKS_ALONE
    return {method: functools.partial(other.found_from, probability=FOUND)}


def _in_mode(plan: ReleasePlan, release: str) -> ReleasePlan | None:
    """The same guarantee in another mode; None if the budget is too small for it."""
    choices: dict[str, Any] = {}
    if isinstance(plan, ChargingPlan) and release != NAMES:
        choices["max_items_per_user"] = plan.max_items_per_user
    try:
        return ReleasePlan.calibrate(
            epsilon=plan.epsilon,
            delta=plan.delta,
            schedule=plan.schedule,
            release=release,
            domain=plan.domain,
            max_users=plan.max_users,
            max_items=plan.max_items,
            **choices,
        )
    except ValueError:
        return None


def _of_others(plan: ReleasePlan) -> dict[str, _Users]:
    epsilon, delta = plan.epsilon, plan.delta
    most_looks = plan.most_looks if isinstance(plan, NamesPlan) else DEFAULT_MOST_LOOKS
    items = plan.max_items_per_user if isinstance(plan, ChargingPlan) else DEFAULT_MAX_ITEMS_PER_USER
    counts = min(items * plan.schedule.horizon, LARGEST_WHOLE)
    return {
        "pipelinedp": lambda looks: partition_selection_found_from(epsilon, delta, looks, FOUND).users,
        "weighted_gaussian": lambda looks: weighted_gaussian_found_from(epsilon, delta, looks, most_looks, FOUND),
        "gaussian_histograms": functools.cache(lambda _: gaussian_histograms_found_from(epsilon, delta, counts, FOUND)),
    }
