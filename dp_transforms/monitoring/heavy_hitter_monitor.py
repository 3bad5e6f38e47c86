"""The sequential stage: one window after the other, test each candidate, charge its holders, exclude who has paid
enough.

ThresholdMonitorEvolving ([KMS21] Algorithm 5) with the accounting of target charging ([CL23] Algorithm 5), on columns.

Guarantee: with the noise, threshold and hits of a plan, the reports of all windows together are (epsilon, delta)-DP for
adding or removing one user with all its events. Condition: windows come in order, each once, each with at most L items
per user. Source: docs/guarantee.md, sections 3 to 5.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.discrete_laplace import discrete_laplace
from dp_transforms.mechanisms.randomness import StreamKeys, sum_modulo_2_128
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.settings import MonitorSettings
from dp_transforms.monitoring.user_budgets import UserBudgets
from dp_transforms.monitoring.window_report import HeavyHitter, WindowReport, release_order


@dataclasses.dataclass
class MonitorState:
    """What one window hands to the next.

    next_window: no window before this one may be closed any more. budgets: hits paid. hit_bound: a bound, from public
    output alone, on the hits that any one user can have paid.
    """

    next_window: int = 0
    hit_bound: int = 0
    budgets: UserBudgets = dataclasses.field(default_factory=UserBudgets)


@dataclasses.dataclass(frozen=True)
class WindowCharges:
    """What one window cost: users uint64[n], ascending and distinct, and their new hits, uint32[n]."""

    users: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint32]


class HeavyHitterMonitor:
    """Monitors one stream. Holds no state of its own: a window is a function of its candidates and a `MonitorState`."""

    def __init__(self, settings: MonitorSettings, keys: StreamKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._noise = discrete_laplace(settings.epsilon_per_query)
        self._rule = settings.release_rule()

    def close_window(
        self, window: int, candidates: ItemHolders, state: MonitorState
    ) -> tuple[WindowReport | None, WindowCharges]:
        """Tests the candidates of a window in keyed-hash order and updates the state; no report if none is heavy.

        Raises ValueError for a window out of order or outside the horizon: the theorem needs both.
        """
        horizon = self._settings.schedule.horizon
        if not state.next_window <= window < horizon:
            raise ValueError(f"window {window} cannot be closed: open are {state.next_window} .. {horizon - 1}.")
        state.next_window = window + 1
        users, user_of_row = np.unique(candidates.holders, return_inverse=True)
        user_of_row = user_of_row.reshape(-1)
        paid = state.budgets.hits(users)
        hits = paid.copy()
        widened = self._keys.widen_users(users)
        uniforms = self._keys.noise_uniforms(window)
        heavy_hitters: list[HeavyHitter] = []
        charged_results = 0
        for cell, margin in enumerate((self._settings.threshold - candidates.counts).tolist()):
            holders = user_of_row[candidates.splits[cell] : candidates.splits[cell + 1]]
            active = holders[hits[holders] < self._settings.hits_per_user]
            if not len(active):
                continue  # an item without an active holder is not tested
            item = int(candidates.items[cell])
            digest = sum_modulo_2_128(widened[active], np.zeros(1, dtype=np.int64))
            uniform = uniforms.of_pairs(candidates.table.hashes[item : item + 1], digest)
            noise = int(self._noise.sample_given_pass(uniform, np.array([margin]))[0])
            release = self._rule(len(active) + noise)
            if release is None:
                continue
            heavy_hitters.append(HeavyHitter(candidates.table.labels[item].as_py(), release.zone, release.noisy_count))
            if release.charged:
                charged_results += 1
                hits[active] += 1
        changed = np.flatnonzero(hits != paid)
        charges = WindowCharges(users[changed], hits[changed] - paid[changed])
        state.budgets.charge(charges.users, charges.hits)
        state.hit_bound += min(self._settings.max_items_per_user, charged_results)
        if not heavy_hitters:
            return None, charges
        return self._report(window, heavy_hitters, state.hit_bound), charges

    def _report(self, window: int, heavy_hitters: list[HeavyHitter], hit_bound: int) -> WindowReport:
        settings = self._settings
        # Results without a hit leak a little too and belong to the next hit: the estimate is that of hit_bound + 1
        # hits, entry hit_bound of the table (docs/guarantee.md, section 7).
        spent = settings.epsilon_after_hits[min(hit_bound, settings.hits_per_user - 1)]
        return WindowReport(
            stream=settings.stream,
            window_start=settings.schedule.window_start_micros(window),
            window_end=settings.schedule.window_end_micros(window),
            heavy_hitters=sorted(heavy_hitters, key=release_order),
            epsilon_total=settings.epsilon_total,
            delta=settings.delta,
            epsilon_spent=spent,
        )
