"""The columns of mode `looks`, driven as the DoFns drive them, name what the oracle names; the namer at its edges."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core import steps
from dp_transforms.core.contributions import Contributions
from dp_transforms.core.item_namer import ItemNamer
from dp_transforms.core.item_sums import ItemSums
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.named_items import FollowedItems, NamedItems
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.public_items import EmptyItems
from tests.helpers.core_runs import EVENT, MICROS, START, WINDOWS, domain_table, shuffled
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET, batches_of
from tests.helpers.trials import changed
from tests.reference.budgets import replay_weights
from tests.reference.contributions import oracle_names


def published(named, chosen):
    """(window, item, level, users) of the reports."""
    return sorted(
        (window, hitter.item, hitter.level, hitter.at_least_users)
        for window, report in named.window_reports(chosen, chosen.stream)
        for hitter in report.heavy_hitters
    )


def run_replay(log, chosen, *, shards=1, batch_size=1000, cuts=(), order=None, domain=(), most_bytes=10**6):
    """The path of an event of a replay. cuts: windows before which the namer starts anew, from the known items."""
    keys = chosen.stream_keys(SECRET)
    order = order or random.Random(0)
    horizon = chosen.schedule.horizon
    by_users = {}
    by_items = {shard: [] for shard in range(shards)}
    table = domain_table(domain, keys)
    if table is not None:
        empty_items = EmptyItems(table, ItemNamer(chosen, keys).empty_item_tail, keys.empty_item_uniforms())
        for shard in range(shards):
            by_items[shard] += empty_items.without_sums(0, horizon, shard, shards).messages(most_bytes)
    for batch in batches_of(log, batch_size):
        if table is not None:
            batch = batch.where(table.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        for _, shard, pairs in contributions_of_events(
            batch, chosen.schedule, keys, windows_per_range=horizon, shards=shards
        ):
            by_users.setdefault(shard, []).append(pairs.to_bytes())
    for blobs in shuffled(by_users.values(), order):
        pairs = Contributions.of_messages(shuffled(blobs, order))
        added = ItemSums.of_weights(pairs, steps.replay_weights(pairs, chosen, keys), keys)
        for shard, sums in added.by_shard(shards):
            by_items[shard] += sums.messages(most_bytes)
    namer, parts = ItemNamer(chosen, keys), []
    for blobs in by_items.values():
        sums = ItemSums.of_messages(shuffled(blobs, order))
        known = FollowedItems.none()
        bounds = [0, *sorted({cut for cut in cuts if 0 < cut < horizon}), horizon]
        for first, end in itertools.pairwise(bounds):
            low, high = np.searchsorted(sums.windows, [first, end])
            named = namer.name_windows(sums.select(slice(low, high)), known, first, end)
            known = FollowedItems.merge(
                [
                    FollowedItems.from_bytes(cell)
                    for cell in shuffled(known.after(named, end, chosen.followed_for).to_chunks(), order)
                ]
            )
            parts.append(NamedItems.from_bytes(named.to_bytes()))
    return NamedItems.merge(shuffled(parts, order))


@given(
    log=st.lists(EVENT, min_size=0, max_size=120),
    domain=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    most_tests=st.sampled_from([1, 3, 8]),
    threshold=st.integers(1, 150),
    known_share=st.floats(0, 1),
    forget_after=st.integers(0, 9),
    spacing=st.integers(1, 60),
    sliding=st.sampled_from([1, 3]),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
    cuts=st.lists(st.integers(1, 7)),
    most_bytes=st.sampled_from([1, 200, 10**6]),
    order=st.randoms(use_true_random=False),
)
def test_columns_equal_the_oracle(
    log, domain, most_tests, threshold, known_share, forget_after, spacing, sliding, shards, batch_size, cuts,
    most_bytes, order,
):  # fmt: skip
    chosen = naming_settings(
        WINDOWS,
        most_tests=most_tests,
        threshold=threshold,
        followed_threshold=1 + int((threshold - 1) * known_share),
        forget_after=forget_after,
        spacing=spacing,
        sliding=sliding,
        domain=domain,
    )
    found = run_replay(
        log, chosen, shards=shards, batch_size=batch_size, cuts=cuts, order=order, domain=domain, most_bytes=most_bytes
    )
    assert published(found, chosen) == expected(log, chosen, domain)


def oracle_of(log, chosen, domain=()):
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_names(replay_weights(log, chosen, keys), chosen, keys, domain)


def expected(log, chosen, domain=()):
    return sorted(named.published for named in oracle_of(log, chosen, domain))


def busy_log(seed):
    """Of 25 users: skewed items that shift with time; a quarter of the 40 windows has no events."""
    source = random.Random(seed)
    quiet = set(source.sample(range(40), 10))
    log = []
    while len(log) < 600:
        window = source.randrange(40)
        if window not in quiet:
            rank = min(int(source.expovariate(0.8)), 5)
            time = (START + 10 * window) * MICROS + source.randrange(10 * MICROS)
            log.append((f"u{source.randrange(25)}", f"i{(rank + window // 9) % 6}", time))
    return log


def test_columns_equal_the_oracle_on_busy_logs():
    """Items are followed while nobody holds them, forgotten, and named anew; users have more than they can pay for."""
    named, again = [], 0
    for seed, forget_after in enumerate([0, 1, 5]):
        chosen = naming_settings(
            40, most_tests=12, threshold=60, followed_threshold=20, forget_after=forget_after, run_id=f"run {seed}"
        )
        log = busy_log(seed)
        of_run = oracle_of(log, chosen)
        found = run_replay(log, chosen, shards=3, batch_size=70, cuts=range(seed, 40, 7))
        assert published(found, chosen) == sorted(entry.published for entry in of_run)
        named += of_run
        again += sum(not entry.was_known for entry in of_run) - len({entry.item for entry in of_run})
    assert again > 3
    assert sum(entry.nobody for entry in named) > 10
    assert all(entry.was_known for entry in named if entry.nobody)
    assert sum(entry.was_known and not entry.nobody for entry in named) > 50
    assert len({entry.level for entry in named}) > 3
    assert len({entry.at_least_users for entry in named}) > 2


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
    with pytest.raises(ValueError, match="is a public item, and the plan has none"):
        names_of([(0, "a", 0)], naming_settings(6))
