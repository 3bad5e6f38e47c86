"""A replay by contributions in one round names what the oracle names; the namer at its edges."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems
from tests.helpers.core_runs import EVENT, MICROS, START, WINDOWS, naming_settings, replayed
from tests.helpers.small_runs import SECRET
from tests.helpers.trials import changed
from tests.reference.budgets import replay_weights
from tests.reference.contributions import oracle_names, reports_of


@given(
    log=st.lists(EVENT, max_size=120),
    public=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    also_open=st.booleans(),
    most_tests=st.sampled_from([1, 3, 8]),
    threshold=st.integers(1, 150),
    known_share=st.floats(0, 1),
    forget_after=st.integers(0, 9),
    spacing=st.integers(1, 60),
    sliding=st.sampled_from([1, 3]),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
)
def test_columns_equal_the_oracle(
    log, public, also_open, most_tests, threshold, known_share, forget_after, spacing, sliding, shards, batch_size
):
    chosen = naming_settings(
        WINDOWS,
        most_tests=most_tests,
        threshold=threshold,
        followed_threshold=1 + int((threshold - 1) * known_share),
        forget_after=forget_after,
        spacing=spacing,
        sliding=sliding,
        public=public,
        also_open=also_open,
    )
    found = replayed(log, chosen, shards=shards, batch_size=batch_size, public=public)
    assert found == reports_of(oracle_of(log, chosen, public), chosen)


def oracle_of(log, chosen, public=()):
    keys = chosen.stream_keys(SECRET)
    held = [event for event in log if not public or chosen.takes_open_items or event[1] in public]
    return oracle_names(replay_weights(held, chosen, keys), chosen, keys, public)


def log_of_40_windows(seed):
    """Of 25 users: skewed items that shift with time; a quarter of the windows has no events."""
    draws = random.Random(seed)
    busy = draws.sample(range(40), 30)
    for _ in range(600):
        window, rank = draws.choice(busy), min(int(draws.expovariate(0.8)), 5)
        time = (START + 10 * window) * MICROS + draws.randrange(10 * MICROS)
        yield f"u{draws.randrange(25)}", f"i{(rank + window // 9) % 6}", time


def test_items_are_followed_while_nobody_holds_them_forgotten_and_named_anew():
    """And users have more than they can pay for."""
    named, anew = [], 0
    for seed, forget_after in enumerate([0, 1, 5]):
        numbers = {"most_tests": 12, "threshold": 60, "followed_threshold": 20, "forget_after": forget_after}
        chosen, log = naming_settings(40, run_id=f"run {seed}", **numbers), [*log_of_40_windows(seed)]
        of_run = oracle_of(log, chosen)
        assert replayed(log, chosen, shards=3, batch_size=70) == reports_of(of_run, chosen)
        named += of_run
        anew += sum(not entry.was_known for entry in of_run) - len({entry.item for entry in of_run})
    assert anew > 3
    assert sum(entry.nobody for entry in named) > 10
    assert sum(entry.was_known and not entry.nobody for entry in named) > 50
    assert len({entry.level for entry in named}) > 3


def sums_of(cells, keys):
    """``[(window, label, sum)]`` as columns, each cell with a digest of its own."""
    table, code = ItemTable.of_labels(pa.array([label for _, label, _ in cells], pa.string()), keys.hash_items)
    windows, totals = (np.array([cell[column] for cell in cells], dtype=np.int64) for column in (0, 2))
    order = np.lexsort((code, windows))
    digests = np.stack([np.arange(len(cells)), totals], axis=1).astype(np.uint64)
    return ItemSums(windows[order], code[order], totals[order], digests[order], table)


def names_of(cells, chosen, first=0, end=None):
    keys = chosen.stream_keys(SECRET)
    end = chosen.schedule.horizon if end is None else end
    return ItemNamer(chosen, keys).name_windows(sums_of(cells, keys), FollowedItems.none(), first, end)


def test_a_size_of_fewer_than_5_users_is_not_stated():
    chosen = naming_settings(1, threshold=1000, followed_threshold=300, spacing=600)
    largest = chosen.contributions.weights[-1]
    for likely_noise, size in ((50_000, 0), (1000 - 4 * largest, 0), (999 - 4 * largest, 5)):
        chosen = changed(chosen, likely_noise=likely_noise)
        assert names_of([(0, "a", 1300)], chosen).at_least_users.tolist() == [size]


def test_a_sum_of_nobody_is_refused_where_no_items_are_public():
    """Else what nobody adds to would be tested at a draw of its own, and published."""
    with pytest.raises(ValueError, match="is of a public item"):
        names_of([(0, "a", 0)], naming_settings(6))
