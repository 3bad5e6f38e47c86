"""The sequential stage: window by window, test the candidates, charge their holders, exclude users at their limit.

The pipeline runs this in every release mode: ThresholdMonitorEvolving ([KMS21] Algorithm 5) with the accounting of
target charging ([CL23] Algorithm 5), on columns. `mechanisms.papers.threshold_monitor` is a library beside it.

Guarantee: with the noise, threshold and hits of a plan, the reports of all windows together are (epsilon, delta)-DP for
adding or removing one user with all its events. Condition: windows come in order, each once, each with at most L items
per user. Source: docs/guarantee.md, sections 3 to 5.
"""

from __future__ import annotations

import dataclasses

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.monitor_settings import MonitorSettings
from dp_transforms.monitoring.user_budgets import UserBudgets
from dp_transforms.monitoring.window_queries import WindowCharges, WindowQueries
from dp_transforms.monitoring.window_report import HeavyHitter, WindowReport, release_order


@dataclasses.dataclass
class MonitorState:
    """What one window passes on to the next.

    next_window: no window before this one may be closed any more. budgets: hits paid. hit_bound: a bound, from public
    output alone, on the hits that any one user can have paid.
    """

    next_window: int = 0
    hit_bound: int = 0
    budgets: UserBudgets = dataclasses.field(default_factory=UserBudgets)


class HeavyHitterMonitor:
    """Monitors one stream. Holds no state of its own: a window is a function of its candidates and a `MonitorState`."""

    def __init__(self, settings: MonitorSettings, keys: StreamKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._noise = settings.query_noise(keys)
        self._rule = settings.release_rule()

    def close_window(
        self, window: int, candidates: ItemHolders, state: MonitorState
    ) -> tuple[WindowReport | None, WindowCharges]:
        """Tests the candidates of a window in keyed-hash order and updates the state; no report if none is heavy.

        Raises ValueError for a window out of order or outside the horizon: the theorem needs both.
        """
        horizon = self._settings.schedule.horizon
        if not state.next_window <= window < horizon:
            raise ValueError(
                f"window {window} cannot be closed: the open windows are {state.next_window} .. {horizon - 1}."
            )
        state.next_window = window + 1
        queries = WindowQueries(window, candidates, state.budgets, self._settings, self._keys, self._noise)
        heavy_hitters: list[HeavyHitter] = []
        charged_results = 0
        cell = queries.next_heavy(0)
        while cell is not None:
            release = self._rule(queries.noisy_count(cell))
            if release is not None:
                label = candidates.table.labels[int(candidates.items[cell])].as_py()
                heavy_hitters.append(HeavyHitter(label, release.zone, release.noisy_count))
                if release.charged:
                    charged_results += 1
                    queries.charge(cell)
            cell = queries.next_heavy(cell + 1)
        charges = queries.charges()
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
