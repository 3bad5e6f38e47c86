"""The streaming core, without Beam, publishes what the oracle publishes; what a mode adds to a count, cell by cell."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_transforms.core.contribution_counters import ContributionCounters, HitEntries
from dp_transforms.core.contributions import Contributions, bound_contributions
from dp_transforms.core.heavy_hitter_monitor import HeavyHitterMonitor, MonitorState, find_candidates
from dp_transforms.core.hit_noise import digests_of_groups, query_noise
from dp_transforms.core.item_sums import ItemHolders
from dp_transforms.core.item_table import ItemTable
from dp_transforms.core.pack_contributions import contributions_of_events
from dp_transforms.core.public_items import EmptyItems
from tests.helpers.core_runs import EVENT, busy_log, close_window, monitor_settings, shuffled
from tests.helpers.small_runs import SECRET, batches_of
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


def test_digests_are_sums_and_an_empty_group_has_none():
    members = np.array([[1, 5], [2**64 - 1, 2**64 - 1], [7, 7]], dtype=np.uint64)
    found = digests_of_groups(members, np.array([0, 0, 2, 2, 3, 3]))
    assert [integer_of(row) for row in found] == [0, (1 << 64) + 4, 0, (7 << 64) + 7, 0]
    assert digests_of_groups(members[:0], np.array([0, 0])).tolist() == [[0, 0]]
