"""The audit of plans with counts: sound ones pass, and each fault that is planted in the real code is refused.

The keys of whole audits are fresh: each test raises a false alarm with a probability of at most 1e-6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_transforms.audit.exact_looks import audit_looks_exactly
from dp_transforms.audit.payments import audit_payments
from dp_transforms.audit.scenes import count_trials
from dp_transforms.audit.statistics import FALSE_ALARM
from dp_transforms.cli.audit import audit_looks
from dp_transforms.mechanisms.exponential_power import ExponentialPower
from dp_transforms.mechanisms.randomness import StreamKeys
from dp_transforms.monitor import named_counts
from dp_transforms.plan.records import Counts
from tests.helpers.audited_names import audited_plan, mechanism_and_claim, p_values_of, run_settings
from tests.helpers.small_runs import SECRET

RUNS = 1_000
COUNTS = 3
OPEN, KNOWN = (), ("a", "b")


def _p_values(counts: int = COUNTS, runs: int = 5_000) -> dict[str, float]:
    plan = audited_plan(counts=counts)
    return p_values_of(count_trials(mechanism_and_claim(plan)[0], runs), run_settings(plan))


@pytest.mark.parametrize("counts", [1, 2, COUNTS, 15])
def test_counts_agree_with_their_law(counts: int) -> None:
    found = _p_values(counts)
    assert len(found) == 13
    assert min(found.values()) * len(found) > 0.001


@pytest.mark.parametrize("runs", [1, 40])
def test_a_handful_of_runs_raises_no_alarm(runs: int) -> None:
    assert min(_p_values(runs=runs).values()) > 1e-4


def test_the_price_of_a_count_is_nearly_attained_and_one_that_is_too_low_is_found() -> None:
    mechanism, claim = mechanism_and_claim(audited_plan(counts=COUNTS))
    audit = audit_looks_exactly(mechanism, claim, most_looks=1)
    assert audit.violations == ()
    assert 0.99 < audit.count / audit.count_claimed <= 1
    less = dataclasses.replace(mechanism, count_scale=mechanism.count_scale * 9 // 10)
    (violation,) = audit_looks_exactly(less, claim, most_looks=1).violations
    assert violation.startswith("a count has a divergence of")


def test_payments_include_what_counts_can_cost() -> None:
    plan = audited_plan(counts=COUNTS)
    audit = audit_payments(mechanism_and_claim(plan)[0], run_settings(plan), SECRET)
    assert audit.violations == ()
    assert 0.99 < audit.replay_share <= 1


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults
# ---------------------------------------------------------------------------------------------------------------------


def _unpaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counts, "units_of_pairs", lambda self, looks: np.zeros_like(looks))


def _a_tenth_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    original = named_counts.noise_bounds
    monkeypatch.setattr(
        named_counts,
        "noise_bounds",
        lambda noise: original(ExponentialPower(noise.shape, max(1, noise.scale // 10))),
    )


def _with_uniforms(monkeypatch: pytest.MonkeyPatch, change: Callable[..., tuple]) -> None:
    original = StreamKeys.count_uniforms

    def count_uniforms(self: StreamKeys) -> Any:
        draw = original(self)
        return lambda *of_cell: draw(*change(*of_cell))

    monkeypatch.setattr(StreamKeys, "count_uniforms", count_uniforms)


def _noise_of_the_first_window_in_every_window(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_uniforms(monkeypatch, lambda windows, hashes, digests: (np.zeros_like(windows), hashes, digests))


def _noise_that_does_not_follow_the_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_uniforms(monkeypatch, lambda windows, hashes, digests: (windows, hashes, np.zeros_like(digests)))


def _no_noise_where_nobody_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    original = named_counts.draw_counts

    def draw_counts(counted: Any, holders: Any, *rest: Any) -> Any:
        drawn = original(counted, holders, *rest)
        held = set(zip(holders.windows.tolist(), holders.table.labels.take(holders.items).to_pylist(), strict=True))
        of_counted = zip(counted.windows.tolist(), counted.table.labels.take(counted.items).to_pylist(), strict=True)
        return np.where([cell in held for cell in of_counted], drawn, 0)

    monkeypatch.setattr(named_counts, "draw_counts", draw_counts)


def _counted_pairs(monkeypatch: pytest.MonkeyPatch, most: Callable[[Any], Any]) -> None:
    original = named_counts.keep_by_hash
    monkeypatch.setattr(named_counts, "keep_by_hash", lambda pairs, of_user, keys: original(pairs, most(of_user), keys))


def _all_pairs_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    _counted_pairs(monkeypatch, lambda of_user: of_user + 10**6)


def _twice_as_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    _counted_pairs(monkeypatch, lambda of_user: 2 * of_user)


def _one_pair_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _counted_pairs(monkeypatch, lambda of_user: of_user + 1)


def _pairs_that_follow_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fewer where many users are counted."""
    _counted_pairs(monkeypatch, lambda of_user: of_user - (len(of_user) > 60))


LAW, PURSE, PAIRS, OTHERS = ("what its exact law says: counts", "in its purse", "are counted, but", "who is counted")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (_unpaid, PURSE),
        (_a_tenth_of_the_noise, LAW),
        (_noise_of_the_first_window_in_every_window, LAW),
        (_no_noise_where_nobody_holds, LAW),
        (_all_pairs_of_a_user, PAIRS),
        (_twice_as_many_pairs, PAIRS),
        (_one_pair_more, PAIRS),
    ],
)
@pytest.mark.parametrize("domain", [OPEN, KNOWN])
def test_a_planted_fault_is_refused(
    fault: Callable[[pytest.MonkeyPatch], None], sentence: str, domain: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    _assert_refused(sentence, domain)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [(_noise_that_does_not_follow_the_holders, LAW), (_pairs_that_follow_others, OTHERS)],
)
def test_what_follows_the_wrong_users_is_refused(
    fault: Callable[[pytest.MonkeyPatch], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    _assert_refused(sentence, OPEN)


def _assert_refused(sentence: str, domain: tuple[str, ...]) -> None:
    found = audit_looks(audited_plan(counts=COUNTS, domain=domain), RUNS, 1, lambda text, share: None).violations
    assert any(sentence in text for text in found), found


@pytest.mark.parametrize("counts", [1, 2])
def test_noise_that_repeats_is_found_also_where_few_pairs_of_a_user_count(
    counts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one counted pair no holders are the same in two windows, but for items that nobody holds."""
    _noise_of_the_first_window_in_every_window(monkeypatch)
    assert _p_values(counts, RUNS)["counts of items that nobody holds, in two windows, without the user"] < FALSE_ALARM
