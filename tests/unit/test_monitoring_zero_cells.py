"""Cells without holders: they travel like the others, and give way to a cell that has holders."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_transforms.mechanisms.randomness import StreamKeys, sum_modulo_2_128
from dp_transforms.monitor.candidates import find_candidates
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.item_table import ItemTable
from dp_transforms.monitor.query_noise import digests_of_groups
from dp_transforms.plan.window_schedule import WindowSchedule
from tests.helpers.cells import cells_by_label
from tests.helpers.trials import hits_trial

KEYS = StreamKeys(bytes(range(32)), run_id="r", plan_fingerprint="p", stream="s", threshold=5)
Cells = dict[tuple[int, str], list[int]]  # (window, item) -> users

places = st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "c", "d", "é"]))
part_strategy = st.dictionaries(places, st.sets(st.integers(0, 9), max_size=4), max_size=8)


def hash_of(item: str) -> tuple[int, ...]:
    return tuple(KEYS.hash_items(pa.array([item]))[0].tolist())


def cells_of(part: dict[tuple[int, str], set[int]]) -> ItemHolders:
    labels = sorted({item for _, item in part})
    table, positions = ItemTable.of_labels(pa.array(labels, pa.string()), KEYS.hash_items)
    at = dict(zip(labels, positions.tolist(), strict=True))
    ordered = sorted(part, key=lambda place: (place[0], at[place[1]]))
    return ItemHolders(
        np.array([window for window, _ in ordered], dtype=np.int64),
        np.array([at[item] for _, item in ordered], dtype=np.int64),
        np.cumsum([0, *(len(part[place]) for place in ordered)]),
        np.array([user for place in ordered for user in sorted(part[place])], dtype=np.uint64),
        table,
    )


def ordered(cells: Cells) -> list[tuple[tuple[int, str], list[int]]]:
    return sorted(cells.items(), key=lambda entry: (entry[0][0], hash_of(entry[0][1])))


@given(st.lists(part_strategy, min_size=1, max_size=4), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_merging_and_cutting_cells_of_which_some_have_no_holders(
    parts: list[dict[tuple[int, str], set[int]]], shards: int
) -> None:
    # Different users in each part, as the pipeline has it.
    parts = [
        {place: {user + 10 * at for user in users} for place, users in part.items()} for at, part in enumerate(parts)
    ]
    expected: Cells = {}
    for part in parts:
        for place, users in part.items():
            expected[place] = sorted([*expected.get(place, []), *users])
    merged = ItemHolders.merge([ItemHolders.from_bytes(cells_of(part).to_bytes()) for part in parts])
    assert cells_by_label(merged) == ordered(expected)
    assert cells_by_label(ItemHolders.from_bytes(merged.to_bytes())) == ordered(expected)
    by_shard = [entry for _, cells in merged.shard_by_item(shards) for entry in cells_by_label(cells)]
    assert sorted(by_shard) == sorted(expected.items())
    for window, part in merged.by_window():
        assert cells_by_label(merged.select_range(part)) == [
            entry for entry in ordered(expected) if entry[0][0] == window
        ]
    odd = np.arange(1, len(merged), 2)
    assert cells_by_label(merged.select(odd)) == ordered(expected)[1::2]


@given(st.lists(st.integers(0, 3), max_size=12))
def test_the_digest_of_nobody_is_zero(sizes: list[int]) -> None:
    splits = np.cumsum([0, *sizes])
    members = KEYS.widen_users(np.arange(splits[-1], dtype=np.uint64))
    digests = digests_of_groups(members, splits)
    assert digests.shape == (len(sizes), 2)
    for digest, (low, high) in zip(digests, itertools.pairwise(splits.tolist()), strict=True):
        alone = sum_modulo_2_128(members[low:high], np.zeros(1, np.int64))[0] if low < high else np.zeros(2)
        assert digest.tolist() == alone.tolist()


def test_the_front_passes_every_cell_that_nobody_holds() -> None:
    """Whatever the threshold: it is there because its noise is known to reach it. Of held cells hardly one passes."""
    for mode in ("hits", "hits-with-counts", "kms21"):
        chosen = hits_trial(
            stream="s",
            run_id="r",
            fingerprint="p",
            schedule=WindowSchedule.fixed(0, 4, 1),
            mode=mode,
            threshold=90,
            zone_width=0,
            epsilon_per_query=1.0,
            hits_per_user=1,
            max_items_per_user=1,
            epsilon=1.0,
            delta=0.1,
            epsilon_after_hits=(1.0,),
            wide_epsilon_per_query=0.5,
            noise_cap=1,
            domain_size=5,
        )
        part = {(window, item): {1} if item in "ab" else set() for window in range(4) for item in "abcd"}
        passed = {place for place, _ in cells_by_label(find_candidates(cells_of(part), chosen, KEYS))}
        assert passed >= {place for place, users in part.items() if not users}
        assert (passed == set(part)) == (mode == "kms21")
