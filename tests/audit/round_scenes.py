"""Scenes for looks in rounds, and the exact law of what each round names, given what was named before.

docs/guarantee.md, "Rounds", in plain integers: what is drawn for, who has which weight, and the threshold that follows
how many pairs are drawn for. All windows of a scene are one block. An other user holds one pair, and so has all that
the purse of a round buys.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from dp_transforms.accounting.priced_weights import FEWEST_STATED
from dp_transforms.audit.noise_law import NoiseLaw, Values, Whole
from tests.audit.scenes import NOBODY, USER, Cell, Scene, Trial, in_world, independence_p_value, scene_of
from tests.audit.statistics import NamedPValue, multinomial_p_value
from tests.helpers.charging_rules import ChargingRules

Bits = npt.NDArray[np.bool_]

LARGEST_ERROR = 0.01  # with which noise alone names a pair, however few are drawn for
_WINDOWS = 4
_PASS = 0.3  # probability with which an item that x' alone holds is named in its block
_ERROR = 0.003  # with which noise alone names a pair, if all are drawn for
_BINS = 8  # no level, and so many boundaries less one; the last one is for all beyond
_BOUNDARIES = 100  # that a noisy sum of a scene never exceeds
_PAIRS, _MOST_COPIES = 250_000, 5_000


def round_trial(scene: Scene, mechanism: ChargingRules, law: NoiseLaw, copies: int) -> Trial:
    return Trial(scene, copies, functools.partial(_p_values, scene, mechanism, law))


def round_trials(mechanism: ChargingRules, law: NoiseLaw, runs: int) -> Iterator[Trial]:
    """An item that x' alone holds, one that it holds with others if each round pays for two, and one of others: each in
    the first window of a block, whose other windows have pairs that nobody holds. So many others that all is possible
    in all rounds. And an item with so many that it has several levels."""
    held = min(2, mechanism.pairs_in_rounds)
    lone = mechanism.rounds[0].replay_weight(held) + max(1, law.smallest_margin(_PASS))
    threshold, weights = law.smallest_margin(_ERROR), [each.replay_weight(1) for each in mechanism.rounds[1:]]
    some, many = math.ceil(threshold / weights[-2:][0]), math.ceil((threshold + mechanism.spacing) / weights[0])
    cells = [Cell(0, 0, 0, USER), Cell(0, 1, some, range(held - 1)), Cell(0, 2, some), Cell(_WINDOWS - 1, 2, 0, NOBODY)]
    for name, of_scene in (("rounds", cells), ("levels in rounds", [Cell(0, 0, many, USER)])):
        scene = scene_of(name, of_scene, mechanism, threshold=lone)
        copies = max(1, min(runs, _MOST_COPIES, _PAIRS // scene.pairs))
        false_names = _ERROR * copies * scene.windows * scene.items
        yield round_trial(dataclasses.replace(scene, false_names=false_names), mechanism, law, copies)


def levels_of_boundaries(mechanism: ChargingRules, largest: int, threshold: int) -> tuple[Whole, Whole]:
    """The boundaries of a round of looks, and the level of each: both rise. largest: the largest weight of it."""
    of_all = max(listed.replay_weight(1) for listed in mechanism.purses[1:])
    boundaries = threshold + mechanism.spacing * np.arange(_BOUNDARIES)
    return boundaries, 1 + (boundaries * of_all // largest - threshold) // mechanism.spacing


@dataclasses.dataclass(frozen=True)
class _Round:
    """What a round of looks drew for, and what it named.

    drawn: bool[copies, windows, items]. bins: int64[copies, windows, items], what was named: 0 for nothing, n from the
    n-th boundary on; -1 for what is left out. looks: int64[2, copies], of x' among them, and among what
    is named already in the last round. others: int64[windows, items], holders of each; by_user: bool[windows, items],
    whether x' is another one. In round 0 there is one window, the block. is_second: second looks of the last round.
    """

    mechanism: ChargingRules
    law: NoiseLaw
    number: int
    threshold: int
    drawn: Bits
    bins: Whole
    looks: Whole
    others: Whole
    by_user: Bits
    is_second: bool = False

    def weight(self, looks: int, second: int) -> int:
        """Of a user with so many looks in this round."""
        if self.number < len(self.mechanism.rounds) - 1:
            return self.mechanism.rounds[self.number].replay_weight(looks)
        return self.mechanism.last_weight(looks, second, is_second=self.is_second)

    @property
    def alone(self) -> tuple[int, int]:
        """The looks of a user of one pair."""
        return (0, 1) if self.is_second else (1, 0)

    @property
    def all_looks(self) -> list[tuple[int, int]]:
        """All that x' can have in this round, the largest number of looks like these last."""
        held, is_last = int(self.by_user.sum()), self.number == len(self.mechanism.rounds) - 1
        found = [
            (first, second)
            for first in range(held + 1)
            for second in range((held - first if is_last else 0) + 1)
            if (second if self.is_second else first)
        ]
        return sorted(found, key=lambda each: each[self.is_second])

    def masses(self, others: int, looks: tuple[int, int]) -> Values:
        """Of the bins, for a pair of so many others, and of x' if it has any looks in this round."""
        total = others * self.weight(*self.alone) + (self.weight(*looks) if any(looks) else 0)
        if not self.number and not total:
            return np.eye(1, _BINS, dtype=np.float64).reshape(-1)  # not drawn for
        boundaries = self.mechanism.spacing * np.arange(self._lowest, _BINS - 1)
        tails = np.exp(self.law.log_tail(self.threshold - total + boundaries))
        return np.asarray(-np.diff([1.0, *tails, 0.0]))

    def p_values(self) -> Iterator[NamedPValue]:
        """Of all pairs with the same holders together: given what was named before, they are independent."""
        kinds = sorted({*zip(self.others.reshape(-1).tolist(), self.by_user.reshape(-1).tolist(), strict=True)})
        for others, by_user in kinds:
            is_kind = self.drawn & (self.others == others) & (self.by_user == by_user)
            # All numbers of looks that can be: the number of tests must not depend on what was seen.
            for looks in self.all_looks if by_user else [(0, 0)]:
                rows = is_kind & (self._have(looks) | (not by_user))[:, None, None]
                seen = np.bincount(self.bins[rows] - self._lowest, minlength=_BINS - self._lowest)
                name = f"{self.name}, {others} others" + (f", {looks} looks of the user" if by_user else "")
                yield name, multinomial_p_value(seen, self.masses(others, looks))
        yield f"{self.name}, what is not drawn for", 0.0 if self.bins[~self.drawn].any() else 1.0

    @property
    def _lowest(self) -> int:
        """Of the bins."""
        return -self.mechanism.leaves_out(self.number)

    @property
    def name(self) -> str:
        return f"round {self.number}" + (", second looks" if self.is_second else "")

    def _have(self, looks: tuple[int, int]) -> Bits:
        """In which copies x' has so many."""
        first, second = looks
        return np.asarray((self.looks[0] == first) & (self.looks[1] == second))

    def independence(self, without: _Round, window: int, item: int) -> float:
        """Of what is named of a pair of x' in both worlds, which have one key: noise is new for other holders."""
        looks, others, at = self.all_looks[-1], int(self.others[window, item]), (slice(None), window, item)
        rows = self.drawn[at] & without.drawn[at] & self._have(looks)
        first = self.bins[at][rows] - self._lowest, self.masses(others, looks)
        return independence_p_value(first, (without.bins[at][rows] - self._lowest, without.masses(others, (0, 0))))


def _p_values(
    scene: Scene, mechanism: ChargingRules, law: NoiseLaw, levels: Mapping[bool, Whole]
) -> Iterator[NamedPValue]:
    """levels: int64[rounds, copies, windows, items] of each world."""
    worlds = {with_user: list(_rounds(scene, mechanism, law, each, with_user)) for with_user, each in levels.items()}
    for with_user, rounds in worlds.items():
        for each in rounds:
            yield from ((f"{scene.name}, {name}, {in_world(with_user)}", p_value) for name, p_value in each.p_values())
    for cell in scene.cells:
        if cell.by_user and cell.others:
            for there, gone in zip(worlds[True], worlds[False], strict=True):
                name = f"{scene.name}, {there.name}, with other holders"
                yield name, there.independence(gone, cell.window, cell.item)


def _rounds(scene: Scene, mechanism: ChargingRules, law: NoiseLaw, levels: Whole, with_user: bool) -> Iterator[_Round]:
    others, by_user = (
        np.zeros((scene.windows, scene.items), dtype=np.int64),
        np.zeros((scene.windows, scene.items), bool),
    )
    for cell in scene.cells:
        others[cell.window, cell.item], by_user[cell.window, cell.item] = cell.others, cell.by_user and with_user
    of_round = functools.partial(_Round, mechanism, law)
    in_block: Bits = np.logical_or.reduce(by_user, axis=0, keepdims=True)
    everything, held = np.ones_like(levels[0][:, :1], dtype=bool), np.full(len(levels[0]), in_block.sum())
    bins = _bins(mechanism, mechanism.rounds[0].replay_weight(1), scene.threshold, levels[0])
    of_block = others.sum(axis=0, keepdims=True)
    looks = np.stack([held, np.zeros_like(held)])
    yield of_round(0, scene.threshold, everything, bins[:, :1], looks, of_block, in_block)
    drawn = np.repeat(bins[:, :1] > 0, scene.windows, axis=1)
    named = np.zeros_like(drawn)
    for number in range(1, len(mechanism.rounds)):
        threshold = law.smallest_margin(min(LARGEST_ERROR, scene.false_names / max(1, int(drawn.sum()))))
        of_largest = functools.partial(_bins, mechanism, levels=levels[number])
        bins = of_largest(mechanism.rounds[number].replay_weight(1), threshold)
        looks = np.stack([(each & by_user).sum(axis=(1, 2)) for each in (drawn, named)])
        if number == len(mechanism.rounds) - 1:
            largest, error = mechanism.last_weight(0, 1, is_second=True), mechanism.size_error
            margin = law.smallest_margin(error / max(1, int(named.sum())))
            again = margin + (FEWEST_STATED - 1) * largest
            seen = np.where(named, of_largest(largest, again), 0)
            yield of_round(number, again, named, seen, looks, others, by_user, True)
            bins = np.where(named, 0, bins)
        else:
            looks = looks * np.array([[1], [0]])
        yield of_round(number, threshold, drawn, bins, looks, others, by_user)
        named = np.logical_or(named, bins > 0)
        drawn = np.logical_and(drawn, bins == 0)


def _bins(mechanism: ChargingRules, largest: int, threshold: int, levels: Whole) -> Whole:
    _, of_boundaries = levels_of_boundaries(mechanism, largest, threshold)
    return np.where(levels < 0, -1, np.minimum(np.searchsorted(of_boundaries, levels, side="right"), _BINS - 1))
