"""Runs the real code of release mode `names` many times: a lower bound on epsilon, and a test of all that it publishes.

Copies of a few scenes, with the user and without. The thresholds are smaller than in the plan and the counts with
them, since only their difference matters; the noise, the weights, the purse and the spacing are those of the plan. The
exact law decides the stream, the event and the bins, all before anything is drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dp_transforms.audit.names.copies import Published, name_pairs, pairs_of_numbers, run_copies, settings_of_scene
from dp_transforms.audit.names.counted import count_p_values
from dp_transforms.audit.names.exclusion import exclusion_p_values
from dp_transforms.audit.names.mechanism import NamesClaim, NamesMechanism
from dp_transforms.audit.names.noise_law import NoiseLaw
from dp_transforms.audit.names.scenes import (
    Cell,
    Scene,
    SceneWeights,
    counts_of,
    expected_levels,
    other_holders_p_values,
)
from dp_transforms.audit.statistics import binomial_p_value, epsilon_lower_bound, multinomial_p_value
from dp_transforms.mechanisms.priced_weights import stated_users
from dp_transforms.monitor.naming_settings import NamingSettings

CONFIDENCE = 0.999
FALSE_ALARM = 1e-6  # of all tests of agreement together
_LOOKS = (1, 2, 3, 5, 10)  # of the user in the stream from which epsilon is estimated
_STEPS = 10  # of margins tried, for each unit of scale
_PAIRS_OF_ALL_RUNS = 2_000_000  # some ten seconds for each world
_PAIRS_WITH_HITS = 60_000  # the sequential monitor takes its time for each name
_PAIRS_OF_A_SCENE = 400_000
_MOST_COPIES = 5_000  # of each other scene
_MOST_COPIES_WITH_HITS = 1_500
_PAIRS_AT_ONCE = 300_000
_PASS = 0.3  # probability with which noise alone reaches the lowest threshold of the other scenes
_SURE = 1e-4  # probability with which an item that must become known does not

OnStep = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class NamesSamplingDesign:
    """The runs from which epsilon is estimated, fixed before they begin.

    looks: of the user, each at an item with `others` others; margin: the threshold less what these add. event: the
    user is seen if at least so many of its items are named. p, q: its exact probabilities with the user and without.
    expected_epsilon: the bound to expect from these.
    """

    looks: int
    others: int
    weight: int
    margin: int
    runs: int
    event: int
    p: float
    q: float
    expected_epsilon: float


@dataclasses.dataclass(frozen=True)
class NamesSampledAudit:
    """p_seen, q_seen: how many runs ended in the event, with the user and without. epsilon: the lower bound, wrong with
    probability at most 1 - confidence.

    p_value: of the tests that the real code publishes what its exact law says, the smallest of several times their
    number; worst_test: which one. tests: their number. violations: as in `NamesExactAudit`.
    """

    design: NamesSamplingDesign
    p_seen: int
    q_seen: int
    epsilon: float
    confidence: float
    p_value: float
    worst_test: str
    tests: int
    violations: tuple[str, ...]


def design_names_sampling(
    mechanism: NamesMechanism, claim: NamesClaim, law: NoiseLaw, runs: int, most_looks: int
) -> NamesSamplingDesign:
    """The looks and the event for which so many runs can be expected to show the largest epsilon."""
    from scipy.stats import binom

    heaviest = mechanism.weights[-1]
    most_pairs = _PAIRS_OF_ALL_RUNS if mechanism.hits_list is None else _PAIRS_WITH_HITS
    best = NamesSamplingDesign(1, 1, mechanism.replay_choice(1)[0], 0, runs, 0, 1.0, 1.0, 0.0)
    for looks in (number for number in _LOOKS if number <= most_looks and mechanism.all_count(number)):
        weight = mechanism.replay_choice(looks)[0]
        for margin in range(-2 * law.scale, 3 * law.scale + 1, max(1, law.scale // _STEPS)):
            others = max(1, math.ceil((1 - margin) / heaviest))
            affordable = min(runs, max(1, most_pairs // (looks * (1 + others))))
            p, q = law.tail(margin - weight), law.tail(margin)
            for event in range(1, looks + 1):
                shown, hidden = float(binom.sf(event - 1, looks, p)), float(binom.sf(event - 1, looks, q))
                seen = round(affordable * shown)
                if 5 <= seen < affordable:
                    bound = epsilon_lower_bound(
                        seen, math.ceil(affordable * hidden), affordable, claim.delta, CONFIDENCE
                    )
                    if bound > best.expected_epsilon:
                        best = NamesSamplingDesign(
                            looks, others, weight, margin, affordable, event, shown, hidden, bound
                        )
    return best


def scene_of_design(design: NamesSamplingDesign, mechanism: NamesMechanism) -> Scene:
    """All looks in one window: so nothing is known of them before."""
    threshold = design.others * mechanism.weights[-1] + design.margin
    return _scene(
        "worst stream",
        [Cell(0, item, design.others, True) for item in range(design.looks)],
        mechanism,
        known=max(1, threshold - _gap(mechanism)) if mechanism.tests_lone_items else threshold,
        threshold=threshold,
    )


def other_scenes(mechanism: NamesMechanism, law: NoiseLaw, forget_after: int, slide_seconds: int) -> list[Scene]:
    """New items of several levels, and items that are known, held by nobody but the user, and forgotten."""
    spacing, heaviest = mechanism.spacing, mechanism.weights[-1]
    # The user holds so many of the cells, those that show most, since it may have no looks for others.
    held = range(max(looks for looks in range(1, 6) if mechanism.all_count(looks)))
    levels = [Cell(0, item, 1 + round(item * spacing / heaviest), item in held) for item in range(3)]
    known = max(1, law.smallest_margin(_PASS))
    threshold = known + _gap(mechanism)
    scenes = [
        _scene("levels of new items", levels, mechanism, known=max(1, heaviest - _gap(mechanism)), threshold=heaviest)
    ]
    for in_order in (False, True):
        named = _scene("known items", [Cell(4, 0, 1, True)], mechanism, known=known, threshold=threshold)
        named = dataclasses.replace(named, in_order=in_order, forget_after=min(1, forget_after))
        other = SceneWeights.of_scene(named, mechanism, slide_seconds).other
        crowd = math.ceil((threshold + law.smallest_margin(_SURE)) / other[0])
        some = max(1, math.ceil((known + spacing) / other[2]))
        cells = [
            Cell(window, 0, others, place in held)
            for window, (others, place) in enumerate(((crowd, 3), (0, 0), (some, 2), (0, 1), (0, 4)))
        ]
        scenes.append(
            dataclasses.replace(
                named, name=f"known items in a {'stream' if in_order else 'replay'}", cells=tuple(cells)
            )
        )
    return scenes


def _scene(name: str, cells: list[Cell], mechanism: NamesMechanism, *, known: int, threshold: int) -> Scene:
    is_domain = not mechanism.tests_lone_items
    return Scene(
        name,
        tuple(cells),
        threshold,
        threshold if is_domain else known,
        0,
        mechanism.spacing,
        is_domain=is_domain,
        many_levels=mechanism.hits_list is None,
    )


def _gap(mechanism: NamesMechanism) -> int:
    return mechanism.boundaries[0] - mechanism.known_boundaries[0]


@dataclasses.dataclass
class _Tests:
    """The smallest p-value so far, its name, and how many there were."""

    smallest: float = 1.0
    name: str = ""
    number: int = 0

    def add(self, name: str, p_value: float) -> None:
        self.number += 1
        if p_value < self.smallest:
            self.smallest, self.name = p_value, name


def sample_names(
    mechanism: NamesMechanism,
    claim: NamesClaim,
    settings: NamingSettings,
    design: NamesSamplingDesign,
    law: NoiseLaw,
    secret: bytes,
    on_step: OnStep = lambda text, share: None,
) -> NamesSampledAudit:
    """Runs the design and the other scenes in both worlds. secret: fresh, at least 32 bytes."""
    tests, violations = _Tests(), []
    slide = settings.schedule.slide_seconds
    scenes = [scene_of_design(design, mechanism), *other_scenes(mechanism, law, settings.forget_after, slide)]
    seen = {True: 0, False: 0}
    sizes_fit = True
    for number, scene in enumerate(scenes):
        on_step(f"sampled: {scene.name}", number / (len(scenes) + 1))
        weights = SceneWeights.of_scene(scene, mechanism, slide)
        pairs = sum(1 + cell.others for cell in scene.cells)
        most = _MOST_COPIES if mechanism.hits_list is None else _MOST_COPIES_WITH_HITS
        copies = design.runs if not number else max(1, min(design.runs, most, _PAIRS_OF_A_SCENE // pairs))
        both, published = {}, {}
        for with_user in (True, False):
            parts = list(_run(scene, settings, copies, max(1, _PAIRS_AT_ONCE // pairs), secret, with_user))
            levels = np.concatenate([part.levels for part in parts])
            sizes = np.concatenate([part.sizes for part in parts])
            world = "with" if with_user else "without"
            both[with_user] = expected_levels(scene, weights, law, levels, with_user=with_user)
            for expected in both[with_user]:
                counts = counts_of(levels[expected.rows, expected.window, expected.item])
                where = f"{scene.name}, window {expected.window + 1}, {world} the user"
                tests.add(where, multinomial_p_value(counts, expected.masses))
            published[with_user] = levels
            sizes_fit &= _sizes_fit(scene, settings, mechanism, levels, sizes)
            if not number:
                named = np.count_nonzero(levels[:, 0], axis=1)
                seen[with_user] = int(np.count_nonzero(named >= design.event))
        for name, p_value in other_holders_p_values(scene, both, published):
            tests.add(name, p_value)
    on_step("sampled: empty purses", len(scenes) / (len(scenes) + 1))
    tests.add("the event, with the user", binomial_p_value(seen[True], design.runs, design.p))
    tests.add("the event, without the user", binomial_p_value(seen[False], design.runs, design.q))
    if mechanism.tests_lone_items:
        _test_empty_purses(mechanism, settings, law, design.runs, secret, tests)
    if mechanism.hits_list is not None:
        on_step("sampled: users without hits left", 1.0)
        for name, p_value in exclusion_p_values(mechanism, settings, law, design.runs, secret):
            tests.add(name, p_value)
    if mechanism.count_scale:
        for name, p_value in count_p_values(mechanism, settings, design.runs, secret):
            tests.add(name, p_value)
    epsilon = epsilon_lower_bound(seen[True], seen[False], design.runs, claim.delta, CONFIDENCE)
    p_value = min(1.0, tests.smallest * tests.number)
    if epsilon > claim.epsilon:
        violations.append(
            f"the real code attains epsilon {epsilon:.4g} with {100 * CONFIDENCE:g} % confidence in {design.runs:,} "
            f"runs of each world; the claim is {claim.epsilon:g}"
        )
    if p_value < FALSE_ALARM:
        violations.append(
            f"the real code does not publish what its exact law says: {tests.name} (p = {p_value:.2g}; a false alarm "
            f"has probability {FALSE_ALARM:g})"
        )
    if not sizes_fit:
        violations.append("the real code publishes sizes that do not follow from levels")
    return NamesSampledAudit(
        design,
        seen[True],
        seen[False],
        epsilon,
        CONFIDENCE,
        p_value,
        tests.name,
        tests.number,
        tuple(violations),
    )


def _run(
    scene: Scene, settings: NamingSettings, copies: int, at_once: int, secret: bytes, with_user: bool
) -> Iterator[Published]:
    for low in range(0, copies, at_once):
        run_id = f"{settings.run_id}, {scene.name} from {low}"  # so both worlds differ in the holders alone
        yield run_copies(scene, settings, min(at_once, copies - low), secret, run_id, with_user=with_user)


def _sizes_fit(
    scene: Scene,
    settings: NamingSettings,
    mechanism: NamesMechanism,
    levels: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> bool:
    """Whether each size is that of the boundary of its level, for a known item or for a new one; and 0 without one."""
    fits = levels == 0
    if np.any(sizes[fits]):
        return False
    for first in (scene.threshold, scene.known_threshold):
        boundaries = first + (levels - 1) * scene.spacing
        fits |= sizes == stated_users(boundaries, settings.likely_noise, mechanism.weights[-1])
    return bool(fits.all())


def _test_empty_purses(
    mechanism: NamesMechanism, settings: NamingSettings, law: NoiseLaw, runs: int, secret: bytes, tests: _Tests
) -> None:
    """A user alone, with twice as many items in a window as its purse pays for, and more in the next one.

    So many are drawn for as it pays for, and of the next window none.
    """
    listed = mechanism.looks_list
    pairs_each = 2 * listed.most_looks
    copies = max(1, min(runs, 40_000 // pairs_each))
    # A user of a replay with so many pairs may be on the hits list, and named no more after its hits (`exclusion`).
    is_on_looks_list = mechanism.replay_choice(pairs_each)[1] == listed
    for in_order in (False, True) if is_on_looks_list else (True,):
        weight = listed.weights[0] if in_order else listed.replay_weight(pairs_each)
        most = listed.most_looks if in_order else int(listed.purse_of(np.array(pairs_each))) // listed.units[0]
        threshold = weight + max(1, law.smallest_margin(_PASS))
        cells = [Cell(0, 0, 0, True), *([Cell(1, 1, 0, True)] if in_order else [])]
        scene = _scene("empty purses", cells, mechanism, known=threshold, threshold=threshold)
        run = settings_of_scene(settings, dataclasses.replace(scene, in_order=in_order), 1, f"empty purses, {in_order}")
        keys = run.stream_keys(secret)
        copy = np.repeat(np.arange(1, copies + 1), pairs_each)
        windows = np.zeros(len(copy), dtype=np.int64)
        if in_order:
            copy, windows = np.tile(copy, 2), np.repeat([0, 1], len(copy))
        pairs = pairs_of_numbers(copy.astype(np.uint64), windows, np.arange(len(copy)), keys)
        named = [0, 0]
        for part in name_pairs(pairs, run, keys, None, in_order=in_order):
            for window, number in zip(*np.unique(part.windows, return_counts=True), strict=True):
                named[window] += int(number)
        name = f"empty purses in a {'stream' if in_order else 'replay'}"
        tests.add(name, binomial_p_value(named[0], copies * most, law.tail(threshold - weight)))
        tests.add(f"{name}, next window", 1.0 if not named[1] else 0.0)
