"""What workers get of a plan: each field against what it must be, stated here a second time.

The sampled runs have thresholds and windows of their own, and would not see others in what workers get.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from dp_transforms.audit.names.noise_law import NoiseLaw
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import FEWEST_STATED
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.stream_settings import StreamSettings
from dp_transforms.plan.charging_plan import ChargingPlan
from dp_transforms.plan.names_plan import NamesPlan

_FREE = ("stream", "run_id")  # names that a run is given
_OF_ALL = ("schedule", "threshold", "delta", "domain_size", "hits_per_user")
_OF_LOOKS = ("weights", "units", "known_threshold", "forget_after", "spacing")
_OF_HITS_AND_LOOKS = ("hit_units", "hit_weights", "hit_look_units", "hits_from")
_OF_COUNTS = ("counts_for", "counts_per_user", "count_units", "count_scale")
_OF_HITS = ("release", "zone_width", "epsilon_per_query", "wide_epsilon_per_query", "noise_cap", "max_items_per_user")
_ERROR = 1e-9  # of a quadrature, relative


def settings_violations(plan: NamesPlan | ChargingPlan, settings: StreamSettings) -> Iterator[str]:
    """A sentence for each field that is not the plan's, and for each of which nothing here says what it must be."""
    wanted = _wanted(plan)
    for field in dataclasses.fields(settings):
        if field.name in _FREE or (field.name == "likely_noise" and isinstance(plan, NamesPlan)):
            continue
        if field.name not in wanted:
            yield f"workers get {field.name}, and the audit does not know what it must be"
        elif getattr(settings, field.name) != wanted[field.name]:
            yield f"workers get another {field.name} than the plan says"
    if isinstance(plan, NamesPlan) and isinstance(settings, NamingSettings):
        wrong = _wrong_sizes(plan, settings.likely_noise)
        if wrong > plan.size_error * (1 + _ERROR):
            yield f"with the likely_noise that workers get up to {wrong:.3g} sizes of a run are wrong on average"


def _wrong_sizes(plan: NamesPlan, likely_noise: int) -> float:
    """How many sizes of a run are wrong on average, at most: docs/guarantee.md, 9.6, by another law of the noise."""
    law = NoiseLaw.whole(plan.shape, plan.scale)
    largest, left = plan.weights[-1], plan.purse - plan.hits_per_user * plan.hit_units
    looks = [(weight, plan.purse / units) for weight, units in zip(plan.weights, plan.units, strict=True)]
    looks += [(weight, left / units) for weight, units in zip(plan.hit_weights, plan.hit_look_units, strict=True)]
    beyond = likely_noise + 1 + (FEWEST_STATED - 1) * (largest - np.array([weight for weight, _ in looks]))
    of_users = plan.max_users * float((np.exp(law.log_tail(beyond)) * [number for _, number in looks]).max())
    unheld = plan.domain_size * plan.schedule.horizon or 2 * plan.forget_after * plan.max_users * plan.most_looks
    return of_users + unheld * law.tail(likely_noise + 1 + (FEWEST_STATED - 1) * largest)


def _wanted(plan: NamesPlan | ChargingPlan) -> dict[str, Any]:
    same: tuple[str, ...] = _OF_ALL
    stated: dict[str, Any] = {"plan_fingerprint": plan.fingerprint, "epsilon_total": plan.epsilon}
    if isinstance(plan, NamesPlan):
        same += (*_OF_LOOKS, *_OF_HITS_AND_LOOKS, *_OF_COUNTS)
        stated |= {"purse": plan.purse, "noise": ExponentialPower(plan.shape, plan.scale)}
    else:
        same += _OF_HITS
        stated["epsilon_after_hits"] = tuple(plan.epsilon_after_hits)
    return stated | {name: getattr(plan, name) for name in same}
