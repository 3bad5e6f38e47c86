"""The sequential stage: window by window, test the candidates, charge their holders, exclude users at their limit.

The pipeline runs this wherever users pay for hits: ThresholdMonitorEvolving ([KMS21] Algorithm 5), on columns, with the
accounting of target charging ([CL23] Algorithm 5), or in release mode `names` with that of the purse.
`mechanisms.papers.threshold_monitor` is a library beside it.

Guarantee: with the noise, thresholds and hits of a plan, the reports of all windows together are (epsilon, delta)-DP
for adding or removing one user with all its events. Condition: windows come in order, each once, each with at most L
items per user; in names: with looks that are paid for. Source: docs/guarantee.md, sections 3 to 5; in names
docs/purse.md, section 9.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.hit_settings import HitSettings, are_followed
from dp_transforms.monitoring.item_holders import ItemHolders
from dp_transforms.monitoring.known_items import KnownItems
from dp_transforms.monitoring.user_budgets import UserBudgets
from dp_transforms.monitoring.window_queries import WindowCharges, WindowQueries
from dp_transforms.monitoring.window_report import HeavyHitter, WindowReport, release_order


@dataclasses.dataclass
class MonitorState:
    """What one window passes on to the next.

    next_window: no window before this one may be closed any more. budgets: hits paid. hit_bound: a bound, from public
    output alone, on the hits that any one user can have paid. known: what was named lately, where items are followed.
    """

    next_window: int = 0
    hit_bound: int = 0
    budgets: UserBudgets = dataclasses.field(default_factory=UserBudgets)
    known: KnownItems = dataclasses.field(default_factory=KnownItems.none)


class HeavyHitterMonitor:
    """Monitors one stream. Holds no state of its own: a window is a function of its candidates and a `MonitorState`."""

    def __init__(self, settings: HitSettings, keys: StreamKeys) -> None:
        self._settings = settings
        self._keys = keys
        self._noise = settings.query_noise(keys)
        self._rules = {is_known: settings.release_rule(is_known=is_known) for is_known in (False, True)}

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
        is_known = self._is_known(window, candidates, state.known)
        queries = WindowQueries(window, candidates, state.budgets, self._settings, self._keys, self._noise, is_known)
        heavy_hitters: list[HeavyHitter] = []
        heavy_cells: list[int] = []
        charged_results = 0
        cell = queries.next_heavy(0)
        while cell is not None:
            release = self._rules[bool(is_known[cell])](queries.noisy_count(cell))
            if release is not None:
                label = candidates.table.labels[int(candidates.items[cell])].as_py()
                heavy_hitters.append(HeavyHitter(label, *release.published))
                heavy_cells.append(cell)
                if release.charged:
                    charged_results += 1
                    queries.charge(cell)
            cell = queries.next_heavy(cell + 1)
        charges = queries.charges()
        state.budgets.charge(charges.users, charges.hits)
        state.hit_bound += self._settings.most_hits(charged_results)
        if are_followed(self._settings):
            named = candidates.select(np.array(heavy_cells, dtype=np.int64))
            state.known = state.known.after(named, window + 1, self._settings.forget_after)
        if not heavy_hitters:
            return None, charges
        return self._report(window, heavy_hitters, state.hit_bound), charges

    def _is_known(self, window: int, candidates: ItemHolders, known: KnownItems) -> npt.NDArray[np.bool_]:
        """Whether each candidate is a known item: by what was named in earlier windows, or by the domain. bool[c]."""
        if self._settings.domain_size or not len(known):
            return np.full(len(candidates), self._settings.domain_size > 0)
        last_named = known.last_named_of(candidates.table)[candidates.items]
        return (last_named >= 0) & (last_named >= window - self._settings.forget_after)

    def _report(self, window: int, heavy_hitters: list[HeavyHitter], hit_bound: int) -> WindowReport:
        settings = self._settings
        return WindowReport(
            stream=settings.stream,
            window_start=settings.schedule.window_start_micros(window),
            window_end=settings.schedule.window_end_micros(window),
            heavy_hitters=sorted(heavy_hitters, key=release_order),
            epsilon_total=settings.epsilon_total,
            delta=settings.delta,
            epsilon_spent=settings.epsilon_spent(hit_bound),
        )
