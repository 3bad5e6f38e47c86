"""The exact audit of hits: its law of a query, its adversary, and what plans attain: below their claims, not far below,
and above them wherever a fault is planted."""

import dataclasses
import functools
import math

import pytest

from dp_transforms.audit.hits import (
    HitsClaim,
    Mechanism,
    Result,
    ThresholdLaw,
    audit_hits,
    best_delta,
    default_rounds,
    laplace_mass,
    lone_delta,
)
from dp_transforms.core.hit_noise import ReleaseRule
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.modes import plan_of_mode
from tests.helpers.sampling_checks import laplace_probability

EPSILON = 0.7  # of a query


def by_definition(zone_width, distance, epsilon=EPSILON, reach=80):
    """Every noisy count on its own where it is published, by the real release rule."""
    rule, masses = ReleaseRule(0, zone_width or None), {}
    for noise in range(-reach, reach + 1):
        both = masses.setdefault(rule(distance + noise), [0.0, 0.0])
        both[0] += laplace_probability(epsilon, noise - 1)
        both[1] += laplace_probability(epsilon, noise)
    return [
        Result(*both, math.log(both[0] / both[1]), int(bool(release and release.charged)))
        for release, both in masses.items()
    ]


def merged(results):
    """Equal ratios and charges together."""
    found = {}
    for result in results:
        key = (round(result.log_ratio, 6), result.charged)
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + result.with_user, before[1] + result.without_user)
    return {key: masses for key, masses in found.items() if max(masses) > 1e-14}


def assert_same_law(found, expected):
    found, expected = merged(found), merged(expected)
    assert found.keys() == expected.keys()
    for key, masses in found.items():
        assert masses == pytest.approx(expected[key], rel=1e-9)


@pytest.mark.parametrize("zone_width", [0, 1, 4])
@pytest.mark.parametrize("distance", [-9, -1, 0, 1, 4, 8])
def test_results_of_a_query_are_those_of_the_release_rule(zone_width, distance):
    results = ThresholdLaw(EPSILON, zone_width).results(distance)
    assert_same_law(results, by_definition(zone_width, distance))
    for world in (0, 1):
        assert math.fsum(result[world] for result in results) == pytest.approx(1, abs=1e-14)


def test_masses_far_out_keep_their_digits():
    """Where a difference of two tails would be 0."""
    both = laplace_probability(0.5, 200) + laplace_probability(0.5, 201)
    assert laplace_mass(0.5, 200, 201, 0) == pytest.approx(both, rel=1e-12)
    assert laplace_mass(0.5, None, -300, 0) == pytest.approx(math.exp(-150) / (1 + math.exp(-0.5)), rel=1e-12)
    assert laplace_mass(0.5, 3, 2, 0) == 0


def test_lone_items_by_the_definition():
    mechanism = Mechanism(ThresholdLaw(0.5, 0), 9, 1, 10, 3)
    published = math.fsum(laplace_probability(0.5, noise) for noise in range(8, 200))
    assert lone_delta(mechanism, 30) == pytest.approx(1 - (1 - published) ** 30, rel=1e-9)
    assert lone_delta(mechanism, 0) == 0
    assert lone_delta(dataclasses.replace(mechanism, tests_lone_items=False), 30) == 0


def best_by_force(by_distance, hits, windows, epsilon, adds_user, p=1.0, q=1.0):
    """The value of a state of the adversary, by trying every distance, and every one after every result of it."""
    first, second = (p, q) if adds_user else (q, p)
    best = max(0.0, first - math.exp(epsilon) * second)
    if not hits or not windows:
        return best
    for results in by_distance:
        after = 0.0
        for result in results:
            rest = hits - result.charged, windows - 1, epsilon, adds_user
            after += best_by_force(by_distance, *rest, p * result.with_user, q * result.without_user)
        best = max(best, after)
    return best


def lumped(results):
    """Else brute force would take forever."""
    return [Result(*masses, *key) for key, masses in merged(results).items()]


def attained(law, hits, windows, epsilon, adds_user, items=1):
    """By the audit, of whatever length."""
    return best_delta(Mechanism(law, 10**6, hits, 10**6, items), epsilon, windows, items, adds_user)


@pytest.mark.parametrize("zone_width", [0, 1, 3])
@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("adds_user", [True, False])
def test_two_distances_are_as_bad_as_all(zone_width, hits, adds_user):
    """The theorem of docs/proofs.md, by force: over twelve distances, after every result, nothing exceeds the audit,
    which knows only one below the threshold and one below the upper edge."""
    everywhere = [lumped(by_definition(zone_width, distance, reach=45)) for distance in range(-6, 6)]
    for epsilon in (0.0, 0.4, EPSILON, 1.1):
        by_force = best_by_force(everywhere, hits, 3, epsilon, adds_user)
        found = attained(ThresholdLaw(EPSILON, zone_width), hits, 3, epsilon, adds_user)
        assert found == pytest.approx(by_force, rel=1e-6, abs=1e-12)
        assert found <= by_force + 1e-13, "rounded down"


@functools.cache
def plan_of(mode="hits", hits=None, epsilon=1.0):
    budget = {"epsilon": epsilon, "delta": 1e-6, "schedule": WindowSchedule.fixed(0, 300 * 60, 60)}
    return plan_of_mode(mode, **budget, hits_per_user=hits, max_items_per_user=2, max_users=10_000)


@functools.cache
def short_plan(mode="hits"):
    """A day of hours, three items of a user in each: 72 calls, where about 140 exclude the user."""
    schedule = WindowSchedule.fixed(0, 24 * 3600, 3600)
    return plan_of_mode(mode, epsilon=2.0, delta=1e-9, schedule=schedule, max_items_per_user=3)


def audited(plan, **changes):
    """The claim of the plan, against a mechanism in which these numbers are others."""
    mechanism = dataclasses.replace(Mechanism.of_plan(plan), **changes)
    return audit_hits(mechanism, HitsClaim.of_plan(plan))


def with_less_noise(plan, share):
    return ThresholdLaw(share * plan.charged_hits.epsilon_per_query, plan.charged_hits.zone_width)


@pytest.mark.parametrize(
    ("mode", "hits", "epsilon"), [("hits", 1, 1.0), ("hits", 10, 0.5), ("hits-with-counts", 3, 2.0)]
)
def test_a_plan_attains_most_of_its_claim_and_no_more(mode, hits, epsilon):
    plan = plan_of(mode, hits, epsilon)
    audit = audited(plan)
    assert audit.violations == ()
    fair = 0.95 if mode == "hits" else 0.7
    assert fair <= audit.worst.attained / plan.shares.paid <= 1
    assert audit.removing.is_settled
    assert 0.95 < audit.lone_delta / plan.delta_open <= 1
    assert 0.45 < audit.together_delta / plan.delta <= 1
    assert {figure.hits for figure in audit.running} >= {1, hits}
    assert all(0.5 < figure.delta / plan.shares.paid <= 1 for figure in audit.running)
    mechanism = Mechanism.of_plan(plan)
    half = best_delta(mechanism, epsilon, default_rounds(mechanism) // 2, 1, False)
    assert half == pytest.approx(audit.worst.attained, rel=1e-3), "it has converged"
    # Every result that is likelier with the user is charged, so its loss is at most hits times epsilon_per_query.
    assert audit.adding.attained == 0 or mode == "hits"


def test_in_a_short_run_the_adversary_uses_several_items_of_a_window():
    """One item a window attains nothing in 24 of them; three attain what 72 windows of one item do, up to a thousandth,
    and it is not said that they attain all of it."""
    plan = short_plan()
    mechanism = Mechanism.of_plan(plan)
    audit = audit_hits(mechanism, HitsClaim.of_plan(plan))
    assert audit.violations == ()
    assert best_delta(mechanism, 2.0, 24, 1, False) == 0
    most = best_delta(dataclasses.replace(mechanism, horizon=72), 2.0, 72, 1, False)
    for side in (audit.adding, audit.removing):
        assert side.items == 72
        assert side.attained == pytest.approx(4.969e-10, rel=1e-3)
        assert side.ceiling == pytest.approx(most, rel=1e-5) == pytest.approx(4.9728e-10, rel=1e-4)
        assert side.attained < (1 - 1e-4) * side.ceiling
        assert not side.is_settled
    assert best_delta(mechanism, 2.0, 12, 3, False) < 0.01 * audit.removing.attained, "a run that is half as long"
    assert audited(short_plan("hits-with-counts")).removing.is_settled, "with one distance"


@pytest.mark.parametrize(("mode", "least"), [("hits", 0.99), ("hits-with-counts", 0.7)])
def test_each_running_figure_that_is_a_little_less_is_flagged(mode, least):
    plan = short_plan(mode)
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


SMALL, COUNTS = functools.partial(plan_of, "hits", 3), functools.partial(plan_of, "hits-with-counts", 3)


@pytest.mark.parametrize(
    ("make", "change", "said"),
    [
        (SMALL, lambda plan: {"law": with_less_noise(plan, 1.01)}, "one user attains"),
        (short_plan, lambda plan: {"law": with_less_noise(plan, 1.01)}, "adding one user"),
        (short_plan, lambda plan: {"law": with_less_noise(plan, 1.01)}, "removing one user"),
        (SMALL, lambda plan: {"hits_per_user": 4}, "one user attains"),
        (COUNTS, lambda plan: {"hits_per_user": 4}, "one user attains"),
        # Above the zone is free, so a narrow one is hit too rarely.
        (SMALL, lambda plan: {"law": ThresholdLaw(plan.charged_hits.epsilon_per_query, 3)}, "one user attains"),
        (COUNTS, lambda plan: {"threshold": plan.threshold - 1}, "items that one user holds alone"),
        (COUNTS, lambda plan: {"threshold": plan.threshold - 20}, "together"),
        (COUNTS, lambda plan: {"horizon": 600}, "items that one user holds alone"),
        (COUNTS, lambda plan: {"max_items_per_user": 3}, "items that one user holds alone"),
    ],
)
def test_a_fault_is_flagged(make, change, said):
    plan = make()
    assert said in "; ".join(audited(plan, **change(plan)).violations)


def test_public_items_have_no_lone_items():
    plan = plan_of("hits", 3)
    audit = audit_hits(
        dataclasses.replace(Mechanism.of_plan(plan), tests_lone_items=False),
        dataclasses.replace(HitsClaim.of_plan(plan), delta_open=0.0),
    )
    assert audit.violations == ()
    assert audit.lone_delta == 0
    assert audit.together_delta == audit.worst.attained


def test_there_is_no_audit_of_printed_noise():
    with pytest.raises(ValueError, match="no audit of plans with printed noise"):
        Mechanism.of_plan(plan_of("kms21"))
