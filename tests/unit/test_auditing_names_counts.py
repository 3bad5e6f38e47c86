"""The audit of plans with counts: sound ones pass, and each fault that is planted in the real code is refused.

The keys of whole audits are fresh: each test raises a false alarm with a probability of at most 1e-6.
"""

from __future__ import annotations

import dataclasses

import pytest

from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.payments import audit_payments
from dp_transforms.audit.sampled_looks import count_trials
from tests.helpers.audited_names import audited_plan, mechanism_and_claim, p_values_of, run_settings
from tests.helpers.small_runs import SECRET

COUNTS = 3


def _p_values(counts: int = COUNTS, runs: int = 5_000) -> dict[str, float]:
    plan = audited_plan(counts=counts)
    return p_values_of(count_trials(mechanism_and_claim(plan)[0], runs), run_settings(plan))


@pytest.mark.parametrize("counts", [1, 2, COUNTS, 15])
def test_counts_agree_with_their_law(counts: int) -> None:
    found = _p_values(counts)
    assert len(found) == 13
    assert min(found.values()) * len(found) > 0.001


@pytest.mark.parametrize("runs", [1, 40])
def test_a_handful_of_runs_raises_no_alarm(runs: int) -> None:
    assert min(_p_values(runs=runs).values()) > 1e-4


def test_the_price_of_a_count_is_nearly_attained_and_one_that_is_too_low_is_found() -> None:
    mechanism, claim = mechanism_and_claim(audited_plan(counts=COUNTS))
    audit = audit_looks_exactly(mechanism, claim, most_looks=1)
    assert audit.violations == ()
    assert 0.99 < audit.count / audit.count_claimed <= 1
    less = dataclasses.replace(mechanism, count_scale=mechanism.count_scale * 9 // 10)
    (violation,) = audit_looks_exactly(less, claim, most_looks=1).violations
    assert violation.startswith("a count has a divergence of")


def test_payments_include_what_counts_can_cost() -> None:
    plan = audited_plan(counts=COUNTS)
    audit = audit_payments(mechanism_and_claim(plan)[0], run_settings(plan), SECRET)
    assert audit.violations == ()
    assert 0.99 < audit.replay_share <= 1
