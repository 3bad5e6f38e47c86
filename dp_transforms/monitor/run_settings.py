"""From a plan to what workers need, when a pipeline is built."""

from __future__ import annotations

import uuid
from typing import overload

from dp_transforms.monitor.monitor_settings import MonitorSettings
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.plan.hits_plan import HitsPlan
from dp_transforms.plan.looks_plan import LooksPlan
from dp_transforms.plan.release_plan import ReleasePlan


def fresh_run_id() -> str:
    """A name that no run had before. Draw it when a pipeline is built: noise is a function of the key and this name,
    so two runs of one name over different data would show what differs."""
    return uuid.uuid4().hex


@overload
def settings_of_plan(plan: HitsPlan, *, stream: str, run_id: str) -> MonitorSettings: ...
@overload
def settings_of_plan(plan: LooksPlan, *, stream: str, run_id: str) -> NamingSettings: ...
@overload
def settings_of_plan(plan: ReleasePlan, *, stream: str, run_id: str) -> MonitorSettings | NamingSettings: ...
def settings_of_plan(plan: ReleasePlan, *, stream: str, run_id: str) -> MonitorSettings | NamingSettings:
    """The plain numbers of a plan: all that workers see of it."""
    if isinstance(plan, LooksPlan):
        return _naming_settings(plan, stream, run_id)
    if isinstance(plan, HitsPlan):
        return _monitor_settings(plan, stream, run_id)
    raise ValueError(f"plan must be a ReleasePlan, got a {type(plan).__name__}. Use ReleasePlan.calibrate(...).")


def _monitor_settings(plan: HitsPlan, stream: str, run_id: str) -> MonitorSettings:
    return MonitorSettings(
        stream=stream,
        run_id=run_id,
        plan_fingerprint=plan.fingerprint,
        schedule=plan.schedule,
        mode=plan.mode,
        threshold=plan.threshold,
        zone_width=plan.zone_width,
        epsilon_per_query=plan.epsilon_per_query,
        hits_per_user=plan.hits_per_user,
        max_items_per_user=plan.max_items_per_user,
        epsilon_total=plan.epsilon,
        delta=plan.delta,
        epsilon_after_hits=tuple(plan.epsilon_after_hits),
        wide_epsilon_per_query=plan.wide_epsilon_per_query,
        noise_cap=plan.noise_cap,
        domain_size=plan.domain_size,
    )


def _naming_settings(plan: LooksPlan, stream: str, run_id: str) -> NamingSettings:
    return NamingSettings(
        stream=stream,
        run_id=run_id,
        plan_fingerprint=plan.fingerprint,
        schedule=plan.schedule,
        threshold=plan.threshold,
        epsilon_total=plan.epsilon,
        delta=plan.delta,
        domain_size=plan.domain_size,
        weights=plan.weights,
        units=plan.units,
        purse=plan.purse,
        noise=plan.noise,
        known_threshold=plan.known_threshold,
        forget_after=plan.forget_after,
        spacing=plan.spacing,
        likely_noise=plan.likely_noise,
        hits_per_user=plan.hits_per_user,
        hit_units=plan.hit_units,
        hit_weights=plan.hit_weights,
        hit_look_units=plan.hit_look_units,
        hits_from=plan.hits_from,
        counts_for=plan.counts_for,
        counts_per_user=plan.counts_per_user,
        count_units=plan.count_units,
        count_scale=plan.count_scale,
    )
