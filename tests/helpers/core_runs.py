"""Settings made by hand and busy logs, for runs of `monitor` without Beam."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.trials import hits_trial

MICROS = 1_000_000
START = 1_000
WINDOWS = 6
_Entry = TypeVar("_Entry")

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
    stream="events",
    run_id="run-1",
    domain=(),
):
    """Hand-made numbers: little noise and a low threshold, so that a few users suffice for things to happen."""
    is_kms21 = mode == "kms21"
    return hits_trial(
        stream=stream,
        run_id=run_id,
        fingerprint="plan",
        schedule=WindowSchedule(START, START + 10 * WINDOWS, 10 * sliding, 10),
        mode=mode,
        threshold=threshold,
        zone_width=2 if mode == "hits" else 0,
        epsilon_per_query=epsilon,
        hits_per_user=hits,
        max_items_per_user=limit,
        epsilon=9.0,
        delta=1e-3,
        epsilon_after_hits=tuple(float(j + 1) for j in range(hits)),
        wide_epsilon_per_query=epsilon / 4 if is_kms21 else 0.0,
        noise_cap=2 if is_kms21 else 0,
        domain_size=len(domain),
    )


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


def domain_table(domain: Collection[str], keys: StreamKeys) -> ItemTable | None:
    return ItemTable.of_labels(pa.array(domain, pa.string()), keys.hash_items)[0] if domain else None


def shuffled(entries: Iterable[_Entry], order: random.Random) -> list[_Entry]:
    entries = list(entries)
    order.shuffle(entries)
    return entries
