"""What a later round draws for: what was named in its block, and neither named nor left out since."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import WINDOWS_AT_ONCE, NamedItems
from dp_transforms.core.round_candidates import Candidates, WindowBlocks
from tests.helpers.rounds_runs import calibrated, left_out_of, trial_with_rounds
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import trial_of

_ITEMS, _SECOND = 5, 30  # windows of the second block


@pytest.mark.parametrize("share", [0, 0.02, 0.5, 1])
@pytest.mark.parametrize("windows", [WINDOWS_AT_ONCE - 1, WINDOWS_AT_ONCE, 200])
def test_what_is_left_out_is_told_and_read_again(windows, share):
    """Of two blocks, by two shards of items, and however it is cut into messages."""
    draws, keys = np.random.default_rng(windows), trial_of(calibrated()).stream_keys(SECRET)
    schedule = WindowSchedule.fixed(0, 10 * (windows + _SECOND), 10)
    of_windows = WindowBlocks(schedule, 10 * windows, 0, windows + _SECOND)
    table, _ = ItemTable.of_labels(pa.array([*map(str, range(_ITEMS))]), keys.hash_items)
    blocks, ones = np.repeat([0, windows], _ITEMS), np.ones(2 * _ITEMS, dtype=np.int64)
    in_blocks = NamedItems(blocks, np.tile(np.arange(_ITEMS), 2), ones, ones, table)
    whole = Candidates.of_names(of_windows, in_blocks, NamedItems.none())
    everything = {(window, str(item)) for window in range(windows + _SECOND) for item in range(_ITEMS)}
    assert _drawn(whole) == everything
    left_out = set()
    told = list[NamedItems]()
    for shard in range(2):
        of_shard = whole.of_shard(shard, 2)
        places = np.concatenate(of_shard.open_places(7))
        places = places[draws.random(len(places)) < share]
        left_out |= _named(of_shard.table, *of_shard.cells_of(places))
        of_shard_told = of_shard.left_out(places)
        told += of_shard_told.halves() or [of_shard_told]
    after = Candidates.of_names(of_windows, in_blocks, NamedItems.of_messages([each.to_bytes() for each in told]))
    assert _drawn(after) == everything - left_out
    assert after.drawn == len(everything) - len(left_out)
    joined = NamedItems.merge(told)
    assert _named(joined.table, *left_out_of(joined)) == left_out
    assert len(joined) <= _ITEMS * (1 + -(-windows // WINDOWS_AT_ONCE))


@pytest.mark.parametrize(("windows", "message"), [([0, 3], "not in its block"), ([3, 2], "must ascend")])
def test_what_cannot_be_a_pair_of_a_later_round_is_refused(windows, message):
    """The second item was named in the first block alone."""
    of_windows = WindowBlocks(WindowSchedule.fixed(0, 40, 10), 20, 0, 4)
    table, _ = ItemTable.of_labels(pa.array(["a", "b"]), trial_of(calibrated()).stream_keys(SECRET).hash_items)
    ones = np.ones(3, dtype=np.int64)
    in_blocks = NamedItems(np.array([0, 0, 2]), np.array([0, 1, 0]), ones, ones, table)
    named = NamedItems(np.array(windows), np.array([1, 1]), ones[:2], ones[:2], table)
    with pytest.raises(ValueError, match=message):
        Candidates.of_names(of_windows, in_blocks, named)


def _drawn(candidates):
    return set().union(
        *(_named(candidates.table, *candidates.cells_of(places)) for places in candidates.open_places(50))
    )


def _named(table, windows, items):
    labels = table.labels.to_pylist()
    return {(window, labels[item]) for window, item in zip(windows.tolist(), items.tolist(), strict=True)}


def test_a_block_that_two_parts_share_is_a_block_of_each():
    """Named by its first window of the part: so the noise of one is not that of the other."""
    trial = trial_with_rounds(35)
    seen = set()
    for first, end in itertools.pairwise((0, 2, 5, 6, 12)):
        blocks, windows = WindowBlocks.of(trial, first, end), np.arange(first, end)
        found = blocks.of_windows(windows)
        assert seen.isdisjoint(found.tolist())
        seen.update(found.tolist())
        assert (found <= windows).all()
        assert (windows < blocks.ends(found)).all()
        assert [first, *np.unique(blocks.ends(found))] == [*np.unique(found), end]
