"""Plans as files: the round trip, and every change that is refused."""

import functools
import json
import math
import pickle

import pytest

from dp_transforms.plan.plan import Plan
from dp_transforms.plan.stored import FORMAT_VERSION
from tests.helpers.calibrated_plans import (
    COUNTS,
    KMS21,
    LABELS,
    OF_PUBLIC,
    PUBLIC,
    calibrated_plan,
    changed_plan,
    short_contributions_plan,
    with_changes,
)

pytestmark = pytest.mark.xdist_group("test_plan_stored")  # one process calibrates, when the first test asks for a plan
CONTRIBUTIONS = short_contributions_plan
TWO_KEYS = calibrated_plan(most_keys=2)
CONTRIBUTIONS_OF_PUBLIC = functools.partial(short_contributions_plan, public_items=PUBLIC)
BESIDE = functools.partial(CONTRIBUTIONS_OF_PUBLIC, also_open=True)
PLANS = {
    "hits": lambda: LABELS,
    "hits with counts": lambda: COUNTS,
    "kms21": lambda: KMS21,
    "hits under two keys": lambda: TWO_KEYS,
    "hits of public items": lambda: OF_PUBLIC,
    "a higher threshold": functools.partial(calibrated_plan, threshold=600),
    "contributions": CONTRIBUTIONS,
    "contributions of public items": CONTRIBUTIONS_OF_PUBLIC,
    "public items beside open ones": BESIDE,
    "items that are not followed": functools.partial(short_contributions_plan, forget_after=0),
}


@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS)
def test_a_plan_is_read_as_it_was_written(make):
    plan = make()
    again = Plan.from_json(plan.to_json())
    assert again == plan == pickle.loads(pickle.dumps(plan))  # noqa: S301
    assert (again.fingerprint, hash(again)) == (plan.fingerprint, hash(plan))
    fields = json.loads(plan.to_json())
    assert (fields["format_version"], fields["fingerprint"]) == (FORMAT_VERSION, plan.fingerprint)
    assert len(plan.to_json().splitlines()) < 60, "a price list has two lines"
    other_way = json.dumps({**dict(reversed(fields.items())), "epsilon": 2}, separators=(",", ":"))
    assert Plan.from_json(other_way) == plan, "2 is 2.0, in any order"


def test_each_plan_has_a_fingerprint_of_its_own():
    assert len({make().fingerprint for make in PLANS.values()}) == len(PLANS)
    assert calibrated_plan(epsilon=2).fingerprint == LABELS.fingerprint
    LABELS.epsilon_after_hits  # noqa: B018 - a cached value is not part of the plan
    assert Plan.from_json(LABELS.to_json()) == LABELS


def test_a_plan_for_one_key_is_stored_as_if_there_were_no_keys():
    """As version 0.1.0 stores it: noise depends on the fingerprint."""
    assert "most_keys" not in LABELS.to_json()
    assert calibrated_plan(most_keys=1).to_json() == LABELS.to_json()
    assert [plan.fingerprint[:16] for plan in (LABELS, COUNTS, KMS21, OF_PUBLIC)] == [
        "7877eb341f6200cc",
        "2d16f0e7cd39709f",
        "5336e2bf76714d1b",
        "3a246b8f208815dc",
    ]
    assert (LABELS.most_keys, TWO_KEYS.most_keys, CONTRIBUTIONS().most_keys) == (1, 2, 1)


TOGETHER = "a plan must have contributions or hits; followed items, or rounds,"
REFUSED = [
    # Of every plan
    (LABELS, {"epsilon": -1.0}, "epsilon must be > 0"),
    (LABELS, {"delta": math.inf}, "the plan is not JSON text"),
    (LABELS, {"delta": 9e-10}, "shares of delta must add up"),
    (LABELS, {"format_version": FORMAT_VERSION - 1}, f"format_version {FORMAT_VERSION}"),
    (LABELS, {"surprise": 1}, "the plan has missing or unknown fields: surprise"),
    (LABELS, {"schedule": {"start_seconds": 0}}, "schedule has missing or unknown fields"),
    (LABELS, {"schedule": None}, "missing or unknown fields: schedule"),
    (LABELS, {"shares.open": 0.0}, "the share open must lie strictly"),
    (LABELS, {"shares.open": None}, TOGETHER),
    (LABELS, {"shares.hash": LABELS.shares.hash / 2}, "the share hash must be >="),
    (LABELS, {"shares.sampling": 1e-40}, "the share sampling must be >="),
    (LABELS, {"public_items": {"size": 10, "fingerprint": "x" * 64}}, "must be the hex SHA-256 of their list"),
    # Users are charged for hits
    (TWO_KEYS, {"hits.most_keys": 3}, "threshold must be >="),
    (TWO_KEYS, {"hits.most_keys": 3, "threshold": 10**4}, "is too little noise: .* share paid >="),
    (TWO_KEYS, {"hits.most_keys": 1}, "most_keys must be left out of the hits of a plan where it is 1"),
    (TWO_KEYS, {"shares.hash": LABELS.shares.hash}, "the share hash must be >="),
    (LABELS, {"hits": None}, TOGETHER),
    (LABELS, {"epsilon": 1.9}, "too little noise"),
    (LABELS, {"hits.per_user": 4}, "too little noise"),
    (LABELS, {"hits.publishes": "histogram"}, "publishes must be names or counts"),
    (LABELS, {"hits.max_items_per_user": 4}, "threshold must be >="),
    (LABELS, {"hits.max_items_per_user": 0}, "max_items_per_user must be a whole number"),
    (LABELS, {"followed": {"threshold": 1, "forget_after": 1}}, TOGETHER),
    (KMS21, {"epsilon": 1.9}, "too little noise"),
    (KMS21, {"hits.wide.epsilon_per_query": KMS21.charged_hits.noise.wide_epsilon_per_query * 1.01}, "must be at most"),
    (KMS21, {"hits.wide.cap": KMS21.charged_hits.noise.noise_cap - 1000}, "must be at most"),
    (KMS21, {"hits.publishes": "counts"}, "noise as printed is for names"),
    (KMS21, {"threshold": KMS21.threshold - 1}, f"threshold must be >= {KMS21.threshold}"),
    (OF_PUBLIC, {"public_items": None}, TOGETHER),
    (OF_PUBLIC, {"shares.open": 1e-12}, TOGETHER),
    (OF_PUBLIC, {"public_items.size": 0}, "size must be a whole number >= 1"),
    (OF_PUBLIC, {"public_items.size": 2 * 10**9}, "max_items must be >="),
    (OF_PUBLIC, {"public_items.size": 10**8, "threshold": 1}, "threshold = 1 would publish"),
    # Users pay for tests of contributions
    (CONTRIBUTIONS, {"epsilon": 1.9}, "budget must be at most"),
    (CONTRIBUTIONS, lambda p: {"shares.paid": p.shares.paid * 0.99}, "budget must be at most"),
    (CONTRIBUTIONS, lambda p: {"shares.open": p.delta_open * 0.99}, "threshold must be >="),
    (CONTRIBUTIONS, lambda p: {"shares.hash": p.shares.hash / 2}, "the share hash must be >="),
    (CONTRIBUTIONS, lambda p: {"shares.sampling": 1e-40}, "the share sampling must be >="),
    (
        CONTRIBUTIONS,
        lambda p: {"contributions.order": p.contributions.order * 1.01},
        "weight .* costs|budget must be at most",
    ),
    (CONTRIBUTIONS, lambda p: {"contributions.budget": p.contributions.budget * 1.01}, "budget must be at most"),
    (CONTRIBUTIONS, lambda p: {"contributions.shape": 2.0}, "weight .* costs|spacing"),
    (CONTRIBUTIONS, lambda p: {"contributions.shape": 5.0}, "shape must lie in"),
    (CONTRIBUTIONS, lambda p: {"contributions.scale": 10**7}, "scale must be a whole number in"),
    (CONTRIBUTIONS, lambda p: {"contributions.weights": [w + 50 for w in p.contributions.weights]}, "weight .* costs"),
    (CONTRIBUTIONS, lambda p: {"contributions.weights": list(reversed(p.contributions.weights))}, "weights must rise"),
    (
        CONTRIBUTIONS,
        lambda p: {"contributions.weights": p.contributions.weights[1:]},
        "weights and units must have one length",
    ),
    (CONTRIBUTIONS, {"contributions.weights": list(range(1, 1002))}, "weights must be a list of at most 1,000 entries"),
    (
        CONTRIBUTIONS,
        lambda p: {"contributions.units": [*p.contributions.units[:-1], 10**12 + 1]},
        "at most a user budget",
    ),
    (
        CONTRIBUTIONS,
        lambda p: {"contributions.units": [1, *p.contributions.units[1:]]},
        "most_contributions must be a whole",
    ),
    (CONTRIBUTIONS, lambda p: {"contributions.spacing": p.contributions.scale * 2}, "weight .* costs"),
    (CONTRIBUTIONS, {"contributions.spacing": 0}, "spacing must be a whole number >= 1"),
    (CONTRIBUTIONS, {"contributions.usual_tests": [1, 21]}, "each of usual_contributions"),
    (CONTRIBUTIONS, {"contributions.size_error": 0.0}, "size_error must lie in"),
    (CONTRIBUTIONS, {"contributions.least_users": 4}, "least_users must be a whole number"),
    (CONTRIBUTIONS, lambda p: {"threshold": p.threshold - 1}, lambda p: f"threshold must be >= {p.threshold}"),
    (BESIDE, lambda p: {"threshold": p.threshold - 1}, lambda p: f"threshold must be >= {p.threshold}"),
    (CONTRIBUTIONS, {"hits": json.loads(LABELS.to_json())["hits"]}, TOGETHER),
    (CONTRIBUTIONS, lambda p: {"followed.threshold": p.threshold + 1}, "must be at most the threshold"),
    (CONTRIBUTIONS, {"followed.threshold": 1}, "noise would name an item that nobody holds again and again"),
    (CONTRIBUTIONS, {"followed.forget_after": 385}, r"forget_after must be a whole number in 1 \.\. 384"),
    (CONTRIBUTIONS, {"followed.forget_after": 0}, "forget_after must be a whole number >= 1"),
]


@pytest.mark.parametrize(("plan", "change", "said"), REFUSED)
def test_a_tampered_plan_is_refused(plan, change, said):
    """Functions make a plan, or what follows from it."""
    plan = plan() if callable(plan) else plan
    change, said = (each(plan) if callable(each) else each for each in (change, said))
    with pytest.raises(ValueError, match=said) as caught:
        with_changes(plan, change)
    assert len(str(caught.value)) < 1000


def test_a_longer_schedule_is_refused_where_users_are_charged_in_each_window():
    """What a user budget pays for does not depend on the number of windows, without public items."""
    longer = {"schedule.end_seconds": LABELS.schedule.end_seconds + 5000 * 3600}
    with pytest.raises(ValueError, match="threshold must be >="):
        with_changes(LABELS, longer)
    assert with_changes(CONTRIBUTIONS(), longer).schedule.horizon == 5384


@pytest.mark.parametrize(
    "changes",
    [
        {"max_items": 10**8},  # which keeps the promise, so that no other check would find it
        {"fingerprint": COUNTS.fingerprint},
        {"fingerprint": None},
    ],
)
def test_a_plan_that_was_changed_by_hand_is_refused(changes):
    if "fingerprint" not in changes:
        assert with_changes(LABELS, changes) != LABELS
    fields = {**json.loads(LABELS.to_json()), **changes}
    with pytest.raises(ValueError, match="was changed after `shh plan` wrote it: the fingerprint is wrong"):
        Plan.from_json(json.dumps({name: value for name, value in fields.items() if value is not None}))


@pytest.mark.parametrize("name", ["epsilon", "slide_seconds"])
def test_a_field_that_is_named_twice_is_refused(name):
    text = LABELS.to_json()
    twice = text.replace(f'"{name}"', f'"{name}": 7, "{name}"', 1)
    assert json.loads(twice) == json.loads(text), "the standard parser takes the last one"
    with pytest.raises(ValueError, match="the plan is not JSON text"):
        Plan.from_json(twice)


@pytest.mark.parametrize("name", [r"epsilon\n\u001b[31m", r"\u202e", "x" * 100_000, r"epsilon\ud800"])
def test_what_a_hostile_plan_holds_is_shown_harmless_and_short(name):
    key = json.loads(f'"{name}"')
    hostile = [
        *(changed_plan(LABELS, {place: 1}) for place in (key, f"schedule.{key}", f"hits.{key}")),
        *(changed_plan(LABELS, {place: key}) for place in ("hits.publishes", "threshold", "contributions")),
        LABELS.to_json().replace('"epsilon"', f'"{name}": 1, "{name}": 2, "epsilon"', 1),
    ]
    for text in (*hostile, "", "[" * 1_000_000, "{", "[]", "null", '{"format_version": 1}'):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            Plan.from_json(text)
        message = str(caught.value)
        assert message.isprintable()
        assert len(message) < 1000
