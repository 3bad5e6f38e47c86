"""Plans with looks in rounds: what is attained exactly, and runs of the real code with fixed keys.

A sound plan passes, and each fault that is planted is found by its check; those of the code are in tests/planted.toml.
"""

import dataclasses
import functools

import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.contributions import audit_contributions
from tests.audit.payments import broken_rules
from tests.audit.round_scenes import round_trials
from tests.audit.statistics import FALSE_ALARM, smallest
from tests.helpers.audited_names import law_of, mechanism_and_claim, p_values_of, plan_in_rounds
from tests.helpers.charging_rules import ChargingRules
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import trial_of
from tests.helpers.wrong_sizes import wrong_sizes

RUNS = 2_000


def _changed(**changes):
    mechanism, claim = mechanism_and_claim(plan_in_rounds())
    return dataclasses.replace(mechanism, **changes), claim


# --- Exactly


def test_a_sound_plan_passes_and_its_claims_are_nearly_attained():
    plan = plan_in_rounds()
    audit = audit_contributions(*mechanism_and_claim(plan))
    assert audit.violations == ()
    assert audit.most_tests <= plan.paid_contributions.most_tests
    assert audit.budget_delta == pytest.approx(plan.shares.paid, rel=1e-6)
    assert 0.99 < audit.lone_delta / plan.delta_open <= 1
    assert (
        audit.lone_tests == plan.paid_rounds.units[0] // plan.paid_contributions.units[0]
    )  # no later round has lone looks
    assert audit.together_delta <= plan.delta


PURSE, MOST, ALONE = "a full budget of", "a user budget pays for", "holds alone"


def _threshold_of_a_smaller_purse():
    mechanism, _ = mechanism_and_claim(plan_in_rounds())
    return _changed(threshold=mechanism.threshold - 600)


def _rounds_that_cost(*shares):
    return _changed(budgets=tuple(int(share * BUDGET_UNITS) for share in shares))


@pytest.mark.parametrize(
    ("faulty", "found_by"),
    [
        (_threshold_of_a_smaller_purse, {ALONE}),
        (functools.partial(_rounds_that_cost, 0.1, 0.2, 0.3, 0.5), {PURSE, MOST}),
        (functools.partial(_rounds_that_cost, 0.3, 0.1, 0.1, 0.5), {ALONE}),
        (functools.partial(_rounds_that_cost, 1, 1, 1, 1), {PURSE, MOST, ALONE}),
    ],
)
def test_a_planted_fault_is_found_by_its_check(faulty, found_by):
    violations = " ".join(audit_contributions(*faulty()).violations)
    assert {check for check in (PURSE, MOST, ALONE) if check in violations} == found_by


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LessLikelyNoise(TrialPlan):
    """Workers state sizes that are too large."""

    less: int

    def terms_of_round(self, number, drawn, windows):
        terms = super().terms_of_round(number, drawn, windows)
        return terms._replace(likely_noise=terms.likely_noise - self.less)


@pytest.mark.parametrize(("less", "is_found"), [(0, False), (200, True)])
def test_likely_noise_of_rounds_is_computed_again(less, is_found):
    plan = plan_in_rounds()
    trial = trial_of(plan)
    fields = {field.name: getattr(trial, field.name) for field in dataclasses.fields(trial)}
    assert (wrong_sizes(plan, _LessLikelyNoise(less=less, **fields)) > 1 + 1e-9) == is_found


# --- By the code that runs


def _trials(plan):
    return list(round_trials(ChargingRules.of_plan(plan), law_of(plan), RUNS))


def _found(run, plan=None):
    """Of all scenes of a plan. run: what runs."""
    tests = p_values_of(_trials(plan or plan_in_rounds()), run)
    assert len(tests) > 40
    return smallest(tests)


def test_the_real_code_agrees_with_its_law():
    p_value, name = _found(trial_of(plan_in_rounds()))
    assert p_value > 0.001, name


def test_rounds_that_pay_for_one_look_pass():
    """Of more pairs than a round pays for some count, by keyed hash: so no more are taken for looks."""
    plan = plan_in_rounds(3)
    assert [each.most_tests for each in ChargingRules.of_plan(plan).rounds][:2] == [3, 1]
    assert audit_contributions(*mechanism_and_claim(plan)).violations == ()
    assert _found(trial_of(plan), plan)[0] > 0.001


def test_the_real_code_overdraws_no_purse():
    plan = plan_in_rounds()
    broken, shares = broken_rules(ChargingRules.of_plan(plan), trial_of(plan))
    assert broken == []
    assert shares.keys() == {"replay", "parts"}
    assert all(0.99 < share <= 1 for share in shares.values())


def test_half_the_noise_is_found():
    plan = trial_of(plan_in_rounds())
    less = ExponentialPower(plan.paid_contributions.shape, plan.paid_contributions.scale // 2)
    real = dataclasses.replace(plan, contributions=dataclasses.replace(plan.paid_contributions, scale=less.scale))
    assert _found(real)[0] < FALSE_ALARM


@pytest.mark.parametrize(
    "units",
    [(0.2, 0.045, 0.171, 0.584), (0.1, 0.145, 0.171, 0.584), (0.1, 0.045, 0.271, 0.584)],
    ids=["round 0", "round 1", "round 2"],
)
def test_other_budgets_of_rounds_are_found_by_what_is_named(units):
    """The same in all, but shared out otherwise."""
    plan = trial_of(plan_in_rounds())
    rounds = dataclasses.replace(plan.paid_rounds, units=tuple(int(share * BUDGET_UNITS) for share in units))
    assert _found(dataclasses.replace(plan, rounds=rounds))[0] < FALSE_ALARM
