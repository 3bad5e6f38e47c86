"""Runs of plans made by hand, whose numbers promise nothing: flat numbers in, a `TrialPlan` out."""

from __future__ import annotations

import dataclasses
from typing import Any

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import ChargedHits, DeclaredItems, Followed, PaidContributions, Shares, WideNoise
from tests.helpers.modes import mode_of_plan
from tests.helpers.trial_plan import TrialPlan

_SHARES = Shares(paid=1e-9, open=1e-9, sampling=1e-30, hash=1e-30)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Zoned(ChargedHits):
    """With any noise and zone."""

    zone_width: int = 0

    def __post_init__(self) -> None:
        """No check."""


def trial_of(plan: Plan, *, stream: str = "events", run_id: str = "run-1") -> TrialPlan:
    """A run of a plan, which can be `changed`."""
    return TrialPlan.of(PlannedRun(plan=plan, stream=stream, run_id=run_id))


def hits_trial(
    *,
    mode: str,
    hits_per_user: int,
    max_items_per_user: int,
    epsilon_per_query: float,
    zone_width: int = 0,
    wide_epsilon_per_query: float = 0.0,
    noise_cap: int = 0,
    **others: Any,
) -> TrialPlan:
    """Users are charged for hits. Names as in `ChargedHits`; others: of `_trial`."""
    is_kms21 = mode == "kms21"
    hits = _Zoned(
        publishes="counts" if mode == "hits-with-counts" else "names",
        per_user=hits_per_user,
        max_items_per_user=max_items_per_user,
        epsilon_per_query=epsilon_per_query,
        wide=WideNoise(epsilon_per_query=wide_epsilon_per_query, cap=noise_cap) if is_kms21 else None,
        zone_width=zone_width,
    )
    return _trial(hits=hits, **others)


def contributions_trial(
    *,
    weights: tuple[int, ...],
    units: tuple[int, ...],
    noise: ExponentialPower,
    spacing: int,
    threshold: int,
    followed_threshold: int,
    forget_after: int = 0,
    public_item_count: int = 0,
    also_open: bool = False,
    **others: Any,
) -> TrialPlan:
    """Users pay for tests. The known threshold is that of public items. others: of `_trial`."""
    tests = PaidContributions(
        usual_tests=(1, 1),
        shape=noise.shape,
        scale=noise.scale,
        order=2.0,
        budget=1.0,
        weights=weights,
        units=units,
        spacing=spacing,
        size_error=0.01,
    )
    only_public = public_item_count > 0 and not also_open
    is_followed = forget_after > 0 and not only_public
    return _trial(
        contributions=tests,
        followed=Followed(threshold=followed_threshold, forget_after=forget_after) if is_followed else None,
        threshold=followed_threshold if only_public else threshold,
        public_item_count=public_item_count,
        **{"shares": dataclasses.replace(_SHARES, open=None) if only_public else _SHARES, **others},
    )


def _trial(*, epsilon: float = 9.0, delta: float = 1e-3, public_item_count: int = 0, **others: Any) -> TrialPlan:
    names = {"stream": "events", "run_id": "run-1", "fingerprint": "plan"}
    bounds = {"max_users": 1000, "max_items": 1000, "shares": _SHARES}
    public = DeclaredItems(public_item_count, "0" * 64) if public_item_count else None
    return TrialPlan(epsilon=epsilon, delta=delta, public_items=public, **{**names, **bounds, **others})


def changed(trial: TrialPlan, **numbers: Any) -> TrialPlan:
    """With other numbers, by the names of `hits_trial` or `contributions_trial`."""
    make = hits_trial if trial.contributions is None else contributions_trial
    return make(**{**_flat(trial), **numbers})


def _flat(trial: TrialPlan) -> dict[str, Any]:
    records = {"contributions", "hits", "followed", "public_items"}
    flat = {field.name: getattr(trial, field.name) for field in dataclasses.fields(trial) if field.name not in records}
    flat |= {"public_item_count": trial.public_item_count}
    if trial.contributions is None:
        hits = trial.charged_hits
        flat |= {"hits_per_user": hits.per_user, "mode": mode_of_plan(trial)}
        of_noise = {name: getattr(hits.noise, name) for name in ("wide_epsilon_per_query", "noise_cap")}
        names = ("max_items_per_user", "epsilon_per_query", "zone_width")
        return flat | of_noise | {name: getattr(hits, name) for name in names}
    flat |= {name: getattr(trial.contributions, name) for name in ("weights", "units", "noise", "spacing")}
    flat |= {"also_open": trial.takes_open_items}
    return flat | {"followed_threshold": trial.followed_threshold, "forget_after": trial.followed_for}
