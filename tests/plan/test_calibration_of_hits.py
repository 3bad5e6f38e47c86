"""Plans whose users are charged for hits: calibration, kms21, known domains, and choices that are refused."""

import dataclasses
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest

from dp_transforms.accounting.charged_hits import NoiseParameters, proof_of, target_probability
from dp_transforms.accounting.charging_game import GameAccountant
from dp_transforms.accounting.discrete_laplace_law import capped_sum_upper_tail, upper_tail
from dp_transforms.accounting.kms21_accountant import ThresholdMonitorAccountant
from dp_transforms.core.hit_noise import epsilon_spent
from tests.helpers.calibrated_plans import COUNTS, KMS21, LABELS, PUBLIC, calibrated_plan, with_changes


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize(
    ("epsilon", "delta", "hits", "keys"),
    [(0.3, 1e-6, 1, 1), (1.0, 1e-9, 7, 1), (8.0, 1e-10, 40, 1), (1.0, 1e-9, 7, 3), (0.5, 1e-6, 1, 2)],
)
def test_every_share_is_kept_and_nothing_is_wasted(mode, epsilon, delta, hits, keys):
    """Under keys: the game for all hits of a user, and the lone items of each key."""
    plan = calibrated_plan(epsilon=epsilon, delta=delta, hits_per_user=hits, mode=mode, most_keys=keys)
    shares = (plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash)
    assert delta * (1 - 1e-9) <= math.fsum(shares) <= delta
    proved = proof_of(plan.hits.mode, plan.hits.noise, keys * hits).delta(epsilon)
    assert 0.98 * plan.shares.paid <= proved <= plan.shares.paid or mode == "hits"
    assert proved <= plan.shares.paid
    # One step in the sixth digit less noise would break it.
    step = 10.0 ** (math.floor(math.log10(plan.charged_hits.epsilon_per_query)) - 4)
    less_noise = NoiseParameters(plan.charged_hits.epsilon_per_query + step)
    assert proof_of(plan.hits.mode, less_noise, keys * hits).delta(epsilon) > plan.shares.paid
    queries = keys * 3 * 384
    assert plan.queries_per_user == queries
    assert plan.shares.hash == keys * (plan.max_users + plan.max_items**2 / 2**64) / 2**64
    assert queries * upper_tail(plan.charged_hits.epsilon_per_query, plan.threshold - 1) <= plan.delta_open
    assert queries * upper_tail(plan.charged_hits.epsilon_per_query, plan.threshold - 2) > plan.delta_open


@pytest.mark.parametrize("plan", [LABELS, COUNTS, KMS21], ids=lambda plan: plan.charge_in_words)
def test_a_plan_with_one_digit_too_little_is_refused(plan):
    """For its noise, and for all shares together."""
    proved = plan.hits.proof.delta(plan.epsilon)
    assert with_changes(plan, {"shares.paid": proved}).shares.paid == proved
    with pytest.raises(ValueError, match="is too little noise"):
        with_changes(plan, {"shares.paid": math.nextafter(proved, 0)})
    total = math.fsum((plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash))
    assert dataclasses.replace(plan, delta=total).delta == total
    with pytest.raises(ValueError, match="must add up to at most"):
        dataclasses.replace(plan, delta=math.nextafter(total, 0))


def test_smallest_detectable():
    for plan in (LABELS, COUNTS):
        for probability in (1e-6, 0.5, 0.51, 0.999999):
            count = plan.smallest_detectable(probability)
            tails = [upper_tail(plan.charged_hits.epsilon_per_query, plan.threshold - n) for n in (count, count - 1)]
            assert tails[0] >= probability * (1 - 1e-9)
            assert tails[1] < probability * (1 + 1e-9)
    assert LABELS.smallest_detectable() == LABELS.smallest_detectable(0.95) == 530
    for probability in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="probability must lie strictly"):
            LABELS.smallest_detectable(probability)


def test_which_plans_take_keys():
    plan = calibrated_plan(most_keys=2)
    assert plan.guarantee.endswith("over the whole run of 384 windows, if they are under at most 2 keys.")
    assert calibrated_plan(most_keys=None) == LABELS
    with pytest.raises(ValueError, match="most_keys cannot be used with charge 'contributions': it belongs to hits"):
        calibrated_plan(mode="contributions", most_keys=1)
    for wrong in (0, 1.5, True):
        with pytest.raises(ValueError, match="most_keys must be a whole number >= 1"):
            calibrated_plan(most_keys=wrong)
    with pytest.raises(ValueError, match=r"most_keys \* hits_per_user must be at most 10000, got 12000"):
        calibrated_plan(most_keys=4000)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
def test_the_running_figure_of_a_key_allows_for_all_other_keys(mode):
    plan = calibrated_plan(mode=mode, most_keys=3, hits_per_user=2)
    after = plan.epsilon_after_hits
    assert len(after) == 6
    assert [epsilon_spent(plan, hits) for hits in range(4)] == [*after[4:], after[-1], after[-1]]
    assert after[3] < after[4] < after[5] <= plan.epsilon


@pytest.mark.parametrize("plan", [LABELS, COUNTS, calibrated_plan(hits_per_user=12), calibrated_plan(hits_per_user=1)])
def test_epsilon_after_hits(plan):
    running, epsilon = plan.epsilon_after_hits, plan.charged_hits.epsilon_per_query
    assert len(running) == plan.hits_per_user
    assert list(running) == sorted(running)
    assert running[-1] <= plan.epsilon
    q = target_probability(plan.charged_hits.mode, epsilon)
    for hits in {1, min(2, plan.hits_per_user), (plan.hits_per_user + 1) // 2, plan.hits_per_user}:
        assert GameAccountant(epsilon, q, hits).delta(running[hits - 1]) <= plan.shares.paid * (1 + 1e-9)
        exact = GameAccountant(epsilon, q, hits).epsilon(plan.shares.paid)
        assert running[hits - 1] == pytest.approx(exact, rel=3e-3)


class TenMillion:
    size = 10**7
    fingerprint = "0" * 64


def _sampling_share(plan, epsilon_of_noise):
    """``(1 + e^epsilon) (2 n TV + m (3 |X| + 2) / 2^128)`` of docs/guarantee.md, "Public items", to 40 digits.

    TV: a magnitude needs 129 ln(2) / epsilon_of_noise thresholds on either side and 0, each off by at most one unit of
    2^-128, in the draw and again in the draw given that it passes.
    """
    with localcontext(prec=40):
        thresholds = 2 * math.ceil(129 * Decimal(2).ln() / Decimal(epsilon_of_noise)) + 1
        windows = plan.most_keys * plan.schedule.horizon
        queries = windows * plan.charged_hits.max_items_per_user
        units = 2 * queries * 2 * thresholds
        if plan.public_item_count:
            units += windows * (3 * plan.public_item_count + 2)
        return (1 + Decimal(plan.epsilon).exp()) * units / 2**128


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("public", [None, PUBLIC, TenMillion])
@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
def test_the_share_of_sampling(mode, public, keys):
    """Calibrated for the widest noise that can be sampled; refused where it is less than the plan's own noise takes."""
    plan = calibrated_plan(mode=mode, public_items=public, epsilon=1.5, most_keys=keys)
    is_kms21 = mode == "kms21"
    close = Fraction(1, 10**11)  # the empty items of a thousand are a 10^-8 part of the widest noise of kms21
    calibrated = Fraction(_sampling_share(plan, 1e-8 if is_kms21 else 1e-4))
    assert abs(Fraction(plan.shares.sampling) / calibrated - 1) < close
    noise = plan.charged_hits.noise
    needed = Fraction(_sampling_share(plan, noise.wide_epsilon_per_query if is_kms21 else noise.epsilon_per_query))
    assert with_changes(plan, {"shares.sampling": float(needed * (1 + close))})
    with pytest.raises(ValueError, match="the share sampling must be >="):
        with_changes(plan, {"shares.sampling": float(needed * (1 - close))})


def _capped_sum(plan):
    return {
        "wide_epsilon": plan.charged_hits.noise.wide_epsilon_per_query,
        "narrow_epsilon": plan.charged_hits.epsilon_per_query,
        "cap": plan.charged_hits.noise.noise_cap,
    }


@pytest.mark.parametrize(
    "changes",
    [{}, {"hits_per_user": 1}, {"hits_per_user": 3000, "epsilon": 8.0}, {"public_items": PUBLIC}, {"most_keys": 3}],
)
def test_kms21_keeps_every_share(changes):
    plan = calibrated_plan(mode="kms21", **changes)
    shares = (plan.shares.paid, plan.delta_open, plan.shares.sampling, plan.shares.hash)
    assert plan.delta * (1 - 1e-9) <= math.fsum(shares) <= plan.delta
    noise = _capped_sum(plan)
    proof = ThresholdMonitorAccountant(**noise, hits=plan.most_keys * plan.hits_per_user)
    assert 0.9 * plan.shares.paid < proof.delta(plan.epsilon) <= plan.shares.paid
    lone = plan.most_keys * 3 * 384
    wrong, allowed, at = (lone, plan.delta_open, 1) if plan.delta_open else (1000 * 384, 0.05, 0)
    assert wrong * capped_sum_upper_tail(plan.threshold - at, **noise) <= allowed
    assert wrong * capped_sum_upper_tail(plan.threshold - at - 1, **noise) > allowed
