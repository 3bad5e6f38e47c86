"""The streaming core, driven the way the DoFns drive it, publishes what the oracle publishes: no Beam here."""

import itertools
import random
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_transforms.monitor import heavy_hitter_monitor
from dp_transforms.monitor.empty_items import EmptyItems
from dp_transforms.monitor.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.monitor.item_domain import DomainTable
from dp_transforms.monitor.item_holders import ItemHolders
from dp_transforms.monitor.pairs import UserPairs, bound_contributions, pairs_of_events
from dp_transforms.monitor.query_noise import query_noise
from dp_transforms.monitor.user_budgets import UserBudgets
from tests.helpers.core_runs import busy_log, monitor_settings
from tests.helpers.naming_logs import EVENT, shuffled
from tests.helpers.oracle import oracle_reports, oracle_transcript
from tests.helpers.small_runs import SECRET, batches_of

DOMAIN = ("i0", "i2", "i3", "i4", *(f"other-{number}" for number in range(50)))


def run_core(
    log,
    chosen,
    *,
    windows_per_slab=1,
    shards=1,
    batch_size=1000,
    order=None,
    secret=SECRET,
    domain=(),
    rows_at_once=None,
):
    """The path of an event through the functions of `monitor`; ``order`` shuffles what each grouping hands over.

    rows_at_once: None to close windows one by one, with a state that is stored in between, as a stream does. Else all,
    as a replay does, so many holders at a time.
    """
    keys = chosen.stream_keys(secret)
    order = order or random.Random(0)
    by_users = {}
    by_items = {}
    known = DomainTable.of_labels(pa.array(domain, pa.string()), keys.hash_items) if domain else None
    if known is not None:
        empty_items = EmptyItems(known, query_noise(chosen, keys).empty_item_tail(), keys)
        horizon = chosen.schedule.horizon
        for first, shard in itertools.product(range(0, horizon, windows_per_slab), range(shards)):
            cells = empty_items.without_holders(first, min(first + windows_per_slab, horizon), shard, shards)
            if len(cells):
                by_items.setdefault((first // windows_per_slab, shard), []).append(cells.to_bytes())
    for batch in batches_of(log, batch_size):
        if known is not None:
            batch = batch.where(known.contains(keys.hash_items(batch.item.dictionary))[batch.item.indices.to_numpy()])
        for slab, shard, pairs in pairs_of_events(
            batch, chosen.schedule, keys, windows_per_slab=windows_per_slab, shards=shards
        ):
            by_users.setdefault((slab, shard), []).append(pairs.to_bytes())
    for slab, blobs in shuffled([(slab, blobs) for (slab, _), blobs in by_users.items()], order):
        pairs = UserPairs.of_messages(shuffled(blobs, order))
        bounded = bound_contributions(pairs, chosen.hits.max_items_per_user, keys)
        for shard, cells in ItemHolders.of_pairs(bounded).shard_by_item(shards):
            by_items.setdefault((slab, shard), []).append(cells.to_bytes())
    pending = {}
    for (slab, _), blobs in shuffled(by_items.items(), order):
        cells = ItemHolders.of_messages(shuffled(blobs, order))
        candidates = find_candidates(cells, chosen, keys)
        if len(candidates):
            pending.setdefault(slab, []).append(candidates.to_bytes())

    monitor = HeavyHitterMonitor(chosen, keys)
    state, reports = MonitorState(), []
    parts = [ItemHolders.of_messages(shuffled(pending[slab], order)) for slab in sorted(pending)]
    if rows_at_once is not None:
        with mock.patch.object(heavy_hitter_monitor, "_ROWS_AT_ONCE", rows_at_once):
            return [report for _, report in monitor.close_windows(parts, state)]
    for candidates in parts:
        for window, part in candidates.by_window():
            report, _ = monitor.close_window(window, candidates.select_range(part), state)
            state.budgets = UserBudgets(state.budgets.to_blobs())
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
    windows_per_slab=st.integers(1, 9),
    shards=st.integers(1, 7),
    batch_size=st.integers(1, 130),
    order=st.randoms(use_true_random=False),
    rows_at_once=st.sampled_from([None, 1, 30, 10**6]),
)
def test_core_equals_oracle(
    log, mode, domain, limit, sliding, epsilon, threshold, hits, windows_per_slab, shards, batch_size, order,
    rows_at_once,
):  # fmt: skip
    chosen = monitor_settings(mode, limit, sliding, epsilon=epsilon, threshold=threshold, hits=hits, domain=domain)
    cut = {
        "windows_per_slab": windows_per_slab,
        "shards": shards,
        "batch_size": batch_size,
        "rows_at_once": rows_at_once,
    }
    found = run_core(log, chosen, **cut, order=order, domain=domain)
    assert found == oracle_reports(log, chosen, SECRET, domain)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), sliding=st.sampled_from([1, 3]), limit=st.sampled_from([1, 3]))
@pytest.mark.parametrize("mode", ["hits-with-counts", "hits", "kms21"])
@pytest.mark.parametrize("domain", [(), DOMAIN])
def test_core_equals_oracle_on_busy_logs(mode, domain, seed, sliding, limit):
    log = busy_log(seed)
    chosen = monitor_settings(mode, limit, sliding, threshold=5, domain=domain, run_id=f"run {seed}")
    expected = oracle_reports(log, chosen, SECRET, domain)
    for rows_at_once in (None, 100):
        cut = {"shards": 3, "windows_per_slab": 2, "batch_size": 70, "rows_at_once": rows_at_once}
        assert run_core(log, chosen, **cut, domain=domain) == expected


@pytest.mark.parametrize("mode", ["hits-with-counts", "hits", "kms21"])
@pytest.mark.parametrize("domain", [(), DOMAIN])
@pytest.mark.parametrize("sliding", [1, 3])
def test_busy_logs_exercise_what_they_are_for(mode, domain, sliding):
    """Without reports, bounded users and users kept out in between, the equalities above would say little."""
    transcripts = [
        oracle_transcript(
            busy_log(seed),
            monitor_settings(mode, 1, sliding, threshold=5, domain=domain, run_id=f"run {seed}"),
            SECRET,
            domain,
        )
        for seed in range(10)
    ]
    assert sum(len(found.reports) for found in transcripts) >= 10
    assert sum(len(found.bounded) for found in transcripts) >= 100
    assert sum(found.kept_out for found in transcripts) >= 20
    zones = {hitter.zone for found in transcripts for report in found.reports for hitter in report.heavy_hitters}
    assert zones == ({"above", "between"} if mode == "hits" else {None})
    if domain:
        assert sum(found.false_reports for found in transcripts) >= 10
        assert sum(found.idle for found in transcripts) >= 3 or mode == "hits"
