"""Plans of mode kms21, and plans with a known domain."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.mechanisms.discrete_laplace_law import capped_sum_upper_tail, upper_tail
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.plan import Plan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import DOMAIN, IN_DOMAIN, KMS21, LABELS, calibrated_plan

# --- kms21


def test_kms21_needs_nearly_four_orders_of_magnitude_more_noise() -> None:
    assert (KMS21.hits_per_user, KMS21.charged_hits.zone_width, KMS21.charged_hits.accountant) == (
        20,
        0,
        "threshold_monitor",
    )
    assert 4000 < KMS21.charged_hits.noise.scale / LABELS.charged_hits.noise.scale < 10_000
    known = calibrated_plan(epsilon=1.0, delta=1e-6, mode="kms21", hits_per_user=50)
    assert known.hits.noise.scale == pytest.approx(350_200, rel=0.01)  # half of delta is for the open domain


def _capped_sum(plan: Plan) -> dict[str, Any]:
    return {
        "wide_epsilon": plan.charged_hits.noise.wide_epsilon_per_query,
        "narrow_epsilon": plan.charged_hits.epsilon_per_query,
        "cap": plan.charged_hits.noise.noise_cap,
    }


@pytest.mark.parametrize(
    "changes", [{}, {"hits_per_user": 1}, {"hits_per_user": 3000, "epsilon": 8.0}, {"domain": DOMAIN}]
)
def test_kms21_keeps_every_share(changes: dict[str, Any]) -> None:
    plan = calibrated_plan(mode="kms21", **changes)
    shares = (plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash)
    assert plan.delta * (1 - 1e-9) <= math.fsum(shares) <= plan.delta
    noise = _capped_sum(plan)
    proof = ThresholdMonitorAccountant(**noise, hits=plan.hits_per_user)
    assert 0.9 * plan.shares.paid < proof.delta(plan.epsilon) <= plan.shares.paid
    wrong, allowed, at = (3 * 384, plan.delta_open, 1) if plan.delta_open else (1000 * 384, 0.05, 0)
    assert wrong * capped_sum_upper_tail(plan.threshold - at, **noise) <= allowed
    assert wrong * capped_sum_upper_tail(plan.threshold - at - 1, **noise) > allowed


def test_what_kms21_detects() -> None:
    noise = _capped_sum(KMS21)
    for probability in (0.01, 0.5, 0.95):
        count = KMS21.smallest_detectable(probability)
        assert capped_sum_upper_tail(KMS21.threshold - count, **noise) >= probability * (1 - 1e-9)
        assert capped_sum_upper_tail(KMS21.threshold - count + 1, **noise) < probability * (1 + 1e-9)


@pytest.mark.parametrize("hits", [1, 20, 700])
def test_the_running_figure_of_kms21_is_the_same_monitor_cut_at_fewer_hits(hits: int) -> None:
    plan = calibrated_plan(mode="kms21", hits_per_user=hits)
    running = plan.epsilon_after_hits
    assert len(running) == hits
    assert list(running) == sorted(running)
    assert running[-1] <= plan.epsilon
    noise = _capped_sum(plan)
    for cut in {1, 2, min(hits, 70), hits // 2, hits} - {0}:
        if cut <= hits:
            delta = ThresholdMonitorAccountant(**noise, hits=cut).delta(running[cut - 1])
            assert delta <= plan.shares.paid * (1 + 1e-9)


# --- Known domains


def test_a_known_domain_gives_all_of_delta_to_the_accountant() -> None:
    assert IN_DOMAIN.delta_open == 0
    assert IN_DOMAIN.shares.paid > 1.99 * LABELS.shares.paid
    assert IN_DOMAIN.charged_hits.epsilon_per_query > LABELS.charged_hits.epsilon_per_query
    assert (IN_DOMAIN.domain_size, IN_DOMAIN.domain.fingerprint) == (1000, DOMAIN.fingerprint)
    assert IN_DOMAIN.domain is not None
    assert LABELS.domain is None
    assert (
        IN_DOMAIN.fingerprint
        != calibrated_plan(domain=ItemDomain.of_ids([f"other-{n}" for n in range(1000)])).fingerprint
    )


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("size", [1, 1000, 10**6])
def test_the_default_threshold_hides_items_that_nobody_holds(mode: str, size: int) -> None:
    class Declared:
        fingerprint = "0" * 64

    Declared.size = size  # type: ignore[attr-defined]
    plan = calibrated_plan(mode=mode, domain=Declared)
    expected = size * 384 * upper_tail(plan.charged_hits.epsilon_per_query, plan.threshold)
    assert plan.expected_false_reports == pytest.approx(expected)
    assert expected <= 0.05
    assert size * 384 * upper_tail(plan.charged_hits.epsilon_per_query, plan.threshold - 1) > 0.05


def test_every_threshold_is_safe_in_a_known_domain() -> None:
    lowest = calibrated_plan(domain=DOMAIN, threshold=1)
    assert lowest.hits.epsilon_per_query == IN_DOMAIN.charged_hits.epsilon_per_query
    assert lowest.expected_false_reports == pytest.approx(1000 * 384 * upper_tail(lowest.hits.epsilon_per_query, 1))
    assert LABELS.expected_false_reports == 0


@pytest.mark.parametrize(("windows", "size", "threshold"), [(2, 10**6, 10), (100_000, 1000, 1)])
def test_too_many_false_reports_are_refused(windows: int, size: int, threshold: int) -> None:
    class Declared:
        fingerprint = "0" * 64

    Declared.size = size  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=rf"threshold = {threshold} would publish about .* items .* Raise it"):
        calibrated_plan(schedule=WindowSchedule.fixed(0, windows, 1), domain=Declared, threshold=threshold)
