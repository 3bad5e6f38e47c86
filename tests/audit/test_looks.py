"""Runs of the real code of mode `looks`: they agree with the exact law, and nobody pays more than a purse.

Keys are fixed, so a test that passes keeps passing; over a random key an agreement test fails with probability 0.001.
Also what workers get, and the tests of counts themselves.
"""

import math

import numpy as np
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.core.planned_run import PlannedRun
from tests.audit.payments import broken_rules
from tests.audit.sampled_looks import looks_trials
from tests.audit.statistics import FALSE_ALARM, binomial_p_value, multinomial_p_value, smallest
from tests.helpers.audited_names import audited_plan, law_of, p_values_of, run_settings
from tests.helpers.charging_rules import ChargingRules
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import changed
from tests.helpers.wrong_sizes import wrong_sizes

RUNS = 2_000


def _found(plan, real=None):
    """Of all scenes. real: what runs, if it is not the plan."""
    rules, slide = ChargingRules.of_plan(plan), plan.schedule.slide_seconds
    trials = looks_trials(rules, law_of(plan), plan.followed_for, slide, RUNS)
    tests = p_values_of(trials, real or run_settings(plan))
    assert len(tests) > 20
    return smallest(tests)


@pytest.mark.parametrize("options", [{}, {"forget_after": 0}, {"domain": ("a", "b")}])
def test_the_real_code_agrees_with_its_law(options):
    p_value, name = _found(audited_plan(**options))
    assert p_value > 0.001, name


def test_half_the_noise_is_found():
    plan = audited_plan()
    assert _found(plan, changed(run_settings(plan), noise=ExponentialPower(2.5, 100)))[0] < FALSE_ALARM


def test_the_real_code_overdraws_no_purse():
    """And some users spend nearly all of it."""
    plan = audited_plan()
    broken, shares = broken_rules(ChargingRules.of_plan(plan), run_settings(plan))
    assert broken == []
    assert shares.keys() == {"replay", "stream"}
    assert all(0.99 < share <= 1 for share in shares.values())


# --- What workers get


def test_a_trial_that_promises_nothing_is_not_a_plan_to_run():
    trial = TrialPlan.of(PlannedRun(plan=audited_plan(), stream="audit", run_id="run"), threshold=1)
    with pytest.raises(ValueError, match="plan must be a Plan, got a TrialPlan"):
        PlannedRun(plan=trial, stream="news", run_id="run")


@pytest.mark.parametrize(("further", "is_found"), [(1, False), (-1, True)])
def test_likely_noise_is_computed_again(further, is_found):
    """By another law of the noise. A larger one is no lie: it says less."""
    plan = audited_plan()
    run = PlannedRun(plan=plan, stream="audit", run_id="run")
    of_run = TrialPlan.of(run, likely_noise=plan.likely_noise + further)
    assert (wrong_sizes(plan, of_run) > 1 + 1e-9) == is_found


# --- The tests of counts, on counts of known laws.


def _at_least(successes, runs, probability):
    """``Pr[Binomial >= successes]``, summed."""
    return math.fsum(
        math.comb(runs, k) * probability**k * (1 - probability) ** (runs - k) for k in range(successes, runs + 1)
    )


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
