"""A tiny replay in mode `looks` through the real code: all that it can publish, with exact probabilities.

`ChosenUniforms` replaces two of the keyed functions: the uniforms of looks, and those that draw the empty items of a
known domain. All the rest is the real code: pairs, weights, dropped pairs, sums, thresholds, known items, levels. The
uniforms of one look are cut at every number where a result can change; both ends of each range are run, and a range's
probability is its length in 2^128. The product over all looks is the law of the transcript.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.public_items import EmptyItems, binomial_integers
from dp_transforms.core.randomness import StreamKeys
from dp_transforms.core.steps import replay_weights
from tests.helpers.small_runs import MICROS, SECRET, batch_of
from tests.helpers.trial_plan import TrialPlan

ONE = 1 << 128
_WORD = 1 << 64

Held = Mapping[str, Iterable[tuple[int, str]]]  # {user: [(window, item)]}
Law = dict[Any, float]
Range = tuple[int, int]  # the first and the last of consecutive uniforms


class ChosenUniforms:
    """`StreamKeys`, but for the uniforms of tests and of the number of empty items in a window.

    looks: words by copy, window and item, uint64[copies, windows, items, 2]. An item's hash is (copy, number).
    empty: by window; of one public item there is no choice besides the number.
    """

    def __init__(self, keys: StreamKeys) -> None:
        self._keys = keys
        self.empty: Sequence[int] = ()
        self.looks = np.zeros((0, 0, 0, 2), dtype=np.uint64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keys, name)

    def empty_item_uniforms(self) -> Any:
        def uniforms(blocks: np.ndarray) -> np.ndarray:
            chosen = [self.empty[window] if number == 0 else 0 for window, number in blocks.tolist()]
            return np.array([divmod(uniform, _WORD) for uniform in chosen], dtype=np.uint64)

        return uniforms

    def window_uniforms(self) -> Any:
        def uniforms(windows: np.ndarray, hashes: np.ndarray, digests: np.ndarray) -> np.ndarray:
            assert hashes.shape == digests.shape == (len(windows), 2)
            copies, items = hashes.astype(np.int64).T
            return self.looks[copies, windows, items]

        return uniforms


def law_of(
    settings: TrialPlan, domain: Sequence[str], transcripts: Callable[[Sequence[Range]], Iterable[tuple[Any, Fraction]]]
) -> Law:
    """The probability of every transcript. domain: at most one item. transcripts: by how many empty items are drawn in
    each window."""
    assert len(domain) == settings.domain_size <= 1
    empty = _cut(binomial_integers(1, _tail(settings, settings.followed_threshold))) if domain else [(0, ONE - 1)]
    law: dict[Any, Fraction] = {}
    for drawn in itertools.product(*[empty] * settings.schedule.horizon):
        for transcript, probability in transcripts(drawn):
            law[transcript] = law.get(transcript, Fraction(0)) + _share(drawn) * probability
    assert sum(law.values()) == 1
    return {transcript: float(probability) for transcript, probability in law.items()}


def pairs_of_held(held: Held, settings: TrialPlan, windows_per_range: int) -> list[tuple[int, Contributions]]:
    """All pairs by range of windows, through the columns of a log."""
    schedule, keys = settings.schedule, settings.stream_keys(SECRET)
    log = [
        (user, item, schedule.window_end_micros(window) - MICROS // 2)
        for user, pairs in held.items()
        for window, item in pairs
    ]
    if not log:
        return []
    parts = contributions_of_events(batch_of(log), schedule, keys, windows_per_range=windows_per_range, shards=1)
    return [(number, pairs) for number, _, pairs in parts]


def law_of_replay(held: Held, settings: TrialPlan, *, domain: Sequence[str] = ()) -> Law:
    """The probability of every transcript: what is named in each window, with levels and sizes.

    All choices of uniforms run at once, each on a copy of the items of its own.
    """
    labels = sorted({item for pairs in held.values() for _, item in pairs} | set(domain))
    keys = ChosenUniforms(settings.stream_keys(SECRET))
    totals = sums_of_replay(held, settings)
    windows = range(settings.schedule.horizon)
    looks = [_ranges(settings, totals.get((window, item), 0)) for window in windows for item in labels]
    return law_of(settings, domain, lambda drawn: _transcripts(totals, labels, looks, settings, keys, drawn, domain))


def _transcripts(
    totals: Mapping[tuple[int, str], int],
    labels: Sequence[str],
    looks: Sequence[Sequence[Range]],
    settings: TrialPlan,
    keys: ChosenUniforms,
    drawn: Sequence[Range],
    domain: Sequence[str],
) -> list[tuple[Any, Fraction]]:
    """The transcript of each choice of uniforms of the looks, by the first and by the last of each range."""
    chosen = list(itertools.product(*looks))
    horizon = settings.schedule.horizon
    found = []
    for end in (0, 1):
        words = np.array([divmod(part[end], _WORD) for choice in chosen for part in choice], dtype=np.uint64)
        keys.looks = words.reshape(len(chosen), horizon, len(labels), 2)
        keys.empty = [part[end] for part in drawn]
        cells = dict(totals)
        if domain:
            table = ItemTable.of_labels(pa.array(domain, pa.string()), keys.hash_items)[0]
            empty_items = EmptyItems(table, ItemNamer(settings, keys).empty_item_tail, keys.empty_item_uniforms())
            drawn_windows = empty_items.without_sums(0, horizon).windows.tolist()
            cells = {(window, domain[0]): 0 for window in drawn_windows} | cells
        sums = _copies(cells, labels, len(chosen))
        namer = ItemNamer(settings, keys)  # type: ignore[arg-type]
        named = namer.name_windows(sums, FollowedItems.none(), 0, horizon)
        transcripts: list[list[tuple[Any, ...]]] = [[] for _ in chosen]
        columns = (named.windows, named.items, named.levels, named.at_least_users)
        for window, item, level, users in zip(*(column.tolist() for column in columns), strict=True):
            copy, number = named.table.hashes[item].tolist()
            transcripts[copy].append((window, labels[number], level, users))
        found.append([tuple(sorted(transcript)) for transcript in transcripts])
    assert found[0] == found[1], "one range of uniforms, two results"
    return [(transcript, _share(choice)) for transcript, choice in zip(found[0], chosen, strict=True)]


def _copies(cells: Mapping[tuple[int, str], int], labels: Sequence[str], copies: int) -> ItemSums:
    """So many copies of the cells, each with items of its own: number i of copy k has the hash (k, i)."""
    hashes = np.array([(copy, number) for copy in range(copies) for number in range(len(labels))], dtype=np.uint64)
    table = ItemTable.with_labels(
        hashes.reshape(-1, 2), pa.array([labels[int(number)] for _, number in hashes], pa.string())
    )
    rows = [
        (window, copy * len(labels) + labels.index(item), total)
        for (window, item), total in cells.items()
        for copy in range(copies)
    ]
    windows, items, totals = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
    return ItemSums(windows, items, totals, np.zeros((len(rows), 2), dtype=np.uint64), table)


def _share(ranges: Iterable[Range]) -> Fraction:
    share = Fraction(1)
    for low, high in ranges:
        share *= Fraction(high + 1 - low, ONE)
    return share


def sums_of_replay(held: Held, settings: TrialPlan) -> dict[tuple[int, str], int]:
    """The sum of each cell of a replay, {(window, item): sum}."""
    parts = pairs_of_held(held, settings, settings.schedule.horizon)
    sums, keys = ItemSums.none(), settings.stream_keys(SECRET)
    for _, pairs in parts:
        sums = ItemSums.of_weights(pairs, replay_weights(pairs, settings, keys), keys)
    labels = sums.table.labels.to_pylist()
    rows = zip(sums.windows.tolist(), sums.items.tolist(), sums.sums.tolist(), strict=True)
    return {(window, labels[item]): total for window, item, total in rows}


def _ranges(settings: TrialPlan, total: int) -> list[Range]:
    """Ranges of the uniform of one look, by all results that it can have, known or not; drawn given a pass, too."""
    reach = len(settings.contributions.noise.upper_tail_integers())
    starts = (settings.threshold, settings.followed_threshold)
    boundaries = {
        start + step * settings.contributions.spacing
        for start in starts
        for step in range(2 + 2 * reach // settings.contributions.spacing)
    }
    passing = _tail(settings, settings.followed_threshold)
    given_pass = [-(-_tail(settings, boundary) * ONE // passing) for boundary in boundaries] if total == 0 else []
    return _cut([*(_tail(settings, boundary - total) for boundary in boundaries), *given_pass])


def _cut(numbers: Iterable[int]) -> list[Range]:
    """0 .. 2^128 - 1 in ranges that begin at these numbers, with first and last."""
    inner = sorted({number for number in numbers if 0 < number < ONE})
    bounds = [0, *inner, ONE]
    return [(low, high - 1) for low, high in itertools.pairwise(bounds)]


def _tail(settings: TrialPlan, margin: int) -> int:
    """``2^128 Pr[Z >= margin]`` of the table."""
    tails = settings.contributions.noise.upper_tail_integers()
    if margin < 1:
        return ONE - _tail(settings, 1 - margin)
    return tails[margin - 1] if margin <= len(tails) else 0
