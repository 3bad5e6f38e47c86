"""Which items of a user count where it has too many: each subset as often, each window and user by itself. A correct
choice is rejected with probability at most 1e-6 over the key, which is fixed here. What noise is bound to is exact:
tests/core/test_randomness.py."""

import itertools

import numpy as np
import pyarrow as pa

from dp_transforms.core.contributions import Contributions, bound_contributions
from dp_transforms.core.item_table import ItemTable
from tests.helpers.sampling_checks import chi_squared_rejects, stream_keys

USERS, ITEMS, KEPT, WINDOWS = 60_000, 5, 2, 2
SUBSETS = [*itertools.combinations(range(ITEMS), KEPT)]


def chosen_subsets():
    """Every user holds the same ITEMS items in every window: the number of the subset that each keeps in each."""
    keys = stream_keys()
    table, _ = ItemTable.of_labels(pa.array([f"item {item}" for item in range(ITEMS)]), keys.hash_items)
    users = np.unique(keys.hash_users(pa.array([f"user {user}" for user in range(USERS)]))[:, 0])
    rows = WINDOWS * ITEMS
    held = Contributions(
        users,
        np.tile(np.arange(USERS), rows),
        np.repeat(np.arange(WINDOWS), ITEMS * USERS),
        np.tile(np.repeat(np.arange(ITEMS), USERS), WINDOWS),
        table,
    )
    kept = bound_contributions(held, KEPT, keys)
    assert len(kept) == USERS * WINDOWS * KEPT
    items = kept.items[np.lexsort((kept.items, kept.windows, kept.codes))].reshape(USERS, WINDOWS, KEPT)
    number = np.full((ITEMS, ITEMS), -1)
    for index, (low, high) in enumerate(SUBSETS):
        number[low, high] = index
    return number[items[..., 0], items[..., 1]]


def rejects(first, second):
    """That two choices are each subset as often, and independent."""
    cells = np.bincount(first * len(SUBSETS) + second, minlength=len(SUBSETS) ** 2)
    return chi_squared_rejects(cells, np.full(len(cells), len(first) / len(cells)))


def test_every_subset_of_items_is_equally_likely_and_windows_and_users_are_independent():
    first, second = chosen_subsets().T
    assert not rejects(first, second)
    assert not rejects(first[0::2], first[1::2]), "users that follow each other in the order of their hashes"
    # The twins: a preference of one item by 5 %, and windows that choose alike for one user in ten.
    assert rejects(np.where((first == 9) & (np.arange(USERS) % 5 == 0), 0, first), second)
    assert rejects(first, np.where(np.arange(USERS) % 10 == 0, first, second))
