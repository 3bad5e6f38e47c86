"""Chunks of a state: they join in any order, are in the buckets of their hashes, and a part reads them all again."""

import pathlib
import tempfile

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from dp_transforms.core.contribution_counters import HitEntries
from dp_transforms.core.named_items import FollowedItems
from dp_transforms.core.state_chunks import (
    BUCKETS,
    Kind,
    buckets_of_shard,
    chunks_by_bucket,
    join_chunks,
    pack_chunk,
    unpack_chunk,
)
from dp_transforms.core.user_budgets import BudgetEntries
from tests.helpers.rounds_runs import followed_of, state_of


def budgets_of(part):
    users = np.array(sorted(part), dtype=np.uint64)
    ones = np.ones(len(users), np.uint32)
    return BudgetEntries(users, np.array([part[int(user)] for user in users], np.int64), ones, 0 * ones)


def hits_of(part):
    users = np.array(sorted(part), dtype=np.uint64)
    return HitEntries(users, np.array([part[int(user)] for user in users], dtype=np.uint32))


JOINS = {  # how entries are made of numbers by user or item, which number stays, and how they are read
    Kind.USER_BUDGETS: (budgets_of, min, lambda found: (found.users, found.left)),
    Kind.HITS: (hits_of, max, lambda found: (found.users, found.hits)),
    Kind.FOLLOWED: (
        lambda part: followed_of([str(item) for item in part], list(part.values())),
        max,
        lambda found: (np.array(found.table.labels.to_pylist(), dtype=np.uint64), found.last_named),
    ),
}


@pytest.mark.parametrize("kind", JOINS)
@settings(max_examples=15)
@given(
    parts=st.lists(st.dictionaries(st.integers(0, 30) | st.integers(0, 2**64 - 1), st.integers(1, 9), max_size=20)),
    source=st.randoms(use_true_random=False),
    shards=st.sampled_from([1, 2, 8]),
)
def test_entries_join_to_the_later_one_in_any_order_and_a_part_reads_them_all(kind, parts, source, shards):
    """The least that is left, the most that was paid, the window that an item was named in last."""
    make, later, numbers = JOINS[kind]
    cells, expected = [], {}
    for part in parts:
        cells += [cell for _, cell in chunks_by_bucket(make(part))]
        expected |= {key: later(value, expected.get(key, value)) for key, value in part.items()}
    joined = join_chunks(kind, cells)
    source.shuffle(cells)
    assert join_chunks(kind, [*cells, *cells[:3], *joined]) == joined
    with tempfile.TemporaryDirectory() as folder:
        part = state_of(pathlib.Path(folder) / "state", [(kind, cell) for cell in cells], 3, 9)
        read = [each for shard in range(shards) for each in part.entries(kind, shard, shards)]
    for found in (type(make({})).of_messages(joined), type(make({})).merge(read)):
        keys, values = numbers(found)
        assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == expected
    assert sum(map(len, read)) == len(expected), "each is in one shard"


def test_items_that_were_named_long_ago_are_forgotten():
    cells = [cell for _, cell in chunks_by_bucket(followed_of(["a", "b", "c"], [3, 4, 5]))]
    for named_from, kept in ((3, {"a", "b", "c"}), (4, {"b", "c"}), (6, set())):
        found = FollowedItems.of_messages(join_chunks(Kind.FOLLOWED, cells, named_from=named_from))
        assert set(found.table.labels.to_pylist()) == kept


@given(st.integers(0, 2**64 - 1), st.integers(1, 200))
def test_the_bucket_of_a_hash_is_among_those_of_its_shard(value, shards):
    assert value % BUCKETS in buckets_of_shard(value % shards, shards)


def test_a_chunk_travels_with_its_kind_and_bucket():
    for kind in Kind:
        assert unpack_chunk(pack_chunk(kind, BUCKETS - 1, b"chunk")) == (kind, BUCKETS - 1, b"chunk")
