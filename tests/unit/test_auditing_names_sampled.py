"""The sampled audit of mode `looks`: the real code agrees with its law and overdraws no purse, and each planted
fault shows. Keys of the runs are fixed, so a test that passes keeps passing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest

from dp_transforms.audit.payments import PaymentAudit, audit_payments
from dp_transforms.audit.sampled_looks import (
    LooksDesign,
    design_looks_sampling,
    empty_purse_trials,
    known_items,
    new_items,
    sample_names,
    scene_of_design,
)
from dp_transforms.audit.scenes import SceneWeights
from dp_transforms.audit.statistics import FALSE_ALARM, SampledAudit
from dp_transforms.audit.trial_plan import TrialPlan
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from tests.helpers.audited_names import audited_plan, law_of, mechanism_and_claim, run_settings
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import changed

RUNS = 2_000


@functools.cache
def _design(runs: int = RUNS, *, domain: tuple[str, ...] = ()) -> LooksDesign:
    mechanism, claim = mechanism_and_claim(audited_plan(domain=domain))
    return design_looks_sampling(mechanism, claim, law_of(mechanism), runs, 3)


def _sample(
    *, epsilon: float = 2.0, runs: int = RUNS, settings: TrialPlan | None = None, **options: Any
) -> SampledAudit:
    plan = audited_plan(**options)
    mechanism, claim = mechanism_and_claim(plan)
    design = _design(runs, domain=options.get("domain", ()))
    claim = dataclasses.replace(claim, epsilon=epsilon)
    return sample_names(mechanism, claim, settings or run_settings(plan), design, law_of(mechanism), SECRET)


def _pay() -> PaymentAudit:
    plan = audited_plan()
    return audit_payments(mechanism_and_claim(plan)[0], run_settings(plan), SECRET)


# --- The real code as it is


@pytest.mark.parametrize("options", [{}, {"forget_after": 0}, {"domain": ("a", "b")}])
def test_the_real_code_agrees_with_its_law(options: dict[str, Any]) -> None:
    audit = _sample(**options)
    assert audit.violations == ()
    assert audit.p_value > 0.001  # whatever the key, in all but one of a thousand
    assert audit.tests >= 20
    design = audit.design
    assert 0.2 < design.expected_epsilon < 2
    assert 0.4 * design.expected_epsilon < audit.epsilon < 2
    for seen, probability in ((audit.p_seen, design.p), (audit.q_seen, design.q)):
        assert abs(seen - RUNS * probability) < 5 * math.sqrt(RUNS * probability)


def test_the_real_code_overdraws_no_purse() -> None:
    """And some users spend nearly all of it."""
    audit = _pay()
    assert audit.violations == ()
    assert 0.99 < audit.replay_share <= 1
    assert 0.99 < audit.stream_share <= 1
    assert audit.users > 90


def test_more_runs_show_more() -> None:
    bounds = [_design(runs).expected_epsilon for runs in (500, RUNS, 50_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.8 * bounds[-1]


def test_a_bound_above_the_claim_is_a_violation() -> None:
    """A claim that is far too small: no law is needed to see that, only counts."""
    (violation,) = _sample(epsilon=0.05).violations
    assert "attains epsilon" in violation
    assert "99.9 %" in violation


@pytest.mark.parametrize("runs", [1, 3, 20])
def test_a_handful_of_runs_raises_no_alarm(runs: int) -> None:
    audit = _sample(runs=runs)
    assert audit.violations == ()
    assert audit.epsilon == 0


def test_the_scenes_show_what_they_are_made_for() -> None:
    """Items that are known, held by x' alone and by nobody; all levels; and weights as the real rules choose them."""
    plan = audited_plan()
    mechanism, _ = mechanism_and_claim(plan)
    law = law_of(mechanism)
    levels, (replay, stream) = new_items(mechanism), known_items(mechanism, law, plan.known_for, 3600)
    assert (replay.in_order, stream.in_order) == (False, True)
    for scene in (replay, stream):
        assert [cell.others > 0 for cell in scene.cells] == [True, False, True, False, False]
        assert all(cell.by_user for cell in scene.cells)
        assert scene.threshold - scene.known_threshold == plan.threshold - plan.known_threshold
        weights = SceneWeights.of_scene(scene, mechanism, 3600)
        crowd = weights.sum_of(scene.cells[0], with_user=False)
        assert law.tail(scene.threshold - crowd) > 0.999
    assert levels.spacing == plan.paid_looks.spacing
    sums = [SceneWeights.of_scene(levels, mechanism, 3600).sum_of(cell, with_user=False) for cell in levels.cells]
    margins = [levels.threshold + n * plan.paid_looks.spacing - total for n, total in enumerate(sums)]
    assert max(map(abs, margins)) <= mechanism.looks_list.weights[-1]
    worst = scene_of_design(_design(), mechanism)
    others = SceneWeights.of_scene(worst, mechanism, 3600).sum_of(worst.cells[0], with_user=False)
    assert worst.threshold - others == _design().margin


# --- Planted faults that only what is published shows


def _assert_found(audit: SampledAudit, test: str) -> None:
    assert audit.p_value < FALSE_ALARM
    assert any("does not publish what its exact law says" in text for text in audit.violations)
    assert test in audit.worst_test


def test_an_item_that_is_named_when_the_purse_is_empty_is_found() -> None:
    """In the window after the one for which the purse was spent, one item of one copy."""
    mechanism, _ = mechanism_and_claim(audited_plan())
    trials = {trial.scene.name: trial for trial in empty_purse_trials(mechanism, law_of(mechanism), RUNS)}
    trial = trials["empty purses in a stream"]
    levels = np.zeros((trial.copies, trial.scene.windows, trial.scene.items), dtype=np.int64)
    name = "empty purses in a stream, next window"
    assert dict(trial.p_values({True: levels}))[name] == 1
    levels[-1, 1, -1] = 1
    assert dict(trial.p_values({True: levels}))[name] == 0
    assert trials["empty purses in a replay"].scene.windows == 1


def test_half_the_noise_is_found() -> None:
    settings = run_settings(audited_plan())
    _assert_found(_sample(settings=changed(settings, noise=ExponentialPower(2.5, 100))), "")
