"""Plans and logs for looks in rounds, of both kinds."""

from __future__ import annotations

import functools
import itertools
import random

from dp_transforms import Plan, WindowSchedule
from tests.helpers.core_runs import START
from tests.helpers.oracle import Event

WINDOWS = 12
SCHEDULE = WindowSchedule.fixed("2017-10-01T03:00Z", "2017-10-17T03:00Z", 3600)


@functools.cache
def calibrated(**choices: object) -> Plan:
    """With rounds over blocks."""
    return Plan.calibrate(epsilon=2, delta=1e-9, schedule=SCHEDULE, rounds=True, **choices)


def at(window: int) -> int:
    return (START + 10 * window + 5) * 1_000_000


def busy_log(seed: int) -> list[Event]:
    """A user with more items than a purse pays for, items of many in several windows, and items of few."""
    draws = random.Random(seed)
    log = [("busy", f"odd-{item}", at(item % WINDOWS)) for item in range(90)]
    for number, window in itertools.product(range(40), range(WINDOWS)):
        if draws.random() < 0.6:
            log.append((f"user-{number}", f"topic-{(window // 3 + (number % 4 == 0)) % 5}", at(window)))
        if draws.random() < 0.2:
            log.append((f"user-{number}", f"odd-{draws.randrange(30)}", at(window)))
    return log
