"""Which items of a user count where it has too many: each subset as often, each window and user by itself. A correct
choice is rejected with probability at most 1e-6 over the key, which is fixed here. What noise is bound to is exact:
tests/core/test_randomness.py."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dp_transforms.core.contributions import Contributions, bound_contributions
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.randomness import StreamKeys
from tests.helpers.sampling_checks import chi_squared_rejects, stream_keys

USERS, ITEMS, KEPT = 60_000, 5, 2
SUBSETS = [*itertools.combinations(range(ITEMS), KEPT)]


def _pairs(keys: StreamKeys, windows: int) -> Contributions:
    """Every user holds the same ITEMS items in every window."""
    table, _ = ItemTable.of_labels(pa.array([f"item {item}" for item in range(ITEMS)]), keys.hash_items)
    users = np.unique(keys.hash_users(pa.array([f"user {user}" for user in range(USERS)]))[:, 0])
    rows = windows * ITEMS
    return Contributions(
        users,
        np.tile(np.arange(len(users)), rows),
        np.repeat(np.arange(windows), ITEMS * len(users)),
        np.tile(np.repeat(np.arange(ITEMS), len(users)), windows),
        table,
    )


def _chosen_subsets(keys: StreamKeys, windows: int = 2) -> npt.NDArray[np.int64]:
    """Number of the subset that each user keeps in each window: int64[users, windows]."""
    kept = bound_contributions(_pairs(keys, windows), KEPT, keys)
    assert len(kept) == USERS * windows * KEPT
    items = kept.items[np.lexsort((kept.items, kept.windows, kept.codes))].reshape(USERS, windows, KEPT)
    number = np.full((ITEMS, ITEMS), -1)
    for index, (low, high) in enumerate(SUBSETS):
        number[low, high] = index
    return number[items[..., 0], items[..., 1]]


def test_every_subset_of_items_is_equally_likely_and_windows_are_independent() -> None:
    chosen = _chosen_subsets(stream_keys())
    cells = np.bincount(chosen[:, 0] * len(SUBSETS) + chosen[:, 1], minlength=len(SUBSETS) ** 2)
    assert not chi_squared_rejects(cells, np.full(len(cells), USERS / len(cells)))
    # The twins: a preference of one item by 5 %, and windows that choose alike for one user in ten.
    biased = np.where((chosen[:, 0] == 9) & (np.arange(USERS) % 5 == 0), 0, chosen[:, 0])
    cells = np.bincount(biased * len(SUBSETS) + chosen[:, 1], minlength=len(SUBSETS) ** 2)
    assert chi_squared_rejects(cells, np.full(len(cells), USERS / len(cells)))
    alike = np.where(np.arange(USERS) % 10 == 0, chosen[:, 0], chosen[:, 1])
    cells = np.bincount(chosen[:, 0] * len(SUBSETS) + alike, minlength=len(SUBSETS) ** 2)
    assert chi_squared_rejects(cells, np.full(len(cells), USERS / len(cells)))


def test_users_choose_independently() -> None:
    """Users that follow each other in the order of their hashes."""
    chosen = _chosen_subsets(stream_keys(), windows=1)[:, 0]
    cells = np.bincount(chosen[0::2] * len(SUBSETS) + chosen[1::2], minlength=len(SUBSETS) ** 2)
    assert not chi_squared_rejects(cells, np.full(len(cells), USERS / 2 / len(cells)))
