"""All transcripts of a few windows in a known domain, with x' and without: the accountant's claim holds, and nothing is
set aside for items of a single user. Nothing here is random."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState
from dp_transforms.core.hit_noise import query_noise
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.public_items import EmptyItems, binomial_integers
from tests.helpers.trial_plan import TrialPlan
from tests.privacy.adversary import Round, excess_of, fresh_users
from tests.privacy.exact_monitor import (
    ONE,
    TARGET_USER,
    ChosenKeys,
    Outcome,
    TailIntegers,
    Transcript,
    WindowProbe,
    cells_of,
    hits_of,
    pieces_of,
    settings_for,
    state_with_hits,
)

# The real monitor with a known domain: everything that it can publish, with exact probabilities.
#
# As in `exact_monitor`, and besides the number of items that nobody holds and their choice are chosen: each number by
# the 128-bit uniforms that lead to it, each subset of that size by a sequence of words that selects it. The table of
# the domain, the draw, the merge with the cells of the log and all the rest are the real code.


class DomainKeys(ChosenKeys):
    """Selects a number of items that nobody holds, and which, in one window; in all others none."""

    def __init__(self) -> None:
        super().__init__()
        self.window = -1
        self.number_uniform = 0
        self.words: tuple[int, ...] = (0,)

    def empty_item_uniforms(self) -> DomainKeys:
        return self

    def __call__(self, blocks: np.ndarray) -> np.ndarray:
        values = []
        for window, number in blocks.tolist():
            if window != self.window:
                values.append((0, 0))
            elif number == 0:
                values.append(divmod(self.number_uniform, 1 << 64))
            else:
                values.append((self.words[(number - 1) % len(self.words)], 0))
        return np.array(values, dtype=np.uint64).reshape(-1, 2)


class DomainProbe(WindowProbe):
    """All that one window can publish. The domain: as many items as each round names, held or not."""

    def __init__(self, settings: TrialPlan) -> None:
        super().__init__(settings)
        self._keys: DomainKeys = DomainKeys()
        self._monitor = HeavyHitterMonitor(settings, self._keys)  # type: ignore[arg-type]
        size = settings.domain_size
        hashes = np.array([[0, item] for item in range(size)], dtype=np.uint64)
        labels = pa.array([f"item {item}" for item in range(size)], pa.string())
        self._domain = ItemTable.with_labels(hashes, labels)

    def outcomes(
        self, window: int, holders_by_item: Sequence[Sequence[int]], state: MonitorState, cap: int
    ) -> dict[Transcript, Outcome]:
        """As of `WindowProbe`; weights are fractions that add up to (2^256)^held, over the items with holders."""
        assert len(holders_by_item) == self._settings.domain_size
        held = self.held_pieces(holders_by_item, state, cap)
        cells = cells_of(window, holders_by_item)
        found: dict[Transcript, Outcome] = {}
        for share, drawn in self._drawn():
            self._keys.window = window
            empty = self._empty_items(window)
            assert sorted(empty.table.hashes[:, 1].tolist()) == sorted(drawn)
            pieces = held | {item: self._pieces_given_pass(cap) for item in drawn if item not in held}
            scale = share / (ONE * ONE) ** (len(pieces) - len(held))
            self.collect(found, window, ItemHolders.merge([cells, empty]), pieces, state, cap, scale)
        assert sum(outcome.weight for outcome in found.values()) == (ONE * ONE) ** len(held)
        return found

    def _empty_items(self, window: int) -> ItemHolders:
        tail = query_noise(self._settings, self._keys).empty_item_tail()  # type: ignore[arg-type]
        return EmptyItems(self._domain, tail, self._keys.empty_item_uniforms()).without_holders(window, window + 1)

    def _drawn(self) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
        """Every set of items that can be drawn, with its probability; the keys then select it."""
        size = self._settings.domain_size
        tail = self._tails(self._settings.threshold)
        bounds = [0, *binomial_integers(size, tail)]
        bounds += [ONE] * (size + 2 - len(bounds))
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            if low == high:
                continue
            for drawn in itertools.combinations(range(size), number):
                self._keys.number_uniform = low
                left_out = tuple(item for item in range(size) if item not in drawn)
                self._keys.words = (left_out if 2 * number > size else drawn) or (0,)
                yield Fraction(high - low, ONE * math.comb(size, number)), drawn

    def _pieces_given_pass(self, cap: int) -> list:
        """Of a drawn item that nobody holds: its noise values, given that it reaches the threshold."""
        threshold = self._settings.threshold
        passing = self._tails(threshold)
        pieces = [piece for piece in pieces_of(self._tails, threshold, cap) if piece.pass_uniform < passing]
        assert sum(piece.weight for piece in pieces) == passing * ONE
        # Without the share of the pass bit: the draw of the set takes its place.
        return [
            dataclasses.replace(piece, weight=Fraction(piece.weight * ONE, passing))  # type: ignore[arg-type]
            for piece in pieces
        ]


class UntestedZeros(DomainProbe):
    """A planted fault: items that nobody holds are not tested, as in an open domain."""

    def _drawn(self) -> Iterator[tuple[Fraction, tuple[int, ...]]]:
        self._keys.number_uniform = 0
        yield Fraction(1), ()


THRESHOLD, ZONE = 4, 2
EPSILONS = [0.1 * index for index in range(31)]
SHARED = (100, 101)
ONE_ITEM: dict[str, list[Round]] = {
    "x' holds what nobody else holds": [Round.single(())] * 5,
    "now alone, now with others": [
        Round.single(fresh_users(window, count)) for window, count in enumerate((0, 3, 0, 4))
    ],
    "x' comes and goes": [Round.single((), held=window % 2 == 0) for window in range(5)],
    "the others have paid": [Round.single(SHARED)] * 5,
    "the others pay before x' comes": [Round.single(SHARED, held=False)] * 2 + [Round.single(SHARED)] * 2,
}
THREE_ITEMS: dict[str, list[Round]] = {
    "x' alone with one of three": [Round(((), (), ()), (False, True, False))] * 2,
    "x' alone with two, one shared": [Round(((), fresh_users(0, 3), ()), (True, True, True))],
    "the first item excludes the holders of the second": [Round((SHARED, SHARED, ()), (True, True, False))],
}


def excess(
    settings: TrialPlan, rounds: Sequence[Round], probe_of: type[DomainProbe] = DomainProbe
) -> tuple[float, float]:
    return excess_of(settings, rounds, EPSILONS, probe_of=probe_of)


@pytest.mark.parametrize(("mode", "epsilon", "hits"), [("hits", 0.5, 2), ("hits-with-counts", 0.25, 1)])
def test_every_transcript_of_one_item(mode: str, epsilon: float, hits: int) -> None:
    settings = settings_for(mode, epsilon, hits, THRESHOLD, ZONE, domain_size=1)
    for name, rounds in ONE_ITEM.items():
        assert excess(settings, rounds)[0] <= 1e-12, name


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("name", THREE_ITEMS)
def test_every_transcript_of_three_items(mode: str, name: str) -> None:
    settings = settings_for(mode, 0.75, 1, THRESHOLD, ZONE, max_items=3, domain_size=3)
    assert excess(settings, THREE_ITEMS[name])[0] <= 1e-12


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_even_the_lowest_threshold_is_safe(mode: str) -> None:
    """There an item that nobody holds is published in two windows of five, and the claim is nearly attained."""
    settings = settings_for(mode, 0.5, 1, 1, ZONE, domain_size=1)
    most, ratio = excess(settings, ONE_ITEM["x' holds what nobody else holds"])
    assert most <= 1e-12
    assert ratio > 0.6


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_enumeration_finds_empty_items_that_are_not_tested(mode: str) -> None:
    """Then an item that x' alone holds is published with x' and never without."""
    settings = settings_for(mode, 0.25, 1, THRESHOLD, ZONE, domain_size=1)
    assert excess(settings, ONE_ITEM["x' holds what nobody else holds"], UntestedZeros)[0] > 0.1
    settings = settings_for(mode, 0.25, 1, THRESHOLD, ZONE, max_items=3, domain_size=3)
    assert excess(settings, THREE_ITEMS["x' alone with one of three"], UntestedZeros)[0] > 0.1


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_an_item_that_nobody_holds_is_published_with_the_probability_of_the_tail(mode: str) -> None:
    """Exactly, charging nobody; and so is, except for one unit in 2^128, one whose holders have all paid."""
    settings = settings_for(mode, 0.5, 1, THRESHOLD, ZONE, domain_size=1)
    expected = Fraction(TailIntegers(0.5)(THRESHOLD), ONE)
    nobody = DomainProbe(settings).outcomes(0, [[]], state_with_hits({}), 9)
    published = {transcript: outcome for transcript, outcome in nobody.items() if transcript}
    assert abs(sum(outcome.weight for outcome in published.values()) - expected) <= Fraction(1, ONE)
    assert all(hits_of(outcome.state, TARGET_USER) == 0 for outcome in published.values())
    assert {outcome.state.hit_bound for outcome in published.values()} == ({0, 1} if mode == "hits" else {1})
    paid = DomainProbe(settings).outcomes(0, [[*SHARED]], state_with_hits(dict.fromkeys(SHARED, 1)), 9)
    for transcript, outcome in paid.items():
        assert abs(outcome.weight / (ONE * ONE) - nobody[transcript].weight) <= Fraction(8, ONE)
