"""A tiny replay in release mode `names` through the real code: all that it can publish, with exact probabilities.

`ChosenUniforms` replaces two of the keyed functions: the uniforms of looks, and those that draw the empty items of a
known domain. All the rest is the real code: pairs, weights, dropped pairs, sums, thresholds, known items, levels,
reports. The uniforms of one look are cut at every number where a result can change; both ends of each range are run,
and a range's probability is its length in 2^128. The product over all looks is the law of the transcript.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitoring.domain_table import DomainTable
from dp_transforms.monitoring.user_pairs import UserPairs, pairs_of_events
from dp_transforms.monitoring.zero_items import binomial_integers
from dp_transforms.naming.empty_items import EmptyItems
from dp_transforms.naming.item_namer import ItemNamer
from dp_transforms.naming.item_sums import ItemSums
from dp_transforms.naming.known_items import KnownItems
from dp_transforms.naming.naming_settings import NamingSettings
from dp_transforms.naming.replay_weights import weigh_replay
from tests.helpers.small_runs import MICROS, SECRET, batch_of

ONE = 1 << 128
_WORD = 1 << 64

Held = Mapping[str, Iterable[tuple[int, str]]]  # {user: [(window, item)]}
Law = dict[Any, float]


class ChosenUniforms:
    """`StreamKeys`, but for the uniforms of looks, by window and item, and the number of empty items, by window."""

    def __init__(self, keys: StreamKeys, items: Sequence[str]) -> None:
        self._keys = keys
        hashes = keys.item_ids(pa.array(items, pa.string())).tolist()
        self._item_of_hash = {tuple(row): item for row, item in zip(hashes, items, strict=True)}
        self.looks: dict[tuple[int, str], int] = {}
        self.empty: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    def look_uniforms(self) -> Any:
        def uniforms(windows: np.ndarray, hashes: np.ndarray, digests: np.ndarray) -> np.ndarray:
            assert hashes.shape == digests.shape == (len(windows), 2)
            rows = zip(windows.tolist(), map(tuple, hashes.tolist()), strict=True)
            return _words(self.looks[window, self._item_of_hash[row]] for window, row in rows)

        return uniforms

    def zero_item_uniforms(self) -> Any:
        """Number 0 of a window says how many items are drawn; in a domain of one item, any other says which."""
        return lambda blocks: _words(self.empty[window] if number == 0 else 0 for window, number in blocks.tolist())


def _words(uniforms: Iterable[int]) -> np.ndarray:
    return np.array([divmod(uniform, _WORD) for uniform in uniforms], dtype=np.uint64).reshape(-1, 2)


def law_of_replay(held: Held, settings: NamingSettings, *, domain: Sequence[str] = ()) -> Law:
    """The probability of every transcript. domain: at most one item."""
    assert len(domain) == settings.domain_size <= 1
    items = sorted({item for pairs in held.values() for _, item in pairs} | set(domain))
    keys = ChosenUniforms(settings.stream_keys(SECRET), items or ["none"])
    sums = _sums(held, settings, keys)
    empty_tail = _tail(settings, settings.known_threshold)
    entries = binomial_integers(1, empty_tail) if domain else []
    windows, law = range(settings.schedule.horizon), {}
    places: list[Any] = [*itertools.product(windows, items), *(windows if domain else ())]
    totals = dict.fromkeys(itertools.product(windows, items), 0) | _totals(sums)
    ranges = [_ranges(settings, totals[place]) if isinstance(place, tuple) else _cut(entries) for place in places]
    table = DomainTable.of_labels(pa.array(domain, pa.string()), keys.item_ids) if domain else None
    namer = ItemNamer(settings, keys)  # type: ignore[arg-type]
    for chosen in itertools.product(*ranges):
        found = []
        for end in (0, 1):
            at = {place: part[end] for place, part in zip(places, chosen, strict=True)}
            keys.looks = {place: uniform for place, uniform in at.items() if isinstance(place, tuple)}
            keys.empty = {place: uniform for place, uniform in at.items() if not isinstance(place, tuple)}
            parts = [sums]
            if table is not None:
                parts += [cells for _, cells in EmptyItems(table, settings, keys).of_run(1)]  # type: ignore[arg-type]
            named = namer.name_windows(ItemSums.merge(parts), KnownItems.none(), 0, settings.schedule.horizon)
            found.append(_transcript(named, settings))
        assert found[0] == found[1], "one range of uniforms, two results"
        weight = Fraction(1)
        for low, high in chosen:
            weight *= Fraction(high + 1 - low, ONE)
        law[found[0]] = law.get(found[0], Fraction(0)) + weight
    assert sum(law.values()) == 1
    return {transcript: float(probability) for transcript, probability in law.items()}


def _sums(held: Held, settings: NamingSettings, keys: Any) -> ItemSums:
    """Through the columns of a replay: events, pairs, weights."""
    schedule = settings.schedule
    log = [
        (user, item, schedule.window_end_micros(window) - MICROS // 2)
        for user, pairs in held.items()
        for window, item in pairs
    ]
    if not log:
        return ItemSums.none()
    parts = pairs_of_events(batch_of(log), schedule, keys, windows_per_slab=schedule.horizon, shards=1)
    return weigh_replay(UserPairs.merge([pairs for _, _, pairs in parts]), settings, keys)


def _totals(sums: ItemSums) -> dict[tuple[int, str], int]:
    labels = sums.table.labels.to_pylist()
    rows = zip(sums.windows.tolist(), sums.items.tolist(), sums.sums.tolist(), strict=True)
    return {(window, labels[item]): total for window, item, total in rows}


def sums_of_replay(held: Held, settings: NamingSettings) -> dict[tuple[int, str], int]:
    """The sum of each cell, {(window, item): sum}."""
    return _totals(_sums(held, settings, settings.stream_keys(SECRET)))


def _transcript(named: Any, settings: NamingSettings) -> Any:
    return tuple((*report[:3], tuple(report[3]), *report[4:]) for _, report in named.window_reports(settings))


def _ranges(settings: NamingSettings, total: int) -> list[tuple[int, int]]:
    """Ranges of the uniform of one look, by all results that it can have, known or not; drawn given a pass, too."""
    reach = len(settings.noise.upper_tail_integers())
    starts = (settings.threshold, settings.known_threshold)
    boundaries = {
        start + step * settings.spacing for start in starts for step in range(2 + 2 * reach // settings.spacing)
    }
    passing = _tail(settings, settings.known_threshold)
    given_pass = [-(-_tail(settings, boundary) * ONE // passing) for boundary in boundaries] if total == 0 else []
    return _cut([*(_tail(settings, boundary - total) for boundary in boundaries), *given_pass])


def _cut(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """0 .. 2^128 - 1 in ranges that begin at these numbers, with first and last."""
    inner = sorted({number for number in numbers if 0 < number < ONE})
    bounds = [0, *inner, ONE]
    return [(low, high - 1) for low, high in itertools.pairwise(bounds)]


def _tail(settings: NamingSettings, margin: int) -> int:
    """``2^128 Pr[Z >= margin]`` of the table."""
    tails = settings.noise.upper_tail_integers()
    if margin < 1:
        return ONE - _tail(settings, 1 - margin)
    return tails[margin - 1] if margin <= len(tails) else 0
