"""The audit of mode `looks` where users pay for hits too: sound plans pass, and faults of hits are found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dp_transforms.accounting.purse.look_prices import zone_price
from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.look_law import LookLaw, NoiseLaw, reach_of_prices, static_delta
from dp_transforms.audit.payments import audit_payments
from dp_transforms.audit.sampled_looks import design_looks_sampling, exclusion_trials, sample_names
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from tests.helpers.audited_names import audited_plan, law_of, mechanism_and_claim, p_values_of, run_settings
from tests.helpers.small_runs import SECRET

HITS = 2


def test_a_sound_plan_passes() -> None:
    plan = audited_plan(hits=HITS)
    mechanism, claim = mechanism_and_claim(plan)
    audit = audit_looks_exactly(mechanism, claim, most_looks=2)
    assert audit.violations == ()
    assert audit.prices == len(plan.paid_looks.weights) + len(plan.paid_hits.weights)
    assert 0.9999 < audit.worst_price.ratio <= 1
    assert audit_payments(mechanism, run_settings(plan), SECRET).violations == ()


@pytest.mark.parametrize("hit_price", [0.0, 0.02, 0.3])
def test_the_worst_count_of_three_outcomes_is_that_of_the_plan(hit_price: float) -> None:
    noise, order, weight = ExponentialPower(2.5, 60), 8.0, 9
    spacing = round(5.5 * noise.standard_deviation)
    reach = reach_of_prices(2.5, order, weight, 60)
    look = LookLaw(NoiseLaw(2.5, 60, reach + weight + 1), (0, spacing))
    found = look.worst(weight, order, reach, hit_price=hit_price).divergence
    price = zone_price(noise, order, weight, spacing, hit_price=hit_price)
    assert found == pytest.approx(price, rel=1e-6)
    assert found <= price


def test_equal_looks_of_a_user_that_is_excluded() -> None:
    """With more hits than looks they are binomial; with fewer they attain less; one hit, by its definition."""
    law, margins = NoiseLaw(2.0, 10, 80), np.array([6])
    free = static_delta(law, 4, 5, margins, 0.3)[0]
    assert static_delta(law, 4, 5, margins, 0.3, 6)[0] == pytest.approx(free, rel=1e-9)
    deltas = [static_delta(law, 4, 5, margins, 0.3, hits)[0] for hits in (1, 2, 5)]
    assert deltas[0] < deltas[1] <= deltas[2] * (1 + 1e-9)
    p, q = law.tail(2), law.tail(6)
    worlds = [[*(x * (1 - x) ** look for look in range(5)), (1 - x) ** 5] for x in (p, q)]
    wanted = [sum(max(0.0, a - np.exp(0.3) * b) for a, b in zip(*pair, strict=True)) for pair in (worlds, worlds[::-1])]
    assert deltas[0] == pytest.approx(max(wanted), rel=1e-6)


def test_hits_that_pay_nothing_are_found() -> None:
    """The prices are those of looks that hits pay for, but nothing is taken out of the purse for a hit."""
    mechanism, claim = mechanism_and_claim(audited_plan(hits=HITS))
    assert mechanism.hits_list is not None
    free = dataclasses.replace(mechanism.hits_list, hit_units=0)
    violations = audit_looks_exactly(dataclasses.replace(mechanism, hits_list=free), claim, most_looks=1).violations
    assert any("that pays for hits has a divergence" in text for text in violations)


def test_a_list_of_hits_without_a_floor_is_found() -> None:
    """Its smallest weight costs a third, so that a purse pays for three times as many lone items."""
    mechanism, claim = mechanism_and_claim(audited_plan(hits=HITS))
    listed = mechanism.hits_list
    assert listed is not None
    cheap = dataclasses.replace(listed, units=(listed.units[0] // 3, *listed.units[1:]))
    violations = audit_looks_exactly(dataclasses.replace(mechanism, hits_list=cheap), claim, most_looks=1).violations
    assert any("a purse pays for" in text for text in violations)
    assert any("holds alone" in text for text in violations)


def _exclusion(runs: int = 100) -> dict[str, float]:
    plan = audited_plan(hits=HITS)
    mechanism, _ = mechanism_and_claim(plan)
    return p_values_of(exclusion_trials(mechanism, law_of(mechanism), plan.hits_from, runs), run_settings(plan))


def test_users_without_hits_left_do_not_count() -> None:
    found = _exclusion()
    assert len(found) == 3
    assert min(found.values()) > 1e-3


def test_the_real_code_agrees_with_its_law() -> None:
    plan = audited_plan(hits=HITS)
    mechanism, claim = mechanism_and_claim(plan)
    law = law_of(mechanism)
    design = design_looks_sampling(mechanism, claim, law, 1_000, 2)
    audit = sample_names(mechanism, claim, run_settings(plan), design, law, SECRET)
    assert audit.violations == ()
    assert audit.p_value > 0.001
