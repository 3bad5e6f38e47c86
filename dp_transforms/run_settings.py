"""From a plan to what workers need, when a pipeline is built."""

from __future__ import annotations

from dp_transforms.accounting.release_plan import ReleasePlan
from dp_transforms.monitoring.monitor_settings import MonitorSettings


def settings_of_plan(plan: ReleasePlan, *, stream: str, run_id: str) -> MonitorSettings:
    """The plain numbers of a plan: all that workers see of it."""
    return MonitorSettings(
        stream=stream,
        run_id=run_id,
        plan_fingerprint=plan.fingerprint,
        schedule=plan.schedule,
        release=plan.release,
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
