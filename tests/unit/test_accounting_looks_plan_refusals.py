"""Plans of mode `looks` that are tampered with, and choices that make none, are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dp_transforms.plan.release_plan import ReleasePlan
from tests.helpers.calibrated_plans import DOMAIN, HOURLY, LABELS, looks_plan, short_looks_plan
from tests.helpers.plan_files import changed_plan


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
        (lambda p: {"threshold": p.threshold - 1}, f"threshold must be >= {short_looks_plan().threshold}"),
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
        (lambda p: {"mode": "hits"}, "missing or unknown fields"),
        (lambda p: {"mode": "name"}, "mode must be one of hits, hits-with-counts, kms21, looks"),
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
    plan = short_looks_plan()
    with pytest.raises(ValueError, match=said) as caught:
        ReleasePlan.from_json(changed_plan(plan, **change(plan)))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"hits_per_user": -1}, r"hits_per_user must be a whole number in 0 \.\. 3000, got -1"),
        ({"hits_per_user": 3001}, r"hits_per_user must be a whole number in 0 \.\. 3000"),
        ({"max_items_per_user": 3}, "max_items_per_user cannot be used with mode 'looks'"),
        ({"threshold": 500}, "threshold cannot be used with mode 'looks'"),
        ({"accountant": "game"}, "accountant cannot be used with mode 'looks'"),
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
        looks_plan.__wrapped__(**choices)


@pytest.mark.parametrize("mode", ["hits", "hits-with-counts", "kms21"])
@pytest.mark.parametrize(
    "choice", ["usual_looks", "most_looks", "known_items", "forget_after", "known_error", "size_error"]
)
def test_choices_of_names_are_refused_in_other_modes(mode: str, choice: str) -> None:
    with pytest.raises(ValueError, match=f"{choice} cannot be used with mode '{mode}': it belongs to looks"):
        ReleasePlan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, mode=mode, **{choice: 1})  # type: ignore[arg-type]


def test_a_stored_plan_without_a_release_is_of_no_mode() -> None:
    fields = {name: value for name, value in json.loads(LABELS.to_json()).items() if name != "mode"}
    with pytest.raises(ValueError, match="mode must be one of hits, hits-with-counts, kms21, looks, got None"):
        ReleasePlan.from_json(json.dumps(fields))
    assert ReleasePlan.from_json(LABELS.to_json()) == LABELS
