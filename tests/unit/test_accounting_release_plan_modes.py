"""Plans of mode kms21, and plans with a known domain."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.mechanisms.discrete_laplace_law import capped_sum_upper_tail, upper_tail
from dp_transforms.monitor.item_domain import ItemDomain
from dp_transforms.plan.hits_plan import HitsPlan
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import DOMAIN, IN_DOMAIN, KMS21, LABELS, calibrated_plan
from tests.helpers.plan_files import changed_plan

# ---------------------------------------------------------------------------------------------------------------------
# kms21
# ---------------------------------------------------------------------------------------------------------------------


def test_kms21_needs_nearly_four_orders_of_magnitude_more_noise() -> None:
    assert (KMS21.hits_per_user, KMS21.zone_width, KMS21.accountant) == (20, 0, "threshold_monitor")
    assert 4000 < KMS21.noise_scale / LABELS.noise_scale < 10_000
    known = calibrated_plan(epsilon=1.0, delta=1e-6, mode="kms21", hits_per_user=50)
    assert known.noise_scale == pytest.approx(350_200, rel=0.01)  # half of delta is for the open domain


def _capped_sum(plan: HitsPlan) -> dict[str, Any]:
    return {
        "wide_epsilon": plan.wide_epsilon_per_query,
        "narrow_epsilon": plan.epsilon_per_query,
        "cap": plan.noise_cap,
    }


@pytest.mark.parametrize(
    "changes", [{}, {"hits_per_user": 1}, {"hits_per_user": 3000, "epsilon": 8.0}, {"domain": DOMAIN}]
)
def test_kms21_keeps_every_share(changes: dict[str, Any]) -> None:
    plan = calibrated_plan(mode="kms21", **changes)
    shares = (plan.delta_accounting, plan.delta_open, plan.delta_sampling, plan.delta_hash)
    assert plan.delta * (1 - 1e-9) <= math.fsum(shares) <= plan.delta
    noise = _capped_sum(plan)
    proof = ThresholdMonitorAccountant(**noise, hits=plan.hits_per_user)
    assert 0.9 * plan.delta_accounting < proof.delta(plan.epsilon) <= plan.delta_accounting
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
            assert delta <= plan.delta_accounting * (1 + 1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1.9}, "too little noise"),
        ({"hits_per_user": 21}, "too little noise"),
        ({"wide_epsilon_per_query": KMS21.wide_epsilon_per_query * 1.01}, "wide_epsilon must be at most"),
        ({"wide_epsilon_per_query": 0.0}, "wide_epsilon must be finite"),
        ({"wide_epsilon_per_query": -1.0}, "wide_epsilon must be finite"),
        ({"noise_cap": KMS21.noise_cap - 1000}, "must be at most"),
        ({"noise_cap": 0}, "cap must be"),
        ({"noise_cap": 10**400}, "noise_cap must be at most"),
        ({"threshold": KMS21.threshold - 1}, f"threshold must be >= {KMS21.threshold}"),
        ({"mode": "hits", "accountant": "game"}, "wide_epsilon_per_query and noise_cap must be 0"),
        ({"accountant": "game"}, "accountant must be one of threshold_monitor"),
        ({"zone_width": 3}, "zone_width must be 0"),
    ],
)
def test_a_tampered_plan_of_kms21_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReleasePlan.from_json(changed_plan(KMS21, **changes))


# ---------------------------------------------------------------------------------------------------------------------
# Known domains
# ---------------------------------------------------------------------------------------------------------------------


def test_a_known_domain_gives_all_of_delta_to_the_accountant() -> None:
    assert IN_DOMAIN.delta_open == 0
    assert IN_DOMAIN.delta_accounting > 1.99 * LABELS.delta_accounting
    assert IN_DOMAIN.epsilon_per_query > LABELS.epsilon_per_query
    assert (IN_DOMAIN.domain_size, IN_DOMAIN.domain_fingerprint) == (1000, DOMAIN.fingerprint)
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
    expected = size * 384 * upper_tail(plan.epsilon_per_query, plan.threshold)
    assert plan.expected_false_reports == pytest.approx(expected)
    assert expected <= 0.05
    assert size * 384 * upper_tail(plan.epsilon_per_query, plan.threshold - 1) > 0.05


def test_every_threshold_is_safe_in_a_known_domain() -> None:
    lowest = calibrated_plan(domain=DOMAIN, threshold=1)
    assert lowest.epsilon_per_query == IN_DOMAIN.epsilon_per_query
    assert lowest.expected_false_reports == pytest.approx(1000 * 384 * upper_tail(lowest.epsilon_per_query, 1))
    assert LABELS.expected_false_reports == 0


@pytest.mark.parametrize(("windows", "size", "threshold"), [(2, 10**6, 10), (100_000, 1000, 1)])
def test_too_many_false_reports_are_refused(windows: int, size: int, threshold: int) -> None:
    class Declared:
        fingerprint = "0" * 64

    Declared.size = size  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=rf"threshold = {threshold} would publish about .* items .* Raise it"):
        calibrated_plan(schedule=WindowSchedule.fixed(0, windows, 1), domain=Declared, threshold=threshold)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"domain_size": 0}, "domain_fingerprint must be"),
        ({"domain_size": 0, "domain_fingerprint": ""}, "delta_open must lie strictly"),
        ({"domain_size": -1}, "domain_size must be a whole number"),
        ({"domain_size": True}, "domain_size must be a whole number"),
        ({"domain_size": 10**400}, "domain_size must be at most"),
        ({"domain_size": 2 * 10**9}, "max_items must be >="),
        ({"domain_size": 10**8, "threshold": 1}, "threshold = 1 would publish"),
        ({"domain_fingerprint": "x" * 64}, "domain_fingerprint must be"),
        ({"domain_fingerprint": None}, "domain_fingerprint must be"),
        ({"delta_open": 1e-11}, "delta_open must be 0"),
        ({"delta_sampling": 1e-36}, "delta_sampling must be >="),
        ({"threshold": 0}, "threshold must be a whole number >= 1"),
        ({"hits_per_user": 4}, "too little noise"),
    ],
)
def test_a_tampered_plan_with_a_domain_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReleasePlan.from_json(changed_plan(IN_DOMAIN, **changes))
