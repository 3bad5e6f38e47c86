"""Scenes for mode `looks`: levels, known items, empty purses. Each is made for a part of the rules."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from dp_transforms.audit.noise_law import NoiseLaw, Whole
from tests.audit.scenes import NOBODY, USER, Cell, Scene, SceneWeights, Trial, level_trial, scene_of
from tests.audit.statistics import NamedPValue, binomial_p_value
from tests.helpers.charging_rules import ChargingRules

_PASS = 0.3  # probability with which noise alone reaches the lowest threshold of a scene
_SURE = 1e-4  # probability with which an item that must become known does not
_PAIRS, _PAIRS_OF_USERS = 400_000, 40_000  # of all copies of a scene; of users that hold many items
_HELD = 5  # cells of a scene that the user holds, those that show most; it may have no looks for others


def looks_trials(mechanism: ChargingRules, law: NoiseLaw, forget_after: int, slide: int, runs: int) -> Iterator[Trial]:
    """New items of several levels; items that are known, held by nobody but the user, and forgotten; empty purses."""
    for scene in (new_items(mechanism), *known_items(mechanism, law, forget_after, slide)):
        yield level_trial(scene, mechanism, law, max(1, min(runs, _PAIRS // scene.pairs)), slide)
    if mechanism.tests_lone_items:
        yield from empty_purse_trials(mechanism, law, runs)


def new_items(mechanism: ChargingRules) -> Scene:
    heaviest, held = mechanism.looks_list.weights[-1], min(_HELD, mechanism.most_paid)
    cells = [
        Cell(0, item, 1 + round(item * mechanism.spacing / heaviest), USER if item < held else NOBODY)
        for item in range(3)
    ]
    return scene_of("levels of new items", cells, mechanism, threshold=heaviest)


def known_items(mechanism: ChargingRules, law: NoiseLaw, forget_after: int, slide_seconds: int) -> Iterator[Scene]:
    """Once as a replay and once as a stream."""
    known, held = max(1, law.smallest_margin(_PASS)), min(_HELD, mechanism.most_paid)
    threshold = known + mechanism.threshold - mechanism.followed_threshold
    for kind in ("replay", "stream"):
        scene = scene_of(f"known items in a {kind}", [Cell(4, 0, 1)], mechanism, known=known, threshold=threshold)
        scene = dataclasses.replace(scene, in_order=kind == "stream", forget_after=min(1, forget_after))
        other = SceneWeights.of_scene(scene, mechanism, slide_seconds).other
        crowd = math.ceil((threshold + law.smallest_margin(_SURE)) / other[0])
        some = max(1, math.ceil((known + mechanism.spacing) / other[2]))
        cells = [
            Cell(window, 0, others, USER if place < held else NOBODY)
            for window, (others, place) in enumerate(((crowd, 3), (0, 0), (some, 2), (0, 1), (0, 4)))
        ]
        yield dataclasses.replace(scene, cells=tuple(cells))


def empty_purse_trials(mechanism: ChargingRules, law: NoiseLaw, runs: int) -> Iterator[Trial]:
    """A user alone, with twice as many items in a window as its purse pays for, and in a stream more in the next one.

    So many are drawn for as it pays for, and of the next window none.
    """
    listed = mechanism.looks_list
    pairs = 2 * listed.most_tests
    copies = max(1, min(runs, _PAIRS_OF_USERS // pairs))
    for kind, weight in (("stream", listed.weights[0]), ("replay", listed.replay_weight(pairs))):
        threshold = weight + max(1, law.smallest_margin(_PASS))
        cells = [Cell(window, window * pairs, 0, USER, pairs) for window in range(1 + (kind == "stream"))]
        scene = scene_of(f"empty purses in a {kind}", cells, mechanism, known=threshold, threshold=threshold)
        scene = dataclasses.replace(scene, in_order=kind == "stream")
        drawn, tail = copies * listed.most_tests, law.tail(threshold - weight)
        p_values = functools.partial(_empty_purse_p_values, scene.name, drawn, tail)
        yield Trial(scene, copies, p_values, worlds=(True,))


def _empty_purse_p_values(name: str, drawn: int, tail: float, levels: Mapping[bool, Whole]) -> Iterator[NamedPValue]:
    named = np.count_nonzero(levels[True], axis=(0, 2))
    yield name, binomial_p_value(int(named[0]), drawn, tail)
    yield f"{name}, next window", 0.0 if named[1:].any() else 1.0
