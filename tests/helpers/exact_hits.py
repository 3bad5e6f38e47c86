"""A tiny replay of names with hits through the real code: all that it can publish, with exact probabilities.

As `exact_naming`, but for runs in which users pay for hits: each look has two stages, and so two uniforms. All choices
of uniforms run at once, each on a copy of its own, with its own items and users; weights, price lists, dropped pairs,
candidates, known items, exclusion and levels are the real code's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dp_transforms.accounting.purse.look_prices import zone_price
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, LookCandidates, MonitorState
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import ItemHolders, weights_of
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.purses import Purses
from dp_transforms.monitor.query_noise import query_noise
from dp_transforms.monitor.replay_weights import weigh_replay_with_hits
from tests.helpers.exact_naming import ONE, ChosenDraws, Held, Law, Range, _cut, _share, _tail, law_of, pairs_of_held
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan

_WORD = 1 << 64
PURSE = 10**12


# --- Prices of three outcomes


class HitPrices(NamedTuple):
    """Both lists of a purse of 10^12 units, which stands for `budget`; the smallest safe threshold."""

    budget: float
    weights: tuple[int, ...]
    units: tuple[int, ...]
    hit_units: int
    hit_weights: tuple[int, ...]
    hit_look_units: tuple[int, ...]
    threshold: int


@functools.cache
def hit_prices(
    noise: ExponentialPower,
    order: float,
    spacing: int,
    *,
    hits: int,
    hit_price: float,
    weight: int,
    looks: int,
    delta_open: float,
) -> HitPrices:
    """A purse for so many looks with this weight on the hits list, and all hits.

    The looks list has a large weight for a single look, and a poor one: so who has more looks takes the hits list.
    """

    def price(weight: int, hit_price: float) -> float:
        return zone_price(noise, order, weight, spacing, hit_price=hit_price) * (1 + 1e-9)

    poor = price(1, 0.0)  # and no look costs less
    of_look = max(price(weight, hit_price), poor)
    budget = (hits * hit_price + looks * of_look) * (1 + 1e-9)
    large = max(weight for weight in range(2, noise.scale) if price(weight, 0.0) <= budget)
    listed = {1: math.ceil(poor / budget * PURSE), large: math.ceil(price(large, 0.0) / budget * PURSE)}
    of_list = {weight: math.ceil(of_look / budget * PURSE)}
    tails = noise.upper_tail_integers()

    def is_safe(threshold: int) -> bool:
        return all(
            Fraction(tails[threshold - weight - 1], ONE) <= Fraction(delta_open) * Fraction(units, PURSE)
            for weight, units in [*listed.items(), *of_list.items()]
        )

    threshold = next(at for at in range(large + 1, len(tails)) if is_safe(at))
    hit_units = math.ceil(hit_price / budget * PURSE)
    return HitPrices(
        budget, tuple(listed), tuple(listed.values()), hit_units, tuple(of_list), tuple(of_list.values()), threshold
    )


# --- The law of what is published


class ChosenStages(ChosenDraws):
    """The uniforms of both stages of looks are chosen too.

    passes, noises: words by copy, window and item, uint64[copies, windows, items, 2]. An item's hash is (copy, number).
    nobodys: the same, of first stages for no holders.
    """

    passes = nobodys = noises = np.zeros((0, 0, 0, 2), dtype=np.uint64)

    def look_uniforms(self) -> Any:
        def uniforms(windows: np.ndarray, hashes: np.ndarray, digests: np.ndarray) -> np.ndarray:
            is_held = digests.any(axis=1)[:, None]
            return np.where(
                is_held, self._chosen(self.passes, windows, hashes), self._chosen(self.nobodys, windows, hashes)
            )

        return uniforms

    def look_noise_uniforms(self) -> Any:
        return lambda windows, hashes, digests: self._chosen(self.noises, windows, hashes)

    def _chosen(self, words: np.ndarray, windows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        copies, items = hashes.astype(np.int64).T
        return words[copies, windows, items]


def holders_of_replay(held: Held, settings: TrialPlan) -> ItemHolders:
    """Through the columns of a replay: events, pairs, weights and lists."""
    parts = pairs_of_held(held, settings, settings.schedule.horizon)
    return weigh_replay_with_hits(parts[0][1], settings, settings.stream_keys(SECRET)) if parts else ItemHolders.none()


def holders_of_stream(held: Held, settings: TrialPlan) -> ItemHolders:
    """Through the columns of a stream: each user pays window by window, and may go over to the hits list."""
    purses = Purses(settings, settings.stream_keys(SECRET))
    parts = [
        ItemHolders.of_terms(pairs, purses.spend_on_lists(pairs, window))
        for window, pairs in pairs_of_held(held, settings, windows_per_slab=1)
    ]
    return ItemHolders.merge(parts) if parts else ItemHolders.none()


def law_of_hits(
    held: Held,
    settings: TrialPlan,
    *,
    domain: Sequence[str] = (),
    twice: bool = False,
    weigh: Callable[[Held, TrialPlan], ItemHolders] = holders_of_replay,
) -> Law:
    """The probability of every transcript: what is named in each window, with levels and sizes.

    domain: at most one item. twice: items that are held may be drawn for once more, as if they were not; no run does.
    """
    labels = sorted({item for pairs in held.values() for _, item in pairs} | set(domain))
    keys = ChosenStages(settings.stream_keys(SECRET))
    cells = weigh(held, settings)
    windows = range(settings.schedule.horizon)
    looks = [_ranges(settings, _weights_of(cells, window, item), twice) for window in windows for item in labels]
    return law_of(settings, domain, lambda drawn: _transcripts(cells, labels, looks, settings, keys, drawn, domain))


def _transcripts(
    cells: ItemHolders,
    labels: Sequence[str],
    looks: Sequence[Sequence[tuple[Range, Range, Range]]],
    settings: TrialPlan,
    keys: ChosenStages,
    drawn: Sequence[Range],
    domain: Sequence[str],
) -> list[tuple[Any, Fraction]]:
    """The transcript of each choice of the uniforms of all looks, by the first and by the last of each range."""
    chosen = list(itertools.product(*looks))
    horizon = settings.schedule.horizon
    found = []
    for end in (0, 1):
        words = np.array(
            [[divmod(part[end], _WORD) for part in stages] for choice in chosen for stages in choice], dtype=np.uint64
        ).reshape(len(chosen), horizon, len(labels), 3, 2)
        keys.passes, keys.nobodys, keys.noises = (words[:, :, :, stage] for stage in range(3))
        keys.empty = [part[end] for part in drawn]
        copies = _copies(cells, labels, len(chosen), _empty_windows(settings, keys, domain))
        candidates = LookCandidates(settings, keys).find(copies, KnownItems.none(), 0, horizon)  # type: ignore[arg-type]
        monitor, state = HeavyHitterMonitor(settings, keys), MonitorState()  # type: ignore[arg-type]
        transcripts: list[list[tuple[Any, ...]]] = [[] for _ in chosen]
        for window, rows in candidates.by_window() if len(candidates) else ():
            report, _ = monitor.close_window(window, candidates.select_range(rows), state)
            for hitter in report.heavy_hitters if report else ():
                copy, label = hitter.item.split(" ", 1)
                transcripts[int(copy)].append((window, label, hitter.level, hitter.at_least_users))
        found.append([tuple(sorted(transcript)) for transcript in transcripts])
    assert found[0] == found[1], "one range of uniforms, two results"
    shares = [math.prod((_share(stages) for stages in choice), start=Fraction(1)) for choice in chosen]
    return list(zip(found[0], shares, strict=True))


def _empty_windows(settings: TrialPlan, keys: ChosenStages, domain: Sequence[str]) -> list[int]:
    """The windows in which the item of the domain is drawn as one that nobody holds."""
    if not domain:
        return []
    table = DomainTable.of_labels(pa.array(domain, pa.string()), keys.hash_items)
    drawn = EmptyItems(table, query_noise(settings, keys).empty_item_tail(), keys)  # type: ignore[arg-type]
    windows: list[int] = drawn.without_holders(0, settings.schedule.horizon).windows.tolist()
    return windows


def _copies(cells: ItemHolders, labels: Sequence[str], copies: int, empty: Sequence[int]) -> ItemHolders:
    """So many copies: number i of the items of copy k has the hash (k, i), and each copy has users of its own."""
    hashes = np.array([(copy, number) for copy in range(copies) for number in range(len(labels))], dtype=np.uint64)
    names = pa.array([f"{copy} {labels[int(number)]}" for copy, number in hashes.tolist()], pa.string())
    table = ItemTable.with_labels(hashes.reshape(-1, 2), names)
    own = cells.table.labels.to_pylist()
    numbers = np.array([labels.index(own[item]) for item in cells.items], dtype=np.int64)
    users, codes = np.unique(cells.holders, return_inverse=True)
    splits = cells.splits + len(cells.holders) * np.arange(copies)[:, None]
    parts = ItemHolders(
        np.tile(cells.windows, copies),
        (numbers + len(labels) * np.arange(copies)[:, None]).reshape(-1),
        np.append(splits[:, :-1].reshape(-1), len(cells.holders) * copies),
        (codes.reshape(-1) + len(users) * np.arange(copies)[:, None]).reshape(-1).astype(np.uint64),
        table,
        np.tile(cells.terms if cells.terms is not None else np.zeros(0, dtype=np.int64), copies),
    )
    nobody = ItemHolders.without_holders(
        np.repeat(np.array(empty, dtype=np.int64), copies), np.tile(np.arange(copies), len(empty)), table
    )
    return ItemHolders.merge([parts, nobody]) if len(nobody) else _in_order(parts)


def _in_order(cells: ItemHolders) -> ItemHolders:
    order = np.lexsort((cells.items, cells.windows))
    rows, splits = cells.rows_of(order)
    assert cells.terms is not None
    return ItemHolders(
        cells.windows[order], cells.items[order], splits, cells.holders[rows], cells.table, cells.terms[rows]
    )


def _weights_of(cells: ItemHolders, window: int, item: str) -> tuple[list[int], list[int]]:
    """The weights in a cell: of those that no hit excludes, and of the others."""
    labels = cells.table.labels.to_pylist()
    for cell in range(len(cells)):
        if (int(cells.windows[cell]), labels[int(cells.items[cell])]) == (window, item):
            assert cells.terms is not None
            terms = cells.terms[cells.splits[cell] : cells.splits[cell + 1]]
            weights = weights_of(terms)
            return weights[terms % 2 == 0].tolist(), weights[terms % 2 == 1].tolist()
    return [], []


def _ranges(settings: TrialPlan, weights: tuple[list[int], list[int]], twice: bool) -> list[tuple[Range, Range, Range]]:
    """Ranges of all uniforms of one look, by all results that it can have, whoever is active, known or not: of the
    first stage for its holders and for nobody, and of the second one."""
    free, excludable = weights
    total = sum(free) + sum(excludable)
    active = {
        total - sum(left_out)
        for size in range(len(excludable) + 1)
        for left_out in itertools.combinations(excludable, size)
    }
    of_holders, of_nobody = (
        _cut([_tail(settings, settings.known_threshold - part)]) if is_drawn else [(0, ONE - 1)]
        for part, is_drawn in ((total, total > 0), (0, twice or (total == 0 and not settings.domain_size)))
    )
    found = []
    for first, nobody in itertools.product(of_holders, of_nobody):
        if total and first[0] == 0:
            noises = _cut(_second_stages(settings, total, active))
        elif nobody[0] == 0 and (twice or not total):
            noises = _cut(_second_stages(settings, 0, {0}))
        else:
            noises = [(0, ONE - 1)]
        found += [(first, nobody, noise) for noise in noises]
    return found


def _second_stages(settings: TrialPlan, total: int, active: set[int]) -> set[int]:
    """Where a result changes, given that the noise and the total reach the known threshold."""
    passing = _tail(settings, settings.known_threshold - total)
    starts = (settings.threshold, settings.known_threshold)
    boundaries = {start + step * settings.looks.spacing for start in starts for step in (0, 1)}
    return {-(-_tail(settings, boundary - part) * ONE // passing) for boundary in boundaries for part in active}


def without(held: Mapping[str, Sequence[tuple[int, str]]], user: str) -> Held:
    return {name: pairs for name, pairs in held.items() if name != user}
