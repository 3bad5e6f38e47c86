"""The columns of mode `looks`, driven the way the DoFns drive them, name what the oracle names: no Beam."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.followed_items import KnownItems
from dp_transforms.monitor.item_namer import ItemNamer
from dp_transforms.monitor.item_sums import ItemSums
from dp_transforms.monitor.named_items import NamedItems
from dp_transforms.monitor.pairs import ItemPairs, item_pairs_of_events
from dp_transforms.monitor.replay_weights import weigh_replay
from tests.helpers.naming_logs import EVENT, WINDOWS, busy_log, domain_table, shuffled
from tests.helpers.naming_oracle import oracle_names, replay_weights
from tests.helpers.naming_runs import naming_settings
from tests.helpers.small_runs import SECRET, batches_of


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
        empty_items = EmptyItems(table, ItemNamer(chosen, keys).empty_item_tail, keys)
        for shard in range(shards):
            by_items[shard] += empty_items.without_sums(0, horizon, shard, shards).messages(most_bytes)
    for batch in batches_of(log, batch_size):
        if table is not None:
            batch = batch.where(table.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        for shard, pairs in item_pairs_of_events(batch, chosen.schedule, keys, shards):
            by_users.setdefault(shard, []).append(pairs.to_bytes())
    for blobs in shuffled(by_users.values(), order):
        pairs = ItemPairs.of_messages(shuffled(blobs, order))
        for shard, sums in weigh_replay(pairs, chosen, keys).shard_by_item(shards):
            by_items[shard] += sums.messages(most_bytes)
    namer, parts = ItemNamer(chosen, keys), []
    for blobs in by_items.values():
        sums = ItemSums.of_messages(shuffled(blobs, order))
        known = KnownItems.none()
        bounds = [0, *sorted({cut for cut in cuts if 0 < cut < horizon}), horizon]
        for first, end in itertools.pairwise(bounds):
            low, high = np.searchsorted(sums.windows, [first, end])
            named = namer.name_windows(sums.select(slice(low, high)), known, first, end)
            known = KnownItems.merge(
                [
                    KnownItems.from_bytes(cell)
                    for cell in shuffled(known.after(named, end, chosen.known_for).to_cells(), order)
                ]
            )
            parts.append(NamedItems.from_bytes(named.to_bytes()))
    return NamedItems.merge(shuffled(parts, order))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    log=st.lists(EVENT, min_size=0, max_size=120),
    domain=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    most_looks=st.sampled_from([1, 3, 8]),
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
    log, domain, most_looks, threshold, known_share, forget_after, spacing, sliding, shards, batch_size, cuts,
    most_bytes, order,
):  # fmt: skip
    chosen = naming_settings(
        WINDOWS,
        most_looks=most_looks,
        threshold=threshold,
        known_threshold=1 + int((threshold - 1) * known_share),
        forget_after=forget_after,
        spacing=spacing,
        sliding=sliding,
        domain=domain,
    )
    found = run_replay(
        log, chosen, shards=shards, batch_size=batch_size, cuts=cuts, order=order, domain=domain, most_bytes=most_bytes
    )
    assert published(found, chosen) == expected(log, chosen, domain)


def busy(source):
    """The number of a user."""
    return source.randrange(25)


def oracle_of(log, chosen, domain=()):
    keys = chosen.stream_keys(SECRET)
    log = [event for event in log if not domain or event[1] in domain]
    return oracle_names(replay_weights(log, chosen, keys), chosen, keys, domain)


def expected(log, chosen, domain=()):
    return sorted(named.published for named in oracle_of(log, chosen, domain))


@pytest.mark.parametrize(("seed", "forget_after"), enumerate([0, 1, 5, 40]))
def test_columns_equal_the_oracle_on_busy_logs(seed, forget_after):
    chosen = naming_settings(
        40, most_looks=12, threshold=60, known_threshold=20, forget_after=forget_after, run_id=f"run {seed}"
    )
    log = busy_log(seed, 40, busy)
    found = run_replay(log, chosen, shards=3, batch_size=70, cuts=range(seed, 40, 7))
    assert published(found, chosen) == expected(log, chosen)


def test_busy_logs_exercise_what_they_are_for():
    """Without known items that nobody holds, forgotten ones and dropped pairs the equalities above would say little."""
    named, again = [], 0
    for seed in range(4):
        chosen = naming_settings(
            40, most_looks=12, threshold=60, known_threshold=20, forget_after=1 + seed, run_id=f"run {seed}"
        )
        log = busy_log(seed, 40, busy)
        of_run = oracle_of(log, chosen)
        named += of_run
        again += sum(not entry.was_known for entry in of_run) - len({entry.item for entry in of_run})
        weights = replay_weights(log, chosen, chosen.stream_keys(SECRET))
        looks = [user for of_cell in weights.values() for user in of_cell]
        assert {looks.count(user) for user in looks} == {12}, "each user has more pairs than its purse can pay"
    assert again > 3, "items are forgotten and named anew"
    assert sum(entry.nobody for entry in named) > 10
    assert all(entry.was_known for entry in named if entry.nobody), "in an open domain"
    assert sum(entry.was_known and not entry.nobody for entry in named) > 50
    assert len({entry.level for entry in named}) > 3
    assert len({entry.at_least_users for entry in named}) > 2
