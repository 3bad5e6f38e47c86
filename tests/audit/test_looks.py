"""The sampled audit of mode `looks`, also with counts; its statistics; and what workers get."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy import stats

from dp_transforms.audit.exact_looks import run_violations
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.monitor.planned_run import PlannedRun
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.audit.payments import audit_payments
from tests.audit.sampled_looks import (
    design_looks_sampling,
    empty_purse_trials,
    known_items,
    new_items,
    sample_names,
    scene_of_design,
)
from tests.audit.scenes import SceneWeights
from tests.audit.statistics import (
    FALSE_ALARM,
    binomial_p_value,
    clopper_pearson,
    epsilon_lower_bound,
    multinomial_p_value,
)
from tests.helpers.audited_names import audited_plan, law_of, mechanism_and_claim, run_settings
from tests.helpers.small_runs import SECRET
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import changed

# fault shows. Keys of the runs are fixed, so a test that passes keeps passing.

RUNS = 2_000


@functools.cache
def _design(runs=RUNS, *, domain=()):
    mechanism, claim = mechanism_and_claim(audited_plan(domain=domain))
    return design_looks_sampling(mechanism, claim, law_of(mechanism), runs, 3)


def _sample(*, epsilon=2.0, runs=RUNS, settings=None, **options):
    plan = audited_plan(**options)
    mechanism, claim = mechanism_and_claim(plan)
    design = _design(runs, domain=options.get("domain", ()))
    claim = dataclasses.replace(claim, epsilon=epsilon)
    return sample_names(mechanism, claim, settings or run_settings(plan), design, law_of(mechanism), SECRET)


def _pay():
    plan = audited_plan()
    return audit_payments(mechanism_and_claim(plan)[0], run_settings(plan), SECRET)


# --- The real code as it is


@pytest.mark.parametrize("options", [{}, {"forget_after": 0}, {"domain": ("a", "b")}])
def test_the_real_code_agrees_with_its_law(options):
    audit = _sample(**options)
    assert audit.violations == ()
    assert audit.p_value > 0.001  # whatever the key, in all but one of a thousand
    assert audit.tests >= 20
    design = audit.design
    assert 0.2 < design.expected_epsilon < 2
    assert 0.4 * design.expected_epsilon < audit.epsilon < 2
    for seen, probability in ((audit.p_seen, design.p), (audit.q_seen, design.q)):
        assert abs(seen - RUNS * probability) < 5 * math.sqrt(RUNS * probability)


def test_the_real_code_overdraws_no_purse():
    """And some users spend nearly all of it."""
    audit = _pay()
    assert audit.violations == ()
    assert 0.99 < audit.replay_share <= 1
    assert 0.99 < audit.stream_share <= 1
    assert audit.users > 90


def test_more_runs_show_more():
    bounds = [_design(runs).expected_epsilon for runs in (500, RUNS, 50_000)]
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.8 * bounds[-1]


def test_a_bound_above_the_claim_is_a_violation():
    """A claim that is far too small: no law is needed to see that, only counts."""
    (violation,) = _sample(epsilon=0.05).violations
    assert "attains epsilon" in violation
    assert "99.9 %" in violation


@pytest.mark.parametrize("runs", [1, 3, 20])
def test_a_handful_of_runs_raises_no_alarm(runs):
    audit = _sample(runs=runs)
    assert audit.violations == ()
    assert audit.epsilon == 0


def test_the_scenes_show_what_they_are_made_for():
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


def _assert_found(audit, test):
    assert audit.p_value < FALSE_ALARM
    assert any("does not publish what its exact law says" in text for text in audit.violations)
    assert test in audit.worst_test


def test_an_item_that_is_named_when_the_purse_is_empty_is_found():
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


def test_half_the_noise_is_found():
    settings = run_settings(audited_plan())
    _assert_found(_sample(settings=changed(settings, noise=ExponentialPower(2.5, 100))), "")


# --- The audit holds what workers get against the plan.


def _violations(plan, **changes):
    run = PlannedRun(plan=plan, stream="audit", run_id="run")
    return list(run_violations(plan, TrialPlan.of(run, **changes) if changes else run))


def test_a_trial_that_promises_nothing_is_not_a_plan_to_run():
    trial = TrialPlan.of(PlannedRun(plan=audited_plan(), stream="audit", run_id="run"), threshold=1)
    with pytest.raises(ValueError, match="plan must be a Plan, got a TrialPlan"):
        PlannedRun(plan=trial, stream="news", run_id="run")


def test_workers_get_the_plan():
    schedule = WindowSchedule.fixed(0, 200 * 60, 60)
    charged = Plan.calibrate(epsilon=1.0, delta=1e-6, schedule=schedule, mode="hits", hits_per_user=2)
    for plan in (audited_plan(), audited_plan(domain=("a",)), charged):
        assert _violations(plan) == []
    for plan in (audited_plan(), charged):
        assert "workers get another plan than the one that is audited" in _violations(plan, threshold=1)
    other = dataclasses.replace(charged, epsilon=2.0)
    run = PlannedRun(plan=other, stream="audit", run_id="run")
    assert list(run_violations(charged, run)) == ["workers get another plan than the one that is audited"]


@pytest.mark.parametrize(("further", "is_found"), [(1, False), (-1, True)])
def test_likely_noise_is_computed_again(further, is_found):
    """By another law of the noise. A larger one is no lie: it says less."""
    plan = audited_plan()
    found = _violations(plan, likely_noise=plan.likely_noise + further)
    assert any("likely_noise" in each for each in found) == is_found


# --- Bounds and tests for counts: against sums of binomial probabilities, and on counts of known laws.


def _at_least(successes, runs, probability):
    """``Pr[Binomial >= successes]``, summed."""
    return math.fsum(
        math.comb(runs, k) * probability**k * (1 - probability) ** (runs - k) for k in range(successes, runs + 1)
    )


@pytest.mark.parametrize(("successes", "runs"), [(0, 20), (1, 20), (7, 20), (20, 20)])
def test_bounds_on_a_probability_are_exact(successes, runs):
    lower, upper = clopper_pearson(successes, runs, 0.01)
    assert 0 <= lower <= successes / runs <= upper <= 1
    if successes:
        assert _at_least(successes, runs, lower) == pytest.approx(0.01)
    if successes < runs:
        assert 1 - _at_least(successes + 1, runs, upper) == pytest.approx(0.01)


@pytest.mark.parametrize("confidence", [0.1, 0.9])
@pytest.mark.parametrize(("p", "q", "delta"), [(0.6, 0.3, 0.0), (0.7, 0.3, 0.1), (0.9, 0.9 / math.e, 0.0)])
def test_the_bound_on_epsilon_covers_as_it_says(confidence, p, q, delta):
    """Exactly, by summing over all counts of 80 runs: too high with probability at most 1 - confidence. Where the two
    bounds together may be wrong that often, but not each of them, which shows at a low confidence."""
    runs, truth = 80, math.log((p - delta) / q)
    masses_p, masses_q = (stats.binom.pmf(np.arange(runs + 1), runs, x) for x in (p, q))

    def wrong(error):
        lower = np.array([clopper_pearson(k, runs, error)[0] for k in range(runs + 1)])
        upper = np.array([clopper_pearson(k, runs, error)[1] for k in range(runs + 1)])
        return float(masses_p @ (lower[:, None] - delta > math.exp(truth) * upper) @ masses_q)

    likely_p, likely_q = (np.flatnonzero(masses > 1e-8) for masses in (masses_p, masses_q))
    attained = math.fsum(
        masses_p[first] * masses_q[second]
        for first in likely_p
        for second in likely_q
        if epsilon_lower_bound(int(first), int(second), runs, delta, confidence) > truth
    )
    assert 0 < attained <= 1 - confidence
    if confidence < 0.5:
        assert wrong(1 - confidence) > 1 - confidence, "a test that an error of 1 - confidence on each side fails"


def test_the_bound_on_epsilon_in_closed_form():
    """If all runs of one world show the event and none of the other, both bounds are powers of half the error."""
    runs, confidence, delta = 50, 0.9, 0.01
    root = ((1 - confidence) / 2) ** (1 / runs)
    expected = math.log((root - delta) / (1 - root))
    assert epsilon_lower_bound(runs, 0, runs, delta, confidence) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.9, 0.1), (0.97, 0.02, 0.01)])
def test_a_false_alarm_is_as_rare_as_it_says_far_out_in_the_tail(masses):
    """Exactly: of two bins, by the sum over all counts; of three, each bin by itself. A chi-squared test is wrong ten
    times as often at 1e-8 where 50 are expected."""
    runs = 5_000
    for share in (1e-3, 1e-6, 1e-8):
        if len(masses) == 2:
            counts = np.arange(runs + 1)
            law = stats.binom.pmf(counts, runs, masses[0])
            near = np.flatnonzero(law > 1e-16)
            p_values = np.array([multinomial_p_value([n, runs - n], masses) for n in near.tolist()])
            assert law[near][p_values < share].sum() <= share
        else:
            least = int(stats.binom.isf(share / 2 / 3, runs, masses[2]))
            rest = np.array(masses[:2]) / sum(masses[:2]) * (runs - least + 5)
            assert multinomial_p_value([*rest.round(), least - 5], masses) > share
            assert multinomial_p_value([*rest.round(), 2 * least], masses) < share


def test_another_law_is_found():
    masses = np.array([0.5, 0.3, 0.2])
    assert multinomial_p_value([5_000, 3_000, 2_000], masses) == pytest.approx(1)
    assert multinomial_p_value([5_300, 2_800, 1_900], masses) < 1e-6
    assert multinomial_p_value([5_000, 3_000, 1_999, 1], [*masses, 0.0]) == 0, "what cannot be"
    # Rare outcomes are tested together, and a law with one outcome not at all.
    rare = np.array([0.9, *[0.1 / 500] * 500])
    counts = np.array([9_000, *[2] * 500])
    assert multinomial_p_value(counts, rare) > 0.99
    assert multinomial_p_value([10_000, *[0] * 500], rare) < 1e-6
    assert multinomial_p_value([10_000], [1.0]) == 1
    # Probabilities of some of what can happen: given that it did.
    assert multinomial_p_value([500, 500], [0.01, 0.01]) == pytest.approx(1)


def test_binomial_p_value_by_its_definition():
    masses = [_at_least(k, 15, 0.3) - _at_least(k + 1, 15, 0.3) for k in range(16)]
    for seen in (0, 4, 9):
        expected = math.fsum(mass for mass in masses if mass <= masses[seen] * (1 + 1e-7))
        assert binomial_p_value(seen, 15, 0.3) == pytest.approx(expected)
    assert binomial_p_value(10, 10, 1 + 1e-16) == 1
