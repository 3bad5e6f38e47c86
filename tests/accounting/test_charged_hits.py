"""Thresholds of hits are safe and the smallest; a plan with one digit too little for a share of delta is refused."""

import dataclasses
import functools
import math

import pytest

from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import with_changes
from tests.helpers.modes import plan_of_mode

OPTIONS = {"hits": {}, "hits-with-counts": {"hits_per_user": 2}, "kms21": {"hits_per_user": 2}}


@functools.cache
def plan_of(mode):
    schedule = WindowSchedule(0, 24 * 3600, 3600, 3600)
    return plan_of_mode(mode, epsilon=1.0, delta=1e-8, schedule=schedule, **OPTIONS[mode])


@pytest.mark.parametrize("mode", OPTIONS)
def test_a_plan_with_one_digit_too_little_is_refused(mode):
    """For its noise, and for all shares together."""
    plan = plan_of(mode)
    proved = plan.hits.proof.delta(plan.epsilon)
    assert 0 < proved <= plan.shares.paid
    assert with_changes(plan, {"shares.paid": proved}).shares.paid == proved
    with pytest.raises(ValueError, match="is too little noise"):
        with_changes(plan, {"shares.paid": math.nextafter(proved, 0)})
    total = math.fsum((plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash))
    assert dataclasses.replace(plan, delta=total).delta == total
    with pytest.raises(ValueError, match="must add up to at most"):
        dataclasses.replace(plan, delta=math.nextafter(total, 0))
