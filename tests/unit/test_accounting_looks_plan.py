"""LooksPlan: calibration, what each field promises, what is refused, and the round trip through JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats

from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.priced_weights import stated_users
from dp_transforms.monitor.run_settings import settings_of_plan
from dp_transforms.plan.hits_plan import HitsPlan
from dp_transforms.plan.looks_plan import LooksPlan
from dp_transforms.plan.release_plan import MODES, ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import COUNTS, DOMAIN, HOURLY, LABELS, looks_plan, short_looks_plan
from tests.helpers.plan_files import changed_plan

LONG = WindowSchedule.fixed(0, 10**8, 1000)


def tail(noise: ExponentialPower, margin: int) -> mpmath.mpf:
    """``Pr[Z >= margin]`` with 40 digits, for margin >= 1."""
    with mpmath.workdps(40):
        at = (mpmath.mpf(margin) - mpmath.mpf(1) / 2) / noise.scale
        order = 1 / mpmath.mpf(noise.shape)
        return mpmath.gammainc(order, at**noise.shape, regularized=True) / 2


def test_hourly_example() -> None:
    plan = looks_plan()
    assert (plan.mode, plan.usual_looks, plan.most_looks) == ("looks", (1, 1000), 3000)
    assert plan.schedule.horizon == 384
    assert [plan.found_from(looks) for looks in (1, 10, 100, 1000)] == [36, 68, 170, 501]
    assert [plan.found_from(looks, known=True) for looks in (1, 10, 100, 1000)] == [27, 51, 126, 372]
    assert plan.forget_after == 168
    assert plan.purse // plan.units[0] == plan.most_looks
    assert plan.spacing >= 5.5 * plan.noise.standard_deviation


@pytest.mark.parametrize("changes", [{}, {"epsilon": 0.5, "delta": 1e-7}, {"domain": DOMAIN}, {"known_items": False}])
def test_the_shares_add_up_and_nothing_is_wasted(changes: dict[str, Any]) -> None:
    plan = short_looks_plan(**changes)
    shares = (plan.delta_looks, plan.delta_open, plan.delta_sampling, plan.delta_hash)
    assert plan.delta * (1 - 1e-9) <= math.fsum(shares) <= plan.delta
    with mpmath.workdps(40):  # Canonne, Kamath, Steinke (2020), Proposition 12
        lam = mpmath.mpf(plan.order) - 1
        factor = (1 - 1 / mpmath.mpf(plan.order)) ** plan.order / lam
        proved = mpmath.exp(lam * (mpmath.mpf(plan.budget) - plan.epsilon)) * factor
    assert plan.delta_looks * (1 - 1e-6) < proved <= plan.delta_looks
    if plan.domain_size:
        assert plan.delta_open == 0
    else:
        assert plan.threshold == smallest_open_threshold(plan.prices, plan.delta_open)


def test_the_hash_share_lets_all_items_of_the_run_have_different_hashes() -> None:
    """docs/guarantee.md, "How delta is split for looks": every pair of items, and not those of one user's looks
    alone."""
    needed = Fraction(10**8, 2**64) + Fraction(10**9 * 10**9, 2**128)
    assert float(needed) == pytest.approx(short_looks_plan().delta_hash, rel=1e-12)
    many = 10**13
    pairs = Fraction(many * many, 2**128)
    assert short_looks_plan(max_items=many, delta=1e-6).delta_hash == pytest.approx(
        float(pairs + Fraction(10**8, 2**64))
    )
    with pytest.raises(ValueError, match="declare fewer users and items"):
        short_looks_plan(max_items=10**15)


def test_the_sampling_share_pays_for_each_look_of_a_purse_and_for_the_items_that_nobody_holds() -> None:
    for domain, windows in ((None, 0), (DOMAIN, 384)):
        plan = short_looks_plan(domain=domain)
        reach = math.ceil(plan.scale * 89.0 ** (1 / plan.shape)) + 2
        units = 20 * (8 * reach + 4) + windows * (3 * 1000 + 2)
        needed = float((1 + mpmath.exp(2)) * units / mpmath.mpf(2) ** 128)
        assert dataclasses.replace(plan, delta_sampling=needed * (1 + 1e-9))
        with pytest.raises(ValueError, match="delta_sampling must be >="):
            dataclasses.replace(plan, delta_sampling=needed * (1 - 1e-9))
        assert needed <= plan.delta_sampling < 1e-25


def test_known_items_have_a_threshold_that_noise_alone_rarely_reaches() -> None:
    plan = short_looks_plan()
    assert tail(plan.noise, plan.known_threshold) <= 1e-5 < tail(plan.noise, plan.known_threshold - 1)
    assert plan.known_threshold < plan.threshold
    assert plan.known_error == pytest.approx(float(tail(plan.noise, plan.known_threshold)))
    rarer = short_looks_plan(known_error=1e-9)
    assert tail(rarer.noise, rarer.known_threshold) <= 1e-9 < tail(rarer.noise, rarer.known_threshold - 1)
    never_above = short_looks_plan(known_error=1e-25)
    assert never_above.known_threshold == never_above.threshold


def test_known_items_can_be_turned_off() -> None:
    plan = short_looks_plan(known_items=False)
    assert (plan.forget_after, plan.known_threshold) == (0, plan.threshold)
    assert plan.threshold == short_looks_plan().threshold
    assert plan.found_from(5, known=True) == plan.found_from(5)


def test_items_are_forgotten_within_the_horizon() -> None:
    assert short_looks_plan(forget_after=384).forget_after == 384
    assert short_looks_plan(forget_after=1).forget_after == 1
    day = WindowSchedule.fixed(0, 86_400, 3600)
    assert short_looks_plan(schedule=day).forget_after == 24


def test_in_a_known_domain_the_run_names_few_items_that_nobody_holds() -> None:
    plan = short_looks_plan(domain=DOMAIN)
    tests = 1000 * 384
    assert (plan.domain_size, plan.domain_fingerprint) == (1000, DOMAIN.fingerprint)
    assert tests * tail(plan.noise, plan.threshold) <= 0.05 < tests * tail(plan.noise, plan.threshold - 1)
    assert (plan.known_threshold, plan.forget_after) == (plan.threshold, 384)
    assert plan.expected_false_reports == pytest.approx(float(tests * tail(plan.noise, plan.threshold)))
    assert short_looks_plan().expected_false_reports == 0
    assert plan.found_from(5) < short_looks_plan().found_from(5), "nothing of delta goes to items with one holder"
    assert plan.delta_looks > short_looks_plan().delta_looks


def test_a_known_domain_with_another_rate_of_false_names() -> None:
    plan = short_looks_plan(domain=DOMAIN, known_error=1e-3)
    assert tail(plan.noise, plan.threshold) <= 1e-3 < tail(plan.noise, plan.threshold - 1)
    assert plan.expected_false_reports == pytest.approx(384, rel=1e-3)
    assert plan.found_from(5) < short_looks_plan(domain=DOMAIN).found_from(5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"size_error": 0.2}, {"size_error": 1e-6, "max_users": 10}, {"hits_per_user": 3}, {"domain": DOMAIN}],
)
def test_sizes_allow_for_no_more_noise_than_their_error_needs(changes: dict[str, Any]) -> None:
    """How many sizes are wrong where each user spends its purse in the worst way, and each sum that nobody is in."""
    plan = short_looks_plan(**changes)
    largest, each_user = plan.weights[-1], [*zip(plan.weights, plan.units, strict=True)]
    left = plan.purse - plan.hits_per_user * plan.hit_units
    looks = [(weight, Fraction(plan.purse, units)) for weight, units in each_user]
    looks += [(w, Fraction(left, units)) for w, units in zip(plan.hit_weights, plan.hit_look_units, strict=True)]
    most_unheld = 384 * plan.domain_size or 2 * plan.forget_after * plan.max_users * plan.most_looks

    def wrong(allowed: int) -> mpmath.mpf:
        worst = max(
            tail(plan.noise, allowed + 1 + 4 * (largest - weight)) * mpmath.mpf(number.numerator) / number.denominator
            for weight, number in looks
        )
        return plan.max_users * worst + most_unheld * tail(plan.noise, allowed + 1 + 4 * largest)

    assert wrong(plan.likely_noise) <= plan.size_error < wrong(plan.likely_noise - 1) * (1 + 1e-8)


def test_whatever_the_users_are_the_sizes_of_a_run_are_right_but_for_their_error() -> None:
    """Exact: the purses of all users, spent on items of n users that weigh w, for the n and w with most wrong sizes."""
    plan = short_looks_plan(size_error=0.05)
    wrong_before = mpmath.mpf(0)
    for threshold in (plan.threshold, plan.known_threshold):
        boundaries = threshold + plan.spacing * np.arange(40)
        stated = stated_users(boundaries, plan.likely_noise, plan.weights[-1])
        before = -(-(boundaries - plan.noise.smallest_margin(0.05) + 1) // plan.weights[-1])
        for users in (1, 2, 3, 4, 5, 8, 12, 20, 30, 50, 100):
            for weight, units in [*zip(plan.weights, plan.units, strict=True)][::-20]:
                items = mpmath.mpf(plan.max_users) * (plan.purse // units) / users
                for sizes in (stated, before):
                    first = boundaries[np.flatnonzero(sizes > users)[0]]
                    margin = int(first) - users * weight
                    wrong = items * (tail(plan.noise, margin) if margin > 0 else 1)
                    if sizes is stated:
                        assert wrong <= plan.size_error
                    else:
                        wrong_before = max(wrong, wrong_before)
    assert wrong_before > 1000, "with sizes that are right one by one"


def test_found_from_is_the_smallest_number_with_that_probability() -> None:
    plan = short_looks_plan()
    for looks, probability, known in ((1, 0.95, False), (7, 0.95, True), (20, 0.5, False), (3, 0.999, False)):
        users = plan.found_from(looks, probability, known=known)
        threshold = plan.known_threshold if known else plan.threshold
        weight = plan.prices.replay_weight(looks)
        assert math.exp(plan.noise.log_upper_tail_at((threshold - users * weight - 0.5) / plan.scale)) >= probability
        fewer = (threshold - (users - 1) * weight - 0.5) / plan.scale
        assert math.exp(plan.noise.log_upper_tail_at(fewer)) < probability


def test_of_more_looks_than_a_purse_pays_for_a_random_choice_counts() -> None:
    plan = short_looks_plan()
    assert plan.found_from(20) < plan.found_from(21)
    users, weight = plan.found_from(100), plan.weights[0]  # each counts with 1/5
    for number, is_found in ((users, True), (users - 1, False)):
        holders = np.arange(number + 1)
        found = np.exp(plan.noise.log_upper_tail(plan.threshold - holders * weight))
        assert (scipy.stats.binom.pmf(holders, number, 0.2) @ found >= 0.95) == is_found


def test_activity_that_is_declared_decides_the_noise() -> None:
    shapes = [looks_plan(usual_looks=usual).shape for usual in ((1, 2), (300, 3000))]
    assert shapes[0] < shapes[1]
    assert looks_plan(usual_looks=(300, 3000)).found_from(3000) < looks_plan().found_from(3000)
    assert looks_plan(usual_looks=(1, 2)).found_from(1) < looks_plan().found_from(1)
    assert short_looks_plan(most_looks=None, usual_looks=(4000, 4000)).most_looks == 4000
    assert short_looks_plan(usual_looks=(10, 1)) == short_looks_plan()
    assert short_looks_plan(usual_looks=None, most_looks=5).usual_looks == (1, 5)


def test_a_large_epsilon_pays_for_no_weight_that_passes_two_boundaries_at_once() -> None:
    """A weight has to be less than the spacing of levels: a search over weights tries larger ones."""
    plan = looks_plan(epsilon=40.0, delta=0.5)
    assert plan.spacing / 3 < plan.weights[-1] <= plan.spacing
    assert plan.found_from(1) <= 3
    with pytest.raises(ValueError, match="weight 32593 costs 1000000000001 units"):
        LooksPlan.from_json(changed_plan(plan, weights=[*plan.weights[:-1], plan.spacing + 1]))
    assert ReleasePlan.from_json(plan.to_json()) == plan


def test_a_small_epsilon_has_a_finer_grid() -> None:
    plan = short_looks_plan(epsilon=0.05, delta=1e-6, most_looks=3000)
    assert plan.scale > short_looks_plan().scale
    assert plan.weights[0] >= 8
    with pytest.raises(ValueError, match=r"too small to pay for most_looks = 100000 looks .* lower most_looks"):
        short_looks_plan(epsilon=0.02, delta=1e-6, most_looks=100_000)


def test_json_round_trip() -> None:
    for plan in (short_looks_plan(), short_looks_plan(domain=DOMAIN), short_looks_plan(known_items=False)):
        again = ReleasePlan.from_json(plan.to_json())
        assert again == plan
        assert isinstance(again, LooksPlan)
        assert again.fingerprint == plan.fingerprint
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
        assert hash(again) == hash(plan)
    assert short_looks_plan().fingerprint != short_looks_plan(known_items=False).fingerprint
    assert len(short_looks_plan().to_json().splitlines()) < 50, "a price list has two lines"


def test_each_class_reads_its_own_plans() -> None:
    assert HitsPlan.from_json(LABELS.to_json()) == LABELS
    assert LooksPlan.from_json(short_looks_plan().to_json()) == short_looks_plan()
    with pytest.raises(ValueError, match=r"the plan is a HitsPlan, not a LooksPlan\. Use ReleasePlan\.from_json"):
        LooksPlan.from_json(LABELS.to_json())
    with pytest.raises(ValueError, match="the plan is a LooksPlan, not a HitsPlan"):
        HitsPlan.from_json(short_looks_plan().to_json())


def test_a_plan_in_a_known_domain_follows_every_item_for_ever() -> None:
    plan = short_looks_plan(domain=DOMAIN)
    for change in ({"forget_after": 168}, {"known_threshold": plan.threshold - 1}):
        with pytest.raises(ValueError, match="every item is known"):
            dataclasses.replace(plan, **change)
    with pytest.raises(ValueError, match="delta_open must be 0 in a known domain"):
        dataclasses.replace(plan, delta_open=1e-10)
    with pytest.raises(ValueError, match="would publish about 500 items that nobody holds"):
        looks_plan(most_looks=20, usual_looks=(1, 10), domain=DOMAIN, known_error=0.5, schedule=LONG)


def test_a_longer_schedule_needs_no_other_plan() -> None:
    """What a purse pays for does not depend on the number of windows, in an open domain."""
    longer = WindowSchedule.fixed(HOURLY.start_seconds, HOURLY.start_seconds + 5000 * 3600, 3600)
    plan = ReleasePlan.from_json(changed_plan(short_looks_plan(), schedule=dataclasses.asdict(longer)))
    assert plan.threshold == short_looks_plan().threshold
    assert plan == short_looks_plan(schedule=longer)


def test_the_default_mode_is_names_and_a_class_makes_its_own_modes() -> None:
    small = {"usual_looks": (1, 10), "most_looks": 20, "max_users": 10**6, "max_items": 10**6}
    plan = ReleasePlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, **small)  # type: ignore[arg-type]
    assert plan == LooksPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, **small)  # type: ignore[arg-type]
    assert isinstance(plan, LooksPlan)
    assert HitsPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY) == LABELS
    assert MODES == ("hits", "hits-with-counts", "kms21", "looks")
    for plan in (LABELS, COUNTS, short_looks_plan()):
        assert isinstance(plan, ReleasePlan)
    with pytest.raises(ValueError, match="mode must be one of a LooksPlan, got 'hits'"):
        LooksPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, mode="hits")
    with pytest.raises(ValueError, match="mode must be one of a HitsPlan, got 'looks'"):
        HitsPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, mode="looks")
    with pytest.raises(TypeError):
        ReleasePlan()  # type: ignore[abstract]


def test_a_looks_plan_says_what_it_promises() -> None:
    assert short_looks_plan().guarantee == LABELS.guarantee
    assert short_looks_plan(domain=DOMAIN).guarantee.endswith("not made from the log.")


def test_workers_see_the_numbers_of_the_plan() -> None:
    plan = short_looks_plan()
    settings = settings_of_plan(plan, stream="news", run_id="run-1")
    for field in dataclasses.fields(settings):
        if hasattr(plan, field.name):
            assert getattr(settings, field.name) == getattr(plan, field.name), field.name
    own = {"stream": "news", "run_id": "run-1", "plan_fingerprint": plan.fingerprint, "epsilon_total": 2.0}
    for name, value in own.items():
        assert getattr(settings, name) == value
    assert {field.name for field in dataclasses.fields(settings) if not hasattr(plan, field.name)} == set(own)
    charged = settings_of_plan(LABELS, stream="news", run_id="run-1")
    assert (charged.mode, charged.hits_per_user) == ("hits", 3)


def test_the_fields_in_json_are_plain() -> None:
    fields = json.loads(short_looks_plan().to_json())
    assert fields["format_version"] == 3
    assert fields["weights"] == list(short_looks_plan().weights)
    assert fields["usual_looks"] == [1, 10]
