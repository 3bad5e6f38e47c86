"""Streams that an adversary makes for the real code of mode `looks`, and the exact law of what they show.

A `Scene` is a few cells (window, item), each with some holders; a `Trial` is a scene with its tests. Weights are
computed here again, from docs/guarantee.md, "Weights", in plain integers. Thresholds are smaller than in the plan and
counts with them, since only their difference matters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from dp_transforms.audit.look_law import NoiseLaw, Values, Whole
from dp_transforms.audit.mechanism import LooksMechanism, PricesOfUser
from dp_transforms.audit.statistics import NamedPValue, binomial_p_value, multinomial_p_value

NOBODY, USER = range(0), range(1)  # of the users of a copy; the first one is x'
_PATIENCE = 16
_DAY_SECONDS = 86_400
_LEVELS = 8  # with a bin of their own; the last one is for all beyond
_PASS = 0.3  # probability with which noise alone reaches the lowest threshold of a scene
_SURE = 1e-4  # probability with which an item that must become known does not
_PAIRS = 400_000  # of all copies of a scene; of users that hold many items:
_PAIRS_OF_USERS, _PAIRS_OF_GROUPS = 40_000, 200_000
_MOST_COPIES, _MOST_COPIES_WITH_HITS, _MOST_COPIES_OF_GROUPS = 5_000, 1_500, 300
_GROUP = 5.0  # what the users of a group add together, in scales: far more than any noise
_HIT = 0.9  # probability with which an item that they share is a hit
_MISSED = 0.3  # scales by which they are above the threshold
_COUNTED = range(4)  # the user and three others, in each window of the scene of counts
_EDGES, _FEW_EDGES = np.arange(-1.5, 1.6, 0.25), np.arange(-0.5, 0.6, 0.5)  # of bins around a count, in scales


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
    """in_order: as a stream, window by window; else as a replay. threshold ... spacing: of the run, as in
    `Plan`. is_domain: all items of all copies are a known domain. many_levels: False where level 2 is the
    last one.
    """

    name: str
    cells: tuple[Cell, ...]
    threshold: int
    known_threshold: int
    spacing: int
    forget_after: int = 0
    in_order: bool = False
    is_domain: bool = False
    many_levels: bool = True

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

    p_values: of levels, int64[copies, windows, items], by whether the user is there; 0 where an item was not named.
    worlds: those that it needs. is_of_counts: all items are counted, and the tests are of counts instead of levels.
    """

    scene: Scene
    copies: int
    p_values: Callable[[Mapping[bool, Whole]], Iterator[NamedPValue]]
    worlds: tuple[bool, ...] = (True, False)
    is_of_counts: bool = False


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
    def of_scene(cls, scene: Scene, mechanism: LooksMechanism, slide_seconds: int) -> SceneWeights:
        looks: dict[int, int] = {}
        for cell in scene.cells:
            if cell.by_user:
                looks[cell.window] = looks.get(cell.window, 0) + cell.items
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
    mechanism: LooksMechanism, looks: dict[int, int], *, windows: int, slide_seconds: int
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
    first = scene.known_threshold if is_known else scene.threshold
    tails = np.exp(law.log_tail(first - total + scene.spacing * np.arange(_LEVELS - 1)))
    if not scene.many_levels:
        tails[2:] = 0.0
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
    name: str, cells: Iterable[Cell], mechanism: LooksMechanism, *, threshold: int, known: int | None = None
) -> Scene:
    """A scene with the rules of a mechanism. known: the threshold of known items; None: as far below as in the plan."""
    gap = mechanism.boundaries[0] - mechanism.known_boundaries[0]
    is_domain = not mechanism.tests_lone_items
    return Scene(
        name,
        tuple(cells),
        threshold,
        threshold if is_domain else max(1, threshold - gap) if known is None else known,
        mechanism.spacing,
        is_domain=is_domain,
        many_levels=mechanism.hits_list is None,
    )


def level_trial(scene: Scene, mechanism: LooksMechanism, law: NoiseLaw, copies: int, slide_seconds: int) -> Trial:
    """Of what each window of each item shows."""
    weights = SceneWeights.of_scene(scene, mechanism, slide_seconds)
    return Trial(scene, copies, functools.partial(level_p_values, scene, weights, law))


def level_trials(
    mechanism: LooksMechanism, law: NoiseLaw, forget_after: int, slide_seconds: int, runs: int
) -> Iterator[Trial]:
    """New items of several levels, and items that are known, held by nobody but the user, and forgotten."""
    most = _MOST_COPIES if mechanism.hits_list is None else _MOST_COPIES_WITH_HITS
    for scene in (new_items(mechanism), *known_items(mechanism, law, forget_after, slide_seconds)):
        copies = max(1, min(runs, most, _PAIRS // scene.pairs))
        yield level_trial(scene, mechanism, law, copies, slide_seconds)


def new_items(mechanism: LooksMechanism) -> Scene:
    heaviest, held = mechanism.looks_list.weights[-1], _held(mechanism)
    cells = [
        Cell(0, item, 1 + round(item * mechanism.spacing / heaviest), USER if item in held else NOBODY)
        for item in range(3)
    ]
    return scene_of("levels of new items", cells, mechanism, threshold=heaviest)


def known_items(mechanism: LooksMechanism, law: NoiseLaw, forget_after: int, slide_seconds: int) -> Iterator[Scene]:
    """Once as a replay and once as a stream."""
    known, held = max(1, law.smallest_margin(_PASS)), _held(mechanism)
    threshold = known + mechanism.boundaries[0] - mechanism.known_boundaries[0]
    for kind in ("replay", "stream"):
        scene = scene_of(f"known items in a {kind}", [Cell(4, 0, 1)], mechanism, known=known, threshold=threshold)
        scene = dataclasses.replace(scene, in_order=kind == "stream", forget_after=min(1, forget_after))
        other = SceneWeights.of_scene(scene, mechanism, slide_seconds).other
        crowd = math.ceil((threshold + law.smallest_margin(_SURE)) / other[0])
        some = max(1, math.ceil((known + mechanism.spacing) / other[2]))
        cells = [
            Cell(window, 0, others, USER if place in held else NOBODY)
            for window, (others, place) in enumerate(((crowd, 3), (0, 0), (some, 2), (0, 1), (0, 4)))
        ]
        yield dataclasses.replace(scene, cells=tuple(cells))


def _held(mechanism: LooksMechanism) -> range:
    """The user holds so many of the cells, those that show most, since it may have no looks for others."""
    return range(max(looks for looks in range(1, 6) if mechanism.all_count(looks)))


def empty_purse_trials(mechanism: LooksMechanism, law: NoiseLaw, runs: int) -> Iterator[Trial]:
    """A user alone, with twice as many items in a window as its purse pays for, and in a stream more in the next one.

    So many are drawn for as it pays for, and of the next window none.
    """
    listed = mechanism.looks_list
    pairs = 2 * listed.most_looks
    copies = max(1, min(runs, _PAIRS_OF_USERS // pairs))
    kinds = {
        "stream": (listed.weights[0], listed.most_looks),
        "replay": (listed.replay_weight(pairs), int(listed.purse_of(np.array(pairs))) // listed.units[0]),
    }
    if mechanism.replay_choice(pairs)[1] != listed:
        del kinds["replay"]  # on the hits list, and named no more after its hits (`exclusion_trials`)
    for kind, (weight, most) in kinds.items():
        threshold = weight + max(1, law.smallest_margin(_PASS))
        cells = [Cell(window, window * pairs, 0, USER, pairs) for window in range(1 + (kind == "stream"))]
        scene = scene_of(f"empty purses in a {kind}", cells, mechanism, known=threshold, threshold=threshold)
        scene = dataclasses.replace(scene, in_order=kind == "stream")
        p_values = functools.partial(_empty_purse_p_values, scene.name, copies * most, law.tail(threshold - weight))
        yield Trial(scene, copies, p_values, worlds=(True,))


def _empty_purse_p_values(name: str, drawn: int, tail: float, levels: Mapping[bool, Whole]) -> Iterator[NamedPValue]:
    named = np.count_nonzero(levels[True], axis=(0, 2))
    yield name, binomial_p_value(int(named[0]), drawn, tail)
    yield f"{name}, next window", 0.0 if named[1:].any() else 1.0


def exclusion_trials(mechanism: LooksMechanism, law: NoiseLaw, hits_from: int, runs: int) -> Iterator[Trial]:
    """Users who have no hits left: the real code must name an item as if they did not hold it.

    In each copy a group of users pays for hits, and shares items that are likely to be hits, as many as each of them
    may have; then they alone hold one more item. If all were hits, nobody counts there any more. If one was not, all
    count. Each holds items of its own besides, so many that it is on the hits list.
    """
    listed = mechanism.hits_list
    looks = max(listed.hits + 1, hits_from) if listed else 1
    weight, chosen = mechanism.replay_choice(looks)
    if listed is None or chosen != listed:
        return
    group = range(max(2, math.ceil(_GROUP * law.scale / weight)))
    threshold = len(group) * weight - math.ceil(_MISSED * law.scale)
    # With them, a shared item is a hit with about this probability, and next to never above.
    heaviest = mechanism.replay_choice(1)[0]
    others = max(0, round((threshold + law.smallest_margin(1 - _HIT) - len(group) * weight) / heaviest))
    own = looks - listed.hits - 1
    cells = [Cell(0, 0, others, group, listed.hits), Cell(1, listed.hits, 0, group)]
    cells += [Cell(0, listed.hits + 1 + user * own, 0, range(user, user + 1), own) for user in group if own]
    scene = dataclasses.replace(
        scene_of("users without hits left", cells, mechanism, threshold=threshold),
        known_threshold=max(1, min(threshold, law.smallest_margin(1e-3))),
        is_domain=False,
    )
    margins = (threshold - len(group) * weight, threshold - len(group) * weight - others * heaviest)
    copies = max(1, min(runs, _MOST_COPIES_OF_GROUPS, _PAIRS_OF_GROUPS // (len(group) * looks)))
    tails = [law.tail(margin) for margin in margins]
    yield Trial(scene, copies, functools.partial(_exclusion_p_values, scene.name, listed, tails), worlds=(True,))


def _exclusion_p_values(
    name: str, listed: PricesOfUser, tails: Sequence[float], levels: Mapping[bool, Whole]
) -> Iterator[NamedPValue]:
    """tails: that the last item is named while all count, and that a shared one is."""
    shared, last = levels[True][:, 0, : listed.hits], levels[True][:, 1, listed.hits] > 0
    is_excluded = np.count_nonzero(shared == 1, axis=1) == listed.hits
    yield name, 0.0 if last[is_excluded].any() else 1.0
    named, counting = np.count_nonzero(last & ~is_excluded), np.count_nonzero(~is_excluded)
    yield f"{name}, before the last hit", binomial_p_value(int(named), int(counting), tails[0])
    yield f"{name}, hits", binomial_p_value(int(np.count_nonzero(shared)), shared.size, tails[1])


def count_trials(mechanism: LooksMechanism, runs: int) -> Iterator[Trial]:
    """Counts: against their exact law, and new for other windows and other holders.

    Whatever the names are, what is counted follows from them alone. So here every item of every copy is counted: one
    that the user holds with three others, and one that nobody holds, in two windows. Both windows have the same
    holders, if as many pairs of a user count.
    """
    if mechanism.count_scale:
        windows_held = min(2, mechanism.looks_list.counts)
        users = [_COUNTED if window < windows_held else NOBODY for window in (0, 1)]
        cells = [Cell(window, item, 0, NOBODY if item else users[window]) for window in (0, 1) for item in (0, 1)]
        scene = scene_of("counts", cells, mechanism, threshold=1, known=1)
        law = NoiseLaw.whole(2.0, mechanism.count_scale)
        p_values = functools.partial(_count_p_values, scene, law)
        yield Trial(scene, min(runs, _MOST_COPIES), p_values, is_of_counts=True)


def _count_p_values(scene: Scene, law: NoiseLaw, counts: Mapping[bool, Whole]) -> Iterator[NamedPValue]:
    def bins(with_user: bool, cell: Cell, edges: Values) -> tuple[Whole, Values]:
        """In which bin each count is, and the probability of each. What is below 1 is published as 0."""
        holders = max(0, len(cell.users) - (not with_user))
        bounds = np.unique(np.maximum(1, holders + np.round(edges * law.scale).astype(np.int64)))
        tails = np.exp(law.log_tail(bounds - holders))
        seen = np.searchsorted(bounds, counts[with_user][:, cell.window, cell.item], side="right")
        return seen, -np.diff([1.0, *tails, 0.0])

    def together(first: tuple[bool, Cell], second: tuple[bool, Cell]) -> float:
        return independence_p_value(bins(*first, _FEW_EDGES), bins(*second, _FEW_EDGES))

    names = ("held items", "items that nobody holds")
    held, empty, *later = scene.cells
    for with_user in (True, False):
        for cell in scene.cells:
            seen, masses = bins(with_user, cell, _EDGES)
            name = f"counts of {names[cell.item]}, window {cell.window + 1}, {in_world(with_user)}"
            yield name, multinomial_p_value(np.bincount(seen, minlength=len(masses)), masses)
        for first, second in zip((held, empty), later, strict=True):
            name = f"counts of {names[first.item]}, in two windows, {in_world(with_user)}"
            yield name, together((with_user, first), (with_user, second))
    yield "counts with other holders", together((True, held), (False, held))
