"""Logs whose answer is known although their noise is not: an item of a window has many users or one."""

from __future__ import annotations

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule, format_utc
from tests.helpers.oracle import Event
from tests.helpers.small_runs import MICROS

_START, _HOURS = 1_767_225_600, 6  # 2026-01-01


def clear_log() -> tuple[list[Event], Plan, dict[tuple[str, str], int]]:
    """The log; a plan for it; for each window and item that many have, by how many: 200 to 500.

    Everybody has one item in the whole run, so a purse pays for its weight at once. One item of each window has one
    user, without whom it could not be named: it is named with a probability of at most delta, 1e-6. With epsilon 8 the
    noise has a standard deviation of two users.
    """
    log, many = [], {}
    for hour in range(_HOURS):
        micros = (_START + 3600 * hour) * MICROS
        for item, users in ((f"story-{hour}", 200 + 60 * hour), ("page", 300), ("rare", 1)):
            log += [(f"{item}-{hour}-{user}", item, micros + user * MICROS) for user in range(users)]
            if users > 1:
                many[format_utc(micros), item] = users
    schedule = WindowSchedule.fixed(_START, _START + 3600 * _HOURS, 3600)
    return log, Plan.calibrate(epsilon=8, delta=1e-6, schedule=schedule), many
