"""Small plans and logs, and what a run needs besides them. No Beam."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.event_batch import EventBatch
from dp_transforms.core.public_items import PublicItems
from dp_transforms.core.randomness import IdKeys
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import plan_of_mode
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import trial_of
from tests.reference.log import Event

MICROS = 1_000_000
MINUTE = 60
START = 1_699_999_980  # a whole minute, but no whole hour
RUN_ID = "run-1"
SECRET = bytes(range(7, 47))


@functools.lru_cache(maxsize=64)
def small_plan(
    windows: int = 12,
    *,
    sliding: int = 1,
    mode: str = "hits-with-counts",
    max_items_per_user: int = 3,
    hits_per_user: int = 3,
    threshold: int | None = None,
    public: tuple[str, ...] = (),
) -> Plan:
    """A plan of real calibration with a threshold of about 6: epsilon 40 protects nobody, but little noise is needed.

    windows: how many slides the declared range has. sliding: in how many windows each event counts. public: all items,
    where they are known; then the threshold can be as low as one likes, in kms21 too.
    """
    slide = MINUTE // sliding
    return plan_of_mode(
        mode,
        epsilon=40,
        delta=0.1,
        schedule=WindowSchedule(START, START + windows * slide, MINUTE, slide),
        hits_per_user=hits_per_user,
        max_items_per_user=max_items_per_user,
        threshold=threshold,
        public_items=PublicItems.of_ids(public) if public else None,
        max_users=1000,
        max_items=1000,
    )


def settings_of(plan: Plan, stream: str = "events") -> TrialPlan:
    return trial_of(plan, stream=stream, run_id=RUN_ID)


def random_log(plan: Plan, seed: int, events: int = 1500) -> list[Event]:
    """Skewed items that shift with time, and some events outside the declared range; times in no order."""
    source = random.Random(seed)
    schedule = plan.schedule
    low, high = schedule.start_seconds * MICROS, schedule.end_seconds * MICROS
    log = []
    for _ in range(events):
        time = source.randrange(low, high) if source.random() < 0.97 else source.choice([low - 1, high, 0, high * 2])
        rank = min(int(source.expovariate(0.7)), 11)
        shift = (time - low) * 3 // (high - low)
        log.append((f"user-{source.randrange(40)}", f"item-{(rank + shift) % 12}", time))
    return log


def ordered_log(plan: Plan, seed: int, events: int = 1000) -> list[Event]:
    """Events of `random_log` in the order of time, within the declared range or just before it."""
    end = plan.schedule.end_seconds * MICROS
    return sorted((event for event in random_log(plan, seed, events) if 0 < event[2] < end), key=lambda event: event[2])


def batch_of(log: Sequence[Event]) -> EventBatch:
    users, items, times = zip(*log, strict=True) if log else ((), (), ())
    return EventBatch(
        pa.array(users, pa.string()).dictionary_encode(),
        pa.array(items, pa.string()).dictionary_encode(),
        np.array(times, dtype=np.int64),
    )


def batches_of(log: Sequence[Event], size: int) -> list[EventBatch]:
    return [batch_of(log[low : low + size]) for low in range(0, len(log), size)]


def names_by_hash(keys: IdKeys, users: Iterable[str]) -> dict[int, str]:
    names = sorted(users)
    return dict(zip(keys.hash_users(pa.array(names, pa.string()))[:, 0].tolist(), names, strict=True))


def held_in(contributions: Contributions, names: Mapping[int, str]) -> frozenset[tuple[int, str, str]]:
    """Windows, users and items. names: of users by their hashes; others are told apart by these."""
    labels, holders = contributions.table.labels.to_pylist(), contributions.users[contributions.codes].tolist()
    rows = zip(contributions.windows.tolist(), holders, contributions.items.tolist(), strict=True)
    return frozenset((window, names.get(user, str(user)), labels[item]) for window, user, item in rows)


def key_file(tmp_path: Any, secret: bytes = SECRET) -> str:
    path = tmp_path / "noise.key"
    path.write_bytes(secret)
    path.chmod(0o600)
    return str(path)
