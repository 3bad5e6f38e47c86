"""Many copies of a scene through the real code of mode `looks`, all at once.

Each copy has items and users of its own, so its draws are independent of the others'. The stages are those of a run,
with their states; ids are numbers instead of hashes of events.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dp_transforms.accounting.priced_weights import stated_users
from dp_transforms.audit.noise_law import Whole
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import NamedItems
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.stage import Span, Step
from dp_transforms.core.steps import NameRound, WeighRound, stages_of
from dp_transforms.plan.records import DeclaredItems, Followed
from dp_transforms.plan.rounds import RoundTerms
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.carried import Carried
from tests.audit.round_scenes import levels_of_boundaries
from tests.audit.scenes import Scene, Trial
from tests.helpers.charging_rules import ChargingRules
from tests.helpers.rounds_runs import left_out_of
from tests.helpers.trial_plan import TrialPlan

Users = npt.NDArray[np.uint64]

FIRST_OTHER = 1 << 40  # the ids of other holders are at least this, those of x' below
_SHARDS = 2  # of items, in rounds of looks


# ---------------------------------------------------------------------------------------------------------------------
# Scenes
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Published:
    """levels: int64[copies, windows, items], 0 where an item was not named, -1 where it was left out; or counts, of all
    items; of each round of looks one, int64[rounds, copies, windows, items]. sizes_fit: whether each size is that of
    the boundary of its level, for a known item or for a new one; and 0 without one."""

    levels: Whole
    sizes_fit: bool = True


def run_trial(trial: Trial, run: TrialPlan, secret: bytes) -> dict[bool, Published]:
    """What the real code publishes, by whether the user is there."""
    copies = _run_copies if run.rounds is None else _round_copies
    of_scene = trial_of_scene(run, trial.scene, trial.copies)
    return {with_user: copies(trial, of_scene, secret, with_user) for with_user in trial.worlds}


def trial_of_scene(run: TrialPlan, scene: Scene, copies: int) -> TrialPlan:
    """Noise, weights, purse and spacing are those of the plan; threshold, windows and known items of the scene.

    Both worlds have one name and key, so they differ in the holders alone.
    """
    slide = run.plan.schedule.slide_seconds
    is_followed, rounds = scene.forget_after > 0 and not scene.is_domain, run.plan.rounds
    if rounds is not None:
        rounds = dataclasses.replace(rounds, block_seconds=scene.windows * slide, false_names=scene.false_names)
    return TrialPlan.of(
        run,
        run_id=f"{run.run_id}, {scene.name}",
        schedule=WindowSchedule.fixed(0, scene.windows * slide, slide),
        threshold=scene.threshold,
        followed=Followed(threshold=scene.followed_threshold, forget_after=scene.forget_after) if is_followed else None,
        public_items=DeclaredItems(copies * scene.items, "0" * 64) if scene.is_domain else None,
        rounds=rounds,
    )


def _run_copies(trial: Trial, plan: TrialPlan, secret: bytes, with_user: bool) -> Published:
    scene, keys = trial.scene, plan.stream_keys(secret)
    levels, sizes = np.zeros((2, trial.copies, scene.windows, scene.items), dtype=np.int64)
    all_items = labels_of(trial.copies * scene.items)
    domain = ItemTable.of_labels(all_items, keys.hash_items)[0] if scene.is_domain else None
    rows = _rows(scene, trial.copies, with_user)
    pairs = contributions_of(rows, keys)
    for windows, numbers, *of_named in _name_pairs(pairs, plan, keys, domain, in_order=scene.in_order):
        copy, item = np.divmod(numbers, scene.items)
        levels[copy, windows, item], sizes[copy, windows, item] = of_named
    return Published(levels, _sizes_fit(scene, plan, levels, sizes))


def _sizes_fit(scene: Scene, plan: TrialPlan, levels: Whole, sizes: Whole) -> bool:
    fits = (levels == 0) & (sizes == 0)
    for first in (scene.threshold, scene.followed_threshold):
        of_levels = stated_users(
            first + (levels - 1) * scene.spacing, plan.likely_noise, plan.paid_contributions.weights[-1]
        )
        fits |= (levels > 0) & (sizes == of_levels)
    return bool(fits.all())


def _round_copies(trial: Trial, plan: TrialPlan, secret: bytes, with_user: bool) -> Published:
    scene, keys = trial.scene, plan.stream_keys(secret)
    shape = (len(plan.units_of_rounds), trial.copies, scene.windows, scene.items)
    levels, sizes = np.zeros((2, *shape), dtype=np.int64)
    for number, named in enumerate(_names_of_rounds(_rows(scene, trial.copies, with_user), plan, keys)):
        copy, item = np.divmod(numbers_of(named.table, named.items), scene.items)
        np.add.at(levels[number], (copy, named.windows, item), np.maximum(named.levels, 0))
        np.add.at(sizes[number], (copy, named.windows, item), named.at_least_users)
        windows, items = left_out_of(named)
        copy, item = np.divmod(numbers_of(named.table, items), scene.items)
        levels[number][copy, windows, item] = -1
    for of_rounds in (levels, sizes):
        of_rounds[2:-1] -= of_rounds[1:-2].copy()  # without what was named before
    return Published(levels, _sizes_fit_in_rounds(plan, levels, sizes))


def _names_of_rounds(rows: Rows, plan: TrialPlan, keys: StreamKeys) -> Iterator[NamedItems]:
    """What is named in blocks; and in windows in each later round and those before it. The last one is told names
    without their levels and sizes: so what comes shows its second looks."""
    pairs = contributions_of(rows, keys)
    counts, before = collections.Counter[str](), list[NamedItems]()
    for number in range(len(plan.units_of_rounds)):
        told = [[each.to_bytes()] for each in before]
        users, items = WeighRound(plan, keys, None, number), NameRound(plan, keys, None, number)
        if users.is_sizing and len(before) > 1:
            none = np.minimum(before[-1].levels, 0)  # what is left out stays so
            told[-1] = [dataclasses.replace(before[-1], levels=none, at_least_users=0 * none).to_bytes()]
        span, found = Span(0, plan.schedule.horizon), []
        sums = users.process(Carried(users).over_to_part(span), pairs, span, counts, *told)
        for shard in range(_SHARDS):
            here, added = dataclasses.replace(span, shard=shard, shards=_SHARDS), sums.of_shard(shard, _SHARDS)
            found.append(items.process(Carried(items).over_to_part(here), added, here, counts, *told))
        named = NamedItems.merge(found)
        before = [*before[:1], named]
        yield named


def _sizes_fit_in_rounds(plan: TrialPlan, levels: Whole, sizes: Whole) -> bool:
    """Of each round: int64[rounds, copies, windows, items]."""
    mechanism, windows = ChargingRules.of_plan(plan), plan.schedule.horizon
    drawn = np.repeat(levels[0, :, :1] > 0, levels.shape[2], axis=1)
    named, fits, last = np.zeros_like(drawn), True, len(mechanism.rounds) - 1
    for number, (of_round, stated) in enumerate(zip(levels, sizes, strict=True)):
        terms = plan.terms_of_round(number, int(drawn.sum()), windows)
        fits &= _sizes_of_terms(mechanism, terms, np.where(named, 0, of_round), np.where(named, 0, stated))
        if number == last:
            terms = plan.terms_of_sizing(int(named.sum()), windows)
            fits &= _sizes_of_terms(mechanism, terms, np.where(named, of_round, 0), np.where(named, stated, 0))
        if number:
            named = named | (of_round > 0)
            drawn = drawn & (of_round == 0) & ~named
    return fits


def _sizes_of_terms(mechanism: ChargingRules, terms: RoundTerms, levels: Whole, sizes: Whole) -> bool:
    boundaries, of_boundaries = levels_of_boundaries(mechanism, terms.largest_weight, terms.threshold)
    of_boundaries = np.maximum(of_boundaries, 1)  # as `levels_and_sizes` says
    at = np.minimum(np.searchsorted(of_boundaries, levels), len(boundaries) - 1)
    stated = stated_users(boundaries[at], terms.likely_noise, terms.largest_weight)
    return bool(np.where(levels > 0, (of_boundaries[at] == levels) & (sizes == stated), sizes == 0).all())


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


def contributions_of(rows: Rows, keys: StreamKeys) -> Contributions:
    table, items = _items_of(rows, keys)
    order = np.lexsort((rows.users, items, rows.windows))
    users, codes = np.unique(rows.users[order], return_inverse=True)
    return Contributions(users, codes.reshape(-1), rows.windows[order], items[order], table).select(slice(None))


def _items_of(rows: Rows, keys: StreamKeys) -> tuple[ItemTable, Whole]:
    table, positions = ItemTable.of_labels(labels_of(int(rows.numbers.max()) + 1), keys.hash_items)
    return table, positions[rows.numbers]


def numbers_of(table: ItemTable, items: Whole) -> Whole:
    """The inverse: of positions in the table. items, result: int64[n]."""
    return np.asarray(pc.cast(table.labels, pa.int64()).to_numpy(zero_copy_only=False)[items], dtype=np.int64)


def labels_of(items: int) -> pa.StringArray:
    return pc.cast(pa.array(np.arange(items)), pa.string())


# What is named: windows, numbers of items, levels and sizes, int64[n] each.
Named = tuple[Whole, Whole, Whole, Whole]


def _name_pairs(
    pairs: Contributions,
    plan: TrialPlan,
    keys: StreamKeys,
    domain: ItemTable | None,
    *,
    in_order: bool,
) -> Iterator[Named]:
    """What is named of these pairs by the stages of a run: as a replay, or window by window as a stream."""
    stages = stages_of(plan, None, is_replay=not in_order)  # type: ignore[arg-type]
    users, items = (stage.step(plan, keys, domain) for stage in stages)
    for found in _found(pairs, users, items, in_order=in_order):
        yield found.windows, numbers_of(found.table, found.items), found.levels, found.at_least_users


def _found(pairs: Contributions, users: Step, items: Step, *, in_order: bool) -> Iterator[NamedItems]:
    horizon, counts = users.plan.schedule.horizon, collections.Counter[str]()
    if not in_order:
        span = Span(0, horizon)
        sums = users.process(users.restore([], 0), pairs, span, counts)
        yield items.process(items.restore([], 0), sums, span, counts)
        return
    purses, known = Carried(users), Carried(items)
    for window in range(horizon):
        span = Span(window, window + 1)
        purses.over_to(window)
        sent = users.process(purses.state, pairs.select(pairs.windows == window), span, counts)
        known.over_to(window)
        yield items.process(known.state, sent, span, counts)
        purses.keep()
        known.keep()
