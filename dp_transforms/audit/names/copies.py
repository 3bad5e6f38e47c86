"""Many copies of a scene through the real code of release mode `names`, all at once.

Each copy has items and users of its own, so its draws are independent of the others'. Pairs, weights, purses, sums,
noise, known items, levels and sizes are the real ones; ids are numbers instead of hashes of events.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.audit.names.hand_over import Carried
from dp_transforms.audit.names.scenes import Scene
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor.domain_table import DomainTable
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_pairs import ItemPairs
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.look_candidates import LookCandidates
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.naming_settings import NamingSettings
from dp_transforms.monitor.replay_weights import weigh_replay, weigh_replay_with_hits
from dp_transforms.monitor.user_pairs import UserPairs

Whole = npt.NDArray[np.int64]

_FIRST_OTHER = 1 << 40  # the ids of other holders are at least this, those of x' below


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """levels, sizes: int64[copies, windows, items]; 0 where an item was not named."""

    levels: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def settings_of_scene(settings: NamingSettings, scene: Scene, copies: int, run_id: str) -> NamingSettings:
    """Noise, weights, purse and spacing are those of the plan; threshold, windows and known items of the scene."""
    return dataclasses.replace(
        settings,
        run_id=run_id,
        schedule=scene.schedule(settings.schedule.slide_seconds),
        threshold=scene.threshold,
        known_threshold=scene.known_threshold,
        forget_after=scene.windows if scene.is_domain else scene.forget_after,
        domain_size=copies * scene.items if scene.is_domain else 0,
    )


def run_copies(
    scene: Scene, settings: NamingSettings, copies: int, secret: bytes, run_id: str, *, with_user: bool
) -> Published:
    """What the real code publishes of so many copies. secret: fresh, at least 32 bytes."""
    run = settings_of_scene(settings, scene, copies, run_id)
    keys = run.stream_keys(secret)
    pairs = _pairs(scene, copies, keys, with_user)
    levels = np.zeros((copies, scene.windows, scene.items), dtype=np.int64)
    sizes = np.zeros_like(levels)
    for named in name_pairs(pairs, run, keys, _domain(scene, copies, keys), in_order=scene.in_order):
        copy, item = np.divmod(named.numbers, scene.items)
        levels[copy, named.windows, item] = named.levels
        sizes[copy, named.windows, item] = named.sizes
    return Published(levels, sizes)


class Named(NamedTuple):
    """What is named: windows, numbers of items, levels and sizes, int64[n] each."""

    windows: Whole
    numbers: Whole
    levels: Whole
    sizes: Whole


def name_pairs(
    pairs: UserPairs, settings: NamingSettings, keys: StreamKeys, domain: DomainTable | None, *, in_order: bool
) -> Iterator[Named]:
    """What is named of these pairs, as a replay, or window by window as a stream."""
    if settings.hits_per_user:
        yield from _monitor_pairs(pairs, settings, keys, domain, in_order=in_order)
        return
    empty = EmptyItems(domain, settings.empty_item_tail(), keys) if domain else None
    namer, horizon = ItemNamer(settings, keys), settings.schedule.horizon
    if not in_order:
        parts = [weigh_replay(pairs, settings, keys), *([empty.without_sums(0, horizon)] if empty else [])]
        yield _columns(namer.name_windows(ItemSums.merge(parts), KnownItems.none(), 0, horizon))
        return
    carried = Carried(settings, keys)
    for window in range(horizon):
        here = _select(pairs, pairs.windows == window)
        carried.over_to(window, here.users)
        parts = [empty.without_sums(window, window + 1)] if empty else []
        if len(here):
            parts.append(ItemSums.of_weights(here, carried.purses.spend(here, window), keys))
        named = namer.name_windows(ItemSums.merge(parts), carried.known, window, window + 1)
        if not empty:
            carried.known = carried.known.after(named, window + 1, settings.forget_after)
        yield _columns(named)


def _columns(named: NamedItems) -> Named:
    return Named(named.windows, numbers_of(named.table, named.items), named.levels, named.at_least_users)


def _monitor_pairs(
    pairs: UserPairs, settings: NamingSettings, keys: StreamKeys, domain: DomainTable | None, *, in_order: bool
) -> Iterator[Named]:
    """The same where users pay for hits: candidates, and then the sequential monitor."""
    horizon = settings.schedule.horizon
    parts = []
    if domain:
        tail = settings.query_noise(keys).zero_item_tail()
        parts = [EmptyItems(domain, tail, keys).without_holders(0, horizon)]
    if in_order:
        carried = Carried(settings, keys)
        for window in range(horizon):
            here = _select(pairs, pairs.windows == window)
            carried.over_to(window, here.users)
            if len(here):
                parts.append(ItemHolders.of_terms(here, carried.purses.spend_on_lists(here, window)))
    else:
        parts.append(weigh_replay_with_hits(pairs, settings, keys))
    cells = LookCandidates(settings, keys).find(ItemHolders.merge(parts), KnownItems.none(), 0, horizon)
    monitor, state = HeavyHitterMonitor(settings, keys), MonitorState()
    for window in range(horizon):
        report, _ = monitor.close_window(window, cells.select(np.flatnonzero(cells.windows == window)), state)
        found = [] if report is None else report.heavy_hitters
        columns = [(window, int(each.item), each.level, each.at_least_users) for each in found]
        yield Named(*np.array(columns, dtype=np.int64).reshape(-1, 4).T)


def pairs_of_numbers(
    users: npt.NDArray[np.uint64], windows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], keys: StreamKeys
) -> UserPairs:
    """Distinct rows in any order. numbers: of items; the label of an item is its number."""
    table, positions = ItemTable.of_labels(labels_of(int(numbers.max()) + 1), keys.hash_items)
    items = positions[numbers]
    order = np.lexsort((items, windows, users))
    distinct, codes = np.unique(users[order], return_inverse=True)
    return UserPairs.from_sorted_codes(distinct, codes.reshape(-1), windows[order], items[order], table)


def item_pairs_of_numbers(
    users: npt.NDArray[np.uint64], windows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], keys: StreamKeys
) -> ItemPairs:
    """The same pairs, as counts need them."""
    table, positions = ItemTable.of_labels(labels_of(int(numbers.max()) + 1), keys.hash_items)
    items = positions[numbers]
    order = np.lexsort((users, items, windows))
    distinct, codes = np.unique(users[order], return_inverse=True)
    return ItemPairs.of_sorted_rows(distinct, codes.reshape(-1), windows[order], items[order], table)


def all_counted(windows: int, numbers: int, keys: StreamKeys) -> NamedItems:
    """As if each of so many items were named in each window, and counted."""
    table, _ = ItemTable.of_labels(labels_of(numbers), keys.hash_items)
    of_window = np.arange(numbers)
    levels = np.ones(windows * numbers, dtype=np.int64)
    return NamedItems(np.repeat(np.arange(windows), numbers), np.tile(of_window, windows), levels, levels, table)


def numbers_of(table: ItemTable, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The inverse: of positions in the table. items, result: int64[n]."""
    return np.asarray(pc.cast(table.labels, pa.int64()).to_numpy(zero_copy_only=False)[items], dtype=np.int64)


def _pairs(scene: Scene, copies: int, keys: StreamKeys, with_user: bool) -> UserPairs:
    users, windows, numbers = [], [], []
    first = _FIRST_OTHER
    for cell in scene.cells:
        own = np.arange(copies) * scene.items + cell.item
        holders = [first + np.arange(copies * cell.others), np.arange(1, copies * (with_user and cell.by_user) + 1)]
        users += holders
        numbers += [np.repeat(own, cell.others), own[: len(holders[1])]]
        windows.append(np.full(sum(map(len, holders)), cell.window))
        first += copies * cell.others
    rows = np.concatenate(users).astype(np.uint64)
    return pairs_of_numbers(rows, np.concatenate(windows), np.concatenate(numbers), keys)


def labels_of(items: int) -> pa.StringArray:
    return pc.cast(pa.array(np.arange(items)), pa.string())


def _domain(scene: Scene, copies: int, keys: StreamKeys) -> DomainTable | None:
    return DomainTable.of_labels(labels_of(copies * scene.items), keys.hash_items) if scene.is_domain else None


def _select(pairs: UserPairs, rows: npt.NDArray[np.bool_]) -> UserPairs:
    return UserPairs.from_sorted_codes(
        pairs.users, pairs.user_codes()[rows], pairs.windows[rows], pairs.items[rows], pairs.table
    )
