"""What the purses of a stream cost, when millions of users were ever seen: bytes, and seconds of a window.

The steps of one window on all four shards of users, one after the other, as one process of a worker does them: read
the state, pay for the looks of the users who are active in it, and append what changed or rewrite all. What an engine
needs to bring the state to the worker is not in it.
"""

from __future__ import annotations

import resource
import secrets
import statistics
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.report import Figure, show_figures, write_results
from dp_transforms.accounting.purse.price_list import make_price_list
from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.user_pairs import UserPairs
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trials import looks_trial

_SHARDS = 4
_ITEMS, _ITEMS_PER_USER = 20_000, 3
_WINDOWS_TO_FILL, _WINDOWS = 10, 10
_ACTIVE = (20_000, 200_000, 1_000_000)  # users of one window
_A_DAY_OF_HOURS = 24


class _Shard:
    """State of one shard of users, as `SpendPursesDoFn` keeps it."""

    def __init__(self, settings: TrialPlan, keys: StreamKeys) -> None:
        self._settings, self._keys = settings, keys
        self.cells: list[bytes] = []
        self._entries_when_rewritten = 0
        self.rewritten = 0

    def spend(self, pairs: UserPairs, window: int) -> None:
        purses = Purses(self._settings, self._keys, self.cells)
        purses.spend(pairs, window)
        if purses.is_scattered(self._entries_when_rewritten):
            self.cells, self._entries_when_rewritten = purses.rewritten_cells(), purses.entries
            self.rewritten += 1
        else:
            self.cells += purses.changed_cells()


def run(*, quick: bool = False) -> list[Figure]:
    users = 1_000_000 if quick else 10_000_000
    settings = _settings()
    keys = settings.stream_keys(secrets.token_bytes(32))
    table, _ = ItemTable.of_labels(pa.array([f"item {number}" for number in range(_ITEMS)]), keys.hash_items)
    everybody = np.unique(np.frombuffer(secrets.token_bytes(8 * users), dtype=np.uint64))
    shards = [_Shard(settings, keys) for _ in range(_SHARDS)]
    for window in range(_WINDOWS_TO_FILL):  # hashes are in no order of time: every tenth user comes in each window
        _run_window(shards, everybody[window::_WINDOWS_TO_FILL], table, window)
    figures = [
        Figure("State of a user", _state_bytes(shards) / len(everybody), "bytes", ("<=", 50), f"{users:,} users"),
        Figure("Largest cell", max(len(cell) for shard in shards for cell in shard.cells) / 1e6, "MB", ("<", 10)),
    ]
    window = _WINDOWS_TO_FILL
    for active in _ACTIVE:
        seconds = []
        for _ in range(_WINDOWS):
            step = max(1, len(everybody) // active)
            seconds.append(_run_window(shards, everybody[window % step :: step], table, window))
            window += 1
        note = (
            f"CPU, median; {max(seconds):.2f} s at most, {sum(shard.rewritten for shard in shards)} rewritings so far"
        )
        figures.append(Figure(f"A window with {active:,} users", statistics.median(seconds), "s", None, note))
    figures.append(Figure("State at the end", _state_bytes(shards) / 1e6, "MB", None, "newest and older entries"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    figures.append(Figure("Peak memory of this process", peak, "MB", None, "with the users to draw from"))
    show_figures("Purses of a stream", figures)
    write_results("stream_purses", figures, quick=quick)
    return figures


def _settings() -> TrialPlan:
    prices = make_price_list(ExponentialPower(2.5, 200), order=2.0, budget=1.0, most_looks=3_000)
    return looks_trial(
        stream="events",
        run_id="bench",
        fingerprint="bench",
        schedule=WindowSchedule.fixed(0, 365 * _A_DAY_OF_HOURS * 3600, 3600),
        threshold=1_000,
        epsilon=2.0,
        delta=1e-9,
        weights=prices.weights,
        units=prices.units,
        noise=prices.noise,
        known_threshold=1_000,
        forget_after=0,
        spacing=1_000,
        likely_noise=1_000,
    )


def _run_window(shards: list[_Shard], users: npt.NDArray[np.uint64], table: ItemTable, window: int) -> float:
    """Seconds of CPU that the purses take; the pairs are made before."""
    seconds = 0.0
    for number, shard in enumerate(shards):
        pairs = _pairs(users[users % np.uint64(_SHARDS) == number], table, window)
        started = time.process_time()
        shard.spend(pairs, window)
        seconds += time.process_time() - started
    return seconds


def _pairs(users: npt.NDArray[np.uint64], table: ItemTable, window: int) -> UserPairs:
    """Neighbouring items for each user, from a place that its hash decides."""
    first = ((users >> np.uint64(20)) % np.uint64(_ITEMS - _ITEMS_PER_USER)).astype(np.int64)
    items = (first[:, None] + np.arange(_ITEMS_PER_USER)).reshape(-1)
    splits = np.arange(len(users) + 1) * _ITEMS_PER_USER
    return UserPairs(users, splits, np.full(len(items), window), items, table)


def _state_bytes(shards: list[_Shard]) -> int:
    return sum(len(cell) for shard in shards for cell in shard.cells)
