"""Streams that an adversary makes for the real code of release mode `names`, and the exact law of what they show.

A scene is a few cells (window, item) with so many other holders; the user holds some of them. Other holders are in one
cell each. Weights are computed here again, from docs/purse.md sections 6 and 8, in plain integers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.names.mechanism import NamesMechanism
from dp_transforms.audit.names.noise_law import NoiseLaw, Values
from dp_transforms.audit.statistics import multinomial_p_value
from dp_transforms.plan.window_schedule import WindowSchedule

_LEAST_EXPECTED = 10
_DAY_SECONDS = 86_400
_LEVELS = 8  # with a bin of their own; the last one is for all beyond


@dataclasses.dataclass(frozen=True)
class Cell:
    """others: so many other users hold the item in the window. by_user: so does the user."""

    window: int
    item: int
    others: int
    by_user: bool


@dataclasses.dataclass(frozen=True)
class Scene:
    """in_order: as a stream, window by window; else as a replay. threshold ... spacing: of the run, as in
    `NamingSettings`. is_domain: all items of all copies are a known domain. many_levels: False where level 2 is the
    last one.
    """

    name: str
    cells: tuple[Cell, ...]
    threshold: int
    known_threshold: int
    forget_after: int
    spacing: int
    in_order: bool = False
    is_domain: bool = False
    many_levels: bool = True

    @property
    def windows(self) -> int:
        return 1 + max(cell.window for cell in self.cells)

    @property
    def items(self) -> int:
        return 1 + max(cell.item for cell in self.cells)

    def states(self, window: int) -> tuple[bool, ...]:
        """Whether an item can be known in this window, and whether it can be new."""
        if self.is_domain:
            return (True,)
        return (True, False) if window and self.forget_after else (False,)

    def schedule(self, slide_seconds: int) -> WindowSchedule:
        return WindowSchedule.fixed(0, self.windows * slide_seconds, slide_seconds)


@dataclasses.dataclass(frozen=True)
class SceneWeights:
    """What the user has in each of its windows, and a user who is new in one: by window."""

    user: dict[int, int]
    other: dict[int, int]

    @classmethod
    def of_scene(cls, scene: Scene, mechanism: NamesMechanism, slide_seconds: int) -> SceneWeights:
        looks: dict[int, int] = {}
        for cell in scene.cells:
            if cell.by_user:
                looks[cell.window] = looks.get(cell.window, 0) + 1
        if not scene.in_order:
            weight = mechanism.replay_choice(max(1, sum(looks.values())))[0]
            windows = range(scene.windows)
            return cls(dict.fromkeys(windows, weight), dict.fromkeys(windows, mechanism.replay_choice(1)[0]))
        paced = functools.partial(paced_weights, mechanism, windows=scene.windows, slide_seconds=slide_seconds)
        return cls(paced(looks), {window: paced({window: 1})[window] for window in range(scene.windows)})

    def sum_of(self, cell: Cell, *, with_user: bool) -> int:
        own = self.user[cell.window] if with_user and cell.by_user else 0
        return cell.others * self.other[cell.window] + own


def paced_weights(
    mechanism: NamesMechanism, looks: dict[int, int], *, windows: int, slide_seconds: int
) -> dict[int, int]:
    """The weight in each window of a user with so many looks in each; 0 where its purse pays for none.

    docs/purse.md, section 8. A window of which it pays for some only is not in a scene.
    """
    left, so_far, first, found = mechanism.purse, 0, min(looks, default=0), {}
    day = -(-_DAY_SECONDS // slide_seconds)
    for window, number in sorted(looks.items()):
        so_far += number
        expected = 0
        if window < windows - 1:
            expected = max(_LEAST_EXPECTED, so_far * (windows - window - 1) // max(window - first + 1, day))
        place = mechanism.looks_list.payable(left // (expected + number)) or 0
        payable = min(number, left // mechanism.units[place])
        assert payable in (0, number)
        left -= payable * mechanism.units[place]
        found[window] = mechanism.weights[place] if payable else 0
    return found


@dataclasses.dataclass(frozen=True)
class Expected:
    """Of the copies `rows`, those in one state in a window: the probabilities of no level, level 1, 2, ..."""

    window: int
    item: int
    rows: npt.NDArray[np.int64]
    masses: Values


def expected_levels(
    scene: Scene,
    weights: SceneWeights,
    law: NoiseLaw,
    levels: npt.NDArray[np.int64],
    *,
    with_user: bool,
) -> list[Expected]:
    """What each window of each item shows, given what was published of it before.

    levels: int64[copies, windows, items], what was published; 0 where an item was not named.
    """
    cells = {(cell.window, cell.item): cell for cell in scene.cells}
    found = []
    for item in range(scene.items):
        last_named = np.full(len(levels), -scene.forget_after - 1)
        for window in range(scene.windows):
            cell = cells.get((window, item), Cell(window, item, 0, False))
            total = weights.sum_of(cell, with_user=with_user)
            is_known = (window - last_named <= scene.forget_after) | scene.is_domain
            # All states that can be, also one that no copy is in: the number of tests must not depend on what was seen.
            for state in scene.states(window):
                first = scene.known_threshold if state else scene.threshold
                rows, is_drawn = np.flatnonzero(is_known == state), state or total > 0
                found.append(Expected(window, item, rows, _masses(scene, law, first - total, is_drawn)))
            named = levels[:, window, item] > 0
            last_named = np.where(named, window, last_named)
    return found


def other_holders_p_values(
    scene: Scene, expected: dict[bool, list[Expected]], levels: dict[bool, npt.NDArray[np.int64]]
) -> Iterator[tuple[str, float]]:
    """Whether what the first window shows with the user is independent of what it shows without. Both with one key.

    expected, levels: by whether the user is there. Else a user who comes or goes would leave the noise as it was.
    """
    firsts = {
        (with_user, each.item): each for with_user, of_world in expected.items() for each in of_world if not each.window
    }
    for cell in scene.cells:
        if cell.by_user and cell.window == 0:
            masses = np.outer(*(firsts[with_user, cell.item].masses for with_user in (True, False)))
            seen = [np.minimum(levels[with_user][:, 0, cell.item], _LEVELS - 1) for with_user in (True, False)]
            counts = np.bincount(seen[0] * _LEVELS + seen[1], minlength=_LEVELS**2)
            yield f"{scene.name}, with other holders", multinomial_p_value(counts, masses)


def _masses(scene: Scene, law: NoiseLaw, margin: int, is_drawn: bool) -> Values:
    if not is_drawn:
        return np.eye(1, _LEVELS, dtype=np.float64).reshape(-1)
    bounds = margin + scene.spacing * np.arange(_LEVELS - 1)
    tails = np.exp(law.log_tail(bounds))
    if not scene.many_levels:
        tails[2:] = 0.0
    return np.asarray(-np.diff([1.0, *tails, 0.0]))


def counts_of(levels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How often each level is there, with those beyond the last bin in it."""
    return np.bincount(np.minimum(levels, _LEVELS - 1), minlength=_LEVELS)
