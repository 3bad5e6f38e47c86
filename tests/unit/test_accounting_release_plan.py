"""ReleasePlan: calibration, safe rounding, what is refused, and the round trip through JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pickle
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest

from dp_transforms.accounting.charging_game import GameAccountant, charging_game_delta
from dp_transforms.accounting.release_modes import RELEASE_MODES, NoiseParameters, smallest_safe_threshold
from dp_transforms.mechanisms.discrete_laplace_law import upper_tail
from dp_transforms.plan.release_plan import ReleasePlan
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.calibrated_plans import COUNTS, DOMAIN, IN_DOMAIN, KMS21, LABELS, START, calibrated_plan
from tests.helpers.plan_files import changed_plan


def test_hourly_example() -> None:
    assert LABELS.schedule.horizon == 384
    assert (LABELS.mode, LABELS.hits_per_user, LABELS.max_items_per_user) == ("hits", 3, 3)
    assert LABELS.noise_scale == pytest.approx(17.58, abs=0.01)
    assert (LABELS.threshold, LABELS.zone_width) == (490, 36)
    assert (COUNTS.hits_per_user, COUNTS.zone_width, COUNTS.threshold) == (10, 0, 620)
    assert COUNTS.noise_scale == pytest.approx(22.26, abs=0.01)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts"])
@pytest.mark.parametrize("accountant", ["game", "exact_tail", "closed_form"])
@pytest.mark.parametrize(("epsilon", "delta", "hits"), [(0.3, 1e-6, 1), (1.0, 1e-9, 7), (8.0, 1e-10, 40)])
def test_every_share_is_kept_and_nothing_is_wasted(
    mode: str, accountant: str, epsilon: float, delta: float, hits: int
) -> None:
    plan = calibrated_plan(epsilon=epsilon, delta=delta, hits_per_user=hits, mode=mode, accountant=accountant)
    shares = (plan.delta_accounting, plan.delta_open, plan.delta_sampling, plan.delta_hash)
    assert delta * (1 - 1e-9) <= math.fsum(shares) <= delta
    mode = RELEASE_MODES[mode]
    proved = mode.accountant(accountant, plan.noise, hits).delta(epsilon)
    assert 0.98 * plan.delta_accounting <= proved <= plan.delta_accounting or mode == "hits"
    assert proved <= plan.delta_accounting
    # One step in the sixth digit less noise would break it.
    step = 10.0 ** (math.floor(math.log10(plan.epsilon_per_query)) - 4)
    less_noise = NoiseParameters(plan.epsilon_per_query + step)
    assert mode.accountant(accountant, less_noise, hits).delta(epsilon) > plan.delta_accounting
    queries = 3 * 384
    assert queries * upper_tail(plan.epsilon_per_query, plan.threshold - 1) <= plan.delta_open
    assert queries * upper_tail(plan.epsilon_per_query, plan.threshold - 2) > plan.delta_open


@pytest.mark.parametrize("epsilon_per_query", [0.003, 0.05, 0.7, 3.0])
@pytest.mark.parametrize("delta_open", [1e-3, 1e-10, 0.9])
def test_smallest_safe_threshold(epsilon_per_query: float, delta_open: float) -> None:
    threshold = smallest_safe_threshold(NoiseParameters(epsilon_per_query), 50, delta_open)
    assert 50 * upper_tail(epsilon_per_query, threshold - 1) <= delta_open
    assert threshold == 1 or 50 * upper_tail(epsilon_per_query, threshold - 2) > delta_open


def test_threshold_by_choice() -> None:
    with pytest.raises(ValueError, match=r"threshold must be >= 490, .* got 489\. Use 490"):
        calibrated_plan(threshold=489)
    assert calibrated_plan(threshold=490) == LABELS
    higher = calibrated_plan(threshold=1000)
    assert higher.threshold == 1000
    assert higher.delta_open < LABELS.delta_open / 1000
    assert higher.epsilon_per_query > LABELS.epsilon_per_query  # the freed share buys less noise


def test_sliding_windows_count_each() -> None:
    sliding = WindowSchedule(START, START + 384 * 3600, 3600, 900)
    plan = calibrated_plan(schedule=sliding)
    assert plan.queries_per_user == 3 * (384 * 4 + 3)
    assert plan.threshold > LABELS.threshold
    assert f"{sliding.horizon:,} windows" in plan.guarantee


def test_more_budget_never_means_more_noise() -> None:
    scales = [calibrated_plan(epsilon=e).noise_scale for e in (0.5, 1.0, 2.0, 4.0, 8.0)]
    assert scales == sorted(scales, reverse=True)
    scales = [calibrated_plan(delta=d).noise_scale for d in (1e-10, 1e-9, 1e-7, 1e-4)]
    assert scales == sorted(scales, reverse=True)
    scales = [calibrated_plan(hits_per_user=h).noise_scale for h in (1, 2, 5, 20)]
    assert scales == sorted(scales)
    thresholds = [calibrated_plan(max_items_per_user=items).threshold for items in (1, 3, 10, 100)]
    assert thresholds == sorted(thresholds)
    scales = [calibrated_plan(accountant=a).noise_scale for a in ("game", "exact_tail", "closed_form")]
    assert scales == sorted(scales)


def test_smallest_detectable() -> None:
    for plan in (LABELS, COUNTS):
        for probability in (1e-6, 0.3, 0.5, 0.51, 0.95, 0.999999):
            count = plan.smallest_detectable(probability)
            assert upper_tail(plan.epsilon_per_query, plan.threshold - count) >= probability * (1 - 1e-9)
            assert upper_tail(plan.epsilon_per_query, plan.threshold - (count - 1)) < probability * (1 + 1e-9)
    assert LABELS.smallest_detectable() == LABELS.smallest_detectable(0.95) == 530
    for probability in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="probability must lie strictly"):
            LABELS.smallest_detectable(probability)


@pytest.mark.parametrize(
    "plan",
    [LABELS, COUNTS, calibrated_plan(hits_per_user=40, accountant="closed_form"), calibrated_plan(hits_per_user=1)],
)
def test_epsilon_after_hits(plan: ReleasePlan) -> None:
    running = plan.epsilon_after_hits
    assert len(running) == plan.hits_per_user
    assert all(a <= b for a, b in itertools.pairwise(running))
    assert running[-1] <= plan.epsilon
    for hits in {1, 2, plan.hits_per_user // 2, plan.hits_per_user}:
        if not 1 <= hits <= plan.hits_per_user:
            continue
        q = RELEASE_MODES[plan.mode].target_probability(plan.epsilon_per_query)  # type: ignore[attr-defined]
        delta = charging_game_delta(plan.epsilon_per_query, q, hits, running[hits - 1])
        assert delta <= plan.delta_accounting * (1 + 1e-9)
        exact = GameAccountant(plan.epsilon_per_query, q, hits).epsilon(plan.delta_accounting)
        assert running[hits - 1] == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize("accountant", ["game", "closed_form"])
def test_epsilon_after_hits_where_delta_alone_covers_the_first(accountant: str) -> None:
    plan = calibrated_plan(epsilon=0.05, delta=0.3, hits_per_user=20, accountant=accountant)
    running = plan.epsilon_after_hits
    assert len(running) == 20
    assert 0 < running[0] <= running[-1] <= plan.epsilon


def test_json_round_trip() -> None:
    for plan in (
        LABELS,
        COUNTS,
        KMS21,
        IN_DOMAIN,
        calibrated_plan(threshold=600),
        calibrated_plan(accountant="exact_tail"),
    ):
        again = ReleasePlan.from_json(plan.to_json())
        assert again == plan
        assert again.fingerprint == plan.fingerprint
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301
    assert len(LABELS.fingerprint) == 64
    assert LABELS.fingerprint != COUNTS.fingerprint
    assert calibrated_plan(epsilon=2).fingerprint == LABELS.fingerprint
    LABELS.epsilon_after_hits  # noqa: B018 - a cached value is not part of the plan
    assert ReleasePlan.from_json(LABELS.to_json()) == LABELS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon_per_query": LABELS.epsilon_per_query * 1.01, "zone_width": 35}, "too little noise"),
        ({"epsilon": 1.9}, "too little noise"),
        ({"hits_per_user": 4}, "too little noise"),
        ({"accountant": "closed_form"}, "too little noise"),
        ({"mode": "hits-with-counts"}, "zone_width must be 0"),
        ({"zone_width": 35}, "zone_width must be 36"),
        ({"threshold": 489}, "threshold must be >= 490"),
        ({"max_items_per_user": 4}, "threshold must be >="),
        ({"delta": 9e-10}, "shares of delta must add up"),
        ({"delta_open": LABELS.delta_open * 1.5}, "shares of delta must add up"),
        ({"delta_hash": LABELS.delta_hash / 2}, "delta_hash must be >="),
        ({"max_users": 10**9}, "delta_hash must be >="),
        ({"delta_sampling": 1e-40}, "delta_sampling must be >="),
        ({"delta_open": -1e-10}, "delta_open must lie strictly"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"epsilon": "2"}, "epsilon must be a number"),
        ({"epsilon_per_query": math.nan}, "the plan contains NaN or an infinity"),
        ({"delta": math.inf}, "the plan contains NaN or an infinity"),
        ({"threshold": 490.5}, "threshold must be a whole number"),
        ({"hits_per_user": True}, "hits_per_user must be a whole number"),
        ({"mode": "histogram"}, "mode must be one of"),
        ({"mode": ["hits"]}, "mode must be one of"),
        ({"accountant": None}, "accountant must be one of"),
        ({"format_version": 2}, "format_version 3"),
        ({"wide_epsilon_per_query": 1e-3}, "wide_epsilon_per_query and noise_cap must be 0"),
        ({"noise_cap": 5}, "wide_epsilon_per_query and noise_cap must be 0"),
        ({"mode": "kms21", "accountant": "threshold_monitor"}, "cap must be"),
        ({"domain_size": 10}, "domain_fingerprint must be the hex SHA-256"),
        ({"domain_fingerprint": "ab" * 32}, "domain_fingerprint must be the hex SHA-256"),
        ({"domain_size": 10, "domain_fingerprint": "ab" * 32}, "delta_open must be 0 in a known domain"),
        ({"delta_open": 0.0}, "delta_open must lie strictly"),
        ({"threshold": 10**400}, "threshold must be at most"),
        ({"max_users": 10**400}, "max_users must be at most"),
        ({"epsilon": 10**400}, "epsilon must be"),
        ({"surprise": 1}, "missing or unknown fields: surprise"),
        ({"schedule": {"start_seconds": 0}}, "schedule of the plan"),
        ({"schedule": None}, "schedule of the plan"),
    ],
)
def test_a_tampered_plan_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReleasePlan.from_json(changed_plan(LABELS, **changes))


def test_a_longer_schedule_is_refused() -> None:
    longer = WindowSchedule.fixed(START, START + 500 * 3600, 3600)
    with pytest.raises(ValueError, match="threshold must be >="):
        ReleasePlan.from_json(changed_plan(LABELS, schedule=dataclasses.asdict(longer)))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_items_per_user": 2},  # each of these keeps the promise, so that no other check would find it
        {"threshold": 491},
        {"max_users": 10},
        {"delta_open": LABELS.delta_open * (1 - 1e-12)},
        {"domain_fingerprint": LABELS.domain_fingerprint, "max_items": 10},
        {"fingerprint": COUNTS.fingerprint},
        {"fingerprint": None},
    ],
)
def test_a_plan_that_was_changed_by_hand_is_refused(changes: dict[str, Any]) -> None:
    if "fingerprint" not in changes:
        assert ReleasePlan.from_json(changed_plan(LABELS, **changes)) != LABELS
    with pytest.raises(ValueError, match="was changed after `shh plan` wrote it: the fingerprint is wrong"):
        ReleasePlan.from_json(json.dumps({**json.loads(LABELS.to_json()), **changes}))


def test_a_plan_that_was_only_written_another_way_is_the_same_plan() -> None:
    fields = json.loads(LABELS.to_json())
    assert fields["epsilon"] == 2.0
    again = json.dumps({**dict(reversed(fields.items())), "epsilon": 2}, separators=(",", ":"))
    assert ReleasePlan.from_json(again) == LABELS


@pytest.mark.parametrize("name", ["epsilon", "delta", "fingerprint", "format_version"])
def test_a_field_that_is_named_twice_is_refused(name: str) -> None:
    text = LABELS.to_json()
    value = json.dumps(json.loads(text)[name])
    twice = text.replace(f'"{name}": {value}', f'"{name}": 7, "{name}": {value}', 1)
    assert json.loads(twice) == json.loads(text), "the standard parser takes the last one"
    with pytest.raises(ValueError, match=f"the plan has the field '{name}' twice"):
        ReleasePlan.from_json(twice)
    inner = text.replace('"slide_seconds"', '"slide_seconds": 1, "slide_seconds"')
    with pytest.raises(ValueError, match="'slide_seconds' twice"):
        ReleasePlan.from_json(inner)


@pytest.mark.parametrize("name", [r"epsilon\n\u001b[31m", r"\u202e", "x" * 100_000, r"epsilon\ud800"])
def test_what_a_hostile_plan_holds_is_shown_harmless_and_short(name: str) -> None:
    fields = json.loads(LABELS.to_json())
    key = json.loads(f'"{name}"')
    hostile = [
        json.dumps({**fields, key: 1}),
        changed_plan(LABELS, mode=key),
        changed_plan(LABELS, accountant=key),
        changed_plan(LABELS, threshold=key),
        changed_plan(LABELS, schedule={**fields["schedule"], key: 1}),
        LABELS.to_json().replace('"epsilon"', f'"{name}": 1, "{name}": 2, "epsilon"', 1),
    ]
    for text in hostile:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            ReleasePlan.from_json(text)
        message = str(caught.value)
        assert message.isprintable()
        assert len(message) < 1000


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[" * 1_000_000, "{", "[]", "null", "3", '{"format_version": 1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the plan"):
        ReleasePlan.from_json(text)


def test_more_noise_than_needed_is_allowed() -> None:
    weaker = dataclasses.replace(LABELS, epsilon_per_query=0.05, zone_width=40, threshold=600)
    assert ReleasePlan.from_json(weaker.to_json()) == weaker


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"epsilon": math.inf}, "epsilon must be > 0"),
        ({"epsilon": math.nan}, "epsilon must be > 0"),
        ({"delta": 0.0}, "delta must lie strictly between 0 and 1"),
        ({"delta": 1.0}, "delta must lie strictly between 0 and 1"),
        ({"delta": math.nan}, "delta must lie strictly between 0 and 1"),
        ({"delta": 1e-12}, "delta must be > 5.42e-12, the share that hash collisions"),
        ({"hits_per_user": 0}, "hits_per_user must be a whole number >= 1, got 0"),
        ({"hits_per_user": 20_000}, "hits_per_user must be at most 10000"),
        ({"max_items_per_user": 0}, "max_items_per_user must be a whole number >= 1"),
        ({"threshold": 0}, "threshold must be a whole number >= 1"),
        ({"max_users": 0}, "max_users must be a whole number >= 1"),
        ({"max_items": -1}, "max_items must be a whole number >= 1"),
        ({"mode": "histogram"}, "mode must be one of hits, hits-with-counts, kms21, looks, got 'histogram'"),
        ({"mode": "kms21", "accountant": "game"}, "accountant must be one of threshold_monitor for release 'kms21'"),
        ({"mode": "kms21", "epsilon": 1e-4}, "Raise epsilon or delta, or lower hits_per_user"),
        ({"domain": "items.txt"}, r"domain must be an ItemDomain, got a str. Use ItemDomain.read\(path\)"),
        ({"domain": DOMAIN, "max_items": 999}, "max_items must be >= 1000"),
        ({"domain": DOMAIN, "threshold": 0}, "threshold must be a whole number >= 1"),
        ({"accountant": "renyi"}, "accountant must be one of"),
        ({"epsilon": 1e-4, "hits_per_user": 100}, "Raise epsilon or delta, or lower hits_per_user"),
        ({"epsilon": 40.1}, "epsilon must be > 0 and at most 40"),
        ({"schedule": 384}, "schedule must be a WindowSchedule"),
    ],
)
def test_bad_parameters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrated_plan(**changes)


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LABELS.threshold = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="too little noise"):
        dataclasses.replace(LABELS, hits_per_user=30)


# ---------------------------------------------------------------------------------------------------------------------
# delta_sampling, written out again
# ---------------------------------------------------------------------------------------------------------------------


class TenMillion:
    size = 10**7
    fingerprint = "0" * 64


def _sampling_share(plan: ReleasePlan, epsilon_of_noise: float) -> Decimal:
    """``(1 + e^epsilon) (2 n TV + m (3 |X| + 2) / 2^128)`` of docs/guarantee.md section 3, to 40 digits.

    TV: a magnitude needs 129 ln(2) / epsilon_of_noise thresholds on either side and 0, each off by at most one unit of
    2^-128, in the draw and again in the draw given that it passes.
    """
    with localcontext(prec=40):
        thresholds = 2 * math.ceil(129 * Decimal(2).ln() / Decimal(epsilon_of_noise)) + 1
        queries = plan.schedule.horizon * plan.max_items_per_user
        units = 2 * queries * 2 * thresholds
        if plan.domain_size:
            units += plan.schedule.horizon * (3 * plan.domain_size + 2)
        return (1 + Decimal(plan.epsilon).exp()) * units / 2**128


@pytest.mark.parametrize("domain", [None, DOMAIN, TenMillion])
@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
def test_the_share_of_sampling(mode: str, domain: Any) -> None:
    """Calibrated for the widest noise that can be sampled; refused where it is less than the plan's own noise takes."""
    plan = calibrated_plan(mode=mode, domain=domain, epsilon=1.5)
    is_kms21 = mode == "kms21"
    close = Fraction(1, 10**11)  # the empty items of a thousand are a 10^-8 part of the widest noise of kms21
    calibrated = Fraction(_sampling_share(plan, 1e-8 if is_kms21 else 1e-4))
    assert abs(Fraction(plan.delta_sampling) / calibrated - 1) < close
    needed = Fraction(_sampling_share(plan, plan.wide_epsilon_per_query if is_kms21 else plan.epsilon_per_query))
    assert dataclasses.replace(plan, delta_sampling=float(needed * (1 + close)))
    with pytest.raises(ValueError, match="delta_sampling must be >="):
        dataclasses.replace(plan, delta_sampling=float(needed * (1 - close)))


def test_guarantee_sentence() -> None:
    sentence = LABELS.guarantee
    for part in ("(2, 1e-09)", "differentially private", "adding or removing one user", "whole run", "384 windows"):
        assert part in sentence
    assert sentence.count(".") == 1
    condition = ", provided the list of items is public and was not made from the log."
    assert IN_DOMAIN.guarantee == sentence.removesuffix(".") + condition
    assert "provided" not in sentence
