"""Hits paid, against a dict."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.user_budgets import UserBudgets

users = st.sampled_from([0, 1, 2, 3, 5, 8, 2**63, 2**64 - 2, 2**64 - 1])
charges_strategy = st.lists(st.dictionaries(users, st.integers(1, 5), max_size=6), max_size=8)


def arrays(charges: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(charges)
    return np.array(ordered, dtype=np.uint64), np.array([charges[user] for user in ordered], dtype=np.uint32)


def total(charges: list[dict[int, int]]) -> dict[int, int]:
    paid: dict[int, int] = {}
    for charge in charges:
        for user, hits in charge.items():
            paid[user] = paid.get(user, 0) + hits
    return paid


def assert_paid(budgets: UserBudgets, expected: dict[int, int]) -> None:
    everybody = [0, 1, 2, 3, 4, 5, 8, 9, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    hits = budgets.hits(np.array(everybody, dtype=np.uint64))
    assert hits.tolist() == [expected.get(user, 0) for user in everybody]
    assert hits.dtype == np.uint32
    assert len(budgets) == len(expected), "only users that were ever charged"
    assert budgets.hits(np.array([5, 0, 5], dtype=np.uint64)).tolist() == [
        expected.get(5, 0),
        expected.get(0, 0),
        expected.get(5, 0),
    ]
    assert budgets.hits(np.zeros(0, dtype=np.uint64)).tolist() == []


@given(charges_strategy)
@settings(deadline=None)
def test_charges_add_up(charges: list[dict[int, int]]) -> None:
    budgets = UserBudgets()
    for index, charge in enumerate(charges):
        budgets.charge(*arrays(charge))
        assert_paid(budgets, total(charges[: index + 1]))
    again = UserBudgets(budgets.to_blobs())
    assert_paid(again, total(charges))
    assert again.to_blobs() == budgets.to_blobs()
    again.charge(*arrays({3: 2}))
    assert_paid(again, total([*charges, {3: 2}]))


@given(charges_strategy)
@settings(deadline=None)
def test_places_that_were_found_before_the_charge_change_nothing(charges: list[dict[int, int]]) -> None:
    """Also where only some of those that were looked for are charged."""
    everybody = np.array([0, 1, 2, 3, 4, 5, 8, 2**63, 2**64 - 2, 2**64 - 1], dtype=np.uint64)
    searching, knowing = UserBudgets(), UserBudgets()
    for charge in charges:
        places = knowing.places(everybody)
        assert knowing.hits(everybody, places).tolist() == searching.hits(everybody).tolist()
        users, hits = arrays(charge)
        searching.charge(users, hits)
        knowing.charge(users, hits, places[np.isin(everybody, users)])
        assert knowing.to_blobs() == searching.to_blobs()


@given(charges_strategy)
@settings(deadline=None)
def test_what_each_window_charges_is_appended_and_counts_once(charges: list[dict[int, int]]) -> None:
    """Without rewriting what is there, in any order, and also where a blob is there twice."""
    blobs: list[bytes] = []
    for charge in charges:
        budgets = UserBudgets(blobs, are_noted=True)
        budgets.charge(*arrays(charge))
        appended = budgets.charged_blobs()
        assert len(appended) == bool(charge)
        blobs += appended
    assert_paid(UserBudgets(blobs), total(charges))
    assert UserBudgets([*reversed(blobs), *blobs]).to_blobs() == UserBudgets(blobs).to_blobs()


def test_two_million_users_in_small_blobs() -> None:
    """At most 16 bytes a user, in blobs under 10 MB."""
    count = 2_000_000
    everybody = np.arange(count, dtype=np.uint64) * np.uint64(9_223_372_036_854) + np.uint64(1)
    hits = (np.arange(count) % 7 + 1).astype(np.uint32)
    budgets = UserBudgets()
    budgets.charge(everybody, hits)
    blobs = budgets.to_blobs()
    assert max(map(len, blobs)) < 10_000_000
    assert sum(map(len, blobs)) <= 16 * count
    again = UserBudgets(blobs)
    assert len(again) == count
    assert np.array_equal(again.hits(everybody), hits)
    assert not again.hits(everybody + np.uint64(1)).any()
