"""Plans of mode `looks` that are tampered with, and choices that make none, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from dp_transforms.plan.plan import Plan
from tests.helpers.calibrated_plans import DOMAIN, HOURLY, looks_plan


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"hits_per_user": -1}, r"hits_per_user must be a whole number in 0 \.\. 3000, got -1"),
        ({"hits_per_user": 3001}, r"hits_per_user must be a whole number in 0 \.\. 3000"),
        ({"max_items_per_user": 3}, "max_items_per_user cannot be used with mode 'looks'"),
        ({"threshold": 500}, "threshold cannot be used with mode 'looks'"),
        ({"usual_looks": 100}, "usual_looks must be a pair"),
        ({"usual_looks": (0, 10)}, "each of usual_looks must be a whole number in 1 .. 3000, got 0"),
        ({"usual_looks": ("a", "b")}, "each of usual_looks"),
        ({"most_looks": 0}, "most_looks must be a whole number"),
        ({"most_looks": 5, "usual_looks": (1, 9)}, r"each of usual_looks must be a whole number in 1 \.\. 5, got 9"),
        ({"forget_after": 0, "known_error": 1e-5}, "known_error cannot be used with forget_after=0"),
        ({"forget_after": -1}, r"forget_after must be a whole number in 0 \.\. 384"),
        ({"forget_after": 385}, r"forget_after must be a whole number in 0 \.\. 384"),
        ({"known_error": 0.0}, "known_error must lie in"),
        ({"known_error": 0.01}, "again and again"),
        ({"size_error": 1.0}, "size_error must lie in"),
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
@pytest.mark.parametrize("choice", ["usual_looks", "most_looks", "forget_after", "known_error", "size_error"])
def test_choices_of_names_are_refused_in_other_modes(mode: str, choice: str) -> None:
    with pytest.raises(ValueError, match=f"{choice} cannot be used with mode '{mode}': it belongs to looks"):
        Plan.calibrate(epsilon=2, delta=1e-9, schedule=HOURLY, mode=mode, **{choice: 1})  # type: ignore[arg-type]
