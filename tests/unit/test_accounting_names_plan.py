"""NamesPlan: calibration, what each field promises, what is refused, and the round trip through JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pickle
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats

from dp_transforms.accounting.charging_plan import ChargingPlan
from dp_transforms.accounting.names_plan import NamesPlan
from dp_transforms.accounting.purse.open_threshold import smallest_open_threshold
from dp_transforms.accounting.release_plan import RELEASES, ReleasePlan
from dp_transforms.exponential_power import ExponentialPower
from dp_transforms.run_settings import settings_of_plan
from dp_transforms.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import COUNTS, DOMAIN, HOURLY, LABELS
from tests.helpers.plan_files import changed_plan


@functools.cache
def names_plan(**changes: Any) -> NamesPlan:
    """epsilon 2 and delta 1e-9 over `HOURLY`, except for the changes. A small scale would hide rounding."""
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-9, "schedule": HOURLY, **changes}
    return NamesPlan.calibrate(release="names", **options)


# Few weights, so that the many constructions below are quick.
@functools.cache
def small_plan(**changes: Any) -> NamesPlan:
    return names_plan(**{"most_looks": 20, "usual_looks": (1, 10), **changes})


LONG = WindowSchedule.fixed(0, 10**8, 1000)


def tail(noise: ExponentialPower, margin: int) -> mpmath.mpf:
    """``Pr[Z >= margin]`` with 40 digits, for margin >= 1."""
    with mpmath.workdps(40):
        at = (mpmath.mpf(margin) - mpmath.mpf(1) / 2) / noise.scale
        order = 1 / mpmath.mpf(noise.shape)
        return mpmath.gammainc(order, at**noise.shape, regularized=True) / 2


def test_hourly_example() -> None:
    plan = names_plan()
    assert (plan.release, plan.usual_looks, plan.most_looks) == ("names", (1, 1000), 3000)
    assert plan.schedule.horizon == 384
    assert [plan.found_from(looks) for looks in (1, 10, 100, 1000)] == [36, 68, 170, 501]
    assert [plan.found_from(looks, known=True) for looks in (1, 10, 100, 1000)] == [27, 51, 126, 372]
    assert plan.forget_after == 168
    assert plan.purse // plan.units[0] == plan.most_looks
    assert plan.spacing >= 5.5 * plan.noise.standard_deviation


@pytest.mark.parametrize("changes", [{}, {"epsilon": 0.5, "delta": 1e-7}, {"domain": DOMAIN}, {"known_items": False}])
def test_the_shares_add_up_and_nothing_is_wasted(changes: dict[str, Any]) -> None:
    plan = small_plan(**changes)
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
    """docs/purse.md section 7: every pair of items, and not those of one user's looks alone."""
    needed = Fraction(10**8, 2**64) + Fraction(10**9 * 10**9, 2**128)
    assert float(needed) == pytest.approx(small_plan().delta_hash, rel=1e-12)
    many = 10**13
    pairs = Fraction(many * many, 2**128)
    assert small_plan(max_items=many, delta=1e-6).delta_hash == pytest.approx(float(pairs + Fraction(10**8, 2**64)))
    with pytest.raises(ValueError, match="declare fewer users and items"):
        small_plan(max_items=10**15)


def test_the_sampling_share_pays_for_each_look_of_a_purse_and_for_the_items_that_nobody_holds() -> None:
    for domain, windows in ((None, 0), (DOMAIN, 384)):
        plan = small_plan(domain=domain)
        reach = math.ceil(plan.scale * 89.0 ** (1 / plan.shape)) + 2
        units = 20 * (8 * reach + 4) + windows * (3 * 1000 + 2)
        needed = float((1 + mpmath.exp(2)) * units / mpmath.mpf(2) ** 128)
        assert dataclasses.replace(plan, delta_sampling=needed * (1 + 1e-9))
        with pytest.raises(ValueError, match="delta_sampling must be >="):
            dataclasses.replace(plan, delta_sampling=needed * (1 - 1e-9))
        assert needed <= plan.delta_sampling < 1e-25


def test_known_items_have_a_threshold_that_noise_alone_rarely_reaches() -> None:
    plan = small_plan()
    assert tail(plan.noise, plan.known_threshold) <= 1e-5 < tail(plan.noise, plan.known_threshold - 1)
    assert plan.known_threshold < plan.threshold
    assert plan.known_error == pytest.approx(float(tail(plan.noise, plan.known_threshold)))
    rarer = small_plan(known_error=1e-9)
    assert tail(rarer.noise, rarer.known_threshold) <= 1e-9 < tail(rarer.noise, rarer.known_threshold - 1)
    never_above = small_plan(known_error=1e-25)
    assert never_above.known_threshold == never_above.threshold


def test_known_items_can_be_turned_off() -> None:
    plan = small_plan(known_items=False)
    assert (plan.forget_after, plan.known_threshold) == (0, plan.threshold)
    assert plan.threshold == small_plan().threshold
    assert plan.found_from(5, known=True) == plan.found_from(5)


def test_items_are_forgotten_within_the_horizon() -> None:
    assert small_plan(forget_after=384).forget_after == 384
    assert small_plan(forget_after=1).forget_after == 1
    day = WindowSchedule.fixed(0, 86_400, 3600)
    assert small_plan(schedule=day).forget_after == 24


def test_in_a_known_domain_the_run_names_few_items_that_nobody_holds() -> None:
    plan = small_plan(domain=DOMAIN)
    tests = 1000 * 384
    assert (plan.domain_size, plan.domain_fingerprint) == (1000, DOMAIN.fingerprint)
    assert tests * tail(plan.noise, plan.threshold) <= 0.05 < tests * tail(plan.noise, plan.threshold - 1)
    assert (plan.known_threshold, plan.forget_after) == (plan.threshold, 384)
    assert plan.expected_false_reports == pytest.approx(float(tests * tail(plan.noise, plan.threshold)))
    assert small_plan().expected_false_reports == 0
    assert plan.found_from(5) < small_plan().found_from(5), "nothing of delta goes to items with one holder"
    assert plan.delta_looks > small_plan().delta_looks


def test_a_known_domain_with_another_rate_of_false_names() -> None:
    plan = small_plan(domain=DOMAIN, known_error=1e-3)
    assert tail(plan.noise, plan.threshold) <= 1e-3 < tail(plan.noise, plan.threshold - 1)
    assert plan.expected_false_reports == pytest.approx(384, rel=1e-3)
    assert plan.found_from(5) < small_plan(domain=DOMAIN).found_from(5)


def test_likely_noise_is_a_quantile() -> None:
    for size_error in (0.01, 0.2, 1e-6):
        plan = small_plan(size_error=size_error)
        assert tail(plan.noise, plan.likely_noise + 1) <= size_error < tail(plan.noise, plan.likely_noise)


def test_found_from_is_the_smallest_number_with_that_probability() -> None:
    plan = small_plan()
    for looks, probability, known in ((1, 0.95, False), (7, 0.95, True), (20, 0.5, False), (3, 0.999, False)):
        users = plan.found_from(looks, probability, known=known)
        threshold = plan.known_threshold if known else plan.threshold
        weight = plan.prices.replay_weight(looks)
        assert math.exp(plan.noise.log_upper_tail_at((threshold - users * weight - 0.5) / plan.scale)) >= probability
        fewer = (threshold - (users - 1) * weight - 0.5) / plan.scale
        assert math.exp(plan.noise.log_upper_tail_at(fewer)) < probability


def test_of_more_looks_than_a_purse_pays_for_a_random_choice_counts() -> None:
    plan = small_plan()
    assert plan.found_from(20) < plan.found_from(21)
    users, weight = plan.found_from(100), plan.weights[0]  # each counts with 1/5
    for number, is_found in ((users, True), (users - 1, False)):
        holders = np.arange(number + 1)
        found = np.exp(plan.noise.log_upper_tail(plan.threshold - holders * weight))
        assert (scipy.stats.binom.pmf(holders, number, 0.2) @ found >= 0.95) == is_found


@pytest.mark.long
def test_activity_that_is_declared_decides_the_noise() -> None:
    shapes = [names_plan(usual_looks=usual).shape for usual in ((1, 2), (300, 3000))]
    assert shapes[0] < shapes[1]
    assert names_plan(usual_looks=(300, 3000)).found_from(3000) < names_plan().found_from(3000)
    assert names_plan(usual_looks=(1, 2)).found_from(1) < names_plan().found_from(1)
    assert small_plan(most_looks=None, usual_looks=(4000, 4000)).most_looks == 4000
    assert small_plan(usual_looks=(10, 1)) == small_plan()
    assert small_plan(usual_looks=None, most_looks=5).usual_looks == (1, 5)


def test_a_large_epsilon_pays_for_no_weight_that_passes_two_boundaries_at_once() -> None:
    """A weight has to be less than the spacing of levels: a search over weights tries larger ones."""
    plan = names_plan(epsilon=40.0, delta=0.5)
    assert plan.spacing / 3 < plan.weights[-1] <= plan.spacing
    assert plan.found_from(1) <= 3
    with pytest.raises(ValueError, match="weight 32593 costs 1000000000001 units"):
        NamesPlan.from_json(changed_plan(plan, weights=[*plan.weights[:-1], plan.spacing + 1]))
    assert ReleasePlan.from_json(plan.to_json()) == plan


@pytest.mark.long
def test_a_small_epsilon_has_a_finer_grid() -> None:
    plan = small_plan(epsilon=0.05, delta=1e-6, most_looks=3000)
    assert plan.scale > small_plan().scale
    assert plan.weights[0] >= 8
    with pytest.raises(ValueError, match=r"too small to pay for most_looks = 100000 looks .* lower most_looks"):
        small_plan(epsilon=0.02, delta=1e-6, most_looks=100_000)


def test_json_round_trip() -> None:
    for plan in (small_plan(), small_plan(domain=DOMAIN), small_plan(known_items=False)):
        again = ReleasePlan.from_json(plan.to_json())
        assert again == plan
        assert isinstance(again, NamesPlan)
        assert again.fingerprint == plan.fingerprint
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
        assert hash(again) == hash(plan)
    assert small_plan().fingerprint != small_plan(known_items=False).fingerprint
    assert len(small_plan().to_json().splitlines()) < 50, "a price list has two lines"


def test_each_class_reads_its_own_plans() -> None:
    assert ChargingPlan.from_json(LABELS.to_json()) == LABELS
    assert NamesPlan.from_json(small_plan().to_json()) == small_plan()
    with pytest.raises(ValueError, match=r"the plan is a ChargingPlan, not a NamesPlan\. Use ReleasePlan\.from_json"):
        NamesPlan.from_json(LABELS.to_json())
    with pytest.raises(ValueError, match="the plan is a NamesPlan, not a ChargingPlan"):
        ChargingPlan.from_json(small_plan().to_json())


def _less(values: tuple[int, ...], at: int) -> list[int]:
    return [value - (index == at) for index, value in enumerate(values)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: {"epsilon": 1.9}, "budget must be at most"),
        (lambda p: {"delta_looks": p.delta_looks * 0.99}, "budget must be at most"),
        (lambda p: {"order": p.order * 1.01}, "weight .* costs|budget must be at most"),
        (lambda p: {"order": p.order * 0.9}, "budget must be at most"),
        (lambda p: {"budget": p.budget * 1.01}, "budget must be at most"),
        (lambda p: {"budget": p.budget * 0.99}, "weight .* costs"),
        (lambda p: {"shape": 2.0}, "weight .* costs|spacing"),
        (lambda p: {"scale": p.scale - 100}, "weight .* costs"),
        (lambda p: {"weights": [w + 50 for w in p.weights]}, "weight .* costs"),
        (lambda p: {"units": [max(1, u - 10**9) for u in p.units]}, "weight .* costs|must rise|most_looks must be"),
        (lambda p: {"weights": list(reversed(p.weights))}, "weights must rise"),
        (lambda p: {"weights": p.weights[1:]}, "weights and units must have one length"),
        (lambda p: {"weights": p.weights[1:], "units": p.units[1:]}, "most_looks must be"),
        (lambda p: {"weights": [], "units": []}, "weights and units must have one length >= 1"),
        (lambda p: {"weights": [1.5, *p.weights[1:]]}, "each of weights must be a whole number"),
        (lambda p: {"weights": [[1], *p.weights[1:]]}, "each of weights must be a whole number"),
        (lambda p: {"weights": "123"}, "weights must be at most 1,000 whole numbers"),
        (lambda p: {"weights": list(range(1, 1002))}, "weights must be at most 1,000 whole numbers"),
        (lambda p: {"units": {"a": 1}}, "units must be at most 1,000 whole numbers"),
        (lambda p: {"spacing": round(4 * p.noise.standard_deviation)}, "weight .* costs"),
        (lambda p: {"spacing": 0}, "spacing must be a whole number >= 1"),
        (lambda p: {"threshold": p.threshold - 1}, f"threshold must be >= {small_plan().threshold}"),
        (lambda p: {"delta_open": p.delta_open * 0.99}, "threshold must be >="),
        (lambda p: {"delta_open": p.delta_open * 1.01}, "shares of delta must add up"),
        (lambda p: {"delta_open": 0.0}, "delta_open must lie strictly"),
        (lambda p: {"delta_hash": p.delta_hash / 2}, "delta_hash must be >="),
        (lambda p: {"max_users": 10**9}, "delta_hash must be >="),
        (lambda p: {"max_items": 10**13}, "delta_hash must be >="),
        (lambda p: {"delta_sampling": 1e-40}, "delta_sampling must be >="),
        (lambda p: {"most_looks": 19}, "most_looks must be 20"),
        (lambda p: {"most_looks": 10**6}, "most_looks must be a whole number in 1 .. 100000"),
        (lambda p: {"usual_looks": [1, 21]}, "each of usual_looks"),
        (lambda p: {"usual_looks": [10, 1]}, "usual_looks must rise"),
        (lambda p: {"usual_looks": 5}, "usual_looks must be"),
        (lambda p: {"known_threshold": p.threshold + 1}, "known_threshold must be at most the threshold"),
        (lambda p: {"known_threshold": 0}, "known_threshold must be a whole number >= 1"),
        (lambda p: {"known_threshold": 1}, "noise would name an item that nobody holds again and again"),
        (lambda p: {"forget_after": 385}, r"forget_after must be a whole number in 0 \.\. 384"),
        (lambda p: {"forget_after": 0}, "known_threshold must be the threshold where forget_after is 0"),
        (lambda p: {"size_error": 0.6}, "size_error must lie in"),
        (lambda p: {"size_error": 0.0}, "size_error must lie in"),
        (lambda p: {"shape": 5.0}, "shape must lie in"),
        (lambda p: {"scale": 10**7}, "scale must be a whole number in"),
        (lambda p: {"domain_size": 10, "domain_fingerprint": "ab" * 32}, "in a known domain forget_after"),
        (lambda p: {"domain_fingerprint": "ab" * 32}, "domain_fingerprint must be"),
        (lambda p: {"release": "labels"}, "missing or unknown fields"),
        (lambda p: {"release": "name"}, "release must be one of labels, counts, kms21, names"),
        (lambda p: {"epsilon": math.nan}, "NaN or an infinity"),
        (lambda p: {"shape": "2.5"}, "shape must be a number"),
        (lambda p: {"weights_per_user": 3}, "missing or unknown fields: weights_per_user"),
        (lambda p: {"hits_per_user": -1}, "hits_per_user must be a whole number in 0"),
        (lambda p: {"hit_units": 1}, "hit_units must be 0 where hits_per_user is 0"),
        (lambda p: {"hit_units": False}, "hit_units must be a whole number"),
        (lambda p: {"count_units": 0.0}, "count_units must be a whole number"),
        (lambda p: {"hits_from": 1}, "hits_from must be 0 where hits_per_user is 0"),
        (lambda p: {"hit_weights": [1]}, r"hit_weights must be \(\) where hits_per_user is 0"),
        (lambda p: {"hit_look_units": [1]}, r"hit_look_units must be \(\) where hits_per_user is 0"),
        (lambda p: {"hits_per_user": 1}, "hit_units must be a whole number >= 1"),
    ],
)
def test_a_tampered_plan_is_refused(change: Any, said: str) -> None:
    plan = small_plan()
    with pytest.raises(ValueError, match=said) as caught:
        ReleasePlan.from_json(changed_plan(plan, **change(plan)))
    assert len(str(caught.value)) < 1000


def test_a_plan_in_a_known_domain_follows_every_item_for_ever() -> None:
    plan = small_plan(domain=DOMAIN)
    for change in ({"forget_after": 168}, {"known_threshold": plan.threshold - 1}):
        with pytest.raises(ValueError, match="every item is known"):
            dataclasses.replace(plan, **change)
    with pytest.raises(ValueError, match="delta_open must be 0 in a known domain"):
        dataclasses.replace(plan, delta_open=1e-10)
    with pytest.raises(ValueError, match="would publish about 500 items that nobody holds"):
        names_plan(most_looks=20, usual_looks=(1, 10), domain=DOMAIN, known_error=0.5, schedule=LONG)


def test_a_longer_schedule_needs_no_other_plan() -> None:
    """What a purse pays for does not depend on the number of windows, in an open domain."""
    longer = WindowSchedule.fixed(HOURLY.start_seconds, HOURLY.start_seconds + 5000 * 3600, 3600)
    plan = ReleasePlan.from_json(changed_plan(small_plan(), schedule=longer.to_dict()))
    assert plan.threshold == small_plan().threshold
    assert plan == small_plan(schedule=longer)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"hits_per_user": -1}, r"hits_per_user must be a whole number in 0 \.\. 3000, got -1"),
        ({"hits_per_user": 3001}, r"hits_per_user must be a whole number in 0 \.\. 3000"),
        ({"max_items_per_user": 3}, "max_items_per_user cannot be used with release 'names'"),
        ({"threshold": 500}, "threshold cannot be used with release 'names'"),
        ({"accountant": "game"}, "accountant cannot be used with release 'names'"),
        ({"usual_looks": 100}, "usual_looks must be a pair"),
        ({"usual_looks": (0, 10)}, "each of usual_looks must be a whole number in 1 .. 3000, got 0"),
        ({"usual_looks": ("a", "b")}, "each of usual_looks"),
        ({"most_looks": 0}, "most_looks must be a whole number"),
        ({"most_looks": 5, "usual_looks": (1, 9)}, r"each of usual_looks must be a whole number in 1 \.\. 5, got 9"),
        ({"known_items": 0}, "known_items must be True or False"),
        ({"known_items": False, "forget_after": 5}, "forget_after cannot be used with known_items=False"),
        ({"known_items": False, "known_error": 1e-5}, "known_error cannot be used with known_items=False"),
        ({"forget_after": 0}, r"forget_after must be a whole number in 1 \.\. 384"),
        ({"forget_after": 385}, r"forget_after must be a whole number in 1 \.\. 384"),
        ({"known_error": 0.0}, "known_error must lie in"),
        ({"known_error": 0.01}, "again and again"),
        ({"size_error": 1.0}, "size_error must lie in"),
        ({"domain": DOMAIN, "known_items": False}, "known_items=False cannot be used with a known domain"),
        ({"domain": DOMAIN, "forget_after": 5}, "forget_after cannot be used with a known domain"),
        ({"domain": DOMAIN, "max_items": 999}, "max_items must be >= 1000"),
        ({"epsilon": 41.0}, "epsilon must be > 0 and at most 40"),
        ({"epsilon": 1e-9}, "too small"),
        ({"delta": 1e-12}, "delta must be > 5.42e-12, the share that hash collisions and sampling take"),
    ],
)
def test_bad_choices_are_refused(choices: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        names_plan.__wrapped__(**choices)


@pytest.mark.parametrize("release", ["labels", "counts", "kms21"])
@pytest.mark.parametrize(
    "choice", ["usual_looks", "most_looks", "known_items", "forget_after", "known_error", "size_error"]
)
def test_choices_of_names_are_refused_in_other_modes(release: str, choice: str) -> None:
    with pytest.raises(ValueError, match=f"{choice} cannot be used with release '{release}': it belongs to names"):
        ReleasePlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, release=release, **{choice: 1})  # type: ignore[arg-type]


def test_the_default_mode_is_names_and_a_class_makes_its_own_modes() -> None:
    small = {"usual_looks": (1, 10), "most_looks": 20, "max_users": 10**6, "max_items": 10**6}
    plan = ReleasePlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, **small)  # type: ignore[arg-type]
    assert plan == NamesPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, **small)  # type: ignore[arg-type]
    assert isinstance(plan, NamesPlan)
    assert ChargingPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY) == LABELS
    assert RELEASES == ("labels", "counts", "kms21", "names")
    for plan in (LABELS, COUNTS, small_plan()):
        assert isinstance(plan, ReleasePlan)
    with pytest.raises(ValueError, match="release must be one of a NamesPlan, got 'labels'"):
        NamesPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, release="labels")
    with pytest.raises(ValueError, match="release must be one of a ChargingPlan, got 'names'"):
        ChargingPlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, release="names")
    with pytest.raises(TypeError):
        ReleasePlan()  # type: ignore[abstract]


def test_a_stored_plan_without_a_release_is_no_plan_of_the_default_mode() -> None:
    """It is read as labels, as before names was the default, and so misses its release."""
    fields = {name: value for name, value in json.loads(LABELS.to_json()).items() if name != "release"}
    with pytest.raises(ValueError, match="missing or unknown fields: release"):
        ReleasePlan.from_json(json.dumps(fields))
    assert ReleasePlan.from_json(LABELS.to_json()) == LABELS


def test_a_names_plan_says_what_it_promises() -> None:
    assert small_plan().guarantee == LABELS.guarantee
    assert small_plan(domain=DOMAIN).guarantee.endswith("not made from the log.")


def test_workers_see_the_numbers_of_the_plan() -> None:
    plan = small_plan()
    settings = settings_of_plan(plan, stream="news", run_id="run-1")
    for field in dataclasses.fields(settings):
        if hasattr(plan, field.name):
            assert getattr(settings, field.name) == getattr(plan, field.name), field.name
    own = {"stream": "news", "run_id": "run-1", "plan_fingerprint": plan.fingerprint, "epsilon_total": 2.0}
    for name, value in own.items():
        assert getattr(settings, name) == value
    assert {field.name for field in dataclasses.fields(settings) if not hasattr(plan, field.name)} == set(own)
    charged = settings_of_plan(LABELS, stream="news", run_id="run-1")
    assert (charged.release, charged.hits_per_user) == ("labels", 3)


def test_the_fields_in_json_are_plain() -> None:
    fields = json.loads(small_plan().to_json())
    assert fields["format_version"] == 3
    assert fields["weights"] == list(small_plan().weights)
    assert fields["usual_looks"] == [1, 10]
