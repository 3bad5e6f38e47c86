"""The streaming core, without Beam, publishes what the oracle publishes; what a mode adds to a count, cell by cell."""

import functools
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.contributions import Contributions, bound_contributions
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, WindowQueries, find_candidates
from dp_transforms.core.hit_noise import SingleNoise, digests_of_groups, query_noise
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.public_items import EmptyItems
from tests.helpers.core_runs import busy_log, close_window, monitor_settings
from tests.helpers.naming_logs import EVENT, shuffled
from tests.helpers.small_runs import SECRET, batches_of
from tests.reference.hits import SingleNoise as ReferenceNoise
from tests.reference.hits import oracle_reports, oracle_transcript
from tests.reference.log import integer_of

DOMAIN = ("i0", "i2", "i3", "i4", *(f"other-{number}" for number in range(50)))


def run_core(
    log,
    chosen,
    *,
    windows_per_range=1,
    shards=1,
    batch_size=1000,
    order=None,
    secret=SECRET,
    domain=(),
    at_once=None,
):
    """The path of an event through the functions of `monitor`; ``order`` shuffles what each grouping hands over.

    at_once: None to close windows one by one, with a state that is stored in between, as a stream does. Else all,
    as a replay does, so many holders at a time.
    """
    keys = chosen.stream_keys(secret)
    order = order or random.Random(0)
    by_users = {}
    by_items = {}
    known = ItemTable.of_labels(pa.array(domain, pa.string()), keys.hash_items)[0] if domain else None
    if known is not None:
        empty_items = EmptyItems(known, query_noise(chosen, keys).empty_item_tail(), keys.empty_item_uniforms())
        horizon = chosen.schedule.horizon
        for first, shard in itertools.product(range(0, horizon, windows_per_range), range(shards)):
            cells = empty_items.without_holders(first, min(first + windows_per_range, horizon), shard, shards)
            if len(cells):
                by_items.setdefault((first // windows_per_range, shard), []).append(cells.to_bytes())
    for batch in batches_of(log, batch_size):
        if known is not None:
            batch = batch.where(known.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        for window_range, shard, pairs in contributions_of_events(
            batch, chosen.schedule, keys, windows_per_range=windows_per_range, shards=shards
        ):
            by_users.setdefault((window_range, shard), []).append(pairs.to_bytes())
    for window_range, blobs in shuffled(
        [(window_range, blobs) for (window_range, _), blobs in by_users.items()], order
    ):
        pairs = Contributions.of_messages(shuffled(blobs, order))
        bounded = bound_contributions(pairs, chosen.hits.max_items_per_user, keys)
        for shard, cells in ItemHolders.of_contributions(bounded).by_shard(shards):
            by_items.setdefault((window_range, shard), []).append(cells.to_bytes())
    pending = {}
    for (window_range, _), blobs in shuffled(by_items.items(), order):
        cells = ItemHolders.of_messages(shuffled(blobs, order))
        candidates = find_candidates(cells, chosen, keys)
        if len(candidates):
            pending.setdefault(window_range, []).append(candidates.to_bytes())

    monitor = HeavyHitterMonitor(chosen, keys)
    state, reports = MonitorState(), []
    parts = [ItemHolders.of_messages(shuffled(pending[window_range], order)) for window_range in sorted(pending)]
    if at_once:
        return [report for _, report in monitor.close_windows(parts, state)]
    for candidates in parts:
        for window, part in candidates.by_window():
            report = close_window(monitor, window, candidates.select_range(part), state)
            state.budgets = ContributionCounters(map(HitEntries.from_bytes, state.budgets.chunks()))
            reports += [report] if report is not None else []
    return reports


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    log=st.lists(EVENT, min_size=0, max_size=120),
    mode=st.sampled_from(["hits-with-counts", "hits", "kms21"]),
    domain=st.sampled_from([(), ("a",), ("c", "b", "nobody's", "0", "", "é"), tuple("abcdefghij")]),
    limit=st.sampled_from([1, 3]),
    sliding=st.sampled_from([1, 3]),
    epsilon=st.floats(0.5, 2),
    threshold=st.integers(3, 8),
    hits=st.integers(1, 3),
    windows_per_range=st.integers(1, 9),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
    order=st.randoms(use_true_random=False),
    at_once=st.booleans(),
)
def test_core_equals_oracle(
    log, mode, domain, limit, sliding, epsilon, threshold, hits, windows_per_range, shards, batch_size, order,
    at_once,
):  # fmt: skip
    chosen = monitor_settings(mode, limit, sliding, epsilon=epsilon, threshold=threshold, hits=hits, domain=domain)
    cut = {
        "windows_per_range": windows_per_range,
        "shards": shards,
        "batch_size": batch_size,
        "at_once": at_once,
    }
    found = run_core(log, chosen, **cut, order=order, domain=domain)
    assert found == oracle_reports(log, chosen, SECRET, domain)


@pytest.mark.parametrize("mode", ["hits-with-counts", "hits", "kms21"])
@pytest.mark.parametrize("domain", [(), DOMAIN])
def test_core_equals_oracle_on_busy_logs(mode, domain):
    """Users are bounded, charged, excluded and kept out, and of public items some are published that nobody holds."""
    transcripts = []
    for seed, (sliding, limit) in enumerate([(1, 1), (3, 1), (1, 3), (3, 3)]):
        log = busy_log(seed)
        chosen = monitor_settings(mode, limit, sliding, threshold=5, domain=domain, run_id=f"run {seed}")
        transcripts.append(oracle_transcript(log, chosen, SECRET, domain))
        for at_once in (None, 100):
            cut = {"shards": 3, "windows_per_range": 2, "batch_size": 70, "at_once": at_once}
            assert run_core(log, chosen, **cut, domain=domain) == transcripts[-1].reports
    assert sum(len(found.reports) for found in transcripts) >= 5
    assert sum(len(found.bounded) for found in transcripts) >= 50
    assert sum(found.kept_out for found in transcripts) >= 10
    zones = {hitter.zone for found in transcripts for report in found.reports for hitter in report.heavy_hitters}
    assert zones == ({"above", "between"} if mode == "hits" else {None})
    assert sum(found.false_reports for found in transcripts) >= 4 * bool(domain)


ONE = 1 << 128


ITEMS = [f"item {number}" for number in range(60)]


@functools.cache
def cells():
    """60 items in window 2, held by 0 to 9 of 40 users; beside them a window that is not asked about."""
    source = np.random.default_rng(4)
    keys = monitor_settings().stream_keys(SECRET)
    users = np.sort(keys.hash_users(pa.array([f"u{number}" for number in range(40)]))[:, 0])
    table, positions = ItemTable.of_labels(pa.array(ITEMS, pa.string()), keys.hash_items)
    groups = [np.sort(source.choice(users, size=number % 10, replace=False)) for number in range(60)]
    return ItemHolders(
        np.repeat(np.array([2, 5]), [50, 10]),
        np.concatenate([np.sort(positions)[:50], np.sort(positions)[50:]]),
        np.array([*map(len, groups)]),
        np.concatenate(groups),
        table,
    )


def groups_of(held):
    return [held.holders[low:high].tolist() for low, high in zip(held.splits[:-1], held.splits[1:], strict=True)]


def asked(chosen, kinds):
    """The second stage of cells whose users have paid for 0 .. kinds - 1 hits each, and what the oracle draws then."""
    keys, held = chosen.stream_keys(SECRET), cells().select_range(slice(0, 50))
    users, user_of_row = np.unique(held.holders, return_inverse=True)
    paid = {user: number % kinds for number, user in enumerate(users.tolist())}
    hits = np.array(list(paid.values()), dtype=np.uint32)
    noise, oracle = SingleNoise(chosen.hits.epsilon_per_query, chosen.threshold, keys), ReferenceNoise(chosen, keys)

    def draw(item, active, holders):
        return oracle.draw(2, tuple(held.table.hashes[item].tolist()), active, len(holders))

    return held, paid, hits, WindowQueries(2, held, user_of_row, hits, chosen, keys, noise), draw


@pytest.mark.parametrize("domain", [(), tuple(ITEMS)])
def test_the_second_stage_counts_and_digests_active_holders_alone(domain):
    """Users that have paid all their hits give nothing: neither to the count, nor to the key of the noise."""
    chosen = monitor_settings(threshold=4, hits=2, domain=domain)
    held, paid, hits, queries, draw = asked(chosen, 4)  # half of the users have paid two or more
    for cell, (item, holders) in enumerate(zip(held.items.tolist(), groups_of(held), strict=True)):
        active = [user for user in holders if paid[user] < chosen.hits_per_user]
        drawn = draw(item, active, holders)
        wanted = len(active) + drawn if active or domain else chosen.threshold - 1
        assert queries._noisy_counts[cell] == wanted
    assert hits.tolist() == list(paid.values()), "nothing is charged before an item is published"


def test_a_charge_goes_to_each_active_holder_once_and_no_further():
    """Cell by cell, against counters in a dict: what is outdated is asked again with those that are left."""
    chosen = monitor_settings(threshold=3, hits=2, epsilon=2.0)
    held, paid, hits, queries, draw = asked(chosen, 3)
    before = dict(paid)
    published, kept_out = [], 0
    for cell, (item, holders) in enumerate(zip(held.items.tolist(), groups_of(held), strict=True)):
        active = [user for user in holders if paid[user] < chosen.hits_per_user]
        kept_out += len([user for user in holders if before[user] < chosen.hits_per_user]) - len(active)
        if not active:
            continue
        drawn = draw(item, active, holders)
        if len(active) + drawn >= chosen.threshold:
            published.append((cell, len(active) + drawn))
            for user in active:
                paid[user] += 1
    found = []
    for cell, noisy_count in queries.heavy():
        found.append((cell, noisy_count))
        queries.charge(cell)
    assert found == published
    assert len(published) >= 5
    assert kept_out >= 5, "some were excluded by what this window itself charged"
    assert hits.tolist() == list(paid.values())


def test_digests_are_sums_and_an_empty_group_has_none():
    members = np.array([[1, 5], [2**64 - 1, 2**64 - 1], [7, 7]], dtype=np.uint64)
    found = digests_of_groups(members, np.array([0, 0, 2, 2, 3, 3]))
    assert [integer_of(row) for row in found] == [0, ((1 << 64) + 5 + ONE - 1) % ONE, 0, (7 << 64) + 7, 0]
    assert digests_of_groups(members[:0], np.array([0, 0])).tolist() == [[0, 0]]
