"""Plans with looks in rounds: what is attained exactly, and runs of the real code with fixed keys.

A sound plan passes, and each fault that is planted is found by its check; those of the code are in tests/planted.toml.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from dp_transforms.accounting.exponential_power import ExponentialPower
from dp_transforms.accounting.priced_weights import BUDGET_UNITS
from dp_transforms.audit.exact_looks import audit_looks_exactly, run_violations
from dp_transforms.audit.look_law import NoiseLaw
from dp_transforms.audit.mechanism import LooksMechanism, PricesOfUser
from dp_transforms.audit.round_looks import worst_in_rounds
from dp_transforms.core.planned_run import PlannedRun
from tests.audit.payments import broken_rules
from tests.audit.round_scenes import round_trials
from tests.audit.statistics import FALSE_ALARM, smallest
from tests.helpers.audited_names import law_of, mechanism_and_claim, p_values_of, plan_in_rounds
from tests.helpers.trial_plan import TrialPlan
from tests.helpers.trials import trial_of

RUNS = 2_000


def _changed(**changes):
    mechanism, claim = mechanism_and_claim(plan_in_rounds())
    return dataclasses.replace(mechanism, **changes), claim


# --- Exactly


def test_a_sound_plan_passes_and_its_claims_are_nearly_attained():
    plan = plan_in_rounds()
    audit = audit_looks_exactly(*mechanism_and_claim(plan), most_tests=30)
    assert audit.violations == ()
    assert audit.most_tests <= plan.paid_contributions.most_tests
    assert audit.purse_delta == pytest.approx(plan.shares.paid, rel=1e-6)
    assert 0.99 < audit.lone_delta / plan.delta_open <= 1
    assert (
        audit.lone_looks == plan.paid_rounds.units[0] // plan.paid_contributions.units[0]
    )  # no later round has lone looks
    assert audit.few == ()  # they would have a whole purse in one round
    assert [each.pairs for each in audit.in_rounds] == [1, 3, 9]  # round 1 pays for 9
    assert [each.looks for each in audit.static] == [10, 30]
    assert audit.tried == 30
    assert max(each.delta for each in audit.in_rounds) > 0.1 * plan.shares.paid
    assert audit.lone_delta <= audit.together_delta <= plan.delta
    assert list(run_violations(plan, PlannedRun(plan=plan, stream="audit", run_id="run"))) == []


def test_all_rounds_together_show_what_the_definition_says():
    """By a walk over what is named of each pair; and no other counts on a coarse grid are worse."""
    law = NoiseLaw(2.0, 20, 160)
    listed = [PricesOfUser((3, 5, 8, 12), (10, 25, 60, 130), purse) for purse in (40, 60, 130)]
    mechanism = LooksMechanism(2.0, 20, listed[0], 60, 50, 140, rounds=tuple(listed), most_of_second=32)
    epsilon, steps = 0.3, 4
    highest = mechanism.highest_margins
    grid = [[int(-60 + part * (high + 60) / steps) for part in range(steps + 1)] for high in highest]
    grid.insert(len(listed), [-60, 0, 60])
    for pairs in (1, 2):
        found = worst_in_rounds(law, mechanism, pairs, epsilon)
        assert found.weights == tuple(each.replay_weight(pairs) for each in listed)
        assert found.delta == pytest.approx(_walked(law, mechanism, found, epsilon), rel=1e-6)
        for margins, adds_user in itertools.product(itertools.product(*grid), (True, False)):
            other = dataclasses.replace(found, margins=margins, adds_user=adds_user)
            assert _walked(law, mechanism, other, epsilon) < found.delta * 1.001


def _walked(law, mechanism, looks, epsilon):
    def chances(named, weight, margin):
        return [
            math.prod(law.tail(margin - w) if each else law.tail(1 - margin + w) for each in named) for w in (weight, 0)
        ]

    def stays_of(weight, margin):
        """Of a pair that is not named: not left out, if the round leaves out."""
        return [
            (law.tail(margin - mechanism.spacing - w) - law.tail(margin - w)) / law.tail(1 - margin + w)
            for w in (weight, 0)
        ]

    def walk(number, left, done, p, q):
        """done: named already. p, q: of what was named so far, with the user and without."""
        if number == len(mechanism.rounds):
            p, q = (p, q) if looks.adds_user else (q, p)
            return max(0.0, p - math.exp(epsilon) * q)
        listed, is_last = mechanism.rounds[number], number == len(mechanism.rounds) - 1
        weight, again = listed.replay_weight(left) if left else 0, 0
        if (
            is_last and left + done
        ):  # beside others, second looks cost a 150th each, or a tenth together, but no more than 32 units
            paid = listed.purse // (100 * left + done) * (100 * left + done)
            each = min(32, paid // max(150, 10 * done) if left else paid // done)
            weight = max((w for w, units in listed.prices if units * left <= paid - done * each), default=3)
            again = max((w for w, units in listed.prices if units <= each), default=3)
        in_blocks, total = number == 0, 0.0
        for named in itertools.product((True, False), repeat=left):
            for large in itertools.product((True, False), repeat=done if is_last else 0):
                first, second = chances(named, weight, looks.margins[number]), chances(large, again, looks.margins[3])
                p_named, q_named = p * first[0] * second[0], q * first[1] * second[1]
                if in_blocks:
                    total += walk(number + 1, sum(named), 0, p_named, q_named)
                    continue
                missed, now_done = left - sum(named), done + sum(named)
                leaves_out = number == len(mechanism.rounds) - 2
                stays = stays_of(weight, looks.margins[number]) if leaves_out else [1.0, 1.0]
                for out in range(missed + 1 if leaves_out else 1):
                    ways = math.comb(missed, out)
                    p_out, q_out = (each ** (missed - out) * (1 - each) ** out for each in stays)
                    total += ways * walk(number + 1, missed - out, now_done, p_named * p_out, q_named * q_out)
        return total

    return walk(0, looks.pairs, 0, 1.0, 1.0)


PURSE, MOST, ALONE, LOOKS = "a full budget of", "a user budget pays for", "holds alone", "that others hold too attain"


def _threshold_of_a_smaller_purse():
    mechanism, _ = mechanism_and_claim(plan_in_rounds())
    return _changed(threshold=mechanism.threshold - 600)


def _rounds_that_cost(*shares):
    mechanism, _ = mechanism_and_claim(plan_in_rounds())
    purses = [int(share * BUDGET_UNITS) for share in shares]
    return _changed(rounds=tuple(dataclasses.replace(mechanism.looks_list, purse=purse) for purse in purses))


@pytest.mark.parametrize(
    ("faulty", "found_by"),
    [
        (_threshold_of_a_smaller_purse, {ALONE}),
        (functools.partial(_rounds_that_cost, 0.1, 0.2, 0.3, 0.5), {PURSE, MOST}),
        (functools.partial(_rounds_that_cost, 0.3, 0.1, 0.1, 0.5), {ALONE}),
        (functools.partial(_rounds_that_cost, 1, 1, 1, 1), {PURSE, MOST, ALONE, LOOKS}),
    ],
)
def test_a_planted_fault_is_found_by_its_check(faulty, found_by):
    violations = " ".join(audit_looks_exactly(*faulty(), most_tests=1).violations)
    assert {check for check in (PURSE, MOST, ALONE, LOOKS) if check in violations} == found_by


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
    found = list(run_violations(plan, _LessLikelyNoise(less=less, **fields)))
    assert any("likely_noise" in each for each in found) == is_found


# --- By the code that runs


def _trials(plan):
    mechanism, _ = mechanism_and_claim(plan)
    return list(round_trials(mechanism, law_of(mechanism), RUNS))


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
    mechanism, claim = mechanism_and_claim(plan)
    assert [each.most_tests for each in mechanism.rounds][:2] == [3, 1]
    exact = audit_looks_exactly(mechanism, claim, most_tests=3)
    assert (exact.violations, [each.pairs for each in exact.in_rounds]) == ((), [1])
    assert [each.looks for each in exact.static] == [3]
    assert _found(trial_of(plan), plan)[0] > 0.001


def test_the_real_code_overdraws_no_purse():
    plan = plan_in_rounds()
    broken, shares = broken_rules(mechanism_and_claim(plan)[0], trial_of(plan))
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


def test_the_scenes_show_what_they_are_made_for():
    """Lone holders that are named in their block and not, pairs that nobody holds, and levels."""
    rounds, levels = _trials(plan_in_rounds())
    assert [cell.others > 0 for cell in rounds.scene.cells] == [False, True, True, False]
    assert [cell.by_user for cell in rounds.scene.cells] == [True, True, False, False]
    assert rounds.scene.windows > 1
    assert rounds.scene.false_names < 0.01 * rounds.copies * rounds.scene.windows * rounds.scene.items
    mechanism, _ = mechanism_and_claim(plan_in_rounds())
    law, (cell,) = law_of(mechanism), levels.scene.cells
    total = cell.others * mechanism.rounds[1].replay_weight(1)
    threshold = law.smallest_margin(0.003)
    assert law.tail(threshold - total) > 0.99
    assert 0.1 < law.tail(threshold + mechanism.spacing - total) < 0.9


def test_what_was_not_drawn_for_must_not_be_named():
    """A pair of an item that was not named in its block, and one that was named in a round before."""
    rounds, _ = _trials(plan_in_rounds())
    quiet = np.zeros((4, rounds.copies, rounds.scene.windows, rounds.scene.items), dtype=np.int64)
    for is_candidate, number, found in ((False, 1, True), (True, 1, False), (True, 2, False)):
        levels = quiet.copy()
        levels[0, 0, 0, 0] = is_candidate
        levels[number, 0, 2, 0] = 100
        assert _is_not_drawn_for(rounds, levels, number) == found
    levels[1, 0, 2, 0] = 100
    assert _is_not_drawn_for(rounds, levels, 2)


def _is_not_drawn_for(trial, levels, number):
    p_values = dict(trial.p_values({True: levels, False: np.zeros_like(levels)}))
    return p_values[f"rounds, round {number}, what is not drawn for, with the user"] == 0
