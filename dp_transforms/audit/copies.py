"""Many copies of a scene through the real code of mode `looks`, all at once.

Each copy has items and users of its own, so its draws are independent of the others'. Pairs, weights, purses, sums,
noise, known items, counters, levels and sizes are the real ones; ids are numbers instead of hashes of events.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.audit.look_law import Whole
from dp_transforms.audit.scenes import Scene, Trial
from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.mechanisms.priced_weights import stated_users
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import named_counts
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.monitor.hit_rules import query_noise
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import ItemHolders, weights_of
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.known_items import KnownItems
from dp_transforms.monitor.look_candidates import LookCandidates
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import ItemPairs, UserPairs
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.monitor.purses import PurseEntries, Purses
from dp_transforms.monitor.replay_weights import weigh_replay, weigh_replay_with_hits
from dp_transforms.monitor.window_report import HeavyHitter
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.records import Domain, Known
from dp_transforms.plan.window_schedule import WindowSchedule
from dp_transforms.runs.run_part import RunPart
from dp_transforms.runs.state_cells import Kind, cells_by_bucket, join_cells, pack_cell, unpack_cell
from dp_transforms.runs.state_file import StateFile, write_state
from dp_transforms.runs.state_header import PartRecord, StateHeader

Users = npt.NDArray[np.uint64]

FIRST_OTHER = 1 << 40  # the ids of other holders are at least this, those of x' below
_PAIRS_AT_ONCE = 300_000
_KEY = bytes(32)  # of the seal: the file is gone as soon as it was read


# ---------------------------------------------------------------------------------------------------------------------
# Scenes
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """levels: int64[copies, windows, items], 0 where an item was not named; or counts, of all items. sizes_fit: whether
    each size is that of the boundary of its level, for a known item or for a new one; and 0 without one."""

    levels: Whole
    sizes_fit: bool = True


def run_trial(trial: Trial, run: PlannedRun | TrialPlan, secret: bytes) -> dict[bool, Published]:
    """What the real code publishes, by whether the user is there. secret: fresh, at least 32 bytes."""
    copies = _count_copies if trial.is_of_counts else _run_copies
    return {with_user: copies(trial.scene, run, trial.copies, secret, with_user) for with_user in trial.worlds}


def trial_of_scene(run: PlannedRun | TrialPlan, scene: Scene, copies: int, first: int = 0) -> TrialPlan:
    """Noise, weights, purse and spacing are those of the plan; threshold, windows and known items of the scene.

    Both worlds have one name and key, so they differ in the holders alone. first: number of the first copy.
    """
    slide = run.plan.schedule.slide_seconds
    is_followed = scene.forget_after > 0 and not scene.is_domain
    return TrialPlan.of(
        run,
        run_id=f"{run.run_id}, {scene.name} from {first}",
        schedule=WindowSchedule.fixed(0, scene.windows * slide, slide),
        threshold=scene.threshold,
        known=Known(threshold=scene.known_threshold, forget_after=scene.forget_after) if is_followed else None,
        domain=Domain(copies * scene.items, "0" * 64) if scene.is_domain else None,
    )


def _run_copies(scene: Scene, run: PlannedRun | TrialPlan, copies: int, secret: bytes, with_user: bool) -> Published:
    levels, sizes = np.zeros((2, copies, scene.windows, scene.items), dtype=np.int64)
    at_once = max(1, _PAIRS_AT_ONCE // scene.pairs)
    for low in range(0, copies, at_once):
        part = min(at_once, copies - low)
        of_scene = trial_of_scene(run, scene, part, low)
        keys = of_scene.stream_keys(secret)
        domain = DomainTable.of_labels(_labels(part * scene.items), keys.hash_items) if scene.is_domain else None
        pairs = user_pairs_of(_rows(scene, part, with_user), keys)
        for windows, numbers, *of_named in _name_pairs(pairs, of_scene, keys, domain, in_order=scene.in_order):
            copy, item = np.divmod(numbers, scene.items)
            levels[low + copy, windows, item], sizes[low + copy, windows, item] = of_named
    return Published(levels, _sizes_fit(scene, run.plan, levels, sizes))


def _sizes_fit(scene: Scene, plan: Plan, levels: Whole, sizes: Whole) -> bool:
    fits = (levels == 0) & (sizes == 0)
    for first in (scene.threshold, scene.known_threshold):
        of_levels = stated_users(first + (levels - 1) * scene.spacing, plan.likely_noise, plan.paid_looks.weights[-1])
        fits |= (levels > 0) & (sizes == of_levels)
    return bool(fits.all())


def _count_copies(scene: Scene, run: PlannedRun | TrialPlan, copies: int, secret: bytes, with_user: bool) -> Published:
    """As if each item were named in each window, and counted."""
    of_scene = trial_of_scene(run, scene, copies)
    keys = of_scene.stream_keys(secret)
    counted = all_counted(scene.windows, copies * scene.items, keys)
    pairs = item_pairs_of(_rows(scene, copies, with_user), keys)
    paid = of_scene.counts
    assert paid is not None
    holders = named_counts.count_holders(pairs, counted, paid.per_user, keys)
    drawn = named_counts.draw_counts(counted, holders, paid.noise, keys)
    counts = np.empty((scene.windows, copies * scene.items), dtype=np.int64)
    counts[counted.windows, numbers_of(counted.table, counted.items)] = drawn
    return Published(counts.reshape(scene.windows, copies, scene.items).swapaxes(0, 1))


class Rows(NamedTuple):
    """Distinct pairs in any order: users, windows and numbers of items. The label of an item is its number."""

    users: Users
    windows: Whole
    numbers: Whole

    def take(self, rows: npt.NDArray[np.bool_]) -> Rows:
        return Rows(self.users[rows], self.windows[rows], self.numbers[rows])


def _rows(scene: Scene, copies: int, with_user: bool) -> Rows:
    users, windows, numbers = [], [], []
    first, copy = FIRST_OTHER, np.arange(copies)[:, None, None]
    for cell in scene.cells:
        others = first + np.arange(copies * cell.items * cell.others).reshape(copies, cell.items, cell.others)
        first += others.size
        own = 1 + copy * scene.users + np.array([user for user in cell.users if user or with_user], dtype=np.int64)
        holders = np.concatenate([np.broadcast_to(own, (copies, cell.items, own.shape[2])), others], axis=2)
        users.append(holders.reshape(-1))
        windows.append(np.full(holders.size, cell.window))
        of_holders = np.broadcast_to(copy * scene.items + cell.item + np.arange(cell.items)[:, None], holders.shape)
        numbers.append(of_holders.reshape(-1))
    return Rows(np.concatenate(users).astype(np.uint64), np.concatenate(windows), np.concatenate(numbers))


def user_pairs_of(rows: Rows, keys: StreamKeys) -> UserPairs:
    table, items = _items_of(rows, keys)
    return UserPairs(*_sorted(rows, items, (items, rows.windows, rows.users)), table).select(slice(None))


def item_pairs_of(rows: Rows, keys: StreamKeys) -> ItemPairs:
    """The same pairs, as counts need them."""
    table, items = _items_of(rows, keys)
    return ItemPairs(*_sorted(rows, items, (rows.users, items, rows.windows)), table).select(slice(None))


def _items_of(rows: Rows, keys: StreamKeys) -> tuple[ItemTable, Whole]:
    table, positions = ItemTable.of_labels(_labels(int(rows.numbers.max()) + 1), keys.hash_items)
    return table, positions[rows.numbers]


def _sorted(rows: Rows, items: Whole, by: Sequence[npt.NDArray]) -> tuple[Users, Whole, Whole, Whole]:
    """Distinct users, and the user's place among them, window and item of each row. by: the last one counts most."""
    order = np.lexsort(by)
    users, codes = np.unique(rows.users[order], return_inverse=True)
    return users, codes.reshape(-1), rows.windows[order], items[order]


def all_counted(windows: int, numbers: int, keys: StreamKeys) -> NamedItems:
    """As if each of so many items were named in each window, and counted."""
    table, _ = ItemTable.of_labels(_labels(numbers), keys.hash_items)
    levels = np.ones(windows * numbers, dtype=np.int64)
    items = np.tile(np.arange(numbers), windows)
    return NamedItems(np.repeat(np.arange(windows), numbers), items, levels, levels, table)


def numbers_of(table: ItemTable, items: Whole) -> Whole:
    """The inverse: of positions in the table. items, result: int64[n]."""
    return np.asarray(pc.cast(table.labels, pa.int64()).to_numpy(zero_copy_only=False)[items], dtype=np.int64)


def _labels(items: int) -> pa.StringArray:
    return pc.cast(pa.array(np.arange(items)), pa.string())


# What is named: windows, numbers of items, levels and sizes, int64[n] each.
Named = tuple[Whole, Whole, Whole, Whole]


def _name_pairs(
    pairs: UserPairs, plan: Plan, keys: StreamKeys, domain: DomainTable | None, *, in_order: bool
) -> Iterator[Named]:
    """What is named of these pairs, as a replay, or window by window as a stream."""
    if plan.hits is not None:
        yield from _monitor_pairs(pairs, plan, keys, domain, in_order=in_order)
        return
    empty = EmptyItems(domain, query_noise(plan, keys).empty_item_tail(), keys) if domain else None
    namer, horizon = ItemNamer(plan, keys), plan.schedule.horizon
    if not in_order:
        parts = [weigh_replay(pairs, plan, keys), *([empty.without_sums(0, horizon)] if empty else [])]
        yield _columns(namer.name_windows(ItemSums.merge(parts), KnownItems.none(), 0, horizon))
        return
    carried = Carried(plan, keys)
    for window, here, terms in paid_windows(pairs, carried, horizon):
        parts = [empty.without_sums(window, window + 1)] if empty else []
        if len(here):
            parts.append(ItemSums.of_weights(here, weights_of(terms), keys))
        named = namer.name_windows(ItemSums.merge(parts), carried.known, window, window + 1)
        if not empty:
            carried.known = carried.known.after(named, window + 1, plan.known_for)
        yield _columns(named)


def _columns(named: NamedItems) -> Named:
    return named.windows, numbers_of(named.table, named.items), named.levels, named.at_least_users


def _monitor_pairs(
    pairs: UserPairs, plan: Plan, keys: StreamKeys, domain: DomainTable | None, *, in_order: bool
) -> Iterator[Named]:
    """The same where users pay for hits: candidates, and then the sequential monitor."""
    horizon = plan.schedule.horizon
    parts = []
    if domain:
        parts = [EmptyItems(domain, query_noise(plan, keys).empty_item_tail(), keys).without_holders(0, horizon)]
    if in_order:
        paid = paid_windows(pairs, Carried(plan, keys), horizon)
        parts += [ItemHolders.of_terms(here, terms) for _, here, terms in paid if len(here)]
    else:
        parts.append(weigh_replay_with_hits(pairs, plan, keys))
    cells = LookCandidates(plan, keys).find(ItemHolders.merge(parts), KnownItems.none(), 0, horizon)

    def of_window(window: int) -> ItemHolders:
        return cells.select(np.flatnonzero(cells.windows == window))

    for window, found in monitor_windows(of_window, horizon, plan, keys):
        columns = [(window, int(each.item), each.level, each.at_least_users) for each in found]
        windows, numbers, levels, sizes = np.array(columns, dtype=np.int64).reshape(-1, 4).T
        yield windows, numbers, levels, sizes


def monitor_windows(
    candidates: Callable[[int], ItemHolders],
    windows: int,
    plan: Plan,
    keys: StreamKeys,
    monitor: type[HeavyHitterMonitor] = HeavyHitterMonitor,
) -> Iterator[tuple[int, Sequence[HeavyHitter]]]:
    """What the sequential monitor publishes of each window. candidates: asked for when the window before is read."""
    running, state = monitor(plan, keys), MonitorState()
    for window in range(windows):
        report, _ = running.close_window(window, candidates(window), state)
        yield window, [] if report is None else report.heavy_hitters


# ---------------------------------------------------------------------------------------------------------------------
# What is carried from window to window of a stream
# ---------------------------------------------------------------------------------------------------------------------


def paid_windows(pairs: UserPairs, carried: Carried, horizon: int) -> Iterator[tuple[int, UserPairs, Whole]]:
    """Each window of a stream with its pairs, and how each of these counts, as in `ItemHolders.terms`."""
    for window in range(horizon):
        here = pairs.select(pairs.windows == window)
        carried.over_to(window, here.users)
        yield window, here, carried.purses.spend_on_lists(here, window) if len(here) else pairs.windows[:0]


class Carried:
    """The purses and the known items before the next window of a stream, as a real run stores them.

    Before every other window a part of the run ends: both go through the cells and the file that parts hand over.
    Before the others the purses are read from what a worker keeps.
    is_refused: whether a reader has refused what was stored. It is then carried on as it was, and audited all the same.
    """

    def __init__(self, plan: Plan, keys: StreamKeys) -> None:
        self.purses = Purses(plan, keys)
        self.known = KnownItems.none()
        self._plan, self._keys = plan, keys
        self._kept: list[bytes] = []
        self.is_refused = False

    def over_to(self, window: int, users: Users) -> None:
        """Stores what there is, and reads it again for this window. users: who is there in it, ascending."""
        try:
            self._store_and_read(window, users)
        except ValueError:
            self.is_refused = True

    def _store_and_read(self, window: int, users: Users) -> None:
        self._kept += self.purses.changed_cells()
        if window % 2 or not window:
            self.purses = Purses(self._plan, self._keys, self._kept)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "state")
            write_state(path, self._header(window), self._cells(window), _KEY)
            part = RunPart(window, window + 1, path, StateFile(path).fingerprint)
            # A replay in parts reads the purses of the users that it meets, a stream those of a shard of users.
            entries = part.purses_of_shard(0, 1) if window % 4 else part.purses(users)
            self.known = part.known(Kind.KNOWN)
        self.purses = Purses.of_entries(self._plan, self._keys, entries, window)

    def _cells(self, window: int) -> list[tuple[Kind, int, bytes]]:
        packed = [
            pack_cell(Kind.PURSES, *of_bucket)
            for cell in self._kept
            for of_bucket in cells_by_bucket(PurseEntries.from_bytes(cell))
        ]
        packed += [pack_cell(Kind.KNOWN, *of_bucket) for of_bucket in cells_by_bucket(self.known)]
        cells: dict[tuple[Kind, int], list[memoryview]] = {}
        for kind, bucket, cell in map(unpack_cell, packed):
            cells.setdefault((kind, bucket), []).append(cell)
        named_from = window - self._plan.known_for
        joined = {place: join_cells(place[0], found, named_from=named_from) for place, found in cells.items()}
        return [(*place, cell) for place in sorted(joined) for cell in joined[place]]

    def _header(self, window: int) -> StateHeader:
        digits = "0" * 64
        part = PartRecord(0, window, digits, "report")
        run = (self._plan.fingerprint, self._keys.stream, "audit", digits)
        return StateHeader("plan", *run, user_field="user", item_field="item", parts=(part,))
