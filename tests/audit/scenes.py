"""Streams that an adversary makes for the real code of mode `looks`, and the exact law of what they show.

A `Scene` is a few cells (window, item), each with some holders; a `Trial` is a scene with its tests. Weights are
computed here again, from docs/guarantee.md, "Weights", in plain integers. Thresholds are smaller than in the plan and
counts with them, since only their difference matters.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from dp_transforms.audit.noise_law import NoiseLaw, Values, Whole
from tests.audit.statistics import NamedPValue, multinomial_p_value
from tests.helpers.charging_rules import ChargingRules

NOBODY, USER = range(0), range(1)  # of the users of a copy; the first one is x'
_DAY_SECONDS = 86_400
_PATIENCE = 16  # a user of a stream is expected to go on for at most so many times as long as it was there
_LEVELS = 8  # with a bin of their own; the last one is for all beyond


@dataclasses.dataclass(frozen=True)
class Cell:
    """others: so many other users hold the item in the window, and nothing else in the run. users: those of the copy's
    own users who hold it. items: so many items alike, from `item` on."""

    window: int
    item: int
    others: int
    users: range = NOBODY
    items: int = 1

    @property
    def by_user(self) -> bool:
        """Whether x' holds it."""
        return 0 in self.users


@dataclasses.dataclass(frozen=True)
class Scene:
    """in_order: as a stream, window by window; else as a replay. threshold ... spacing: of the run, as in `Plan`.
    is_domain: all items of all copies are a known domain. false_names: as in `Rounds`, where looks come in rounds; all
    windows are then one block.
    """

    name: str
    cells: tuple[Cell, ...]
    threshold: int
    followed_threshold: int
    spacing: int
    forget_after: int = 0
    in_order: bool = False
    is_domain: bool = False
    false_names: float = 0.0

    @property
    def windows(self) -> int:
        return 1 + max(cell.window for cell in self.cells)

    @property
    def items(self) -> int:
        return max(cell.item + cell.items for cell in self.cells)

    @property
    def users(self) -> int:
        return max(1, *(cell.users.stop for cell in self.cells))

    @property
    def pairs(self) -> int:
        """One copy has at most so many."""
        return sum(cell.items * (cell.others + max(1, len(cell.users))) for cell in self.cells)

    def states(self, window: int) -> tuple[bool, ...]:
        """Whether an item can be known in this window, and whether it can be new."""
        if self.is_domain:
            return (True,)
        return (True, False) if window and self.forget_after else (False,)


@dataclasses.dataclass(frozen=True)
class Trial:
    """So many copies of a scene, and the tests of what is published of them.

    p_values: of levels, int64[copies, windows, items], by whether the user is there; 0 where an item was not named. In
    rounds of looks one of these for each, int64[rounds, copies, windows, items].
    worlds: those that it needs.
    """

    scene: Scene
    copies: int
    p_values: Callable[[Mapping[bool, Whole]], Iterator[NamedPValue]]
    worlds: tuple[bool, ...] = (True, False)


def in_world(with_user: bool) -> str:
    return "with the user" if with_user else "without the user"


# ---------------------------------------------------------------------------------------------------------------------
# The law of levels
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SceneWeights:
    """What the user has in each of its windows, and a user who is new in one: by window."""

    user: dict[int, int]
    other: dict[int, int]

    @classmethod
    def of_scene(cls, scene: Scene, mechanism: ChargingRules, slide_seconds: int) -> SceneWeights:
        looks: dict[int, int] = {}
        for cell in scene.cells:
            if cell.by_user:
                looks[cell.window] = looks.get(cell.window, 0) + cell.items
        if not scene.in_order:
            weight = mechanism.looks_list.replay_weight(max(1, sum(looks.values())))
            windows = range(scene.windows)
            return cls(dict.fromkeys(windows, weight), dict.fromkeys(windows, mechanism.looks_list.replay_weight(1)))
        paced = functools.partial(paced_weights, mechanism, windows=scene.windows, slide_seconds=slide_seconds)
        return cls(paced(looks), {window: paced({window: 1})[window] for window in range(scene.windows)})

    def sum_of(self, cell: Cell, *, with_user: bool) -> int:
        own = self.user[cell.window] if with_user and cell.by_user else 0
        return cell.others * self.other[cell.window] + own


def paced_weights(
    mechanism: ChargingRules, looks: dict[int, int], *, windows: int, slide_seconds: int
) -> dict[int, int]:
    """The weight in each window of a user with so many looks in each; 0 where its purse pays for none.

    docs/guarantee.md, "Weights". A window of which it pays for some only is not in a scene.
    """
    left, so_far, first, found = mechanism.purse, 0, min(looks, default=0), {}
    day = min(-(-_DAY_SECONDS // slide_seconds), max(1, windows // _PATIENCE))
    for window, number in sorted(looks.items()):
        so_far += number
        later = windows - window - 1
        expected = so_far * later // (max(window - first + 1, day) + later // _PATIENCE)
        place = mechanism.looks_list.payable(left // (expected + number)) or 0
        payable = min(number, left // mechanism.looks_list.units[place])
        assert payable in (0, number)
        left -= payable * mechanism.looks_list.units[place]
        found[window] = mechanism.looks_list.weights[place] if payable else 0
    return found


def level_p_values(
    scene: Scene, weights: SceneWeights, law: NoiseLaw, levels: Mapping[bool, Whole]
) -> Iterator[NamedPValue]:
    """What each window shows against its law, given what was published before; and that noise follows the holders."""
    for with_user, of_world in levels.items():
        for item in range(scene.items):
            of_item = _item_p_values(scene, weights, law, of_world[:, :, item], item, with_user)
            yield from ((f"{name}, {in_world(with_user)}", p_value) for name, p_value in of_item)
    # Both worlds have one key. Were noise not new for other holders, they would not be independent.
    for cell in scene.cells:
        if cell.by_user and cell.window == 0:
            binned = [
                (
                    _bins(levels[with_user][:, 0, cell.item]),
                    _masses(scene, law, weights.sum_of(cell, with_user=with_user), scene.is_domain),
                )
                for with_user in (True, False)
            ]
            yield f"{scene.name}, with other holders", independence_p_value(*binned)


def _item_p_values(
    scene: Scene, weights: SceneWeights, law: NoiseLaw, levels: Whole, item: int, with_user: bool
) -> Iterator[NamedPValue]:
    """levels: int64[copies, windows], of one item."""
    cells = {cell.window: cell for cell in scene.cells if cell.item == item}
    last_named = np.full(len(levels), -scene.forget_after - 1)
    for window in range(scene.windows):
        total = weights.sum_of(cells.get(window, Cell(window, item, 0)), with_user=with_user)
        is_known = (window - last_named <= scene.forget_after) | scene.is_domain
        # All states that can be, also one that no copy is in: the number of tests must not depend on what was seen.
        for state in scene.states(window):
            seen = np.bincount(_bins(levels[is_known == state, window]), minlength=_LEVELS)
            name = f"{scene.name}, window {window + 1}"
            yield name, multinomial_p_value(seen, _masses(scene, law, total, state))
        last_named = np.where(levels[:, window] > 0, window, last_named)


def _bins(levels: Whole) -> Whole:
    return np.minimum(levels, _LEVELS - 1)


def _masses(scene: Scene, law: NoiseLaw, total: int, is_known: bool) -> Values:
    """The probabilities of no level, level 1, 2, ..., of an item with this sum of weights."""
    if not is_known and not total:
        return np.eye(1, _LEVELS, dtype=np.float64).reshape(-1)  # not drawn
    first = scene.followed_threshold if is_known else scene.threshold
    tails = np.exp(law.log_tail(first - total + scene.spacing * np.arange(_LEVELS - 1)))
    return np.asarray(-np.diff([1.0, *tails, 0.0]))


def independence_p_value(first: tuple[Whole, Values], second: tuple[Whole, Values]) -> float:
    """Of two things that each copy shows: the number of its bin, and the probabilities of all bins."""
    (seen, masses), (other, more) = first, second
    counts = np.bincount(seen * len(more) + other, minlength=len(masses) * len(more))
    return multinomial_p_value(counts, np.outer(masses, more))


# ---------------------------------------------------------------------------------------------------------------------
# The scenes
# ---------------------------------------------------------------------------------------------------------------------


def scene_of(
    name: str, cells: Iterable[Cell], mechanism: ChargingRules, *, threshold: int, known: int | None = None
) -> Scene:
    """A scene with the rules of a mechanism. known: the threshold of known items; None: as far below as in the plan."""
    gap = mechanism.threshold - mechanism.followed_threshold
    is_domain = not mechanism.tests_lone_items
    return Scene(
        name,
        tuple(cells),
        threshold,
        threshold if is_domain else max(1, threshold - gap) if known is None else known,
        mechanism.spacing,
        is_domain=is_domain,
    )


def level_trial(scene: Scene, mechanism: ChargingRules, law: NoiseLaw, copies: int, slide_seconds: int) -> Trial:
    """Of what each window of each item shows."""
    weights = SceneWeights.of_scene(scene, mechanism, slide_seconds)
    return Trial(scene, copies, functools.partial(level_p_values, scene, weights, law))
