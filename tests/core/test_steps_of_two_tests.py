"""A stream that tests each contribution twice. That both tests name what they should is in tests/conformance."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from dp_transforms import WindowSchedule
from dp_transforms.core.item_sums import ItemHolders, WeighedItems
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FirstTests, NamedItems
from dp_transforms.core.planned_run import PlannedRun
from dp_transforms.core.stage import Span
from dp_transforms.core.stages import stages_of
from dp_transforms.core.state_chunks import Kind, entries_of_chunk
from tests.helpers.modes import plan_of_mode
from tests.helpers.small_runs import SECRET

SCHEDULE = WindowSchedule.fixed(0, 12 * 3600, 3600)
PLAN = plan_of_mode(
    "contributions-twice", epsilon=2, delta=1e-6, schedule=SCHEDULE, most_contributions=50, forget_after=3
)
RUN = PlannedRun(plan=PLAN, stream="events", run_id="run-1")


def test_what_the_first_test_names_is_followed_in_the_second():
    *_, again = (stage.start(SECRET) for stage in stages_of(RUN, None))
    table, _ = ItemTable.of_labels(pa.array(["named first", "undecided"]), RUN.stream_keys(SECRET).hash_items)
    named = NamedItems.in_all(np.array([4]), table.take([0]))
    holders = np.arange(3, dtype=np.uint64)
    undecided = ItemHolders(np.array([4]), np.array([0]), np.array([3]), holders, table.take([1]))
    state = again.restore([], 4)
    first = FirstTests.from_bytes(FirstTests.of(named, undecided).to_bytes())
    found = again.process(state, first, Span(4, 5), Counter())
    assert found.table.labels.to_pylist() == named.table.labels.to_pylist()  # three users are too few
    stored = [entries_of_chunk(kind, chunk) for kind, chunk in again.delta(state)]
    assert {kind for kind, _ in again.chunks(state)} == {Kind.USER_BUDGETS_1, Kind.FOLLOWED}
    restored = again.restore(stored, 5)
    assert restored.followed.items.table.labels.to_pylist() == named.table.labels.to_pylist()
    assert restored.budgets.of_users(holders).tests.tolist() == [1, 1, 1]
    for late in (8, 9):
        left = again.restore(stored, late).followed.items
        assert len(left) == (late <= 4 + 3)


def test_a_plan_of_a_stream_is_for_streams():
    for use in ({"is_replay": True}, {"is_part": True}):
        with pytest.raises(ValueError, match=r"a plan of a stream cannot be used with a replay\. Make it with use="):
            stages_of(RUN, None, **use)


def test_holders_keep_their_weights_however_rows_are_cut_and_joined():
    table, _ = ItemTable.of_labels(pa.array(["a", "b"]), RUN.stream_keys(SECRET).hash_items)
    rows = [(0, 0, 2), (0, 1, 1), (3, 0, 3)]
    windows, places, counts = (np.array(column) for column in zip(*rows, strict=True))
    holders, weights = np.arange(6, dtype=np.uint64), np.array([7, 8, 9, 10, 11, 12])
    whole = WeighedItems(windows, places, counts, holders, table, weights)
    parts = [part for half in whole.halves() for part in (half.halves() or (half,))]
    joined = WeighedItems.merge(parts[::-1])
    by_user = [dict(zip(each.holders.tolist(), each.weights.tolist(), strict=True)) for each in (whole, joined)]
    assert by_user[0] == by_user[1]
    sums = [each.sums(RUN.stream_keys(SECRET)) for each in (whole, joined)]
    assert sums[0].to_bytes() == sums[1].to_bytes()
    assert sums[0].sums.tolist() == [15, 9, 33]
