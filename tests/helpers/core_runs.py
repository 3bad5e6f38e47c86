"""Settings made by hand and busy logs, for runs of `monitor` without Beam."""

from __future__ import annotations

import functools
import random
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.price_bounds import Published
from dp_transforms.accounting.price_list import PriceList, make_price_list
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import IdKeys
from dp_transforms.core.window_report import WindowReport
from dp_transforms.local.pool import ThisProcess
from dp_transforms.local.replay import LocalReplay
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.small_runs import SECRET, batches_of
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import contributions_trial, hits_trial
from tests.reference.log import Event

MICROS = 1_000_000
START = 1_000
WINDOWS = 6

EVENT = st.tuples(
    st.sampled_from([*(f"u{number}" for number in range(9)), "ü☃", "7"]),
    st.sampled_from(["a", "b", "c", "a much longer label of an item, over several blocks", "0", "é"]),
    # Mostly inside the range, also at the very edges of windows and of the range, and far outside.
    st.one_of(
        st.integers(START * MICROS, (START + 10 * WINDOWS) * MICROS - 1),
        st.sampled_from([START, START + 10, START + 10 * WINDOWS]).flatmap(
            lambda second: st.sampled_from([second * MICROS - 1, second * MICROS])
        ),
        st.sampled_from([-(2**63), 2**63 - 1, 0]),
    ),
)


def monitor_settings(
    mode="hits-with-counts",
    limit=3,
    sliding=1,
    *,
    epsilon=1.0,
    threshold=4,
    hits=2,
    run_id="run-1",
    public=(),
):
    """Hand-made numbers: little noise and a low threshold, so that a few users suffice for things to happen."""
    is_kms21 = mode == "kms21"
    return hits_trial(
        run_id=run_id,
        schedule=WindowSchedule(START, START + 10 * WINDOWS, 10 * sliding, 10),
        mode=mode,
        threshold=threshold,
        zone_width=2 if mode == "hits" else 0,
        epsilon_per_query=epsilon,
        hits_per_user=hits,
        max_items_per_user=limit,
        epsilon_after_hits=tuple(float(j + 1) for j in range(hits)),
        wide_epsilon_per_query=epsilon / 4 if is_kms21 else 0.0,
        noise_cap=2 if is_kms21 else 0,
        public_item_count=len(public),
    )


@functools.cache
def short_price_list(most_tests: int = 5, scale: int = 40, shape: float = 2.5) -> PriceList:
    """Weights of a quarter to once the standard deviation of the noise: it protects nobody, and a few users suffice."""
    noise = ExponentialPower(shape, scale)
    return make_price_list(Published(noise, 2.0, 15 * scale), 3.0, most_tests)


def naming_settings(
    windows: int = 6,
    *,
    most_tests: int = 5,
    threshold: int = 90,
    followed_threshold: int = 60,
    forget_after: int = 2,
    spacing: int = 25,
    scale: int = 40,
    sliding: int = 1,
    run_id: str = "run-1",
    public: Collection[str] = (),
    also_open: bool = False,
) -> TrialPlan:
    """Windows of 10 seconds from `START` on. Noise alone now and then passes the threshold of followed items. Less
    noise counts as likely than in any plan, so that few users are enough for a size to be stated."""
    prices = short_price_list(most_tests, scale)
    return contributions_trial(
        run_id=run_id,
        schedule=WindowSchedule(START, START + 10 * windows, 10 * sliding, 10),
        threshold=threshold,
        public_item_count=len(set(public)),
        also_open=also_open,
        weights=prices.weights,
        units=prices.units,
        noise=prices.noise,
        followed_threshold=followed_threshold,
        forget_after=forget_after,
        spacing=spacing,
        likely_noise=-120,
    )


def units_of(settings: TrialPlan, weights: Iterable[int]) -> list[int]:
    """What tests with these weights cost, each 0 (nothing) or one of the list. Raises KeyError for another."""
    listed = {0: 0, **dict(zip(settings.contributions.weights, settings.contributions.units, strict=True))}
    return [listed[int(weight)] for weight in weights]


def close_window(monitor: HeavyHitterMonitor, window: int, candidates: ItemHolders, state: MonitorState):
    """The report of one window with these candidates; None without heavy items. It is closed even if it has none."""
    found = dict(monitor.close_windows([candidates], state))
    state.next_window = max(state.next_window, window + 1)
    assert set(found) <= {window}
    return found.get(window)


def busy_log(seed, events=400):
    """Skewed items of 20 users, at any time in the schedule."""
    source = random.Random(seed)
    return [
        (
            f"u{source.randrange(20)}",
            f"i{min(int(source.expovariate(0.6)), 5)}",
            source.randrange(START * MICROS, (START + 10 * WINDOWS) * MICROS),
        )
        for _ in range(events)
    ]


class AnyItems(NamedTuple):
    """A public list of any labels, in the place of a `PublicItemsSource`."""

    labels: Collection[str]
    also_open: bool = False

    def table(self, keys: IdKeys) -> ItemTable:
        return ItemTable.of_labels(pa.array(self.labels, pa.string()), keys.hash_items)[0]

    def all_items(self, keys: IdKeys) -> ItemTable | None:
        return None if self.also_open else self.table(keys)


def replayed(
    log: Iterable[Event],
    trial: TrialPlan,
    *,
    shards: int | None = None,
    batch_size: int = 1000,
    public: Collection[str] = (),
) -> list[WindowReport]:
    """What the driver of this machine makes of a log, in this process."""
    public: Any = AnyItems(public, trial.contributions is not None and trial.takes_open_items) if public else None
    run: Any = trial
    replay = LocalReplay(run, ThisProcess(SECRET), public_items=public, shards=shards)
    return replay.take(list(batches_of(log, batch_size))).reports
