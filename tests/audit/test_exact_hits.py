"""What plans attain, exactly: below their claims, not far below, and above them wherever a fault is planted."""

import dataclasses
import functools
import math

import pytest

from dp_transforms.accounting.charging_game import between_probability, charging_game_delta
from dp_transforms.accounting.discrete_laplace_law import not_prior_probability, probability
from dp_transforms.audit.hits import (
    HitsClaim,
    Mechanism,
    ThresholdLaw,
    audit_hits,
    best_delta,
    default_rounds,
    lone_delta,
    rounds_until_excluded,
)
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.attack_streams import law_of, worst_stream
from tests.helpers.modes import plan_of_mode
from tests.reference.charging_game import static_adversary_delta


@functools.cache
def _plan(mode="hits", hits=None, epsilon=1.0, windows=300):
    return plan_of_mode(
        mode,
        epsilon=epsilon,
        delta=1e-6,
        schedule=WindowSchedule.fixed(0, windows * 60, 60),
        hits_per_user=hits,
        max_items_per_user=2,
        max_users=10_000,
    )


def _audit(plan, **changes):
    """The claim of the plan, against a mechanism in which these numbers are others."""
    mechanism = dataclasses.replace(Mechanism.of_plan(plan), **changes)
    return audit_hits(mechanism, HitsClaim.of_plan(plan))


PLANS = [("hits", 1, 1.0), ("hits", 10, 0.5), ("hits-with-counts", 3, 2.0)]


@pytest.mark.parametrize(("mode", "hits", "epsilon"), PLANS)
def test_a_plan_attains_most_of_its_claim_and_no_more(mode, hits, epsilon):
    plan = _plan(mode, hits, epsilon)
    audit = _audit(plan)
    assert audit.violations == ()
    fair = 0.95 if mode == "hits" else 0.7
    assert fair <= audit.worst.attained / plan.shares.paid <= 1
    assert 0.95 < audit.lone_delta / plan.delta_open <= 1
    assert 0.45 < audit.together_delta / plan.delta <= 1
    assert {figure.hits for figure in audit.running} >= {1, hits}
    for figure in audit.running:
        assert 0.5 < figure.delta / plan.shares.paid <= 1
    # Converged: half the rounds give the same; and no adaptive choice gives more than one stream.
    mechanism = Mechanism.of_plan(plan)
    rounds = default_rounds(mechanism)
    assert best_delta(mechanism, epsilon, rounds // 2, 1, False) == pytest.approx(audit.worst.attained, rel=1e-3)
    stream = worst_stream(mechanism, epsilon, rounds, False)
    assert law_of(mechanism, stream).delta(epsilon, False) == pytest.approx(audit.worst.attained, rel=1e-5)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_never_above_the_game_and_sometimes_close(mode):
    """On a grid of noises, hits and epsilons, in both directions: the claims of the default accountant."""
    ratios = []
    for epsilon_per_query, hits in ((0.02, 20), (0.1, 1), (0.1, 5), (0.5, 2), (1.5, 3)):
        width = math.ceil(2 / epsilon_per_query) if mode == "hits" else 0
        q = between_probability(epsilon_per_query, width) if width else not_prior_probability(epsilon_per_query)
        mechanism = Mechanism(ThresholdLaw(epsilon_per_query, width), 10**6, hits, 10**6, 1)
        for epsilon in (2 * epsilon_per_query, 0.7, 2.0):
            claimed = charging_game_delta(epsilon_per_query, q, hits, epsilon)
            for adds_user in (True, False):
                stream = worst_stream(mechanism, epsilon, default_rounds(mechanism), adds_user)
                attained = law_of(mechanism, stream).delta(epsilon, adds_user)
                assert attained <= claimed
                ratios.append(attained / claimed)
    assert max(ratios) > (0.999 if mode == "hits" else 0.75)


def test_counts_attain_exactly_what_the_static_adversary_of_the_accountants_does():
    """A closed form that knows nothing of noise or thresholds: with counts charged, one stream is the worst."""
    for epsilon_per_query, hits, epsilon in ((0.1, 3, 1.0), (0.3, 1, 2.0), (0.05, 10, 1.5)):
        mechanism = Mechanism(ThresholdLaw(epsilon_per_query, 0), 10**6, hits, 10**6, 1)
        stream = worst_stream(mechanism, epsilon, rounds_until_excluded(mechanism), False)
        expected = static_adversary_delta(epsilon_per_query, not_prior_probability(epsilon_per_query), hits, epsilon)
        assert law_of(mechanism, stream).delta(epsilon, False) == pytest.approx(expected, rel=1e-6)


def test_counts_cost_nothing_but_the_charged_results_when_a_user_is_added():
    """Every result that is likelier with the user is charged, so its loss is at most hits times epsilon_per_query."""
    plan = _plan("hits-with-counts", 10, 1.0)
    audit = _audit(plan)
    assert audit.adding.attained == 0


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_half_the_noise_is_flagged(mode):
    plan = _plan(mode, 3)
    audit = _audit(plan, law=ThresholdLaw(2 * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width))
    assert audit.worst.attained > 10 * plan.shares.paid
    text = "; ".join(audit.violations)
    for part in ("adding" if mode == "hits" else "removing", "charged results", "cut at 1 hits"):
        assert part in text


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
def test_a_little_less_noise_is_flagged_where_the_accountant_is_tight(mode):
    plan = _plan(mode, 3)
    share = 1.01 if mode == "hits" else 1.05
    assert _audit(
        plan, law=ThresholdLaw(share * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)
    ).violations


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("hits", [1, 3])
def test_a_hit_that_was_not_accounted_for_is_flagged(mode, hits):
    plan = _plan(mode, hits)
    audit = _audit(plan, hits_per_user=hits + 1)
    assert audit.worst.attained > 1.5 * plan.shares.paid
    assert audit.violations


@pytest.mark.parametrize("width", [1, 3])
def test_a_zone_that_is_too_narrow_is_flagged(width):
    """Above the zone is free, so a narrow one is hit too rarely."""
    plan = _plan("hits", 3)
    assert plan.charged_hits.zone_width > 3
    audit = _audit(plan, law=ThresholdLaw(plan.charged_hits.epsilon_per_query, width))
    assert audit.worst.attained > 10 * plan.shares.paid
    assert audit.violations


def test_a_threshold_below_the_safe_one_is_flagged():
    plan = _plan("hits-with-counts", 3)
    audit = _audit(plan, threshold=plan.threshold - 1)
    (violation,) = audit.violations
    assert "items that one user holds alone" in violation
    far_too_low = _audit(plan, threshold=plan.threshold - 20)
    assert far_too_low.together_delta > plan.delta
    assert any(text.startswith("together") for text in far_too_low.violations)


def test_more_windows_or_items_than_declared_are_flagged():
    plan = _plan("hits-with-counts", 3)
    assert _audit(plan, horizon=2 * plan.schedule.horizon).violations
    assert _audit(plan, max_items_per_user=3).violations


def test_lone_items_by_the_definition():
    mechanism = Mechanism(ThresholdLaw(0.5, 0), 9, 1, 10, 3)
    published = math.fsum(probability(0.5, noise) for noise in range(8, 200))
    assert lone_delta(mechanism, 30) == pytest.approx(1 - (1 - published) ** 30, rel=1e-9)
    assert lone_delta(mechanism, 0) == 0
    assert lone_delta(dataclasses.replace(mechanism, tests_lone_items=False), 30) == 0


@functools.cache
def _short_plan(mode="hits"):
    """A day of hours, three items of a user in each: 72 calls, where about 140 exclude the user."""
    schedule = WindowSchedule.fixed(0, 24 * 3600, 3600)
    return plan_of_mode(mode, epsilon=2.0, delta=1e-9, schedule=schedule, max_items_per_user=3)


def test_in_a_short_run_the_adversary_uses_several_items_of_a_window():
    """One item a window attains nothing in 24 of them; three attain what 72 windows of one item do, up to a thousandth,
    and it is not said that they attain all of it."""
    plan = _short_plan()
    mechanism = Mechanism.of_plan(plan)
    audit = audit_hits(mechanism, HitsClaim.of_plan(plan))
    assert audit.violations == ()
    assert law_of(mechanism, worst_stream(mechanism, 2.0, 24, False)).delta(2.0, False) == 0
    longer = dataclasses.replace(mechanism, horizon=72)
    most = law_of(longer, worst_stream(longer, 2.0, 72, False)).delta(2.0, False)
    for side in (audit.adding, audit.removing):
        assert side.items == 72
        assert side.attained == pytest.approx(4.969e-10, rel=1e-3)
        assert side.ceiling == pytest.approx(most, rel=1e-5) == pytest.approx(4.9728e-10, rel=1e-4)
        assert side.attained < (1 - 1e-4) * side.ceiling
        assert not side.is_settled
    assert best_delta(mechanism, 2.0, 12, 3, False) < 0.01 * audit.removing.attained, "a run that is half as long"


@pytest.mark.parametrize(("mode", "least"), [("hits", 0.99), ("hits-with-counts", 0.7)])
def test_running_figures_of_a_short_run_are_checked_against_something(mode, least):
    """Each is attained almost in full, so that a little less is flagged, whichever it is."""
    plan = _short_plan(mode)
    mechanism, claim = Mechanism.of_plan(plan), HitsClaim.of_plan(plan)
    running = audit_hits(mechanism, claim).running
    assert len(running) == min(6, plan.hits_per_user)
    for figure in running:
        assert least < figure.delta / plan.shares.paid <= 1
        figures = [*claim.epsilon_after_hits]
        figures[figure.hits - 1] *= 0.9
        wrong = dataclasses.replace(claim, epsilon_after_hits=tuple(figures))
        (violation,) = audit_hits(mechanism, wrong).violations
        assert f"cut at {figure.hits} hits" in violation


def test_a_fault_is_flagged_in_a_run_whose_windows_are_too_few_for_one_item_each():
    """Noise that is one part in a hundred too small."""
    plan = _short_plan()
    law = ThresholdLaw(1.01 * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)
    audit = _audit(plan, law=law)
    for side, name in ((audit.adding, "adding"), (audit.removing, "removing")):
        assert side.attained > plan.shares.paid
        assert any(text.startswith(f"{name} one user") for text in audit.violations)


def test_a_known_domain_has_no_lone_items():
    plan = _plan("hits", 3)
    audit = audit_hits(
        dataclasses.replace(Mechanism.of_plan(plan), tests_lone_items=False),
        dataclasses.replace(HitsClaim.of_plan(plan), delta_open=0.0),
    )
    assert audit.violations == ()
    assert audit.lone_delta == 0
    assert audit.together_delta == audit.worst.attained


def test_there_is_no_audit_of_kms21():
    with pytest.raises(ValueError, match="no audit of plans with printed noise"):
        Mechanism.of_plan(_plan("kms21"))


def test_only_what_was_computed_to_be_the_most_is_called_so():
    settled = [
        (_audit(_plan("hits", 3)), True),
        (_audit(_plan("hits-with-counts", 3)), True),
        (_audit(_short_plan()), False),
        (_audit(_short_plan("hits-with-counts")), True),  # there is one distance, so nothing to look back for
    ]
    for audit, is_settled in settled:
        assert audit.removing.is_settled is is_settled
