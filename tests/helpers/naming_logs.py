"""Logs for the columns of mode `looks`, with and without hits: events of any kind, and busy ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.core_runs import MICROS, START
from tests.reference.log import Event

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


def busy_log(seed: int, windows: int, user_of: Callable[[random.Random], int], *, events: int = 600) -> list[Event]:
    """Skewed items that shift with time; a quarter of the windows has no events. user_of: draws a user's number."""
    source = random.Random(seed)
    quiet = set(source.sample(range(windows), windows // 4))
    log: list[Event] = []
    while len(log) < events:
        window = source.randrange(windows)
        if window in quiet:
            continue
        rank = min(int(source.expovariate(0.8)), 5)
        time = (START + 10 * window) * MICROS + source.randrange(10 * MICROS)
        log.append((f"u{user_of(source)}", f"i{(rank + window // 9) % 6}", time))
    return log


def domain_table(domain: Collection[str], keys: StreamKeys) -> ItemTable | None:
    return ItemTable.of_labels(pa.array(domain, pa.string()), keys.hash_items)[0] if domain else None


def shuffled(entries: Iterable[_Entry], order: random.Random) -> list[_Entry]:
    entries = list(entries)
    order.shuffle(entries)
    return entries
