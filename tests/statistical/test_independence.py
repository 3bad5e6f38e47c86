"""What noise is bound to: change any of it and the draws are others, and uncorrelated; change nothing and they are the
same. Each check fails for a correct construction with probability at most 1e-6 over the key, which is fixed here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from dp_transforms.mechanisms.noise_table import WideDiscreteLaplace, discrete_laplace
from dp_transforms.mechanisms.randomness import BlockFunction, StreamKeys, sum_modulo_2_128
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.pairs import UserPairs, bound_contributions
from tests.helpers.sampling_checks import (
    SECRET,
    chi_squared_rejects,
    correlation_rejects,
    laplace_probability,
    numbered,
    stream_keys,
    too_many,
)

DRAWS = 100_000
EPSILON = 1 / 5
HOLDERS = 4  # of each item
OF_HOLDERS: dict[str, Callable[[StreamKeys, int], BlockFunction]] = {
    "pass": StreamKeys.pass_uniforms,
    "noise": StreamKeys.noise_uniforms,
    "noise pair": lambda keys, window: keys.noise_pair_uniforms(window, 1),
}
STAGES = (*OF_HOLDERS, "empty items")


def _digests(keys: StreamKeys, users: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """users: uint64[n, HOLDERS]. Digest of the holders of each of n items."""
    starts = np.arange(0, users.size, users.shape[1])
    return sum_modulo_2_128(keys.widen_users(users.reshape(-1)), starts)


def _users() -> npt.NDArray[np.uint64]:
    return np.arange(DRAWS * HOLDERS, dtype=np.uint64).reshape(DRAWS, HOLDERS) * np.uint64(0x9E37_79B9_7F4A_7C15)


def _uniforms(keys: StreamKeys, stage: str, window: int = 5, users: npt.NDArray[np.uint64] | None = None) -> np.ndarray:
    if stage == "empty items":
        return keys.empty_item_uniforms()(numbered(DRAWS, tag=window))  # pairs (window, number)
    return OF_HOLDERS[stage](keys, window).of_pairs(
        numbered(DRAWS), _digests(keys, _users() if users is None else users)
    )


def _assert_independent(first: np.ndarray, second: np.ndarray) -> None:
    """Uniforms without a value in common, uncorrelated words and noise, noise no more often equal than by chance."""
    together = np.concatenate([first, second])
    # Two of 2e5 values are equal with probability 1e-28.
    assert len(np.unique(together.view([("high", np.uint64), ("low", np.uint64)]))) == len(together)
    noise = discrete_laplace(EPSILON)
    draws = noise.sample(first), noise.sample(second)
    assert not correlation_rejects(*draws)
    assert not correlation_rejects(np.abs(draws[0]), np.abs(draws[1]))
    for word in (0, 1):
        assert not correlation_rejects(first[:, word].astype(float), second[:, word].astype(float))
    equal = sum(laplace_probability(EPSILON, value) ** 2 for value in range(-300, 301))
    assert not too_many(int((draws[0] == draws[1]).sum()), DRAWS, equal)


CHANGES = {
    "run id": {"run_id": "run 2"},
    "plan": {"plan": "plan 2"},
    "stream": {"stream": "stream 2"},
    "threshold": {"threshold": 41},
    "key": {"secret": SECRET[:-1] + b"!"},
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("change", CHANGES)
def test_another_context_gives_other_noise(stage: str, change: str) -> None:
    first = _uniforms(stream_keys(), stage)
    _assert_independent(first, _uniforms(stream_keys(**CHANGES[change]), stage))


@pytest.mark.parametrize("stage", STAGES)
def test_another_window_gives_other_noise(stage: str) -> None:
    first = _uniforms(stream_keys(), stage)
    for window in (4, 6, 0, 2**40):
        _assert_independent(first, _uniforms(stream_keys(), stage, window=window))


@pytest.mark.parametrize("stage", OF_HOLDERS)
def test_one_changed_holder_gives_other_noise(stage: str) -> None:
    """In the second stage these are the active holders."""
    keys = stream_keys()
    first = _uniforms(keys, stage)
    replaced, dropped = _users(), _users()[:, :-1]
    replaced[:, 2] += np.uint64(1)
    _assert_independent(first, _uniforms(keys, stage, users=replaced))
    _assert_independent(first, _uniforms(keys, stage, users=dropped))
    joined = np.concatenate([_users(), _users()[:, :1] + np.uint64(1)], axis=1)
    _assert_independent(first, _uniforms(keys, stage, users=joined))


@pytest.mark.parametrize(("one", "another"), itertools.combinations(STAGES, 2))
def test_the_stages_are_independent(one: str, another: str) -> None:
    keys = stream_keys()
    _assert_independent(_uniforms(keys, one), _uniforms(keys, another))


def test_the_uniforms_of_one_pair_of_noises_are_independent() -> None:
    keys = stream_keys()
    digests = _digests(keys, _users())
    drawn = [
        keys.noise_pair_uniforms(5, number).of_pairs(numbered(DRAWS), digests)
        for number in range(2 * WideDiscreteLaplace.UNIFORMS)
    ]
    for one, another in itertools.combinations(drawn, 2):
        _assert_independent(one, another)


def test_items_with_the_same_holders_have_independent_noise() -> None:
    keys = stream_keys()
    digests = _digests(keys, _users())
    function = keys.noise_uniforms(5)
    _assert_independent(function.of_pairs(numbered(DRAWS), digests), function.of_pairs(numbered(DRAWS, tag=9), digests))


@pytest.mark.parametrize("stage", STAGES)
def test_everything_equal_gives_equal_noise(stage: str) -> None:
    """The order of the holders does not count either."""
    first = _uniforms(stream_keys(), stage)
    assert np.array_equal(first, _uniforms(stream_keys(), stage))
    assert np.array_equal(first, _uniforms(stream_keys(), stage, users=_users()[:, [3, 1, 0, 2]]))


def test_dependence_is_rejected() -> None:
    """The twin: equal draws, and draws with the sign turned around."""
    first = _uniforms(stream_keys(), "noise")
    with pytest.raises(AssertionError):
        _assert_independent(first, first)
    with pytest.raises(AssertionError):
        _assert_independent(first, ~first)
    noise = discrete_laplace(EPSILON)
    half_shared = np.where(
        np.arange(DRAWS) % 20 == 0, noise.sample(first), noise.sample(_uniforms(stream_keys(), "pass"))
    )
    assert correlation_rejects(noise.sample(first), half_shared)


# ---------------------------------------------------------------------------------------------------------------------
# The choice of a user's L items
# ---------------------------------------------------------------------------------------------------------------------

USERS, ITEMS, KEPT = 60_000, 5, 2
SUBSETS = [*itertools.combinations(range(ITEMS), KEPT)]


def _pairs(keys: StreamKeys, windows: int) -> UserPairs:
    """Every user holds the same ITEMS items in every window."""
    table, _ = ItemTable.of_labels(pa.array([f"item {item}" for item in range(ITEMS)]), keys.hash_items)
    users = np.unique(keys.hash_users(pa.array([f"user {user}" for user in range(USERS)]))[:, 0])
    rows = windows * ITEMS
    return UserPairs(
        users,
        np.repeat(np.arange(len(users)), rows),
        np.tile(np.repeat(np.arange(windows), ITEMS), len(users)),
        np.tile(np.arange(ITEMS), len(users) * windows),
        table,
    )


def _chosen_subsets(keys: StreamKeys, windows: int = 2) -> npt.NDArray[np.int64]:
    """Number of the subset that each user keeps in each window: int64[users, windows]."""
    kept = bound_contributions(_pairs(keys, windows), KEPT, keys)
    assert len(kept) == USERS * windows * KEPT
    items = kept.items.reshape(USERS, windows, KEPT)
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


def test_identities_and_choices_do_not_depend_on_the_run() -> None:
    """Budgets that carry over need stable ids; another key gives others."""
    one = stream_keys()
    other = stream_keys(run_id="run 2", plan="plan 2", threshold=7)
    labels = pa.array([f"id {number}" for number in range(1_000)])
    assert np.array_equal(one.hash_users(labels), other.hash_users(labels))
    assert np.array_equal(one.hash_items(labels), other.hash_items(labels))
    assert np.array_equal(one.widen_users(_users()[0]), other.widen_users(_users()[0]))
    assert np.array_equal(_chosen_subsets(one), _chosen_subsets(other))

    foreign = stream_keys(secret=SECRET[::-1])
    for hasher, again in ((one.hash_users, foreign.hash_users), (one.hash_items, foreign.hash_items)):
        assert not np.any(hasher(labels) == again(labels))
    assert not np.any(one.hash_users(labels) == one.hash_items(labels)), "users and items have their own keys"
    agreeing = int((_chosen_subsets(one) == _chosen_subsets(foreign)).sum())
    assert not too_many(agreeing, 2 * USERS, 1 / len(SUBSETS))
    assert math.comb(ITEMS, KEPT) == len(SUBSETS)
