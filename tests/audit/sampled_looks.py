"""Runs the real code of mode `looks` many times: a lower bound on epsilon, and a test of all that it publishes.

Copies of a few scenes, with the user and without. The thresholds are smaller than in the plan and the counts with
them, since only their difference matters; the noise, the weights, the purse and the spacing are those of the plan. The
exact law decides the stream, the event and the bins, all before anything is drawn. Each scene is made for a part of the
rules (docs/audit.md).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from scipy.stats import binom

from dp_transforms.audit.look_law import NoiseLaw, Whole
from dp_transforms.audit.mechanism import LooksClaim, LooksMechanism
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from tests.audit.copies import run_trial
from tests.audit.round_scenes import LARGEST_ERROR, round_trial, round_trials
from tests.audit.scenes import (
    NOBODY,
    USER,
    Cell,
    Scene,
    SceneWeights,
    Trial,
    in_world,
    level_trial,
    scene_of,
)
from tests.audit.statistics import (
    Design,
    NamedPValue,
    SampledAudit,
    binomial_p_value,
    expected_bound,
    judge,
)

_LOOKS = (1, 2, 3, 5, 10)  # of the user in the stream from which epsilon is estimated
_STEPS = 10  # of margins tried, for each unit of scale
_PAIRS_OF_ALL_RUNS = 2_000_000  # some ten seconds for each world
_FAR = 20  # scales below all sums: what is held is named in its block
_MANY_NAMES = 1e6  # of a later round: so its threshold does not follow how many pairs are drawn for

OnStep = Callable[[str, float], None]

_PASS = 0.3  # probability with which noise alone reaches the lowest threshold of a scene
_SURE = 1e-4  # probability with which an item that must become known does not
_PAIRS = 400_000  # of all copies of a scene; of users that hold many items:
_PAIRS_OF_USERS = 40_000
_MOST_COPIES = 5_000


def level_trials(
    mechanism: LooksMechanism, law: NoiseLaw, forget_after: int, slide_seconds: int, runs: int
) -> Iterator[Trial]:
    """New items of several levels, and items that are known, held by nobody but the user, and forgotten."""
    for scene in (new_items(mechanism), *known_items(mechanism, law, forget_after, slide_seconds)):
        copies = max(1, min(runs, _MOST_COPIES, _PAIRS // scene.pairs))
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
    return range(min(5, mechanism.most_paid))


def empty_purse_trials(mechanism: LooksMechanism, law: NoiseLaw, runs: int) -> Iterator[Trial]:
    """A user alone, with twice as many items in a window as its purse pays for, and in a stream more in the next one.

    So many are drawn for as it pays for, and of the next window none.
    """
    listed = mechanism.looks_list
    pairs = 2 * listed.most_looks
    copies = max(1, min(runs, _PAIRS_OF_USERS // pairs))
    kinds = {
        "stream": (listed.weights[0], listed.most_looks),
        "replay": (listed.replay_weight(pairs), listed.most_looks),
    }
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class LooksDesign(Design):
    """looks: of the user, each at an item with `others` others; margin: the threshold less what these add. event: the
    user is seen if at least so many of its items are named; it is likelier with the user."""

    looks: int
    others: int
    weight: int
    margin: int
    event: int


def design_looks_sampling(
    mechanism: LooksMechanism, claim: LooksClaim, law: NoiseLaw, runs: int, most_looks: int
) -> LooksDesign:
    """The looks and the event for which so many runs can be expected to show the largest epsilon."""
    if mechanism.rounds:
        return max(_designs_in_rounds(mechanism, claim, law, runs), key=lambda design: design.expected_epsilon)
    weight = mechanism.looks_list.replay_weight(1)
    of_event = {"p": 1.0, "q": 1.0, "expected_epsilon": 0.0}
    certain = LooksDesign(looks=1, others=1, weight=weight, margin=0, event=0, runs=runs, **of_event)
    tried = (number for number in _LOOKS if number <= min(most_looks, mechanism.most_paid))
    designs = (design for looks in tried for design in _designs(mechanism, claim, law, runs, looks))
    return max((certain, *designs), key=lambda design: design.expected_epsilon)


def _designs(
    mechanism: LooksMechanism, claim: LooksClaim, law: NoiseLaw, runs: int, looks: int
) -> Iterator[LooksDesign]:
    weight = mechanism.looks_list.replay_weight(looks)
    design = functools.partial(LooksDesign, looks=looks, weight=weight)
    for margin in range(-2 * law.scale, 3 * law.scale + 1, max(1, law.scale // _STEPS)):
        others = max(1, math.ceil((1 - margin) / mechanism.looks_list.weights[-1]))
        affordable = min(runs, max(1, _PAIRS_OF_ALL_RUNS // (looks * (1 + others))))
        of_look = (law.tail(margin - weight), law.tail(margin))
        for event in range(1, looks + 1):
            p, q = (float(binom.sf(event - 1, looks, probability)) for probability in of_look)
            bound = expected_bound(affordable, p, q, claim.delta)
            if bound is not None:
                yield design(
                    margin=margin, others=others, event=event, runs=affordable, p=p, q=q, expected_epsilon=bound
                )


def _designs_in_rounds(mechanism: LooksMechanism, claim: LooksClaim, law: NoiseLaw, runs: int) -> Iterator[LooksDesign]:
    """A pair that all rounds draw for, since its block is next to certain to be named: named in any of them, or
    not."""
    threshold, weights = (
        law.smallest_margin(LARGEST_ERROR),
        [each.replay_weight(1) for each in mechanism.rounds[1:]],
    )

    def named(holders: int) -> float:
        """In any round: from the last one back."""
        later = 0.0
        for number, weight in reversed(list(enumerate(weights, 1))):
            here = law.tail(threshold - holders * weight)
            lowest = threshold - mechanism.spacing if mechanism.leaves_out(number) else None
            goes_on = 1.0 if lowest is None else law.tail(lowest - holders * weight)
            later = here + (goes_on - here) * later
        return later

    for others in range(1, math.ceil((threshold + 2 * law.scale) / weights[0])):
        affordable = max(1, min(runs, _PAIRS_OF_ALL_RUNS // (1 + others)))
        p, q = named(others + 1), named(others)
        bound = expected_bound(affordable, p, q, claim.delta)
        yield LooksDesign(
            looks=1,
            others=others,
            weight=weights[-1],
            margin=threshold - others * weights[-1],
            event=1,
            runs=affordable,
            p=p,
            q=q,
            expected_epsilon=0.0 if bound is None else bound,
        )


def scene_of_design(design: LooksDesign, mechanism: LooksMechanism) -> Scene:
    """All looks in one window: so nothing is known of them before."""
    if mechanism.rounds:
        threshold = -_FAR * mechanism.scale
    else:
        last = (mechanism.rounds or (mechanism.looks_list,))[-1]
        threshold = design.others * last.replay_weight(1) + design.margin
    cells = [Cell(0, item, design.others, USER) for item in range(design.looks)]
    scene = scene_of("worst stream", cells, mechanism, threshold=threshold)
    return dataclasses.replace(scene, false_names=_MANY_NAMES)


def sample_names(
    mechanism: LooksMechanism,
    claim: LooksClaim,
    run: PlannedRun,
    design: LooksDesign,
    law: NoiseLaw,
    secret: bytes,
    on_step: OnStep = lambda text, share: None,
) -> SampledAudit[LooksDesign]:
    """Runs the design and the other scenes in both worlds. secret: fresh, at least 32 bytes."""
    trials, runs = list(_trials(mechanism, run.plan, design, law)), design.runs
    tests: list[NamedPValue] = []
    seen: dict[bool, int] = {}
    sizes_fit = True
    for number, trial in enumerate(trials):
        on_step(f"sampled: {trial.scene.name}", number / len(trials))
        published = run_trial(trial, run, secret)
        levels = {with_user: each.levels for with_user, each in published.items()}
        tests += trial.p_values(levels)
        sizes_fit &= all(each.sizes_fit for each in published.values())
        if not seen:
            of_windows = {with_user: _in_windows(mechanism, each) for with_user, each in levels.items()}
            seen = {with_user: _seen(each, design.event) for with_user, each in of_windows.items()}
    for with_user, probability in ((True, design.p), (False, design.q)):
        tests.append((f"the event, {in_world(with_user)}", binomial_p_value(seen[with_user], runs, probability)))
    audit = judge(design, claim, seen[True], seen[False], tests)
    if sizes_fit:
        return audit
    wrong_sizes = "the real code publishes sizes that do not follow from levels"
    return dataclasses.replace(audit, violations=(*audit.violations, wrong_sizes))


def _trials(mechanism: LooksMechanism, plan: Plan, design: LooksDesign, law: NoiseLaw) -> Iterator[Trial]:
    """The one of the design first."""
    scene, slide, runs = scene_of_design(design, mechanism), plan.schedule.slide_seconds, design.runs
    if mechanism.rounds:
        yield round_trial(scene, mechanism, law, runs)
        yield from round_trials(mechanism, law, runs)
        return
    yield level_trial(scene, mechanism, law, runs, slide)
    yield from level_trials(mechanism, law, plan.known_for, slide, runs)
    if mechanism.tests_lone_items:
        yield from empty_purse_trials(mechanism, law, runs)


def _in_windows(mechanism: LooksMechanism, levels: Whole) -> Whole:
    """Of all rounds of looks together, but for those in blocks."""
    of_rounds = levels[1 : len(mechanism.rounds)]
    return np.maximum(of_rounds, 0).sum(axis=0) if mechanism.rounds else levels


def _seen(levels: Whole, event: int) -> int:
    """In how many copies so many items were named in the first window."""
    return int(np.count_nonzero(np.count_nonzero(levels[:, 0], axis=1) >= event))
