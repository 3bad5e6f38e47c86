"""Runs the real code of mode `looks` many times: a lower bound on epsilon, and a test of all that it publishes.

Copies of a few scenes, with the user and without. The thresholds are smaller than in the plan and the counts with
them, since only their difference matters; the noise, the weights, the purse and the spacing are those of the plan. The
exact law decides the stream, the event and the bins, all before anything is drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import binom

from dp_transforms.audit.copies import run_trial
from dp_transforms.audit.look_law import NoiseLaw, Whole
from dp_transforms.audit.mechanism import LooksClaim, LooksMechanism
from dp_transforms.audit.round_scenes import LARGEST_ERROR, round_trial, round_trials
from dp_transforms.audit.scene_trials import count_trials, empty_purse_trials, exclusion_trials, level_trials
from dp_transforms.audit.scenes import USER, Cell, Scene, Trial, in_world, level_trial, scene_of
from dp_transforms.audit.statistics import (
    Design,
    NamedPValue,
    SampledAudit,
    binomial_p_value,
    expected_bound,
    judge,
)
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan

_LOOKS = (1, 2, 3, 5, 10)  # of the user in the stream from which epsilon is estimated
_STEPS = 10  # of margins tried, for each unit of scale
_PAIRS_OF_ALL_RUNS = 2_000_000  # some ten seconds for each world
_FAR = 20  # scales below all sums: what is held is named in its block
_MANY_NAMES = 1e6  # of a later round: so its threshold does not follow how many pairs are drawn for
_PAIRS_WITH_HITS = 60_000  # the sequential monitor takes its time for each name

OnStep = Callable[[str, float], None]


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
    weight = mechanism.replay_choice(1)[0]
    of_event = {"p": 1.0, "q": 1.0, "expected_epsilon": 0.0}
    certain = LooksDesign(looks=1, others=1, weight=weight, margin=0, event=0, runs=runs, **of_event)
    tried = (number for number in _LOOKS if number <= most_looks and mechanism.all_count(number))
    designs = (design for looks in tried for design in _designs(mechanism, claim, law, runs, looks))
    return max((certain, *designs), key=lambda design: design.expected_epsilon)


def _designs(
    mechanism: LooksMechanism, claim: LooksClaim, law: NoiseLaw, runs: int, looks: int
) -> Iterator[LooksDesign]:
    weight = mechanism.replay_choice(looks)[0]
    design = functools.partial(LooksDesign, looks=looks, weight=weight)
    most_pairs = _PAIRS_OF_ALL_RUNS if mechanism.hits_list is None else _PAIRS_WITH_HITS
    for margin in range(-2 * law.scale, 3 * law.scale + 1, max(1, law.scale // _STEPS)):
        others = max(1, math.ceil((1 - margin) / mechanism.looks_list.weights[-1]))
        affordable = min(runs, max(1, most_pairs // (looks * (1 + others))))
        of_look = (law.tail(margin - weight), law.tail(margin))
        for event in range(1, looks + 1):
            p, q = (float(binom.sf(event - 1, looks, probability)) for probability in of_look)
            bound = expected_bound(affordable, p, q, claim.delta)
            if bound is not None:
                yield design(
                    margin=margin, others=others, event=event, runs=affordable, p=p, q=q, expected_epsilon=bound
                )


def _designs_in_rounds(mechanism: LooksMechanism, claim: LooksClaim, law: NoiseLaw, runs: int) -> Iterator[LooksDesign]:
    """A pair that all rounds draw for, with blocks since its own is next to certain to be named: named in any of them,
    or not."""
    first = 0 if mechanism.in_windows else 1
    threshold, weights = (
        law.smallest_margin(LARGEST_ERROR),
        [each.replay_weight(1) for each in mechanism.rounds[first:]],
    )

    def named(holders: int) -> float:
        """In any round: from the last one back."""
        later = 0.0
        for number, weight in reversed(list(enumerate(weights, first))):
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
    if mechanism.rounds and not mechanism.in_windows:
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
    yield from exclusion_trials(mechanism, law, plan.hits_from, runs)
    yield from count_trials(mechanism, runs)


def _in_windows(mechanism: LooksMechanism, levels: Whole) -> Whole:
    """Of all rounds of looks together, but for those in blocks and of facets."""
    of_rounds = levels[not mechanism.in_windows : len(mechanism.rounds)]
    return np.maximum(of_rounds, 0).sum(axis=0) if mechanism.rounds else levels


def _seen(levels: Whole, event: int) -> int:
    """In how many copies so many items were named in the first window."""
    return int(np.count_nonzero(np.count_nonzero(levels[:, 0], axis=1) >= event))
