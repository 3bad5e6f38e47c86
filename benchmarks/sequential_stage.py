"""How far one stream goes where one step is sequential: pairs (user, item) that the monitor charges in a second.

``python -m benchmarks.sequential_stage RELEASE HOLDERS`` prints one line of JSON. The candidates are made by the steps
before the monitor; its time is from their bytes to the reports, as in a replay, with the state that it keeps of all
users.
"""

from __future__ import annotations

import json
import math
import sys
import time

import numpy as np
import pyarrow as pa

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.event_batch import EventBatch
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.pairs import bound_contributions, pairs_of_events
from dp_transforms.monitor.user_budgets import Hits
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import MICROS_PER_SECOND, WindowSchedule
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import trial_of

_SECRET = bytes(range(32))
_WINDOWS, _ITEMS, _HOUR = 24, 20, 3600
_ROUNDS = 4


def measure(mode: str, holders: int) -> dict[str, float]:
    """24 windows with 20 items each; each item has so many holders, other ones in each window."""
    schedule = WindowSchedule.fixed("2026-01-01", "2026-01-02", _HOUR)
    plan = Plan.calibrate(epsilon=2, delta=1e-9, schedule=schedule, mode=mode)
    settings = trial_of(plan, stream="events", run_id="scale")
    keys = settings.stream_keys(_SECRET)
    blobs = [_candidates(window, holders, settings, keys) for window in range(_WINDOWS)]
    monitor = HeavyHitterMonitor(settings, keys)
    best, charged = math.inf, 0
    for _ in range(_ROUNDS):
        state = MonitorState()
        started = time.process_time()
        list(monitor.close_windows(map(ItemHolders.from_bytes, blobs), state))
        best = min(best, time.process_time() - started)
        charged = sum(int(Hits.from_bytes(blob).hits.sum()) for blob in state.budgets.to_blobs())
    return {"held": _WINDOWS * _ITEMS * holders, "charged": charged, "bytes": sum(map(len, blobs)), "seconds": best}


def _candidates(window: int, holders: int, settings: TrialPlan, keys: StreamKeys) -> bytes:
    first = window * holders * _ITEMS
    users = pa.array(np.arange(first, first + holders * _ITEMS))
    items = np.repeat(np.arange(_ITEMS), holders)
    at = settings.schedule.start_seconds + window * _HOUR
    batch = EventBatch.of_columns(users, pa.array(items), np.full(len(users), at * MICROS_PER_SECOND))
    ((_, _, pairs),) = pairs_of_events(batch, settings.schedule, keys, windows_per_slab=1, shards=1)
    bounded = bound_contributions(pairs, settings.hits.max_items_per_user, keys)
    return find_candidates(ItemHolders.of_pairs(bounded), settings, keys).to_bytes()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
